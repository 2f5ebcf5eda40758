"""All codemods and rules, and which codemods have something to say about a file."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import fsdp_migrate.codemods
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

Find = Callable[[Context], Iterator[Found]]

# Where two rules change the same code the first one is taken; `swap` runs after all, on what they leave.
_ORDER = ("constructor", "uses", "assumptions", "by_hand", "libraries")
_WITH_RULES_ALONE = (
    "requirements",
    "same",
    "silenced",
    "stale_words",
    "still_used",
    "swap",
    "without_use",
)
_registered: list[Codemod] = []


@dataclass(frozen=True)
class Codemod:
    """A function that looks at one file, and yields what its rules find there.

    Attributes:
        name: its module, as in `uses.scaler`.
        words: a file without any of them, as text or among its FSDP1 names, has nothing for it; without words all files may.
        forms: the forms in which it is called; empty for all.
    """

    name: str
    find: Find
    words: tuple[str, ...] = ()
    forms: tuple[str, ...] = ()

    def may_find(self, text: str, names: Collection[str], form: str) -> bool:
        """Return whether it has to look at a file with this text and these FSDP1 names."""
        if self.forms and form not in self.forms:
            return False
        return not self.words or any(word in names or word in text for word in self.words)


def codemod(*, words: tuple[str, ...] = (), forms: tuple[str, ...] = ()) -> Callable[[Find], Find]:
    """Register a function that finds constructs; `Codemod` has the arguments."""

    def register(find: Find) -> Find:
        name = find.__module__.partition(".codemods.")[2]
        _registered.append(Codemod(name, find, words, forms))
        return find

    return register


@cache
def _modules() -> list[ModuleType]:
    """Every module with codemods or rules, imported: that registers the codemods."""
    home = fsdp_migrate.codemods
    names = [f"{home.__name__}.{name}" for name in _WITH_RULES_ALONE]
    for folder in _ORDER:
        package = import_module(f"{home.__name__}.{folder}")
        names += [f"{package.__name__}.{found.name}" for found in iter_modules(package.__path__)]
    return [import_module(name) for name in names]


@cache
def codemods() -> list[Codemod]:
    """All codemods, in the order in which they look at a file."""
    _modules()

    def place(codemod: Codemod) -> tuple[int, str]:
        return _ORDER.index(codemod.name.partition(".")[0]), codemod.name

    return sorted(_registered, key=place)


def asked(context: Context, takes: Callable[[str], bool] | None = None) -> Iterator[Codemod]:
    """The codemods that may find something in a file, of those whose names are taken."""
    text = context.file.text
    names = {*context.references.values()}
    for codemod in codemods():
        is_taken = takes is None or takes(codemod.name)
        if is_taken and codemod.may_find(text, names, context.form):
            yield codemod


def find(context: Context, takes: Callable[[str], bool] | None = None) -> Iterator[Found]:
    """What they find there; of a statement that a special rule leaves to the user, the general one says nothing."""
    reported: set[ast.stmt] = set()
    for codemod in asked(context, takes):
        for found in codemod.find(context):
            if found.action is Action.MANUAL:
                statement = context.file.statement(found.node)
                if statement in reported and found.rule.code == "FSDP529":
                    continue
                if statement is not None:
                    reported.add(statement)
            yield found


@cache
def all_rules() -> list[Rule]:
    """Every rule, in the order of codes."""
    rules = {
        value.code: value
        for module in _modules()
        for value in vars(module).values()
        if isinstance(value, Rule)
    }
    return sorted(rules.values(), key=lambda rule: rule.code)


def rule_for(code: str) -> Rule | None:
    """The rule with a code, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)


def rule_named(name: str) -> Rule | None:
    """The rule with a name, in any case; None if there is none."""
    return next((rule for rule in all_rules() if rule.name == name.lower()), None)


def unknown(code: str) -> str:
    """The message for a code, or a name, that no rule has."""
    from difflib import get_close_matches

    close = get_close_matches(code.upper(), [rule.code for rule in all_rules()], 3)
    close = close or get_close_matches(code.lower(), [rule.name for rule in all_rules()], 3)
    hint = ""
    if close:
        hint = f"; close ones: {', '.join(close)}"
    return f"no rule has the code {code}{hint} (`fsdp-migrate rules` lists all)"
