"""Policies that become functions of one module where they are made, so that no loop asks them by FSDP1's signature.

`partial(lambda_auto_wrap_policy, lambda_fn=f)` is `f`, and `partial(transformer_auto_wrap_policy, transformer_layer_cls={A})`
is `lambda module: isinstance(module, A)`. That is so for policies that come to a constructor from another function or file,
if constructors alone read what carries them. The others are asked as `torch.distributed.fsdp.wrap` documents it.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.reads import is_read, whole_sets
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import POLICIES
from fsdp_migrate.facts.nodes import all_are, has_any
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Imported

_BY_CLASS = {
    "transformer_auto_wrap_policy": "transformer_layer_cls",
    "_module_wrap_policy": "module_classes",
}


@dataclass(frozen=True)
class Predicate:
    """What becomes of an expression that makes a policy.

    Attributes:
        file: where it is.
        source: the function of one module that takes its place.
        body: what that function returns for `module`; "" where it is one that the program has.
        removed: the names in it that nothing reads any more.
    """

    file: File
    source: str
    body: str
    removed: tuple[ast.expr, ...]


class Predicates:
    """The policies of a run that become functions of one module.

    Attributes:
        ends: the expressions that make them.
        values: the arguments of constructors that take them.
    """

    def __init__(
        self, program: Program, constructions: Sequence[Construction], asked: Sequence[Construction]
    ) -> None:
        """
        Args:
            constructions: those that are rewritten.
            asked: of these, those whose loop asks a policy.
        """
        self.ends: dict[ast.expr, Predicate] = {}
        self.values: set[ast.expr] = set()
        flows = [
            (value, each.flow(value))
            for each in constructions
            if (value := each.value("auto_wrap_policy")) is not None
        ]
        of_asked = {each.value("auto_wrap_policy") for each in asked}
        passed = {node for _, flow in flows for node in flow.passed}
        passed |= {value for value, _ in flows}
        kept = []
        for value, flow in flows:
            is_seen = flow.carriers and flow.ends and not flow.unknown and not flow.is_kept
            if value not in of_asked or not is_seen or is_read(program, flow, passed):
                continue
            if all(_is_none(end.node) or predicate_of(program, end) for end in flow.ends):
                kept.append((value, flow))
        for value, flow in whole_sets(flows, kept):
            self.values.add(value)
            for end in flow.ends:
                predicate = predicate_of(program, end)
                if predicate is not None:
                    self.ends[end.node] = predicate


def predicate_of(program: Program, end: Value) -> Predicate | None:
    """The function of one module that a policy becomes; None for one by size, and for others that the file does not show."""
    file = end.file
    match end.node:
        case ast.Call(func=function, args=[policy], keywords=[ast.keyword(arg=str(name))]) as made:
            value = made.keywords[0].value
        case ast.Call(func=function, args=[value], keywords=[]) as made:
            policy = function
            name = "module_classes"
        case _:
            return None
    if comments(file.source(made)) or _is_documented(file, made):
        return None
    known = program.fsdp1(policy, file)
    if policy is not function and "functools.partial" not in program.dotted(function, file):
        return None
    if policy is not function and known == "lambda_auto_wrap_policy" and name == "lambda_fn":
        if isinstance(value, ast.Name | ast.Attribute | ast.Lambda):
            return Predicate(file, file.source(value), "", (function, policy))
        return None
    wanted = _BY_CLASS.get(known or "")
    if policy is function and known == "ModuleWrapPolicy":
        wanted = "module_classes"
    if wanted != name:
        return None
    classes = _classes(file, value)
    if not classes:
        return None
    body = f"isinstance(module, {classes})"
    return Predicate(file, f"lambda module: {body}", body, (function, policy))


def _classes(file: File, given: ast.expr) -> str:
    """The classes that a policy is given, as `isinstance` takes them; "" where they may be others when it is asked."""
    match given:
        case ast.Call(func=ast.Name(id="set" | "list" | "tuple"), args=[inside], keywords=[]):
            given = inside
    items = [given]
    if isinstance(given, ast.Set | ast.List | ast.Tuple):
        items = given.elts
    if not items or not all(_is_fixed(file, each) for each in items):
        return ""
    names = [file.source(each) for each in items]
    if items == [given]:
        return f"tuple({names[0]})"
    if len(names) == 1:
        return names[0]
    return f"({', '.join(names)})"


def _is_fixed(file: File, expression: ast.expr) -> bool:
    """Whether a name, or a path behind an import, means the same whenever it is read, and is not the new function's own."""
    is_path = isinstance(expression, ast.Attribute)
    while isinstance(expression, ast.Attribute):
        expression = expression.value
    if not isinstance(expression, ast.Name) or expression.id == "module":
        return False
    bindings = file.bindings(expression)
    if all_are(bindings, Imported):
        return True
    return len(bindings) == 1 and not is_path


def _is_documented(file: File, made: ast.expr) -> bool:
    """Whether the docstring of the function around says that it makes one of FSDP1's policies."""
    function = file.function(made)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    text = ast.get_docstring(function) or ""
    return has_any(text, POLICIES)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
