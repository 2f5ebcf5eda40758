"""The rules in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fsdp_migrate.views.terminal import paint

if TYPE_CHECKING:
    from fsdp_migrate.codemods.rule import Rule


def render_rules(rules: Sequence[Rule]) -> str:
    """One line a rule: code, name, summary."""
    ordered = sorted(rules, key=lambda rule: rule.code)
    width = max((len(rule.name) for rule in ordered), default=0)
    return "\n".join(
        f"{paint(rule.code, 'stdout', bold=True)}  {rule.name:{width}}  {rule.summary}"
        for rule in ordered
    )


def unknown_code(code: str, rules: Sequence[Rule]) -> str:
    """The message for a code that no rule has."""
    close = get_close_matches(code.upper(), [rule.code for rule in rules], 3)
    hint = f"; close ones: {', '.join(close)}" if close else ""
    return f"no rule has the code {code}{hint} (`fsdp-migrate rules` lists all)"
