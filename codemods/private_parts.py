"""FSDP1's inside, name by name: what programs reach for, and what takes its place.

`_handle.reshard(True)` of a model, and the questions whether a parameter is FSDP1's, have sound counterparts and are
rewritten. The rest is explained.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods import tensor_parallel
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Need, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import is_private

_UNITS = "the units are the FSDPModules among model.modules()"
_KEEP = "keep the value yourself"
ATTRIBUTES = {
    "_handle": "there is no handle: model.unshard() gathers one unit, model.reshard() frees it",
    "_handles": f"there are no handles: {_UNITS}, with unshard() and reshard()",
    "_all_handles": f"there are no handles: {_UNITS}, with unshard() and reshard()",
    "_flat_param": "there is no flat parameter: a unit's parameters are DTensors of their own",
    "_fsdp_use_orig_params": "always so under FSDP2: parameters keep their names and shapes",
    "_use_orig_params": "always so under FSDP2: parameters keep their names and shapes",
    "_has_params": "ask model.parameters(): units without parameters are allowed",
    "_is_root": "the root is the module that is sharded last: keep it yourself",
    "_exec_order_data": "no order is recorded: set_modules_to_forward_prefetch gives it where it matters",
    "_lazy_init": "the first forward initializes: call the model before, or remove it",
    "_reset_lazy_init": "nothing can be reset: shard a new model, or remove it",
    "_unshard": "unshard() gathers one unit, in param_dtype, and forgets changes; else summon_full_params",
    "process_group": f"{_KEEP}, or ask next(model.parameters()).device_mesh.get_group(...)",
    "rank": f"{_KEEP}: dist.get_rank(group), or device_mesh.get_local_rank(...) of a parameter",
    "world_size": f"{_KEEP}: dist.get_world_size(group), or device_mesh.size(...) of a parameter",
    "sharding_strategy": f"{_KEEP}: FSDP2 keeps only what it came to, a mesh and when to reshard",
    "mixed_precision": f"{_KEEP}: FSDP2 has no public name for a unit's policy",
    "cpu_offload": f"{_KEEP}: FSDP2 has no public name for a unit's policy",
    "compute_device": f"{_KEEP}: it is the current device of the mesh's type",
    "backward_prefetch": f"{_KEEP}: FSDP2 always prefetches before",
    "forward_prefetch": f"{_KEEP}: set_modules_to_forward_prefetch sets it",
    "limit_all_gathers": f"{_KEEP}: FSDP2 needs no limit",
    "params": "use model.parameters(): DTensors, not flat parameters",
    "training_state": "FSDP2 has no public name for it: remove it",
}

_NAMES = {
    "FlatParameter": "there is no flat parameter: a sharded parameter is a DTensor",
    "FlatParamHandle": "there is no handle: FSDPModule has unshard() and reshard()",
    "TrainingState": "FSDP2 has no public name for the state of a unit: remove it",
    "HandleTrainingState": "FSDP2 has no public name for the state of a unit: remove it",
    "_FSDPState": "ask isinstance(module, FSDPModule)",
    "_get_module_fsdp_state": "ask isinstance(module, FSDPModule)",
    "_get_module_fsdp_state_if_fully_sharded_module": "ask isinstance(module, FSDPModule)",
    "_get_fsdp_states": _UNITS,
    "_get_fsdp_handles": f"there are no handles: {_UNITS}",
    "_module_handle": "there is no handle: FSDPModule has unshard() and reshard()",
    "_has_fsdp_params": "ask whether a parameter is a DTensor",
    "_is_fsdp_flattened": "ask isinstance(parameter, DTensor)",
    "_lazy_init": "the first forward initializes: call the model before, or remove it",
    "_root_pre_forward": "the hooks of fully_shard do this when the model is called",
    "_pre_forward": "the hooks of fully_shard do this when the model is called",
    "_post_forward": "the hooks of fully_shard do this when the model is called",
    "_post_backward_hook": "gradients are reduced by the hooks of fully_shard: nothing can be put in their place",
    "_reshard": "FSDPModule has reshard()",
    "_unshard": "FSDPModule has unshard(): one unit, in param_dtype, without write-back",
    "_unshard_params": "summon_full_params of fsdp_migrate.runtime",
    "_unshard_fsdp_state_params": "summon_full_params of fsdp_migrate.runtime",
    "_get_param_to_fqns": "model.named_parameters() has the names",
    "_convert_state_with_flat_params": "get_optimizer_state_dict and set_optimizer_state_dict",
    "_OptimStateKey": "get_optimizer_state_dict has the names of parameters for keys",
    "_ext_chunk_tensor": "DTensors shard over several meshes by themselves: remove it",
    "clean_tensor_name": "names have no prefix of FSDP's; it still strips _checkpoint_wrapped_module",
    "FSDP_WRAPPED_MODULE": "names have no prefix of FSDP's; old checkpoints may still need it stripped",
    "FSDP_PREFIX": "names have no prefix of FSDP's; old checkpoints may still need it stripped",
}
_OTHER = "a private part of FSDP1, gone with it: find a public counterpart"

PRIVATE = Rule(
    "FSDP014",
    "private-api",
    "private parts of FSDP1 have no counterpart",
    """Handles, flat parameters and runtime functions belong to FSDP1's inside. What programs reach for has public
counterparts more often than not: `unshard`, `reshard`, `DTensor`, `set_reshard_after_backward`; a finding names the one for
each name that was seen in use. `_is_fsdp_flattened(p)` was true of every parameter that FSDP1 managed: FSDP2's are DTensors.
`isinstance(p, FlatParameter)` was true of them with `use_orig_params=False`; with `use_orig_params=True` it was false and
stays so.""",
    (
        Example(
            "an import",
            """\
from torch.distributed.fsdp._runtime_utils import _lazy_init

_lazy_init(model, model)
""",
            message="the first forward initializes",
        ),
        Example(
            "parameters of FSDP1",
            """\
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._common_utils import _is_fsdp_flattened

model = FSDP(model, use_orig_params=False)
flat = [p for p in model.parameters() if isinstance(p, FlatParameter)]
sharded = [p for p in model.parameters() if _is_fsdp_flattened(p)]
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

fully_shard(model)
flat = [p for p in model.parameters() if isinstance(p, DTensor)]
sharded = [p for p in model.parameters() if isinstance(p, DTensor)]
""",
        ),
        Example(
            "a question that another setting answered",
            """\
from torch.distributed.fsdp import FlatParameter, FullyShardedDataParallel as FSDP

model = FSDP(model, use_orig_params=args.orig)
flat = [p for p in model.parameters() if isinstance(p, FlatParameter)]
""",
            message="a sharded parameter is a DTensor",
        ),
        Example(
            "names without a prefix",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
names = [name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()]
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
names = [name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()]
""",
            quiet=True,
        ),
    ),
)
RESHARD = Rule(
    "FSDP368",
    "handle-reshard",
    "model._handle.reshard(True) becomes model.reshard()",
    """After a generation or an evaluation the root keeps its parameters gathered, under FSDP1 as under FSDP2. Programs freed
them through the root's handle. `reshard()` of the same unit does so and has a public name; it frees no other unit, just as the
handle did.""",
    (
        Example(
            "after a generation",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
text = model.generate(prompt)
model._handle.reshard(True)
model._handle.reshard(free_unsharded_flat_param=True)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
text = model.generate(prompt)
model.reshard()
model.reshard()
""",
        ),
        Example(
            "another use of a handle",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model._handle.unshard()
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP366 by hand: there is no handle: model.unshard() gathers one unit, model.reshard() frees it
model._handle.unshard()
""",
            quiet=True,
        ),
    ),
)
RULES = (PRIVATE, RESHARD)


def find(context: Context) -> Iterator[Draft]:
    """Imports and uses of private names, and handles of models that are resharded."""
    for attribute in context.module.attributes:
        call = reshard_of(context, attribute)
        if call is not None:
            yield _resharded(context, attribute, call)
    for statement in ast.walk(context.module.tree):
        if isinstance(statement, ast.ImportFrom | ast.Import):
            for alias in statement.names:
                path = alias.name
                if isinstance(statement, ast.ImportFrom):
                    path = f"{statement.module}.{alias.name}"
                if is_private(path) and path not in tensor_parallel.NAMES:
                    yield from _imported(context, alias, path)


def reshard_of(context: Context, attribute: ast.Attribute) -> ast.Call | None:
    """The call `model._handle.reshard(True)` around `model._handle`, if that is what it is."""
    method = context.module.parents[attribute]
    call = context.module.parents[method]
    if attribute.attr != "_handle" or not context.sites(attribute.value):
        return None
    if not (isinstance(method, ast.Attribute) and method.attr == "reshard"):
        return None
    if not (isinstance(call, ast.Call) and call.func is method):
        return None
    given = [*call.args, *(k.value for k in call.keywords)]
    frees = len(given) == 1 and isinstance(given[0], ast.Constant) and given[0].value is True
    return call if frees and context.only_fsdp1(attribute.value) else None


def _resharded(context: Context, attribute: ast.Attribute, call: ast.Call) -> Draft:
    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        assert isinstance(updated.func, cst.Attribute)
        assert isinstance(updated.func.value, cst.Attribute)
        method = updated.func.with_changes(value=updated.func.value.value)
        return Edited(updated.with_changes(func=method, args=[]))

    return Draft(
        RESHARD,
        attribute,
        Action.REWRITE,
        "reshard() frees the same unit",
        context.source(call),
        context.sites(attribute.value),
        edits=(Edit(context.syntax.find(call, cst.Call), apply),),
    )


def _imported(context: Context, alias: ast.alias, path: str) -> Iterator[Draft]:
    name = path.rpartition(".")[2]
    message = _NAMES.get(name, _OTHER)
    loads = context.module.loads.get(alias.asname or alias.name, ())
    edits = {load: _asked(context, load, name) for load in loads}
    if not loads or not all(edits.values()):
        yield Draft(PRIVATE, alias, Action.MANUAL, message, name)
    for load, edit in edits.items():
        if edit is not None:
            yield Draft(
                PRIVATE,
                load,
                Action.REWRITE,
                "the parameters that FSDP2 manages are DTensors",
                name,
                edits=(edit[0],),
                needs=edit[1],
                gone=(load,),
            )
        else:
            silent = _turns_round(context, name)
            yield Draft(PRIVATE, load, Action.MANUAL, message, name, silent=silent, mark=True)


def _turns_round(context: Context, name: str) -> bool:
    """Whether a question that was answered with yes is answered with no on an FSDP2 model, without an error."""
    if name == "FlatParameter":
        plans = _plans(context)
        return any(p.constructor.constant("use_orig_params", False) is not True for p in plans)
    return name == "_is_fsdp_flattened" and bool(_plans(context))


def _asked(context: Context, load: ast.Name, name: str) -> tuple[Edit, tuple[Need, ...]] | None:
    """`isinstance(p, FlatParameter)` and `_is_fsdp_flattened(p)`, asked of DTensor."""
    call = context.module.parents[load]
    plans = _plans(context)
    if not isinstance(call, ast.Call) or call.keywords or not plans:
        return None
    dtensor, needs = context.name("torch.distributed.tensor", "DTensor", use=call)
    if name == "FlatParameter":
        flat = all(p.constructor.constant("use_orig_params", False) is False for p in plans)
        if flat and ast.unparse(call.func) == "isinstance" and call.args[1:] == [load]:
            return context.rename(load, dtensor), needs
    if name != "_is_fsdp_flattened" or call.func is not load or len(call.args) != 1:
        return None

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        parameter = updated.args[0].with_changes(comma=comma)
        arguments = [parameter, cst.Arg(cst.parse_expression(dtensor))]
        return Edited(updated.with_changes(func=cst.Name("isinstance"), args=arguments))

    return Edit(context.syntax.find(call, cst.Call), apply), needs


def _plans(context: Context) -> list[Plan]:
    """What becomes of the constructors in this file and in those that hang together with it."""
    around = context.project.connected(context.module)
    return [p for p in context.plans.values() if p.constructor.context.module in around]


Command = command(find, __doc__ or "")
