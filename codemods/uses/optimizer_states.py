"""FSDP1's functions for states of optimizers, as `get_optimizer_state_dict` and `set_optimizer_state_dict`."""

import ast
from dataclasses import replace

from fsdp_migrate.codemods.constructor.flow import flow_of
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.uses import read_shards
from fsdp_migrate.codemods.uses.loads import behind, is_load
from fsdp_migrate.codemods.uses.options import MODULE, Setting
from fsdp_migrate.codemods.uses.side_by_side import ON_EACH_DEVICE, is_side_by_side, options_to_get
from fsdp_migrate.codemods.uses.use import Use
from fsdp_migrate.facts.file import File, root_of
from fsdp_migrate.facts.nodes import has_double_star
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.scopes import Assigned

GET = "get_optimizer_state_dict"
SET = "set_optimizer_state_dict"
# What FSDP1's functions take, by position.
_GETTING = {
    "optim_state_dict": ("model", "optim", "optim_state_dict", "group"),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only", "group"),
    "sharded_optim_state_dict": ("model", "optim", "group"),
}
_LOADING = {
    "optim_state_dict_to_load": ("model", "optim", "optim_state_dict"),
    "shard_full_optim_state_dict": ("full_optim_state_dict", "model", "optim_input", "optim"),
    "scatter_full_optim_state_dict": ("full_optim_state_dict", "model", "optim_input", "optim"),
    "flatten_sharded_optim_state_dict": ("sharded_optim_state_dict", "model", "optim"),
}
_STATES = ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict")
_NO_STATES = (
    " It raises for this optimizer: SGD without momentum keeps no states, and torch loads whole ones by the device of those "
    "that are there. Remove the load and set the learning rates yourself, or give the optimizer a momentum."
)
_BY_HAND = {
    "rekey_optim_state_dict": "FSDP2 has no such function: states always use parameter names as keys. Remove this call."
}

_OF_SHARDS = (
    " But `load_sharded_optimizer_state_dict` returns tensors of an old class, for which `optimizer.step()` raises. "
    "Instead, let `torch.distributed.checkpoint.load` fill `{key: get_optimizer_state_dict(model, optimizer)}`."
)


def by_hand(name: str) -> str:
    """What to write for a function of FSDP1's that is not translated where it stands."""
    if name in _BY_HAND:
        return _BY_HAND[name]
    function = SET
    of = "model, optimizer, state"
    if name in _GETTING:
        function = GET
        of = "model, optimizer"
    return f"FSDP2 has no such function. Use `{function}({of}, options=StateDictOptions(...))` of `{MODULE}`."


def getting(context: Context, attribute: ast.Attribute, setting: Setting) -> Use | None:
    """A call that returns states; None where there is no such call."""
    call = context.call_of(attribute)
    name = attribute.attr
    if call is None or name not in _GETTING or has_double_star(call):
        return None
    model, optimizer = [_given(call, name, each) for each in ("model", "optim")]
    others = [_given(call, name, each) for each in ("optim_state_dict", "group")]
    if model is None or optimizer is None or any(others):
        return None
    if name == "full_optim_state_dict":
        rank_0 = _given(call, name, "rank0_only")
        if rank_0 is None:
            source = "True"
        else:
            source = ast.unparse(rank_0)
        setting = replace(setting, full="True", offload="True", rank_0=source, config=None)
    elif name == "sharded_optim_state_dict":
        setting = replace(setting, full="False", offload="False", config=None)
    options, on_each_device = options_to_get(context, call, setting)
    message = (
        f"Replaced by `{GET}`, which uses parameter names as keys, as FSDP1 did. "
        "For an optimizer without any states yet, it first makes a step with learning rate 0."
    )
    if on_each_device:
        message += ON_EACH_DEVICE
    else:
        message += setting.on_device(options)
    parts = {"_model": model, "_optimizer": optimizer}
    return Use(
        call,
        GET,
        ("_model", "_optimizer"),
        parts,
        message,
        options,
        setting.config,
        needs_user=on_each_device,
    )


def loading(context: Context, attribute: ast.Attribute, setting: Setting) -> Use | None:
    """A call that makes states to load, which torch's function does itself; None where it has no such place."""
    call = context.call_of(attribute)
    name = attribute.attr
    if call is None or name not in _LOADING or has_double_star(call):
        return None
    state = next(filter(None, (_given(call, name, each) for each in _STATES)), None)
    model = _given(call, name, "model")
    given = _given(call, name, "optim")
    optimizer = given or _loaded_into(context, call)
    if state is None or model is None or optimizer is None:
        return None
    reader = read_shards.read_by(context, state)
    setting = _of_states(name, reader, setting)
    if setting.full != "False" and is_side_by_side(context):
        return None
    parts = {"_model": model, "_state": state}
    optimizer_code = ast.unparse(optimizer)
    if given is not None:
        optimizer_code = "_optimizer"
        parts["_optimizer"] = given
    message = f"Replaced by `{SET}`, which also loads the states into the optimizer. A load of the former result is removed."
    has_none = setting.full != "False" and _has_no_states(context, optimizer)
    if has_none:
        message += _NO_STATES
    raises = _stays(context, reader)
    if raises:
        message += _OF_SHARDS
    use = Use(
        call,
        SET,
        ("_model", optimizer_code, "_state"),
        parts,
        message,
        setting.to_set(),
        needs_user=has_none or raises,
    )
    statement = context.file.statement(call)
    match statement:
        case ast.Expr(ast.Call() as load) if is_load(statement, optimizer, call):
            return replace(use, node=load)
        case ast.Assign([ast.Name() as target]) if statement.value is call:
            return replace(use, loads=behind(context, statement, target, optimizer))
    return None


def _of_states(name: str, reader: ast.Call | None, setting: Setting) -> Setting:
    """The setting of the states that a function takes: shards, whole ones, or what the context says."""
    if name == "flatten_sharded_optim_state_dict" or reader is not None:
        return replace(setting, full="False")
    if name != "optim_state_dict_to_load":
        return replace(setting, full="True")
    return setting


def _loaded_into(context: Context, call: ast.Call) -> ast.expr | None:
    """The optimizer whose `load_state_dict` gets the result of a call, by a name or at once, if the call can have it, too."""
    file = context.file
    results: list[ast.expr] = [call]
    match file.statement(call):
        case ast.Assign([ast.Name() as target], value) if value is call:
            results = [*file.reads(target)]
    for result in results:
        match file.parents[result]:
            case ast.Call(ast.Attribute(owner, "load_state_dict"), [given], []) if given is result:
                if _is_there(file, owner, call):
                    return owner
    return None


def _is_there(file: File, owner: ast.expr, call: ast.Call) -> bool:
    """Whether a name, or an attribute of one, is given a value in front of a call and none behind it."""
    root = root_of(owner)
    if root is None or not isinstance(owner, ast.Name | ast.Attribute):
        return False
    stores = [binding.target for binding in file.bindings(root) if isinstance(binding, Assigned)]
    if isinstance(owner, ast.Attribute):
        same = file.attributes.get(owner.attr, ())
        stores += [each for each in same if isinstance(each.ctx, ast.Store)]
    own = file.function(call)
    return not any(file.function(each) is own and each.lineno > call.lineno for each in stores)


def _stays(context: Context, reader: ast.Call | None) -> bool:
    """Whether states come from `load_sharded_optimizer_state_dict`, and no other function takes its place."""
    return reader is not None and read_shards.reading(context, reader) is None


def _has_no_states(context: Context, optimizer: ast.expr) -> bool:
    """Whether an optimizer is SGD without momentum, as far as the program shows what it is."""
    flow = flow_of(context.program, context.file, optimizer)
    if flow.hidden or flow.ends or not flow.outside:
        return False
    return all(_is_plain_sgd(context, each) for each in flow.outside)


def _is_plain_sgd(context: Context, end: Value) -> bool:
    made = end.node
    if not isinstance(made, ast.Call) or has_double_star(made):
        return False
    if "torch.optim.SGD" not in context.program.dotted(made.func, end.file):
        return False
    momentum = keyword(made, "momentum", 2)
    return momentum is None or (isinstance(momentum, ast.Constant) and not momentum.value)


def _given(call: ast.Call, function: str, parameter: str) -> ast.expr | None:
    names = (_GETTING | _LOADING)[function]
    if function == "optim_state_dict_to_load" and len(call.args) > 1:
        if "model" in ast.unparse(call.args[1]).lower():  # the order of torch 2.0
            names = ("optim_state_dict", "model", "optim")
    position = None
    if parameter in names:
        position = names.index(parameter)
    found = keyword(call, parameter, position)
    is_none = isinstance(found, ast.Constant) and found.value is None
    if is_none:
        return None
    return found
