"""What FSDP1 and the bridge accept, and a plain `fully_shard` does not: parameters of another layout or without elements,
and inputs changed in place, which it refuses, or lists and dictionaries, of which its units get copies. It replaces parameters,
without what the program has set on them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.left.taken import PARTS, loop_of
from fsdp_migrate.facts.file import File, last_name

# `nn.Parameter(weight.t())`, `nn.Parameter(torch.empty(0))`
_PARAMETER = re.compile(
    r"\.(?:[tT]|mT|transpose|permute)\b(?!.*contiguous)|\b(?:empty|ones|randn?|zeros)\(\(?0\b"
)
_PARAMETERS = re.compile(r"parameters\(|\['params'\]")
_ADDING = frozenset({"append", "clear", "extend", "insert", "pop", "setdefault", "update"})


def refused(file: File) -> Iterator[tuple[ast.AST, str]]:
    """The places of a file that may do so, with what they do."""
    for name in ("channels_last", "channels_last_3d"):
        for node in file.attributes.get(name, ()):
            yield node, "may give parameters a layout that FSDP2 refuses"
    for call in file.of(ast.Call):
        if last_name(call.func) == "Parameter" and _PARAMETER.search(file.source(call)):
            yield call, "may make a parameter of a layout or size that FSDP2 refuses"
    for attribute in _attributes(file):
        yield attribute, "sets or asks for an attribute of a parameter, which fully_shard replaces"
    for forward in file.of(ast.FunctionDef):
        own = forward.args
        given = {argument.arg for argument in (*own.args[1:], *own.kwonlyargs)}
        for inner in ast.walk(forward) if _may_run_in_forward(file, forward) else ():
            if forward.name != "forward" and not _adds(inner):
                continue
            texts = (ast.unparse(each).split("[") for each in _changed(file, inner))
            kept = getattr(own.kwarg, "arg", "")  # itself new in each call
            names = {name for name, *at in texts if name in given or (at and name == kept)}
            if names and not _is_rebound(file, forward, names, inner):
                yield (
                    inner,
                    "may change a unit's input in place, which FSDP2 refuses or does to a copy",
                )


def _attributes(file: File) -> Iterator[ast.expr]:
    """The attributes of their own that parameters are given or asked for, in a loop over those of a model or an optimizer."""
    named: list[tuple[ast.expr, ast.expr]] = [
        (call, call.args[0])
        for call in file.of(ast.Call)
        if last_name(call.func) in {"getattr", "hasattr", "setattr"} and call.args
    ]
    named += [
        (node, node.value)
        for node in file.of(ast.Attribute)
        if not isinstance(node.ctx, ast.Load) and node.attr not in PARTS | {"requires_grad"}
    ]
    for node, owner in named:
        loop = loop_of(file, owner) if isinstance(owner, ast.Name) else None
        if loop is not None and _PARAMETERS.search(ast.unparse(loop[1])):
            yield node


def _may_run_in_forward(file: File, function: ast.FunctionDef) -> bool:
    """Whether a function is a forward, or another method of its class; not one of those that have to do with state dicts."""
    body = getattr(file.parents[function], "body", ())
    beside = any(getattr(each, "name", "") == "forward" for each in body)
    return beside and "state_dict" not in function.name and function.name != "__init__"


def _adds(node: ast.AST) -> bool:
    func = getattr(node, "func", None)
    return isinstance(func, ast.Attribute) and func.attr in _ADDING and len(node.args) < 3  # type: ignore[attr-defined]


def _changed(file: File, node: ast.AST) -> list[ast.expr]:
    """What may be changed in place: by `x += 1`, `x.relu_()`, `relu_(x)`, or by a `self.act = nn.ReLU(inplace=True)`; or by
    `x.append(1)`, `x[0] = 1`."""
    if isinstance(node, ast.AugAssign):
        return [node.target]
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return [node.value]
    if not isinstance(node, ast.Call):
        return []
    if _adds(node):
        return [node.func.value]  # type: ignore[attr-defined]
    if last_name(node.func).endswith("_"):
        return [*node.args[:1], getattr(node.func, "value", node.func)]
    layer, cls = ast.unparse(node.func), file.enclosing_class(node) or node
    stored = (each for each in ast.walk(cls) if isinstance(each, ast.Assign))
    made = [each.value for each in stored if ast.unparse(each.targets[0]) == layer]
    return node.args[:1] if any(map(_begins_in_place, (node, *made))) else []


def _begins_in_place(layer: ast.expr) -> bool:
    if not isinstance(layer, ast.Call):
        return False
    if last_name(layer.func) == "Sequential" and layer.args:
        return _begins_in_place(layer.args[0])
    given = [each.value for each in layer.keywords if each.arg == "inplace"]
    given += layer.args if last_name(layer.func) == "ReLU" else []
    return any(getattr(value, "value", True) is True for value in given)


def _is_rebound(file: File, forward: ast.FunctionDef, names: set[str], node: ast.AST) -> bool:
    """Whether one of some names means something else by then; a list certainly, which may be one of `seen = seen or []`."""
    stores = (
        file.statement(each)
        for each in ast.walk(forward)
        if isinstance(each, ast.Name) and each.id in names and isinstance(each.ctx, ast.Store)
    )
    return any(
        each.lineno < file.statement(node).lineno
        and not (_adds(node) and _may_keep(each, file.parents[each] is not forward))
        for each in stores
    )


def _may_keep(statement: ast.stmt, in_branch: bool) -> bool:
    return in_branch or isinstance(getattr(statement, "value", None), ast.BoolOp | ast.IfExp)
