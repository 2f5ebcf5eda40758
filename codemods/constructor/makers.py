"""The `partial(FSDP, ...)` or `with enable_wrap(...)` that gives arguments to a call that makes a unit."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

from fsdp_migrate.codemods.constructor.construction import (
    CONSTRUCTOR,
    ENABLE_WRAP,
    PARTIAL,
    WRAP,
    Construction,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import CLASS

# What may run later than the statement that it is in.
_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.GeneratorExp, ast.ClassDef)
_DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# Where the files that share a model name something.
Uses = Callable[[str], Iterable[tuple[File, ast.expr]]]


def find_makers(context: Context, constructions: Sequence[Construction]) -> None:
    """Gives each call of a file what makes it, where that is certain."""
    makers = {each.call: each for each in constructions if _is_maker(context, each)}
    calls = [each for each in constructions if each.kind == WRAP]
    if any(context.silenced(CONSTRUCTOR, each.call) for each in (*makers.values(), *calls)):
        return  # one that stays needs the other as it is
    by_wrap = [each for each in calls if context.references.get(each.call.func) == "wrap"]
    for each in calls if makers else ():
        if each in by_wrap:
            _under(context, each, [m for m in makers.values() if m.kind == ENABLE_WRAP])
        elif (statement := _assigned(context, each.call.func)) is not None:
            made = makers.get(statement.value)  # type: ignore[call-overload]
            if made is not None and _is_call(each.call):
                each.made_by(made, is_sure=True)


def _is_maker(context: Context, construction: Construction) -> bool:
    """Whether a call gives arguments for FSDP1's own class, all by name."""
    call = construction.call
    if construction.kind == PARTIAL:
        cls = call.args[0] if len(call.args) == 1 else None
    elif construction.kind == ENABLE_WRAP and context.fsdp1(call.func) == "enable_wrap":
        cls = next(each.value for each in call.keywords if each.arg == "wrapper_cls")
    else:
        return False
    return cls is not None and context.fsdp1(cls) == CLASS and not construction.unknown


def with_of(context: Context, maker: Construction) -> ast.With | None:
    """The `with enable_wrap(...):` of a call, if that is all that the statement does."""
    item = context.file.parents[maker.call]
    statement = context.file.parents.get(item)
    if not isinstance(item, ast.withitem) or not isinstance(statement, ast.With):
        return None
    alone = len(statement.items) == 1 and item.optional_vars is None
    return statement if alone and context.is_alone(statement) else None


def runs_under(call: Construction, uses: Uses, contexts: Iterable[Context]) -> bool:
    """Whether a call makes a unit with the arguments of its maker whenever it runs.

    One of `wrap` does if it is inside of the only `with enable_wrap(...)` that a call of `wrap` can be in, by all uses of the
    functions around it.
    """
    maker = call.maker
    if maker is None or maker.kind == PARTIAL:
        return True
    for context in contexts:
        for reference, name in context.references.items():
            called = getattr(context.file.parents[reference], "func", None) is reference
            if name == "wrap" and not (called and context.file is maker.context.file):
                return False
    statement = with_of(maker.context, maker)

    def is_inside(file: File, node: ast.AST) -> bool:
        around = takewhile(lambda each: not isinstance(each, _DEFINED), file.ancestors(node))
        return any(each is statement for each in around)

    return call.is_sure or runs_only(call.context.file, call.call, is_inside, uses, set())


def runs_only(
    file: File,
    node: ast.AST,
    where: Callable[[File, ast.AST], bool],
    uses: Uses,
    seen: set[ast.AST],
) -> bool:
    """Whether code runs at some places alone: its own is one, or all calls of the function around it are."""
    if where(file, node):
        return True
    for parent in file.ancestors(node):
        if isinstance(parent, ast.ClassDef | ast.Lambda | ast.AsyncFunctionDef) or parent in seen:
            return False
        if isinstance(parent, ast.FunctionDef):
            seen.add(parent)
            around = file.enclosing_class(parent)
            if parent.decorator_list or getattr(around, "decorator_list", None):
                return False  # which may hand it on
            cls = file.enclosing_class(parent) if parent.name == "__init__" else None
            every = list(uses(parent.name if cls is None else cls.name))
            return bool(every) and all(
                getattr(other.parents[use], "func", None) is use
                and runs_only(other, use, where, uses, seen)
                for other, use in every
            )
    return False


def _under(context: Context, call: Construction, makers: Sequence[Construction]) -> None:
    """Finds the `with enable_wrap(...)` around a call of `wrap`, or the only one of the file, which a run has to confirm."""
    file = context.file
    around: list[ast.AST] = []
    for parent in file.ancestors(call.call):
        if isinstance(parent, _LATER):
            break
        around.append(parent)
    nearest = [m for m in makers if any(with_of(context, m) is each for each in around)]
    found = nearest or makers
    if len(found) == 1 and with_of(context, found[0]) is not None:
        call.made_by(found[0], is_sure=bool(nearest))  # else see `runs_under`


def _assigned(context: Context, name: ast.expr) -> ast.Assign | None:
    """The one assignment of a name that is only called: `shard = partial(FSDP, ...)`."""
    file, found = context.file, context.file.variable(name)
    if (
        found is None
        or not isinstance(name, ast.Name)
        or len(found.assigned) != len(found.bindings)
    ):
        return None
    statement = context.removable(found.assigned[0]) if len(found.assigned) == 1 else None
    if not isinstance(statement, ast.Assign) or isinstance(found.scope.node, ast.ClassDef):
        return None
    only = all(getattr(file.parents[read], "func", None) is read for read in file.reads(name))
    return statement if only else None


def _is_call(call: ast.Call) -> bool:
    """Whether a call gives the module alone."""
    return len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)
