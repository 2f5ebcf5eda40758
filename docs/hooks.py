"""What the site adds to the pages: the list of rules, and colours for diffs, which also show without a network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_DIFF = re.compile(r'<code class="language-diff">(.*?)</code>', re.DOTALL)
_INLINE = re.compile(r"(?<!<pre>)<code>([^<]{1,40})</code>")
_KINDS = {"+": "added", "-": "removed"}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page; the page about all rules gets their table."""
    if page.file.src_uri != "rules/README.md":
        return markdown
    rows = ["| code | name | what is done |", "|---|---|---|"]
    for file in sorted(Path(page.file.abs_src_path).parent.glob("FSDP*.md")):
        title, _, summary = file.read_text("utf-8").split("\n")[:3]
        code, name = title.removeprefix("# ").split()
        rows.append(f"| [{code}]({code}.md) | {name} | {summary} |")
    return "\n".join([markdown, *rows])


def on_page_content(html: str, **_: Any) -> str:
    """The page with coloured diffs, and with short code such as `--form torch` on one line."""
    html = _DIFF.sub(_coloured, html)
    return _INLINE.sub(r'<code class="short">\1</code>', html)


def _coloured(block: re.Match[str]) -> str:
    """A diff whose lines say by a class what they are; the theme's script leaves it alone."""
    lines = []
    for line in block[1].splitlines():
        kind = _KINDS.get(line[:1])
        if kind is not None:
            line = f'<span class="{kind}">{line}</span>'
        lines.append(line)
    return f'<code class="nohighlight">{chr(10).join(lines)}\n</code>'
