"""Whether the program makes a constructor's model on the meta device. Its value is followed back: no text is searched.

A model there is never sharded by mistake: `fully_shard` raises at the first forward while a parameter has no data.
"""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.flow import flow_of
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.nodes import all_are, any_is
from fsdp_migrate.facts.origins import Value, reaches
from fsdp_migrate.facts.program import Definition, Program
from fsdp_migrate.facts.scopes import Assigned, Binding

# What makes models there by its name: of Accelerate, transformers, torchdistX and DeepSpeed.
_MAKERS = frozenset({"init_empty_weights", "deferred_init", "init_on_device"})
_MOVES = frozenset({"to", "to_empty"})


def is_on_meta(construction: Construction) -> bool:
    """Whether one of the expressions that can make the model of a call makes it on the meta device."""
    module = construction.module
    program = construction.context.program
    if module is None:
        return False
    flow = construction.flow(module)
    made = [*flow.ends, *flow.outside]
    for carrier in flow.carriers:
        made += _given_to(carrier)
    return any(_is_there(program, each.file, each.node) for each in made)


def is_real(construction: Construction) -> bool:
    """Whether the function of a call makes the model itself, off the meta device: by its class, or from its files.

    If a model is there all the same, the first forward raises.
    """
    module = construction.module
    context = construction.context
    if not isinstance(module, ast.Name) or context.program.has(r"\bset_default_device\("):
        return False
    file = context.file
    function = context.file.function(construction.call)
    variable = file.variable(module)
    if variable is None or variable.scope is not file.scope_of(construction.call):
        return False
    own = file.statement(construction.call)
    bindings = [each for each in variable.bindings if _node_of(file, each) is not own]
    made = [each for each in bindings if _is_before(file, each, module)]
    if function is None:
        calls = []
    else:
        calls = context.program.calls(function.name)
    if not made or is_on_meta(construction):
        return False
    if any(_is_there(context.program, other, call) for other, call in calls):
        return False
    return all(_makes_model(context.program, file, each) for each in made)


def _node_of(file: File, binding: Binding) -> ast.stmt | None:
    if isinstance(binding, Assigned):
        return file.statement(binding.target)
    return None


def _is_before(file: File, binding: Binding, use: ast.expr) -> bool:
    """Whether a use of a name can have what a binding gives it."""
    return not isinstance(binding, Assigned) or reaches(file, binding.target, use)


_ON_META = re.compile(r"""["']meta["']|init_empty_weights|deferred_init|init_on_device""")


def _makes_model(program: Program, file: File, binding: Binding) -> bool:
    """Whether a name is given the object of a class that is not known to put parts on the meta device, or a trained model."""
    if not isinstance(binding, Assigned) or binding.path or not isinstance(binding.value, ast.Call):
        return False
    # A context, or an argument, may hold the device.
    if any_is(file.ancestors(binding.value), ast.With):
        return False
    if any(keyword.arg is None or "device" in keyword.arg for keyword in binding.value.keywords):
        return False
    function = binding.value.func
    if isinstance(function, ast.Name | ast.Attribute):
        for meaning in program.meanings(function, file):
            if isinstance(meaning, Definition) and _ON_META.search(meaning.file.text):
                return False
    name = last_name(function)
    return name == "from_pretrained" or name[:1].isupper()


def is_as_a_whole(construction: Construction) -> bool:
    """Whether calls make the model of a call, each of them on one device: then one of its parameters tells where it is."""
    module = construction.module
    if module is None:
        return False
    flow = construction.flow(module)
    made = [each.node for each in (*flow.ends, *flow.outside)]
    if flow.hidden or not made or not all_are(made, ast.Call):
        return False
    return not any(map(_gets_parts, flow.carriers))


def _gets_parts(carrier: Value) -> bool:
    """Whether a part of a model is exchanged: `model.head = head`, `model.blocks[0] = block`."""
    if not isinstance(carrier.node, ast.Name):
        return False
    return any(_is_set(carrier.file, read) for read in carrier.file.reads(carrier.node))


def _is_set(file: File, path: ast.expr) -> bool:
    """Whether something behind a path is set."""
    parent = file.parents[path]
    if not isinstance(parent, ast.Attribute | ast.Subscript) or parent.value is not path:
        return False
    return isinstance(parent.ctx, ast.Store) or _is_set(file, parent)


def _given_to(carrier: Value) -> Iterator[Value]:
    """What is assigned to a name, and the calls that move what it holds."""
    name = carrier.node
    file = carrier.file
    yield carrier
    if not isinstance(name, ast.Name):
        return
    for binding in file.bindings(name):
        if isinstance(binding, Assigned):
            yield Value(binding.value, file)
    for read in file.reads(name):
        method = file.parents[read]
        call = file.parents[method]
        if isinstance(call, ast.Call) and call.func is method and last_name(method) in _MOVES:
            yield Value(call, file)


def _is_there(program: Program, file: File, made: ast.expr) -> bool:
    """Whether an expression makes a model on the meta device, by itself or by a `with` around it."""
    if _names_it(program, file, made):
        return True
    for around in file.ancestors(made):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(around, ast.With):
            if any(_names_it(program, file, item.context_expr) for item in around.items):
                return True
    return False


def _names_it(program: Program, file: File, expression: ast.expr) -> bool:
    for node in ast.walk(expression):
        if _is_meta(file, node):
            return True
        if isinstance(node, ast.Call):
            if _is_maker(program, file, node.func):
                return True
            if any(_can_be_meta(program, file, each) for each in _devices(node)):
                return True
    return False


def _is_meta(file: File, node: ast.AST) -> bool:
    """Whether a node is the device's name: not a key, and not compared with."""
    if not isinstance(node, ast.Constant) or node.value != "meta":
        return False
    for around in file.ancestors(node):
        if isinstance(around, ast.Compare):
            return False
        if isinstance(around, ast.Dict):
            return node not in around.keys
        if isinstance(around, ast.Subscript):
            return node is not around.slice
        if isinstance(around, ast.stmt):
            return True
    return True


def _is_maker(program: Program, file: File, function: ast.expr) -> bool:
    """Whether what is called makes models there; also by another name, such as that of a context chosen above."""
    if last_name(function) in _MAKERS:
        return True
    if not isinstance(function, ast.Name):
        return False
    names = {last_name(end.node) for end in flow_of(program, file, function).ends}
    return not names.isdisjoint(_MAKERS)


def _devices(call: ast.Call) -> Iterator[ast.expr]:
    """The names among a call's arguments that say on which device something is made."""
    for value in values_given(call):
        if isinstance(value, ast.Name | ast.Attribute) and "device" in last_name(value).lower():
            yield value


def _can_be_meta(program: Program, file: File, device: ast.expr) -> bool:
    ends = flow_of(program, file, device).ends
    parts = [(end.file, node) for end in ends for node in ast.walk(end.node)]
    return any(_is_meta(file, node) for file, node in parts)
