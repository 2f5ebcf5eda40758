"""What an argument of a constructor adds to the plain PyTorch form."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edits, Import
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.scopes import Imported
from fsdp_migrate.facts.values import Value
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
    if value.file is not context.file:
        return None
    found: list[ast.stmt] = []
    for assigned in value.assigned:
        target, file = assigned.target, context.file
        if not isinstance(target, ast.Name) or assigned.path:
            return None
        reads = [read for read in file.reads(target) if read not in among]
        exported = file.scope_of(target) is file.scope and context.is_for_others(target.id)
        statement = file.statement(target)
        once = len(reads) == len(file.bindings(target)) == 1
        if not once or exported or not context.is_alone(statement):
            return None
        if isinstance(statement, ast.Assign) and len(statement.targets) != 1:
            return None
        found.append(statement)
    return tuple(found)


def reads(file: File, region: ast.AST, assignment: ast.stmt) -> bool:
    """Whether a region reads a name that an assignment binds."""
    names = [node for node in ast.walk(assignment) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    scope = file.scope_of(assignment)
    return any(
        isinstance(node, ast.Name)
        and node.id in bound
        and (found := file.variable(node)) is not None
        and found.scope is scope
        for node in ast.walk(region)
    )


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
    """What to write for a value in each call of `fully_shard`: its source, or a name where there are several calls, with the
    statement that binds the name."""
    if not name or text.isidentifier() or not is_given(construction, "auto_wrap_policy"):
        return text, ()
    free = construction.context.free(name, construction.call)
    return free, (f"{free} = {text}",)


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
