"""A page in Markdown as a terminal shows it: prose in lines of its width, tables that are wider as lists."""

import re
from collections.abc import Iterator

from fsdp_migrate.views.terminal import wrapped

_CELL = re.compile(r"(?<!\\)\|")
_ITEM = re.compile(r"(\s*(?:[-*]|\d+\.) )(.*)", re.DOTALL)


def for_terminal(page: str, width: int) -> str:
    """A page for a terminal of a width; for width 0, which is none, the page itself."""
    if not width:
        return page
    lines: list[str] = []
    for block in _blocks(page.splitlines()):
        lines += _shown(block, width)
    return "\n".join(lines)


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """The page in pieces: code, tables, empty lines, and lines of prose that belong together."""
    block: list[str] = []
    is_code = False
    for line in lines:
        fence = line.startswith("```")
        if is_code or fence:
            if fence and not is_code and block:
                yield block
                block = []
            block.append(line)
            if fence and is_code:
                yield block
                block = []
            is_code = is_code != fence
            continue
        if (block and _kind(line) != _kind(block[-1])) or _ITEM.match(line) or line.startswith("#"):
            yield block
            block = []
        block.append(line)
    yield block


def _kind(line: str) -> str:
    if line.startswith("|"):
        return "table"
    if line.strip():
        return "prose"
    return "empty"


def _shown(block: list[str], width: int) -> list[str]:
    """The lines of a piece of the page."""
    if not block or block[0].startswith(("```", "#")) or _kind(block[0]) == "empty":
        return block
    if _kind(block[0]) == "table":
        if max(map(len, block)) <= width:
            return block
        return _as_list(block, width)
    text = " ".join(line.strip() for line in block)
    item = _ITEM.match(text)
    if item:
        indent = " " * len(item[1])
        return wrapped(item[2], width, item[1], indent).splitlines()
    return wrapped(text, width, "", "").splitlines()


def _as_list(table: list[str], width: int) -> list[str]:
    """A table as a list: of each row the first cell, and below it each other one behind its title."""
    titles, _, *rows = [_cells(line) for line in table]
    lines = []
    for row in rows:
        first, *others = row
        lines += wrapped(first, width, "- ", "  ").splitlines()
        for title, cell in zip(titles[1:], others, strict=False):
            text = cell
            if title and len(others) > 1:
                text = f"{title}: {cell}"
            lines += wrapped(text, width, "    ", "      ").splitlines()
    return lines


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in _CELL.split(line.strip().strip("|"))]
