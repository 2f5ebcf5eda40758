"""What a function takes from a sharded model and lets flow into something that may mean another thing under FSDP2."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.left.flows import Flow, Kind, Leak
from fsdp_migrate.codemods.left.parameters import were_flat
from fsdp_migrate.codemods.left.private_names import is_copy
from fsdp_migrate.codemods.left.taken import is_known_as_whole
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.findings import Action

RULE = Rule("FSDP529", "taken-from-model")
RULES = (RULE,)

_TAKING = {
    "parameters": Kind.PARAMETERS,
    "named_parameters": Kind.NAMED,
    "modules": Kind.MODULES,
    "named_modules": Kind.NAMED_MODULES,
}
USES = {
    "value": "Reads a parameter, which is now a DTensor of the whole parameter; under FSDP1 it was this rank's shard. "
    "Read `p.to_local()` or `p.full_tensor()`.",
    "drawn": "Draws random values for a parameter, which is now a DTensor; under FSDP1 it was this rank's shard. "
    "Initialize the model before sharding it.",
    "saved": "Saves parameters as DTensors, which only the same number of ranks can load. "
    "Save the result of `get_model_state_dict(model)` instead.",
    "order": "Depends on the number or position of parameters; under FSDP1 each unit had one. "
    "Use their names instead.",
    "freeze": "Now freezes this part. Under FSDP1 it had no effect on the flat parameter: check which parameters train.",
    "name": "Tests a name that contained `_fsdp_wrapped_module` under FSDP1 and no longer does. "
    "Test for the name without it.",
    "class": "Looks up the exact class of a module, which is a new class for a sharded module. "
    "Look it up with `isinstance`.",
    "children": "Now finds the children themselves. Under FSDP1 the wrapper was one more level between a unit and its "
    "children: check the depth.",
}


def find(context: Context) -> Iterator[Found]:
    """One finding for each function and kind of use, at the first of its lines."""
    if not context.plain or not context.models.shards(context.file) or is_copy(context.file):
        return
    flow = Flow(context, were_flat=were_flat(context))
    found: dict[tuple[ast.AST, str], list[ast.expr]] = {}
    for leak in (*_leaks(context, flow), *_of_parts(context, flow), *_children(context)):
        if not is_known_as_whole(context, leak.node):
            function = context.file.function(leak.node) or context.file.tree
            found.setdefault((function, leak.use), []).append(leak.node)
    for (_, use), nodes in found.items():
        nodes.sort(key=lambda node: (node.lineno, node.col_offset))
        lines = sorted({node.lineno for node in nodes[1:]} - {nodes[0].lineno})
        others = f" Also on lines {', '.join(map(str, lines))}." if lines else ""
        yield Found(RULE, nodes[0], Action.MANUAL, f"{USES[use]}{others}")


def _leaks(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of parameters and modules that a method of a sharded model gives."""
    for name, kind in _TAKING.items():
        for attribute in context.file.attributes.get(name, ()):
            call = context.call_of(attribute)
            if call is not None and context.can_be_model(attribute.value):
                if not _is_sharded_later(context, attribute.value):
                    yield from flow.leaks(call, kind)


def _is_sharded_later(context: Context, model: ast.expr) -> bool:
    """Whether a variable is given to what shards it further down in its function."""
    file, function = context.file, context.file.function(model)
    for call in file.of(ast.Call) if isinstance(model, ast.Name) else ():
        is_below = call.lineno > model.lineno and file.function(call) is function
        given = call.args[0] if is_below and call.args else None
        if isinstance(given, ast.Name) and file.variable(given) == file.variable(model):
            if _shards(context, call):
                return True
    return False


def _shards(context: Context, call: ast.Call) -> bool:
    """Whether a call is FSDP1's constructor, or one of a function with it inside."""
    if context.models.is_constructor(call, context.file):
        return True
    made = context.program.definition(call.func, context.file)
    if made is None or isinstance(made.node, ast.ClassDef):
        return False
    inside = context.models.constructors(made.file)
    return any(made.file.function(each) is made.node for each in inside)


def _of_parts(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of `model.head.weight`, and of `model.module.head.requires_grad_(False)`."""
    for name in ("weight", "bias", "requires_grad_"):
        for attribute in context.file.attributes.get(name, ()):
            part = attribute.value
            owners = [
                each for each in ast.walk(part) if isinstance(each, ast.expr) and each is not part
            ]
            if isinstance(part, ast.Attribute | ast.Subscript):
                if any(context.can_be_model(each) for each in owners):
                    if name != "requires_grad_":
                        yield from flow.leaks(attribute, Kind.PARAMETER)
                    elif flow.were_flat:
                        yield Leak(attribute, "freeze")


def _children(context: Context) -> Iterator[Leak]:
    """`module.children()` in a function that calls itself, for a sharded model: it counts the levels."""
    for name in ("children", "named_children"):
        for attribute in context.file.attributes.get(name, ()):
            function = context.file.function(attribute)
            itself = context.file.calls.get(getattr(function, "name", ""), ())
            inside = [call for call in itself if context.file.function(call) is function]
            if any(isinstance(each, ast.BinOp) for call in inside for each in values_given(call)):
                if context.can_be_model(attribute.value):
                    yield Leak(attribute, "children")
