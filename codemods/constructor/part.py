"""What an argument of a constructor adds to its code in torch's words, and how its value is found in the file."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import spliced
from fsdp_migrate.codemods.imports import is_pure
from fsdp_migrate.codemods.rule import Edit, Edits, Import
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.scopes import Assigned, Binding, Imported
from fsdp_migrate.facts.values import branches

_NAME = re.compile(r"[^\W\d]\w*")


class AtRunTime(Exception):
    """An argument whose value only a run knows, or which only the runtime gives FSDP2; the message is for users."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one argument adds to the code of a constructor in torch's words.

    Attributes:
        message: what is said of the argument.
        shared: keyword arguments, as source, of every `fully_shard` call.
        child, root: those of the units below the root, and of the root.
        units: the condition by which `{module}` is a unit of its own, as source; "" where the root alone is one.
        above: statements in front, with `{model}` for the model.
        like_fsdp1: keyword arguments of `like_fsdp1`, and `below` the statements that do the same without it.
        edits: changes elsewhere in the file, and `written` the source that they write there.
        removed: code that goes, other than the call itself.
    """

    message: str = ""
    shared: dict[str, str] = field(default_factory=dict)
    child: dict[str, str] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    units: str = ""
    above: tuple[str, ...] = ()
    like_fsdp1: str = ""
    below: tuple[tuple[str, Import], ...] = ()
    imports: tuple[Import, ...] = ()
    edits: tuple[Edits, ...] = ()
    written: tuple[str, ...] = ()
    removed: tuple[ast.AST, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The names that the code reads."""
        given = (*self.shared.values(), *self.child.values(), *self.root.values())
        below = (line for line, _ in self.below)
        every = (*given, self.units, *self.above, self.like_fsdp1, *below, *self.written)
        return frozenset(_NAME.findall(" ".join(every)))


def merged(parts: Iterable[Part]) -> Part:
    """The parts of all arguments together."""
    every = list(parts)
    return Part(
        shared={k: v for part in every for k, v in part.shared.items()},
        child={k: v for part in every for k, v in part.child.items()},
        root={k: v for part in every for k, v in part.root.items()},
        units="".join(part.units for part in every),
        above=tuple(line for part in every for line in part.above),
        like_fsdp1=", ".join(part.like_fsdp1 for part in every if part.like_fsdp1),
        below=tuple(line for part in every for line in part.below),
        imports=tuple(need for part in every for need in part.imports),
        edits=tuple(edits for part in every for edits in part.edits),
        written=tuple(text for part in every for text in part.written),
        removed=tuple(node for part in every for node in part.removed),
    )


def bound(construction: Construction, name: str, text: str) -> tuple[str, tuple[str, ...]]:
    """What to write for a value in each call: its source, or a name where there are several calls, with the statement that
    binds the name."""
    if text.isidentifier() or text in _SHORT or construction.value("auto_wrap_policy") is None:
        return text, ()
    free = construction.context.free(name, construction.call)
    return free, (f"{free} = {bracketed(text)}",)


def bracketed(text: str) -> str:
    """An expression that may go over several lines, for a statement of its own; Black drops spare brackets."""
    return f"({text})" if NEWLINE.search(text) else text


_SHORT = ("True", "False", "CPUOffloadPolicy()")

# What a leaf is in FSDP2, as source; None for what the table does not have.
Table = Callable[[ast.expr], str | None]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """An argument with its leaves translated.

    Attributes:
        text: the expression to write at the constructor.
        leaves: what was translated.
        edits: changes of the assignments that give it its value.
        name: the name that is kept, if it is one.
        written: the source that the edits write.
        copied: whether the leaves stay where they are, for others that read them.
    """

    text: str
    leaves: tuple[ast.expr, ...]
    edits: tuple[Edits, ...] = ()
    name: str = ""
    written: tuple[str, ...] = ()
    copied: bool = False

    @property
    def removed(self) -> tuple[ast.expr, ...]:
        """The leaves that the rewrite takes out of the file."""
        return () if self.copied else self.leaves


def leaves_of(context: Context, value: ast.expr) -> Iterator[ast.expr]:
    """The expressions in this file that an argument can get its value from."""
    inner = branches(value) or [each.value for each in _assigned(context, value)]
    if not inner:
        yield value
    for each in inner:
        yield from leaves_of(context, each)


def rewritten(
    context: Context,
    value: ast.expr,
    table: Table,
    at: ast.Call,
    *,
    name: str = "",
    change: Callable[[ast.expr], list[Edit]] | None = None,
) -> Rewritten | None:
    """An argument with all its leaves translated; None if one is not known.

    Args:
        at: the constructor.
        name: what a local name that has several values is called from now on; "" where it keeps its name.
        change: the edits of a leaf that is assigned to a name which stays; None to write a single value at the constructor.
    """
    text = _text(context, value, table)
    if text is not None:
        return Rewritten(text, tuple(leaves_of(context, value)))
    assigned = _assigned(context, value)
    texts = [_text(context, each.value, table) for each in assigned]
    if not assigned or None in texts:
        return _constant(context, value, table)
    assert isinstance(value, ast.Name)
    found = tuple(leaf for each in assigned for leaf in leaves_of(context, each.value))
    single = len(assigned) == 1
    if not (single and change is None) and _is_only_use(context, value, assigned):
        return _where_assigned(context, value, assigned, texts, found, name, change)
    if single and is_pure(context, assigned[0].value) and is_same(context, assigned[0].value, at):
        return Rewritten(texts[0] or "", found, copied=True)
    return None


def _where_assigned(
    context: Context,
    value: ast.Name,
    assigned: list[Assigned],
    texts: list[str | None],
    leaves: tuple[ast.expr, ...],
    name: str,
    change: Callable[[ast.expr], list[Edit]] | None,
) -> Rewritten:
    """An argument whose name stays, or becomes `name`, with its values translated where they are assigned."""
    single = len(assigned) == 1
    kept = context.free(name, value) if name and not single else value.id

    def edits() -> list[Edit]:
        made = []
        for each, text in zip(assigned, texts, strict=True):
            if kept != value.id:
                made.append(context.replace(each.target, kept))
            if change is not None and not branches(each.value) and isinstance(each.value, ast.Call):
                made += change(each.value)
            else:
                made.append(context.replace(each.value, text or ""))
        return made

    return Rewritten(kept, leaves, (edits,), kept, tuple(text or "" for text in texts))


def is_same(context: Context, value: ast.expr, at: ast.AST) -> bool:
    """Whether the names in an expression mean at another place what they mean where it is, and have one value."""
    for name in (node for node in ast.walk(value) if isinstance(node, ast.Name)):
        here, there = context.file.variable(name), context.file.variable(name, at)
        if (here and here.scope) is not (there and there.scope):
            return False
        bindings = [] if here is None else here.bindings
        bindings = [each for each in bindings if not _is_bound_by(context, each, at)]
        if len(bindings) > 1 and not all(isinstance(each, Imported) for each in bindings):
            return False
    return True


def _is_bound_by(context: Context, binding: Binding, at: ast.AST) -> bool:
    """Whether a binding is that of the statement that a node is in: `model = FSDP(model)` reads the value of before."""
    return isinstance(binding, Assigned) and context.file.statement(
        binding.target
    ) is context.file.statement(at)


def _constant(context: Context, value: ast.expr, table: Table) -> Rewritten | None:
    """A name of an enum's member, here or in another file, which others may read as well."""
    made = context.value(value)
    if made is None or not isinstance(made.node, ast.Attribute) or made.node is value:
        return None
    text = table(made.node)
    return None if text is None else Rewritten(text, (made.node,), copied=True)


def _text(context: Context, value: ast.expr, table: Table) -> str | None:
    """An expression with the leaves that are written in it translated; None if what stays of it names FSDP1."""
    inner = branches(value)
    parts = inner or [getattr(value, "func", value)]
    gone = {node for part in parts for node in ast.walk(part)}
    if any(node in context.references for node in ast.walk(value) if node not in gone):
        return None
    if not inner:
        return table(value)
    edits = []
    for each in inner:
        made = _text(context, each, table)
        if made is None:
            return None
        is_open = not branches(each) and " if " in made
        edits.append(context.replace(each, f"({made})" if is_open else made))
    return spliced(context.file.text, edits, *context.file.span(value))


def _assigned(context: Context, name: ast.expr) -> list[Assigned]:
    """The assignments that can give a name its value; none if it may have another value."""
    bindings = context.file.bindings(name)
    known = [each for each in bindings if isinstance(each, Assigned) and not each.path]
    return known if len(known) == len(bindings) else []


def _is_only_use(context: Context, value: ast.expr, assigned: list[Assigned]) -> bool:
    """Whether nothing else reads the name of an argument, here or in another file, and each assignment can go."""
    assert isinstance(value, ast.Name)
    return context.file.reads(value) == [value] and all(map(context.removable, assigned))
