"""`sync_module_states`: every rank begins with the values of rank 0, which `fully_shard` does not send."""

import ast
import re

from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.conditions import grouped
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.devices import back_to_device, distributed
from fsdp_migrate.codemods.constructor.meta import is_on_meta, is_real
from fsdp_migrate.codemods.constructor.once import inlined
from fsdp_migrate.codemods.constructor.parts import has_sharded_parts
from fsdp_migrate.codemods.constructor.placed import is_on_device
from fsdp_migrate.codemods.rule import Import, Rule

SYNC = Rule("FSDP208", "sync-module-states")

# Names of the rank among all, and of whether it is the first.
_RANK = re.compile(r"(?<!\w)(?:global_)?rank$|get_rank\(\)$")
_RANK_0 = re.compile(r"(?<!local_)rank_?(?:0|zero)$")
_STATE_DICT = "torch.distributed.checkpoint.state_dict"


def sync(construction: Construction, value: ast.expr, code: Code) -> str:
    """Every rank begins with the values of the first: by a broadcast before the sharding, or from rank 0's state behind it."""
    constant: object = ...
    if value in construction.context.file.parents:
        constant = construction.constant(value)
    if constant is False:
        return "Has no effect: nothing is broadcast, which is the default."
    test = ""
    if constant is not True:
        test = construction.text(value)
    function = construction.value("param_init_fn")
    if is_on_meta(construction) or (function is not None and not is_real(construction)):
        return _load_from_rank_0(construction, test, code)
    context = construction.context
    call = construction.call
    dist = distributed(construction, code)
    tensor = context.local("tensor", call)
    own = context.local("value", call)
    device = _where_to_send(construction)
    source = _source(construction, code)
    lines = [f"for {tensor} in [*{code.model}.parameters(), *{code.model}.buffers()]:"]
    if has_sharded_parts(construction):
        code.imports.append(Import("torch.distributed.tensor", "DTensor"))
        lines += [f"    if isinstance({tensor}, DTensor):  # sharded already", "        continue"]
    if device:
        lines += [
            f"    {own} = {tensor}.detach().to({device})",
            f"    {dist}.broadcast({own}, {source})",
            f"    {tensor}.detach().copy_({own})",
        ]
    else:
        lines.append(f"    {dist}.broadcast({tensor}.detach(), {source})")
    if test:
        lines = [f"if {test}:", *[f"    {line}" for line in lines]]
    if "sync_module_states" not in test:  # which says it
        lines.insert(0, "# Every rank begins with rank 0's values")
    code.before += lines
    return "Replaced by a loop that broadcasts each tensor from rank 0 before sharding."


def _source(construction: Construction, code: Code) -> str:
    """The arguments of the broadcast that name rank 0: of all, or of the group that shards. A pair of groups has all ranks."""
    group = None
    if code.hybrid is False:
        group = construction.value("process_group")
    if group is None:
        return "src=0"
    return f"group_src=0, group={_group_name(construction, group, code)}"


def _group_name(construction: Construction, group: ast.expr, code: Code) -> str:
    source = construction.text(group)
    if all(part.isidentifier() for part in source.split(".")):
        return source
    for line in code.above:
        if line.endswith(f" = {source}"):
            return line.partition(" = ")[0]
    name = construction.context.local("group", construction.call)
    code.above.append(f"{name} = {source}")
    mesh = code.shared.get("mesh", "")
    code.shared["mesh"] = mesh.replace(source, name)
    return name


def _where_to_send(construction: Construction) -> str:
    """The device on which a model that may be on the CPU is broadcast: "" for where its tensors are."""
    device = construction.value("device_id")
    if device is None:
        return ""
    if device not in construction.context.file.parents:
        raise AtRunTime
    text = construction.text(device)
    if "cpu" in text or is_on_device(construction):
        return ""
    return text


def _load_from_rank_0(construction: Construction, test: str, code: Code) -> str:
    """FSDP2's own way, for models that are on the meta device of all ranks but the first."""
    context = construction.context
    call = construction.call
    dist = distributed(construction, code)
    state = context.local("state_dict", call)
    model = code.model
    buffer = context.local("buffer", call)
    rank_0 = _own_test(construction) or f"{dist}.get_rank() == 0"
    condition = rank_0
    if test:
        condition = f"{grouped(test)} and {rank_0}"
    code.before += [
        "# Rank 0 has the values; the other ranks get their shards of them",
        f"{state} = {model}.state_dict() if {condition} else {{}}",
    ]
    options = context.local("options", call)
    room = context.line_length - context.file.statement(call).col_offset
    load = [
        f"{options} = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)",
        f"set_model_state_dict({model}, {state}, options={options})",
    ]
    if test:
        room -= 4  # it is under the test
    lines = [
        *inlined(load, [options], room),
        f"for {buffer} in {model}.buffers():",
        *back_to_device(construction, buffer, code),
        f"    {dist}.broadcast({buffer}, src=0)",
    ]
    if test:
        code.last = [f"if {test}:", *[f"    {line}" for line in lines]]
    else:
        code.last = lines
    code.imports += [
        Import(_STATE_DICT, name) for name in ("StateDictOptions", "set_model_state_dict")
    ]
    message = "Replaced by `set_model_state_dict` with `broadcast_from_rank0=True`, after sharding."
    if construction.value("process_group") is not None:
        message += (
            " This sends the values of global rank 0 to every rank, where FSDP1 sent those of the first rank of each group. "
            "If groups hold different values, as under model parallelism, load them without this option."
        )
    return message


def _own_test(construction: Construction) -> str:
    """The program's own test for rank 0, as source: where `param_init_fn` is for the others; "" if there is none."""
    function = construction.value("param_init_fn")
    if isinstance(function, ast.Lambda):
        function = function.body
    match function:
        case ast.IfExp(test=test, orelse=ast.Constant(value=None)):
            parts = [test]
        case _:
            return ""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        parts = test.values
    for part in parts:
        match part:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                source = construction.text(operand)
                if _RANK_0.search(source):
                    return source
            case ast.Compare(left=rank, ops=[ast.NotEq()], comparators=[ast.Constant(value=0)]):
                source = construction.text(rank)
                if _RANK.search(source):
                    return f"{source} == 0"
    return ""
