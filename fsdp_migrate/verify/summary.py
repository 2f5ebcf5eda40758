"""`--summary`: the result as a few lines of Markdown, as for GitHub's job summary."""

from __future__ import annotations

from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict


def markdown(verdict: Verdict, name: str) -> str:
    """A heading, the verdict, the cause, what was not compared and a table."""
    sign = "✅" if verdict.equal else "❌"
    lines = [f"### {sign} fsdp-migrate verify: `{name}`", "", _plain(verdict.line()), ""]
    if cause := verdict.cause:
        lines += [f"**Cause:** {_plain(cause.title)}. {_plain(cause.advice)}", ""]
    runs = verdict.original, verdict.migrated
    rows = {
        "last loss of the first rank": map(_last_loss, runs),
        "optimizer steps": (str(run.steps) for run in runs),
        "seconds": (f"{run.seconds:.1f}" for run in runs),
        "peak memory of a rank, MiB": (f"{run.peak_memory_bytes / 2**20:.0f}" for run in runs),
    }
    ran = verdict.environment.items()
    run_as = (f"{key}: {value}" for key, value in ran if key in ("commit", "date", "command"))
    lines += ["| | original | migrated |", "|---|---:|---:|"]
    lines += [f"| {' | '.join([title, *values])} |" for title, values in rows.items()]
    lines += ["", *(f"- {_plain(text)}" for text in [*verdict.remarks, *run_as]), ""]
    return "\n".join(lines)


def failed(failure: ProgramFailed, name: str) -> str:
    """The same for a program that failed."""
    fence = "````"
    lines = [f"### ❌ fsdp-migrate verify: `{name}`", "", _plain(str(failure)), ""]
    return "\n".join([*lines, fence, failure.details, fence, ""])


def _plain(text: str) -> str:
    """Text that Markdown leaves alone."""
    for character in "\\`*_<>[]|#":
        text = text.replace(character, f"\\{character}")
    return text


def _last_loss(run: Run) -> str:
    losses = run.ranks[0].losses if run.ranks else []
    return f"{losses[-1]:.8g}" if losses else "-"
