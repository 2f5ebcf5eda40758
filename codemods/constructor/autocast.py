"""Whether an autocast region may run a model twice.

Autocast keeps the casts of leaves that need gradients until its outermost region ends. FSDP1's parameters were no leaves in
forward, those of FSDP2 are: a second forward computes with the weights of the first, and without their gradients if that ran
under `no_grad`. The runtime's units cast anew in each forward.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from fsdp_migrate.codemods.constructor.origin import is_module
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.program import Definition

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHOUT_GRADIENTS = ("no_grad", "inference_mode")
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)


def regions(context: Context, may_be_model: Callable[[ast.expr, File], bool]) -> Iterator[ast.AST]:
    """The uses of autocast around more than one forward, or around code that is not seen."""
    file = context.file
    for use in (*file.loads.get("autocast", ()), *file.attributes.get("autocast", ())):
        call, method = file.parents[use], file.function(use)
        if any(getattr(k.value, "value", True) is False for k in getattr(call, "keywords", ())):
            continue  # it is switched off
        cls = file.enclosing_class(use) if getattr(method, "name", "") == "forward" else None
        if cls is not None and is_module(context.program, Definition(file, cls)):
            continue
        if _trains_nothing(file, use):
            continue
        for region in _regions(file, use):
            known = isinstance(region, ast.With | ast.AsyncWith | ast.FunctionDef)
            if not known or _forwards(context, file, region.body, may_be_model, set()) > 1:  # type: ignore[attr-defined]
                yield use


def _regions(file: File, use: ast.AST) -> list[ast.AST]:
    """The regions that a use of autocast begins, also by a local name: `amp = autocast if half else nullcontext`."""
    item = _holder(file, use)
    target = item.targets[0] if isinstance(item, ast.Assign) else None
    named = isinstance(target, ast.Name) and file.function(target) is not None
    items = [_holder(file, read) for read in file.reads(target)] if named else [item]  # type: ignore[arg-type]
    return [file.parents[each] if isinstance(each, ast.withitem) else each for each in items]


def _holder(file: File, use: ast.AST) -> ast.AST:
    return next(a for a in file.ancestors(use) if isinstance(a, ast.withitem | ast.stmt))


def _trains_nothing(file: File, use: ast.AST) -> bool:
    """Whether a use is under `no_grad`, where weights neither change nor need gradients."""
    around: list[ast.AST] = []
    for parent in file.ancestors(use):
        around += [
            item.context_expr
            for item in getattr(parent, "items", ())
            if isinstance(item, ast.withitem)
        ]
        around += getattr(parent, "decorator_list", ())
    return any(word in ast.unparse(each) for each in around for word in _WITHOUT_GRADIENTS)


def _forwards(
    context: Context,
    file: File,
    body: Iterable[ast.stmt],
    may_be_model: Callable[[ast.expr, File], bool],
    seen: set[ast.AST],
) -> int:
    """How many forwards some statements run, as far as it matters: none, one or more."""
    total = 0
    own = (statement for statement in body if not isinstance(statement, _FUNCTIONS))
    nodes = [node for statement in own for node in ast.walk(statement)]
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        made = _called(context, file, call)
        if made is None:
            count = int(may_be_model(call.func, file))
        elif made.node in seen:
            continue
        else:
            inner = getattr(made.node, "body", [])
            count = _forwards(context, made.file, inner, may_be_model, {*seen, made.node})
            count = count or int(any(may_be_model(each, file) for each in call.args))
        loops = any(isinstance(each, _LOOPS) and each in nodes for each in file.ancestors(call))
        total += 2 * count if loops else count
    return total


def _called(context: Context, file: File, call: ast.Call) -> Definition | None:
    """The function or method of the program that a call runs."""
    if isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", "") == "self":
        for method in getattr(file.enclosing_class(call), "body", ()):
            if isinstance(method, _FUNCTIONS) and method.name == last_name(call.func):
                return Definition(file, method)
    made = context.program.definition(call.func, file)
    return made if made is not None and isinstance(made.node, _FUNCTIONS) else None
