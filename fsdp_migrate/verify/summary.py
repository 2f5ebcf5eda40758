"""`--summary`: the result as a few lines of Markdown, as for GitHub's job summary."""

from __future__ import annotations

from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict


def markdown(verdict: Verdict, name: str) -> str:
    """A heading, the verdict, the cause, what was not compared and a table."""
    sign = "✅" if verdict.equal else "❌"
    lines = [f"### {sign} fsdp-migrate verify: `{name}`", "", _plain(verdict.line()), ""]
    if verdict.causes:
        cause = verdict.causes[0]
        lines += [f"**Cause:** {_plain(cause.title)}. {_plain(cause.advice)}", ""]
    one, other = verdict.original, verdict.migrated
    lines += [
        "| | original | migrated |",
        "|---|---:|---:|",
        f"| last loss of the first rank | {_last_loss(one)} | {_last_loss(other)} |",
        f"| optimizer steps | {one.steps} | {other.steps} |",
        f"| seconds | {one.seconds:.1f} | {other.seconds:.1f} |",
        f"| peak memory of a rank, MiB | {_peak(one)} | {_peak(other)} |",
        "",
        *(f"- not compared: {_plain(text)}" for text in verdict.uncompared),
        f"- {_plain(verdict.cost)}",
        *(f"- {_plain(note)}" for note in verdict.notes),
        *(f"- {_plain(f'{name}: {value}')}" for name, value in _run_as(verdict)),
        "",
    ]
    return "\n".join(lines)


def failed(failure: ProgramFailed, name: str) -> str:
    """The same for a program that did not come to its end."""
    fence = "````"
    lines = [f"### ❌ fsdp-migrate verify: `{name}`", "", _plain(str(failure)), ""]
    return "\n".join([*lines, fence, failure.details, fence, ""])


def _plain(text: str) -> str:
    """Text that Markdown leaves alone."""
    for character in "\\`*_<>[]|#":
        text = text.replace(character, f"\\{character}")
    return text


def _run_as(verdict: Verdict) -> list[tuple[str, str]]:
    return [(n, v) for n, v in verdict.environment.items() if n in ("commit", "date", "command")]


def _last_loss(run: Run) -> str:
    losses = run.ranks[0].losses if run.ranks else []
    return f"{losses[-1]:.8g}" if losses else "-"


def _peak(run: Run) -> str:
    return f"{max((rank.peak_memory_bytes for rank in run.ranks), default=0) / 2**20:.0f}"
