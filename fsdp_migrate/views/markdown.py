"""Pieces of Markdown: code spans, words that are nothing else, lists that fold."""

import re
from collections.abc import Iterable, Iterator, Sequence

from fsdp_migrate.findings import Finding
from fsdp_migrate.views.terminal import printable

_MOST = 200  # findings of a list: GitHub cuts a text at 65,536 characters
_PLACES = 5  # places of one message


def code(text: str) -> str:
    """A code span, whatever backticks and bars are in it."""
    text = printable(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    space = ""
    if "`" in text:
        space = " "
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def escaped(text: str) -> str:
    """Words with code spans; nothing in them is HTML, a link, or the name of a person."""
    parts = re.split(r"(`[^`]+`)", printable(text))
    for place, part in enumerate(parts):
        if not part.startswith("`"):
            parts[place] = re.sub(r"([\\<>\[\]*@#|]|\b_|_\b)", r"\\\1", part)
    return "".join(parts)


def places(findings: Iterable[Finding]) -> str:
    """Where findings are: the first few of them, and how many more there are."""
    named = list(dict.fromkeys([f"{each.path}:{each.line}" for each in sorted(findings)]))
    shown = ", ".join(map(code, named[:_PLACES]))
    more = len(named) - _PLACES
    if more > 0:
        return f"{shown} and {more} more"
    return shown


def folded(title: str, findings: Sequence[Finding], *, is_open: bool = False) -> Iterator[str]:
    """A list of findings that a reader can fold; nothing where there are none."""
    if not findings:
        return
    state = ""
    if is_open:
        state = " open"
    yield f"<details{state}><summary>{title}: {len(findings)}</summary>"
    yield ""
    for each in sorted(findings)[:_MOST]:
        place = code(f"{each.path}:{each.line}")
        yield f"- {place} {each.code} {code(each.construct)}: {escaped(each.message)}"
    if len(findings) > _MOST:
        yield f"- {len(findings) - _MOST} more"
    yield from ("", "</details>", "")
