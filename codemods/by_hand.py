"""Constructs that are found and explained, and left to be done by hand.

Each says whether it would fail loudly on an FSDP2 model, or go on running and do something else. The latter keeps its model
from being migrated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.checkpoints.state_dict_calls import OPTIMIZER_STATE
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import given_for
from fsdp_migrate.codemods.private_parts import ATTRIBUTES, reshard_of
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action


@dataclass(frozen=True)
class _Manual:
    """What to say of a method of the class or of a model.

    Attributes:
        silent: on an FSDP2 model it runs without an error and does something else.
    """

    rule: Rule
    message: str
    silent: bool = False


_HEADER = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
)

COMM_HOOK = Rule(
    "FSDP361",
    "comm-hook",
    "communication hooks have no counterpart",
    """FSDP1 handed every gradient of a unit, and the tensor for its shard, to the hook, in place of the reduction. torch's
`fp16_compress_hook` and `bf16_compress_hook` cast, reduce, and cast back: with FSDP2 that is
`MixedPrecisionPolicy(reduce_dtype=...)` of all units. Others can become `set_custom_reduce_scatter` or, for the all-reduce of
hybrid sharding, `set_all_reduce_hook`. On an FSDP2 model the method is gone, so the program stops there.""",
    (
        Example(
            "a hook that compresses",
            """\
from torch.distributed.algorithms._comm_hooks import default_hooks as hooks
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.register_comm_hook(state, hooks.bf16_compress_hook)
""",
            """\
from torch.distributed.algorithms._comm_hooks import default_hooks as hooks
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP361 by hand: MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) in fully_shard does what this hook did
model.register_comm_hook(state, hooks.bf16_compress_hook)
""",
            message="reduce_dtype=torch.bfloat16",
        ),
        Example(
            "a hook",
            f"{_HEADER}model.register_comm_hook(state, hook)\n",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP361 by hand: no hooks; to compress, MixedPrecisionPolicy(reduce_dtype=...)
model.register_comm_hook(state, hook)
""",
            message="reduce_dtype",
        ),
    ),
)
OTHER_METHOD = Rule(
    "FSDP366",
    "wrapper-method",
    "a method or attribute of FSDP1's wrapper that FSDP2 does not have",
    """Methods such as `check_is_root`, attributes such as `process_group`, `rank` and `sharding_strategy`, and everything
private belong to the wrapper and are gone with it, loudly. A finding says of each name what takes its place. `unshard()` is
no `_unshard`: it gathers one unit, in `param_dtype`, and forgets changes (pytorch#129229); for whole parameters the runtime
has `summon_full_params`.""",
    (
        Example(
            "a handle of something that may be a unit",
            f"{_HEADER}for part in parts:\n    part._handle.reshard(True)\n",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
for part in parts:
    # fsdp-migrate: FSDP366 by hand: if this is a unit of FSDP1, `_handle` is gone: reshard() frees what was gathered
    part._handle.reshard(True)
""",
            message="reshard()",
        ),
        Example(
            "attributes, each with what takes its place",
            f"{_HEADER}group, strategy = model.process_group, model.sharding_strategy\n",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP366 by hand: keep the value yourself, or ask next(model.parameters()).device_mesh.get_group(...)
# fsdp-migrate: FSDP366 by hand: keep the value yourself: FSDP2 keeps only what it came to, a mesh and when to reshard
group, strategy = model.process_group, model.sharding_strategy
""",
            message="FSDP2 keeps only what it came to",
        ),
        Example(
            "gathering by hand",
            f"{_HEADER}model._unshard()\n",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP366 by hand: unshard() gathers one unit, in param_dtype, and forgets changes; else summon_full_params
model._unshard()
""",
            message="forgets changes",
        ),
        Example(
            "a method",
            f"{_HEADER}root = model.check_is_root()\n",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP366 by hand: check_is_root is gone: the root is the model that is sharded last, known where that is done
root = model.check_is_root()
""",
            message="check_is_root",
        ),
    ),
)
RULES = (COMM_HOOK, OTHER_METHOD)

_METHODS: dict[str, _Manual] = {
    "register_comm_hook": _Manual(
        COMM_HOOK, "no hooks; to compress, MixedPrecisionPolicy(reduce_dtype=...)"
    ),
    "check_is_root": _Manual(
        OTHER_METHOD,
        "check_is_root is gone: the root is the model that is sharded last, known where that is done",
    ),
}
_REWRITTEN = frozenset(
    {
        *OPTIMIZER_STATE,
        "get_state_dict_type",
        "no_sync",
        "clip_grad_norm_",
        "state_dict_type",
        "set_state_dict_type",
        "summon_full_params",
        "fsdp_modules",
    }
)
_HANDLES = frozenset({"_handle", "_handles", "_all_handles", "_flat_param"})


def is_of_wrapper(name: str) -> bool:
    """Whether a method or attribute is one of FSDP1's wrapper, which an FSDP2 model does not have."""
    return name in _METHODS or name in _REWRITTEN or name in ATTRIBUTES


def find(context: Context) -> Iterator[Draft]:
    """Methods and attributes of FSDP1 models and of the class, and private names, that nothing rewrites."""
    for attribute in context.module.attributes:
        yield from _attribute(context, attribute)
    yield from _handles(context)


def _attribute(context: Context, attribute: ast.Attribute) -> Iterator[Draft]:
    sites = context.concerned(attribute)
    if sites is None:
        return
    construct = f".{attribute.attr}"
    manual = _METHODS.get(attribute.attr)
    if manual is not None:
        yield Draft(
            manual.rule,
            attribute,
            Action.MANUAL,
            _compresses(context, attribute) or manual.message,
            construct,
            sites,
            silent=manual.silent,
            mark=True,
        )
    elif attribute.attr in ATTRIBUTES and context.sites(attribute.value):
        if reshard_of(context, attribute) is not None:
            return
        message = ATTRIBUTES[attribute.attr]
        yield Draft(OTHER_METHOD, attribute, Action.MANUAL, message, construct, sites, mark=True)


def _compresses(context: Context, attribute: ast.Attribute) -> str | None:
    """What to say of a communication hook of torch's own that compresses gradients."""
    call = context.module.parents[attribute]
    if attribute.attr != "register_comm_hook" or not isinstance(call, ast.Call):
        return None
    hook = given_for(call, "hook", 1)
    names = (
        {p.rpartition(".")[2] for p in context.project.dotted(hook, context.module)}
        if hook
        else set()
    )
    for name, dtype in (("fp16_compress_hook", "float16"), ("bf16_compress_hook", "bfloat16")):
        if names == {name}:
            policy = f"MixedPrecisionPolicy(reduce_dtype=torch.{dtype})"
            return f"{policy} in fully_shard does what this hook did"
    return None


def _handles(context: Context) -> Iterator[Draft]:
    """Handles of what may be a unit of FSDP1, in files that speak of it."""
    if not context.references():
        return
    for attribute in context.module.attributes:
        if attribute.attr in _HANDLES and not context.sites(attribute.value):
            message = f"if this is a unit of FSDP1, `{attribute.attr}` is gone: reshard() frees what was gathered"
            construct = f".{attribute.attr}"
            yield Draft(OTHER_METHOD, attribute, Action.MANUAL, message, construct, mark=True)


Command = command(find, __doc__ or "")
