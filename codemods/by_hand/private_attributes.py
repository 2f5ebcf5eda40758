"""Private attributes of FSDP1's wrapper: handles, flat parameters and their names."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.private_modules import FLAT, LAZY_INIT
from fsdp_migrate.codemods.context import Context, also
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.codemods.uses import handles
from fsdp_migrate.facts.file import File, values_given
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import text_of
from fsdp_migrate.findings import Action, Severity

ATTRIBUTE = Rule("FSDP366", "wrapper-internals", Severity.RAISES)
RESHARD = Rule("FSDP368", "handle-reshard")

_HANDLES = (
    "FSDP2 has no handles. Names and shapes are those of `unit.named_parameters()`. To gather the values of a unit use "
    "`unit.unshard()`, to free them `unit.reshard()`."
)
_HOOKS = "FSDP2 has no communication hooks. Set `reduce_dtype` of the mixed precision policy to compress gradients."
_STREAMS = (
    "FSDP2 gives each root model its own streams. "
    "Remove this, or use `share_comm_ctx` of `torch.distributed.fsdp` to share them."
)
# Attributes of FSDP1's wrapper that a model on FSDP2 does not have, and what to do. The page of the rule shows the same.
ATTRIBUTES = {
    "_all_fsdp_states": "FSDP2 has no such list. Use `[m for m in model.modules() if isinstance(m, FSDPModule)]`.",
    "_all_handles": _HANDLES,
    "_free_event_queue": _HANDLES,
    "_fully_sharded_module_to_handle": _HANDLES,
    "_handle": _HANDLES,
    "_handles": _HANDLES,
    "_unshard_event": _HANDLES,
    "_wait_unshard_streams_on_current_stream": _HANDLES,
    "_assert_state": "FSDP2 has no training states to check. Remove this call.",
    "_comm_hook": _HOOKS,
    "_comm_hook_state": _HOOKS,
    "_exec_order_data": (
        "FSDP2 records no execution order. Use `set_modules_to_forward_prefetch` to set the order of prefetching."
    ),
    "_flat_param": FLAT,
    "_fsdp_extension": "FSDP2 has no extensions. Pass a mesh with a tensor-parallel dimension.",
    "_has_params": "FSDP2 has no such attribute. Test whether `list(module.parameters())` is empty.",
    "_lazy_init": LAZY_INIT,
    "_pre_unshard_stream": _STREAMS,
    "_streams": _STREAMS,
    "_unshard_stream": _STREAMS,
    "_reset_lazy_init": "FSDP2 cannot be reset. Create a new model and shard it.",
    "_sync_gradients": (
        "FSDP2 has no such attribute. Use `set_requires_gradient_sync()` to turn the reduction of gradients on and off."
    ),
    "_unshard": "FSDP2 has no such method. Use `unit.unshard()` to gather the parameters of a unit.",
    "params": (
        "FSDP2 has no list of flat parameters. Use `model.parameters()` once for the whole model: a unit's "
        "`parameters()` include those of the units in it."
    ),
}
# Attributes of flat parameters, and of what held them, that nothing else has.
_OF_FLAT = frozenset(
    """_flat_param_to _full_param_padded _is_grad_none_mask _local_shard _mp_shard _param_infos _saved_grad_shard
    _shard_param_infos _shard_param_offsets _sharded_size _shared_param_infos _unpadded_unsharded_size
    _use_sharded_flat_param _use_sharded_views _use_unsharded_flat_param _use_unsharded_views flat_param_to sharded_grad
    unshard_grad""".split()  # noqa: SIM905
)
# Moves a unit's parameters, of a model that waits for its turn.
_MOVING = "flat_param_to"
_MOVES = (
    "This moves FSDP1's flat parameters to another device, and raises: FSDP2 has none. Replace all code for handles here "
    'by `model.to("cpu")` or `model.to("cuda")`.'
)
_FREED = "Replaced by `reshard()`, which frees the gathered parameters, and a loop that frees the shards."
# Those of them that no other library's objects have, and those that a file with FSDP1 in it means.
_UNMISTAKABLE = frozenset({"_all_handles", "_exec_order_data", "_flat_param"})
_LIKELY = frozenset({"_handle", "_handles", "_has_params", "_streams"})


@codemod(words=("._", ".params", "_flat_param", ".flat_param", "shard"))
def find(context: Context) -> Iterator[Found]:
    """Private attributes of models, `model._handle.reshard(True)`, and tests for flat parameters by name.

    A function that moves flat parameters has one finding for all that it does with them, at the first of its lines.
    """
    moved: dict[ast.stmt, list[ast.expr]] = {}
    for attribute in _moving(context):
        home = _home(context, attribute)
        if home is not None:
            moved.setdefault(home, []).append(attribute)
    for found in _each(context):
        home = _home(context, found.node)
        if home in moved and isinstance(found.node, ast.expr):
            moved[home].append(found.node)
        else:
            yield found
    for nodes in moved.values():
        first = min(nodes, key=lambda node: (node.lineno, node.col_offset))
        lines = sorted({node.lineno for node in nodes} - {first.lineno})
        others = also(lines)
        yield Found(ATTRIBUTE, first, Action.MANUAL, f"{_MOVES}{others}", f".{_MOVING}")


def _moving(context: Context) -> list[ast.Attribute]:
    if context.models.shards():
        return [*context.file.attributes.get(_MOVING, ())]
    return []


def _home(context: Context, node: ast.AST) -> ast.stmt | None:
    """The function around a node, else its loop."""
    function = context.file.function(node)
    if function is not None:
        return function
    for around in context.file.ancestors(node):
        if isinstance(around, ast.For | ast.While):
            return around
    return None


def _each(context: Context) -> Iterator[Found]:
    for name in sorted(ATTRIBUTES.keys() & context.file.attributes.keys()):
        for attribute in context.file.attributes[name]:
            yield from _attribute(context, attribute)
    yield from _asked_for(context)
    if context.models.shards():
        in_loops = handles.replaced(context)
        names = _OF_FLAT
        if _speaks(context):
            names = _OF_FLAT | {"flat_param"}
        for name in sorted(names & context.file.attributes.keys()):
            for attribute in context.file.attributes[name]:
                owner = attribute.value
                is_found = isinstance(owner, ast.Attribute) and owner.attr in ATTRIBUTES
                if is_found or attribute in in_loops or _asks_first(context.file, attribute):
                    continue
                yield Found(ATTRIBUTE, attribute, Action.MANUAL, FLAT, f".{name}")
    yield from _flat_names(context)


def _asked_for(context: Context) -> Iterator[Found]:
    """`hasattr(module, "_exec_order_data")` and `getattr(module, "_flat_param", None)`."""
    if not context.models.shards():
        return
    for name in ("hasattr", "getattr"):
        for call in context.file.calls.get(name, ()):
            asked = ""
            if len(call.args) > 1:
                asked = text_of(call.args[1])
            if asked in _UNMISTAKABLE | _OF_FLAT:
                message = f"This never finds `{asked}` under FSDP2. {ATTRIBUTES.get(asked, FLAT)}"
                severity = Severity.SILENT
                yield Found(
                    ATTRIBUTE, call, Action.MANUAL, message, f"{name}(...)", severity=severity
                )


def _attribute(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    owner = attribute.value
    name = attribute.attr
    if context.fsdp1(owner) == CLASS:
        message = (
            f"This line has no effect: FSDP2 does not use `{name}` of FSDP1's class. Remove it."
        )
        if isinstance(attribute.ctx, ast.Store):
            yield Found(ATTRIBUTE, attribute, Action.MANUAL, message, f".{name}")
        return
    call = _reshard(context, attribute)
    if call is not None:
        code = f"{context.source(owner)}.reshard()"
        message = f"Replaced by `{code}`, which frees the same parameters."
        if context.in_place:
            edits = lambda: [context.replace(call, code)]  # noqa: E731
            yield Found(RESHARD, call, Action.REWRITE, message, edits=edits)
        else:
            message = f"This raises, because FSDP2 has no handles. Use `{code}`, which frees the same parameters."
            yield Found(ATTRIBUTE, attribute, Action.MANUAL, message, f".{name}")
        return
    freeing = _freeing(context, attribute)
    if freeing is not None and context.in_place:
        yield _freed(context, freeing, attribute)
        return
    likely = name in _UNMISTAKABLE or (name in _LIKELY and _speaks(context))
    is_self = isinstance(owner, ast.Name) and owner.id == "self"
    may_be_meant = (
        context.can_be_model(owner) or _is_tested(context, attribute) or (likely and not is_self)
    )
    if may_be_meant and not _asks_first(context.file, attribute):
        message = ATTRIBUTES[name]
        around = context.file.parents[attribute]
        if isinstance(around, ast.Attribute) and around.attr == "flat_param":
            message = FLAT
        yield Found(ATTRIBUTE, attribute, Action.MANUAL, message, f".{name}")


def _speaks(context: Context) -> bool:
    """Whether a file names something of FSDP1, also of its private modules."""
    return bool(context.references) or "distributed.fsdp._" in context.file.text


def _is_tested(context: Context, attribute: ast.Attribute) -> bool:
    """Whether `isinstance(module, FSDP)` decides about `module.params`."""
    for around in context.file.ancestors(attribute):
        if not isinstance(around, ast.If | ast.IfExp | ast.While | ast.Assert):
            continue
        for node in ast.walk(around.test):
            match node:
                case ast.Call(args=[tested, cls]):
                    is_it = ast.unparse(tested) == ast.unparse(attribute.value)
                    if is_it and context.fsdp1(cls) == CLASS:
                        return True
    return False


def _asks_first(file: File, attribute: ast.Attribute) -> bool:
    """Whether `model._handle` is inside of what a `hasattr` of the same receiver decides."""
    asked = f"hasattr({ast.unparse(attribute.value)}, '{attribute.attr}')"
    child: ast.AST = attribute
    for parent in file.ancestors(attribute):
        match parent:
            case ast.If(test=test, orelse=others) | ast.While(test=test, orelse=others):
                is_decided = child is not test and child not in others
            case ast.IfExp(test=test, orelse=other):
                is_decided = child is not test and child is not other
            case ast.Assert(test=test):
                is_decided = child is not test
            case ast.BoolOp():
                test = parent
                is_decided = True
            case _:
                is_decided = False
        if is_decided and asked in _conditions(test):
            return True
        child = parent
    return False


def _conditions(test: ast.expr) -> list[str]:
    """The source of a test, and that of each of its conditions."""
    conditions = [test]
    if isinstance(test, ast.BoolOp):
        conditions += test.values
    return [*map(ast.unparse, conditions)]


def _reshard(context: Context, attribute: ast.Attribute) -> ast.Call | None:
    """The call `model._handle.reshard(True)` around `model._handle`."""
    method = context.file.parents[attribute]
    call = context.call_of(method)
    is_reshard = isinstance(method, ast.Attribute) and method.attr == "reshard"
    if call is None or not is_reshard or attribute.attr != "_handle":
        return None
    given = values_given(call)
    frees = len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is True
    if frees:
        return call
    return None


def _freeing(context: Context, attribute: ast.Attribute) -> ast.Expr | None:
    """The statement `_free_storage(unit._handle.flat_param.data)` around `unit._handle`, in which a test shows the unit."""
    file = context.file
    statement = file.statement(attribute)
    match statement:
        case ast.Expr(
            ast.Call(
                ast.Name("_free_storage"),
                [ast.Attribute(ast.Attribute(ast.Attribute() as handle, "flat_param"), "data")],
                [],
            )
        ) if handle is attribute and isinstance(handle.value, ast.Name):
            if _is_tested(context, attribute) and context.is_alone(statement):
                return statement
    return None


def _freed(context: Context, statement: ast.Expr, handle: ast.Attribute) -> Found:
    """The finding that frees the memory of a unit's parameters, gathered ones and shards.

    A unit's parameters are also those of the units in it: between a loop over all units that does nothing else and what is
    behind it, one loop over the model's parameters frees each once.
    """
    file = context.file
    unit = context.source(handle.value)
    name = context.local("param", statement)
    shards = (
        f"for {name} in {{}}.parameters():\n    if isinstance({name}, DTensor):\n"
        f"        _free_storage({name}.to_local())"
    )
    need = Import("torch.distributed.tensor", "DTensor", handle)
    edits = lambda: [  # noqa: E731
        context.replace_statement(statement, f"{unit}.reshard()\n{shards.format(unit)}")
    ]
    match file.parents[file.parents[statement]], file.parents[statement]:
        case (
            ast.For(
                target=ast.Name(each),
                iter=ast.Call(ast.Attribute(model, "modules"), [], []),
                body=[_],
                orelse=[],
            ) as loop,
            ast.If(body=[_], orelse=[]),
        ) if each == unit:
            block = file.block(loop)
            behind = block[block.index(loop) + 1 :]
            of_all = shards.format(context.source(model))
            if behind and context.is_alone(behind[0]):
                edits = lambda: [  # noqa: E731
                    context.replace_statement(statement, f"{unit}.reshard()"),
                    context.insert_above(behind[0], of_all),
                ]
    return Found(ATTRIBUTE, handle, Action.REWRITE, _FREED, "._handle", edits, (need,))


def _flat_names(context: Context) -> Iterator[Found]:
    """Tests for the name of a flat parameter: `"_flat_param" in name`, `name.endswith("_flat_param")`."""
    if "_flat_param" not in context.file.text:
        return
    for constant in context.file.of(ast.Constant):
        parent = context.file.parents[constant]
        match parent:
            case ast.Compare(left=left):
                tested = left is constant
            case ast.Call(func=ast.Attribute(attr="endswith")):
                tested = True
            case _:
                tested = False
        if tested and isinstance(constant.value, str) and constant.value.endswith("_flat_param"):
            message = "This name matches no parameter: under FSDP2 each parameter has its own name. Test for that name."
            yield Found(ATTRIBUTE, parent, Action.MANUAL, message)
