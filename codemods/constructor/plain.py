"""What an argument of a constructor adds to the plain PyTorch form."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import spliced
from fsdp_migrate.codemods.rule import Edit, Edits, Import
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.scopes import Assigned, Imported
from fsdp_migrate.facts.values import Value, branches
from fsdp_migrate.findings import Action


class Stays(Exception):
    """A construction that stays on the bridge; the text says why, as in "the strategy is known only when the program runs"."""


@dataclass(frozen=True)
class Said:
    """The message about an argument on the bridge."""

    message: str
    action: Action = Action.RUNTIME


@dataclass(frozen=True, eq=False)
class Plain:
    """A part of the plain form.

    Attributes:
        message: what is said of the argument.
        shared: keyword arguments, as source, of every `fully_shard` call.
        child, root: those of the units below the root, and of the root.
        units: the condition by which `{module}` is a unit of its own, as source; "" where the root alone is one.
        members: units by their own names instead, `layers.*` for all of a container.
        norms: whether every BatchNorm is a unit in full precision.
        above: statements in front, with `{model}` for the model.
        below: statements behind.
        each: statements in front of each `fully_shard` call, with `{module}` for what it shards; the calls come in the order
            of `model.modules()` then, the model last.
        edits: changes elsewhere in the file.
        removed: code that goes, other than the call itself.
        statements: assignments that have no other use and go.
        first: statements in front of the checks, which name what they are about.
        fixed: the value that it is right for, if a run gave it and the program can have others.
        checks: the conditions under which it has this value.
        kept: arguments whose source is in the new code.
    """

    message: str = ""
    shared: dict[str, str] = field(default_factory=dict)
    child: dict[str, str] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    units: str = ""
    members: tuple[str, ...] = ()
    norms: bool = False
    above: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    imports: tuple[Import, ...] = ()
    edits: tuple[Edits, ...] = ()
    removed: tuple[ast.AST, ...] = ()
    statements: tuple[ast.stmt, ...] = ()
    first: tuple[str, ...] = ()
    fixed: str = ""
    checks: tuple[str, ...] = ()
    kept: tuple[ast.expr, ...] = ()


NOTHING = Plain()


def merged(parts: Iterable[Plain]) -> Plain:
    """The parts of all arguments together."""
    every = list(parts)
    return Plain(
        shared={k: v for part in every for k, v in part.shared.items()},
        child={k: v for part in every for k, v in part.child.items()},
        root={k: v for part in every for k, v in part.root.items()},
        units="".join(part.units for part in every),
        members=tuple(name for part in every for name in part.members),
        norms=any(part.norms for part in every),
        above=tuple(line for part in every for line in part.above),
        below=tuple(line for part in every for line in part.below),
        each=tuple(line for part in every for line in part.each),
        imports=tuple(need for part in every for need in part.imports),
        edits=tuple(edits for part in every for edits in part.edits),
        removed=tuple(node for part in every for node in part.removed),
        statements=tuple(dict.fromkeys(s for part in every for s in part.statements)),
        first=tuple(line for part in every for line in part.first),
        fixed=", ".join(part.fixed for part in every if part.fixed),
        checks=tuple(dict.fromkeys(check for part in every for check in part.checks)),
        kept=tuple(node for part in every for node in part.kept),
    )


def spent(
    context: Context, value: Value, among: Collection[ast.expr] = ()
) -> tuple[ast.stmt, ...] | None:
    """The assignments that only lead to a value; None if something else reads one of their names, here or in another file.

    Args:
        among: further uses that do not count.
    """
    if any(each.target not in context.file.parents for each in value.assigned):
        return None
    found: list[ast.stmt] = []
    for assigned in value.assigned:
        statement, target = context.removable(assigned), assigned.target
        if statement is None:
            return None
        assert isinstance(target, ast.Name)
        if len([read for read in context.file.reads(target) if read not in among]) != 1:
            return None
        found.append(statement)
    return tuple(found)


def is_pure(context: Context, value: ast.AST) -> bool:
    """Whether an expression only gives a value: calls of options, policies and devices, no assignment and no `await`."""
    if isinstance(value, ast.Lambda):
        return True
    if isinstance(value, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom):
        return False
    if isinstance(value, ast.Call) and not _only_makes(context, value.func):
        return False
    return all(is_pure(context, child) for child in ast.iter_child_nodes(value))


def _only_makes(context: Context, function: ast.expr) -> bool:
    if context.fsdp1(function) is not None:
        return True
    dotted = context.dotted(function)
    if dotted:
        return dotted <= {"functools.partial", "torch.device", "torch.cuda.current_device"}
    name = getattr(function, "id", "")
    return name in {"set", "tuple", "list", "int"} and not context.program.definition(
        function, context.file
    )


def has_torch(context: Context, at: ast.AST) -> bool:
    """Whether `torch.` can be written at a place: an import binds the name, and nothing else does."""
    found = context.file.scope_of(at).lookup("torch")
    return found is not None and all(
        isinstance(binding, Imported) and binding.member is None and binding.module == "torch"
        for binding in found.bindings
    )


def is_given(construction: Construction, name: str) -> bool:
    """Whether an argument is given and can be other than None."""
    return construction.value(name) is not None


def bound(construction: Construction, name: str, text: str) -> tuple[str, tuple[str, ...]]:
    """What to write for a value in each call: its source, or a name where there are several calls, with the statement that
    binds the name."""
    several = any(
        is_given(construction, each) for each in ("auto_wrap_policy", "sync_module_states")
    )
    if not name or text.isidentifier() or not several:
        return text, ()
    free = construction.context.free(name, construction.call)
    return free, (f"{free} = {bracketed(text)}",)


def bracketed(text: str) -> str:
    """An expression that may go over several lines, for a statement of its own; Black drops spare brackets."""
    return f"({text})" if NEWLINE.search(text) else text


def device_type(construction: Construction) -> str:
    """The kind of device that `device_id` certainly is; "" if it is left out or may be another."""
    value, context = construction.value("device_id"), construction.context
    if value is None:
        return ""
    made = context.value(value)
    node = value if made is None else made.node
    function = node.func if isinstance(node, ast.Call) else node
    if isinstance(node, ast.Constant):
        of_cuda = isinstance(node.value, int) or str(node.value).startswith("cuda:")
        return "cuda" if of_cuda else "cpu" if node.value == "cpu" else ""
    if made is not None and made.file is context.file and isinstance(node, ast.Call):
        text = context.source(node)
        if text.startswith(("int(", "torch.cuda.", 'torch.device("cuda', 'torch.device(f"cuda:')):
            return "cuda"
        return "cpu" if text == 'torch.device("cpu")' else ""
    if isinstance(
        function, ast.Name | ast.Attribute
    ) and "torch.cuda.current_device" in context.dotted(function):
        return "cuda"
    name = getattr(node, "attr", getattr(node, "id", ""))
    return (
        "cuda" if name.lower() in {"rank", "local_rank", "gpu", "gpu_id", "local_rank_id"} else ""
    )


# What a leaf is in FSDP2, as source; None for what the table does not have.
Table = Callable[[ast.expr], str | None]


@dataclass(frozen=True, eq=False)
class Rewritten:
    """An argument with its leaves translated.

    Attributes:
        text: the expression to write at the constructor.
        leaves: what was translated.
        edits: changes of the assignments that give it its value.
        statements: assignments that go, since their value is written at the constructor.
        name: the name that is kept, if it is one.
        shared: whether the leaves stay where they are, since others may read them as well.
    """

    text: str
    leaves: tuple[ast.expr, ...]
    edits: tuple[Edits, ...] = ()
    statements: tuple[ast.stmt, ...] = ()
    name: str = ""
    shared: bool = False

    @property
    def removed(self) -> tuple[ast.expr, ...]:
        """The leaves that the rewrite takes out of the file."""
        return () if self.shared else self.leaves


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
    *,
    name: str = "",
    change: Callable[[ast.expr], list[Edit]] | None = None,
) -> Rewritten | None:
    """An argument with all its leaves translated; None if one is not known.

    Args:
        name: what a local name that has several values is called from now on; "" where it keeps its name.
        change: the edits of a leaf that is assigned to a name which stays; None to write a single value at the constructor.
    """
    text = _text(context, value, table)
    if text is not None:
        return Rewritten(text, tuple(leaves_of(context, value)))
    assigned = _assigned(context, value)
    texts = [_text(context, each.value, table) for each in assigned]
    if not assigned or None in texts or not _is_only_use(context, value, assigned):
        return _constant(context, value, table)
    assert isinstance(value, ast.Name)
    found = tuple(leaf for each in assigned for leaf in leaves_of(context, each.value))
    statements = tuple(context.file.statement(each.target) for each in assigned)
    single = len(assigned) == 1
    if single and change is None and is_pure(context, assigned[0].value):
        return Rewritten(texts[0] or "", found, statements=statements)
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

    return Rewritten(kept, found, (edits,), name=kept)


def _constant(context: Context, value: ast.expr, table: Table) -> Rewritten | None:
    """A name of an enum's member, here or in another file, which others may read as well."""
    made = context.value(value)
    if made is None or not isinstance(made.node, ast.Attribute) or made.node is value:
        return None
    text = table(made.node)
    return None if text is None else Rewritten(text, (made.node,), shared=True)


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
