"""A `param_init_fn` that only gives memory: `lambda module: module.to_empty(device="cuda", recurse=False)`, or a function."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.conditions import grouped
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Definition, Program

# What such a function may call beside `to_empty`: devices, ranks, and the release of memory.
_BESIDE = ("empty_cache", "get_rank", "is_initialized", "device", "current_device")


@dataclass(frozen=True)
class Emptying:
    """Memory for a model on the meta device.

    Attributes:
        function: the function that gives it, as source.
        device: where, as source; "" where only the function knows.
        test: the condition under which the model is there, as source; "" for whenever it is.
    """

    function: str = ""
    device: str = ""
    test: str = ""

    def when(self, construction: Construction, model: str) -> str:
        """The condition under which a model needs memory, as source: that it is on the meta device, as rank 0's may not be."""
        if "rank" in self.test:
            return self.test
        on_meta = f"next({model}.parameters()).is_meta"
        sync = construction.value("sync_module_states")
        is_always = sync is not None and construction.constant(sync) is True
        if is_always or not self.test:
            return on_meta
        return f"{grouped(self.test)} and {on_meta}"

    def is_overwritten(self, construction: Construction) -> bool:
        """Whether rank 0 sends its values wherever this gives memory."""
        sync = construction.value("sync_module_states")
        if sync is None:
            return False
        constant = construction.constant(sync)
        if constant is not ...:
            return bool(constant)
        parts = [self.test]
        node = None
        if self.test:
            node = ast.parse(self.test, mode="eval").body
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            parts += [ast.unparse(each) for each in node.values]
        return ast.unparse(sync) in parts


def of(construction: Construction, function: ast.expr, test: str) -> Emptying | None:
    """What a `param_init_fn` does, if it only gives memory.

    Args:
        test: the condition under which it is given at all.
    """
    source = construction.text(function)
    if not isinstance(function, ast.Lambda):
        if where := _device_of_lambdas(construction, function):
            return Emptying(source, where, test)
        if _only_empties(construction, function):
            return Emptying(source, "", test)
        return None
    body = function.body
    if isinstance(body, ast.IfExp) and isinstance(body.orelse, ast.Constant) and not test:
        test = construction.text(body.test)
        body = body.body
    device = _device(body)
    if device is None:
        return None
    return Emptying(source, construction.text(device), test)


def _device(body: ast.expr) -> ast.expr | None:
    """The device of `module.to_empty(device=...)`."""
    match body:
        case ast.Call(func=ast.Attribute(attr="to_empty", value=ast.Name()), keywords=keywords):
            given = {keyword.arg: keyword.value for keyword in keywords}
            return given.get("device")
    return None


def _device_of_lambdas(construction: Construction, name: ast.expr) -> str:
    """The device of the only lambda that a variable can be, as source, if it is the same at the constructor; else ""."""
    file = construction.context.file
    if not isinstance(name, ast.Name):
        return ""
    flow = construction.flow(name)
    made = [end for end in flow.ends if not isinstance(end.node, ast.Constant)]
    if flow.unknown or len(made) != 1 or made[0].file is not file:
        return ""
    function = made[0].node
    if not isinstance(function, ast.Lambda):
        return ""
    device = _device(function.body)
    if device is None or not construction.is_same(device):
        return ""
    return construction.text(device)


def _only_empties(construction: Construction, function: ast.expr) -> bool:
    """Whether all functions that an expression can be only give memory; it may be None, too."""
    context = construction.context
    if not isinstance(function, ast.Name | ast.Attribute):
        return False
    ends = construction.flow(function).ends
    made = [end for end in ends if not isinstance(end.node, ast.Constant)]
    return bool(made) and all(_empties(context.program, end) for end in made)


def _empties(program: Program, function: Value) -> bool:
    """Whether a function, or a lambda, calls `to_empty`, and nothing that fills memory."""
    bodies: list[ast.AST] = [function.node]
    if not isinstance(function.node, ast.Lambda):
        bodies = [
            meaning.node
            for meaning in program.meanings(function.node, function.file)
            if isinstance(meaning, Definition) and isinstance(meaning.node, ast.FunctionDef)
        ]
    names = [
        last_name(node.func)
        for body in bodies
        for node in ast.walk(body)
        if isinstance(node, ast.Call)
    ]
    others = [name for name in names if name != "to_empty" and not _is_beside(name)]
    return "to_empty" in names and not others


def _is_beside(name: str) -> bool:
    return name in _BESIDE or name.startswith("get_")
