"""The lines that differ, in the HTML page: links at the top, and below for each line its surroundings and both values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from fsdp_migrate.verify.where.lines import Line, shortened


def links(lines: Sequence[Line]) -> Iterator[str]:
    """A list of the lines, each a link to its part of the page."""
    if not lines:
        return
    yield "<p><b>Where the programs differ:</b></p><ol>"
    for line in lines:
        place = f'<a href="#{_anchor(line)}">{escape(line.place)}</a>'
        pair = line.pairs[0]
        old, new = shortened(pair.original, pair.migrated)
        values = (
            f"{escape(pair.name)} was <code>{escape(old)}</code>, is <code>{escape(new)}</code>"
        )
        yield f"<li>{place} <code>{escape(line.source)}</code>: {values}</li>"
    yield "</ol>"


def section(lines: Sequence[Line]) -> Iterator[str]:
    """For each line the source around it, and a table of what differs."""
    if not lines:
        return
    yield "<h2>Lines that differ</h2>"
    for line in lines:
        if line.rules:
            rules = f", {', '.join(line.rules)}"
        else:
            rules = ""
        title = f"{line.place}, rank {line.rank}{rules}"
        yield f'<h3 id="{_anchor(line)}">{escape(title)}</h3>'
        yield f"<pre>{''.join(_source(line))}</pre>"
        yield "<table><tr><th></th><th>original</th><th>migrated</th></tr>"
        for pair in line.pairs:
            cells = (pair.name, pair.original, pair.migrated)
            yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        yield "</table>"


def _source(line: Line) -> Iterator[str]:
    for number, text in line.around:
        kind = ""
        if number == line.line:
            kind = ' class="del"'
        yield f"<span{kind}>{number:>5}  {escape(text)}</span>"


def _anchor(line: Line) -> str:
    return escape(f"line-{line.place}", quote=True)
