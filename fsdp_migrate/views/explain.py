"""The rule catalogue in the terminal, from the same entries that the rules' tests run."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

from fsdp_migrate.views.terminal import paint

if TYPE_CHECKING:
    from fsdp_migrate.codemods.rule import Example, Rule


def render_rules(rules: Sequence[Rule]) -> str:
    """One line a rule: code, name, summary."""
    ordered = sorted(rules, key=lambda rule: rule.code)
    width = max((len(rule.name) for rule in ordered), default=0)
    return "\n".join(
        f"{paint(rule.code, 'stdout', bold=True)}  {rule.name:{width}}  {rule.summary}"
        for rule in ordered
    )


def render_rule(rule: Rule) -> str:
    """What the rule is about and why its rewrite is sound, then its examples."""
    heading = paint(f"{rule.code} {rule.name}", "stdout", bold=True)
    parts = [heading, rule.summary, rule.explanation.strip()]
    parts.extend(_example(example) for example in rule.examples)
    return "\n\n".join(part for part in parts if part)


def unknown_code(code: str, rules: Sequence[Rule]) -> str:
    """The message for a code that no rule has."""
    close = get_close_matches(code.upper(), [rule.code for rule in rules], 3)
    hint = f"; close ones: {', '.join(close)}" if close else ""
    return f"no rule has the code {code}{hint} (`fsdp-migrate rules` lists all)"


def _example(example: Example) -> str:
    parts = [paint(f"Example: {example.title}", "stdout", bold=True), _indented(example.before)]
    if example.after is not None:
        parts += [paint("becomes", "stdout", fg="green"), _indented(example.after)]
    if example.message:
        parts += [paint("is reported as", "stdout", fg="yellow"), _indented(example.message)]
    return "\n\n".join(parts)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}".rstrip() for line in text.strip("\n").splitlines())
