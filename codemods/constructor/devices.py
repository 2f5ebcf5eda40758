"""Where the model is when it is sharded, and what it holds there: `device_id`, `sync_module_states`, `param_init_fn`.

`fully_shard` moves each unit to the current device as it shards it. It broadcasts nothing, and it shards a model on the meta
device as it is: that is filled afterwards.
"""

import ast
import re

from fsdp_migrate.codemods.constructor import empties
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.conditions import Condition, grouped
from fsdp_migrate.codemods.constructor.construction import ON_CPU, AtRunTime, Construction
from fsdp_migrate.codemods.constructor.flow import defined
from fsdp_migrate.codemods.constructor.meshes import DEVICE_MESH
from fsdp_migrate.codemods.constructor.meta import is_as_a_whole, is_real
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.scopes import Binding, Imported

DEVICE_ID = Rule("FSDP207", "device-id")
INIT_FUNCTION = Rule("FSDP210", "param-init-fn")

_CURRENT = {
    "torch.cuda.current_device",
    "torch.xpu.current_device",
    "torch.accelerator.current_device_index",
}
_CPU_DEVICE = re.compile(r"'cpu'|(?:torch\.)?device\((?:type=)?'cpu'\)")
_CPU = "Replaced by a mesh of CPUs: without one, `fully_shard` moves each unit to the GPU where a machine has one."
# What a program says that runs on accelerators of other makers, too.
_OTHER_DEVICES = re.compile(
    r"\b(?:torch_npu|(?:is_)?(?:npu|xpu|hpu|mlu)(?:_available)?)\b", re.IGNORECASE
)
_SETS_DEVICE = rb"\.set_device\(|set_device_ind"
_SETTERS = ("set_device", "set_device_index", "set_device_idx")


def distributed(construction: Construction, code: Code) -> str:
    """How the code calls torch.distributed: by the file's own name for it."""
    scope = construction.context.file.scope_of(construction.call)
    for name in ("dist", "distributed"):
        found = scope.lookup(name)
        if found is not None and all(map(_is_torch_distributed, found.bindings)):
            return name
    code.imports.append(Import("torch", ""))
    return "torch.distributed"


def _is_torch_distributed(binding: Binding) -> bool:
    if not isinstance(binding, Imported):
        return False
    path = binding.module
    if binding.member is not None:
        path = f"{binding.module}.{binding.member}"
    return path == "torch.distributed"


def device_type(construction: Construction, code: Code) -> str:
    """The type of the devices that shard, as source: a program that runs on a CPU, too, is asked."""
    context = construction.context
    device = construction.value("device_id")
    made = None
    if device in context.file.parents:
        made = context.value(device) or _stored(construction, device)
    if device is not None and made is not None and isinstance(made.node, ast.Call):
        source = construction.text(device)
        is_path = all(part.isidentifier() for part in source.split("."))
        if "torch.device" in context.program.dotted(made.node.func, made.file):
            if [ast.unparse(each) for each in made.node.args] == ["'cpu'"]:
                return '"cpu"'
            if is_path:
                return f"{source}.type"
            return '"cuda"'
        if is_path and _is_annotated(construction, made):
            return f"{source}.type"
    if _OTHER_DEVICES.search(context.file.text):
        code.imports.append(Import("torch", ""))
        return "torch.accelerator.current_accelerator().type"
    if ON_CPU.search(context.file.text):
        code.imports.append(Import("torch", ""))
        return '"cuda" if torch.cuda.is_available() else "cpu"'
    return '"cuda"'


def _stored(construction: Construction, device: ast.expr) -> Value | None:
    """What an attribute of `self` is given by the only assignment to it."""
    file = construction.context.file
    match device:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            uses = file.attributes.get(name, ())
            around = [file.parents[each] for each in uses if isinstance(each.ctx, ast.Store)]
        case _:
            return None
    match around:
        case [ast.Assign(value=value)]:
            return Value(value, file)
    return None


def _is_annotated(construction: Construction, made: Value) -> bool:
    """Whether a call is of a function of the program that returns a `torch.device`, by its annotation."""
    assert isinstance(made.node, ast.Call)
    program = construction.context.program
    functions = [each.node for each in defined(program, made.file, made.node)]
    returns = [each.returns for each in functions if isinstance(each, ast.FunctionDef)]
    named = [each is not None and ast.unparse(each) == "torch.device" for each in returns]
    return bool(named) and len(named) == len(functions) and all(named)


def device_id(construction: Construction, value: ast.expr, code: Code) -> str:
    """Nothing where the device is the current one already, else a statement that makes it that."""
    context = construction.context
    current = "Removed: `fully_shard` moves each unit to the current device."
    if value not in context.file.parents:
        raise AtRunTime
    function = value
    if isinstance(value, ast.Call):
        function = value.func
    if context.dotted(function) & _CURRENT or "current_device" in context.source(function):
        return current
    if _is_the_cpu(construction, value) and "mesh" not in code.shared:
        world = f"{distributed(construction, code)}.get_world_size()"
        code.shared["mesh"] = f'init_device_mesh("cpu", ({world},))'
        code.imports.append(Import(DEVICE_MESH, "init_device_mesh"))
        return _CPU
    if _is_set(construction):
        return (
            "Removed: `fully_shard` moves each unit to the current device, "
            "and the program already sets that."
        )
    ends = [ast.unparse(end.node) for end in construction.flow(value).ends]
    text = " ".join([ast.unparse(value), *ends])
    synchronized = construction.value("sync_module_states")
    # For a model on the CPU that raised, so of several devices it is another one.
    is_synchronized = synchronized is not None and construction.constant(synchronized) is True
    is_cpu = all("cpu" in each for each in ends)
    may_be_cpu = "cpu" in text and (is_cpu or not is_synchronized)
    if "device('cuda')" in text or may_be_cpu:
        # Without an index it is the current one; a CPU is none to be made current.
        if not isinstance(value, ast.Call):
            device = construction.text(value)
            code.above[:0] = [
                f"if torch.cuda.is_available() and torch.device({device}).index is not None:",
                f"    torch.cuda.set_device({device})",
            ]
            code.imports.append(Import("torch", ""))
        return current
    device = construction.text(value)
    code.above.insert(0, f"torch.cuda.set_device({device})")
    code.imports.append(Import("torch", ""))
    return (
        "Replaced by `torch.cuda.set_device`: `fully_shard` moves each unit to the current device."
    )


def _is_the_cpu(construction: Construction, device: ast.expr) -> bool:
    """Whether the files show that a device is the CPU."""
    flow = construction.flow(device)
    made = [ast.unparse(each.node) for each in (*flow.ends, *flow.outside)]
    return bool(made) and all(map(_CPU_DEVICE.fullmatch, made)) and not flow.hidden


def _is_set(construction: Construction) -> bool:
    """Whether the program makes a device current: in another function, or above the constructor."""
    context = construction.context
    call = construction.call
    own = [
        other.lineno < call.lineno
        for name in _SETTERS
        for other in context.file.calls.get(name, ())
        if context.file.function(other) is context.file.function(call)
    ]
    if own:
        return any(own)
    tree = context.program.tree
    paths = context.program.reach.of(context.file.path)
    return not tree.having(_SETS_DEVICE).isdisjoint(paths)


def initialize(construction: Construction, value: ast.expr, code: Code) -> str:
    """Modules on the meta device are filled behind the sharding; in auto `units` does it as FSDP1 did, with its draws."""
    if construction.like_fsdp1:
        raise AtRunTime
    if is_real(construction):
        return (
            "Removed: FSDP1 called it only for modules on the meta device, and this code creates the model on another "
            "device."
        )
    context = construction.context
    call = construction.call
    module = context.local("module", call)
    function = construction.text(value)
    test = ""
    if isinstance(value, ast.IfExp) and isinstance(value.orelse, ast.Constant):
        if value.orelse.value is None:
            function = construction.text(value.body)
            test = construction.text(value.test)
    shown = value
    if test and isinstance(value, ast.IfExp):
        shown = value.body
    emptying = empties.of(construction, shown, test)
    if emptying is not None and emptying.is_overwritten(construction):
        code.fill = _empty_at_once(construction, emptying, code)
        return "Replaced by one `to_empty` after sharding; then rank 0's values are loaded."
    if isinstance(shown, ast.Lambda) and len(shown.args.args) == 1:
        body = _body(construction, shown, module)
    else:
        flow = construction.flow(value)
        if not test and any(isinstance(e.node, ast.Constant) for e in flow.ends):
            test = f"{function} is not None"
        body = [f"{function}({module})"]
    code.fill = _called_for_each(construction, code, module, test, body)
    code.device = _of_filled_buffers(construction, code)
    code.fill += _offloaded(construction, code, [f"{code.model}.cpu()"])
    return (
        "Now called after sharding, for all modules that were on the meta device, so it sees DTensors. Random initial "
        "values differ from FSDP1's."
    )


def _called_for_each(
    construction: Construction, code: Code, module: str, test: str, body: list[str]
) -> list[str]:
    """Statements for all modules of what is on the meta device, parents first, as FSDP1 called its function.

    Which they are is asked before the first call: one for a parent may give its parts memory, but not their values.
    """
    model = code.model
    body = [f"    {line}" for line in body]
    if is_as_a_whole(construction):
        on_meta = f"next({model}.parameters()).is_meta"
        condition = on_meta
        if test:
            condition = f"{grouped(test)} and {on_meta}"
        lines = [f"for {module} in {model}.modules():", *body]
        return [f"if {condition}:", *[f"    {line}" for line in lines]]
    on_meta = construction.context.local("on_meta", construction.call)
    is_there = "any(t.is_meta for t in (*m.parameters(), *m.buffers()))"
    lines = [
        f"{on_meta} = [m for m in {model}.modules() if {is_there}]",
        f"for {module} in {on_meta}:",
        *body,
    ]
    if test:
        return [f"if {test}:", *[f"    {line}" for line in lines]]
    return lines


def _each_on_meta(model: str, module: str, body: list[str]) -> list[str]:
    """Statements for each module that has a tensor of its own on the meta device."""
    return [
        f"for {module} in {model}.modules():",
        f"    own = [*{module}.parameters(recurse=False), *{module}.buffers(recurse=False)]",
        "    if any(tensor.is_meta for tensor in own):",
        *[f"        {line}" for line in body],
    ]


def _empty_at_once(construction: Construction, emptying: empties.Emptying, code: Code) -> list[str]:
    """Memory for the whole model: its values come from rank 0."""
    test = emptying.when(construction, code.model)
    if emptying.function and not emptying.device and code.offloaded is False:
        return [f"if {test}:", f"    {code.model}.apply({emptying.function})"]
    device = emptying.device or device_type(construction, code)
    made = f"{code.model}.to_empty(device={_where(device, code.offloaded)})"
    return [f"if {test}:", f"    {made}"]


def _where(device: str, offloaded: Condition) -> str:
    """Where parameters get their memory: FSDP2 takes those that it offloads from the CPU alone."""
    if offloaded is False:
        return device
    if offloaded is True:
        return '"cpu"'
    return f'"cpu" if {offloaded} else {device}'


def back_to_device(construction: Construction, buffer: str, code: Code) -> list[str]:
    """The line that moves a buffer off the CPU, where it got memory beside parameters that are offloaded."""
    if code.offloaded is False:
        return []
    device = device_type(construction, code)
    return ["    # FSDP2 offloads parameters alone", f"    {buffer}.data = {buffer}.to({device})"]


def _of_filled_buffers(construction: Construction, code: Code) -> str:
    """Where FSDP1 moved what a function or `reset_parameters` left on the CPU; "" where no device is given."""
    value = construction.value("device_id")
    if value is None:
        return ""
    source = construction.text(value)
    device = source
    if not source.isidentifier():
        device = device_type(construction, code)
    if device == '"cpu"':
        return ""
    return device


def _offloaded(construction: Construction, code: Code, lines: list[str]) -> list[str]:
    """What is done where parameters are offloaded: buffers are not."""
    if code.offloaded is False:
        return []
    if not code.device:
        buffer = construction.context.local("buffer", construction.call)
        back = back_to_device(construction, buffer, code)
        lines = [*lines, f"for {buffer} in {code.model}.buffers():", *back]
    if not lines:
        return []
    if code.offloaded is True:
        return lines
    return [f"if {code.offloaded}:", *[f"    {line}" for line in lines]]


def _body(construction: Construction, function: ast.Lambda, module: str) -> list[str]:
    """The body of a lambda as a statement, for a module of another name."""
    body: ast.expr = function.body
    lines: list[str] = []
    if isinstance(body, ast.IfExp) and isinstance(body.orelse, ast.Constant):
        lines.append(f"if {construction.text(body.test)}:")
        body = body.body
    text = of_parameter(construction, function, body, module)
    if lines:
        return [*lines, f"    {text}"]
    return [text]


def of_parameter(
    construction: Construction, function: ast.Lambda, body: ast.expr, name: str
) -> str:
    """An expression in a lambda as source, its parameter by another name."""
    from fsdp_migrate.codemods.edit.text import spliced

    context = construction.context
    parameter = function.args.args[0].arg
    edits = [
        context.replace(node, name)
        for node in ast.walk(body)
        if isinstance(node, ast.Name) and node.id == parameter
    ]
    start, end = context.file.span(body)
    source = spliced(context.file.text, edits, start, end)
    if "\n" in source and not isinstance(body, ast.Call):
        return f"({source})"
    return source


def empty(construction: Construction, code: Code) -> None:
    """A model that the file puts on the meta device, which FSDP1 filled by `reset_parameters`."""
    sync = construction.value("sync_module_states")
    if sync is not None and construction.constant(sync) is True:
        code.fill = _empty_at_once(construction, empties.Emptying(), code)
        return
    module = construction.context.local("module", construction.call)
    device = _where(device_type(construction, code), code.offloaded)
    body = [f"{module}.to_empty(device={device}, recurse=False)", f"{module}.reset_parameters()"]
    code.device = _of_filled_buffers(construction, code)
    code.fill = _each_on_meta(code.model, module, body) + _offloaded(construction, code, [])
    code.drawn = (
        " Modules on the meta device get their values from `reset_parameters` after sharding, so random initial values "
        "differ from FSDP1's."
    )
