"""Constructs that are found and explained, and left to be done by hand.

Each says whether it would fail loudly on an FSDP2 model, or go on running and do something else. The latter keeps its model
from being migrated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods import tensor_parallel
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.state_dict_bodies import OPTIMIZER_STATE
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import is_private


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
    """Hooks that compress to 16 bits are `MixedPrecisionPolicy(reduce_dtype=...)`. Others can become
`set_custom_reduce_scatter` or, for the all-reduce of hybrid sharding, `set_all_reduce_hook`.""",
    (
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
private belong to the wrapper and are gone with it.""",
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
            "a method",
            f"{_HEADER}root = model.check_is_root()\n",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP366 by hand: check_is_root is gone; the root is what you shard last
root = model.check_is_root()
""",
            message="check_is_root",
        ),
    ),
)
PRIVATE = Rule(
    "FSDP014",
    "private-api",
    "private parts of FSDP1 have no counterpart",
    """Handles, flat parameters and runtime functions belong to FSDP1's inside. What programs reach for has public
counterparts more often than not: `unshard`, `reshard`, `DTensor`, `set_reshard_after_backward`.""",
    (
        Example(
            "an import",
            """\
from torch.distributed.fsdp._runtime_utils import _lazy_init

_lazy_init(model, model)
""",
            message="private",
        ),
    ),
)
RULES = (COMM_HOOK, OTHER_METHOD, PRIVATE)

_METHODS: dict[str, _Manual] = {
    "register_comm_hook": _Manual(
        COMM_HOOK, "no hooks; to compress, MixedPrecisionPolicy(reduce_dtype=...)"
    ),
    "check_is_root": _Manual(
        OTHER_METHOD, "check_is_root is gone; the root is what you shard last"
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
_ATTRIBUTES = frozenset(
    {
        "_handle",
        "_handles",
        "_all_handles",
        "_flat_param",
        "_fsdp_use_orig_params",
        "_use_orig_params",
        "_has_params",
        "_is_root",
        "_exec_order_data",
        "_lazy_init",
        "_reset_lazy_init",
        "_unshard",
        "process_group",
        "rank",
        "world_size",
        "sharding_strategy",
        "mixed_precision",
        "cpu_offload",
        "compute_device",
        "backward_prefetch",
        "forward_prefetch",
        "limit_all_gathers",
        "params",
        "training_state",
    }
)

_HANDLES = frozenset({"_handle", "_handles", "_all_handles", "_flat_param"})


def is_of_wrapper(name: str) -> bool:
    """Whether a method or attribute is one of FSDP1's wrapper, which an FSDP2 model does not have."""
    return name in _METHODS or name in _REWRITTEN or name in _ATTRIBUTES


def find(context: Context) -> Iterator[Draft]:
    """Methods and attributes of FSDP1 models and of the class, and private names, that nothing rewrites."""
    for attribute in context.module.attributes:
        yield from _attribute(context, attribute)
    yield from _handles(context)
    yield from _private(context)


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
            manual.message,
            construct,
            sites,
            silent=manual.silent,
            mark=True,
        )
    elif attribute.attr in _ATTRIBUTES and context.sites(attribute.value):
        message = f"`{attribute.attr}` belongs to FSDP1's wrapper: keep the value yourself"
        yield Draft(OTHER_METHOD, attribute, Action.MANUAL, message, construct, sites, mark=True)


def _handles(context: Context) -> Iterator[Draft]:
    """Handles of what may be a unit of FSDP1, in files that speak of it."""
    if not context.references():
        return
    for attribute in context.module.attributes:
        if attribute.attr in _HANDLES and not context.sites(attribute.value):
            message = f"if this is a unit of FSDP1, `{attribute.attr}` is gone: reshard() frees what was gathered"
            construct = f".{attribute.attr}"
            yield Draft(OTHER_METHOD, attribute, Action.MANUAL, message, construct, mark=True)


def _private(context: Context) -> Iterator[Draft]:
    for statement in ast.walk(context.module.tree):
        if not isinstance(statement, ast.ImportFrom | ast.Import):
            continue
        for alias in statement.names:
            path = alias.name
            if isinstance(statement, ast.ImportFrom):
                path = f"{statement.module}.{alias.name}"
            if is_private(path) and path not in tensor_parallel.NAMES:
                message = "a private part of FSDP1, gone with it: find a public counterpart"
                name = path.rpartition(".")[2]
                yield Draft(PRIVATE, alias, Action.MANUAL, message, name)
                for load in context.module.loads.get(alias.asname or alias.name, ()):
                    yield Draft(PRIVATE, load, Action.MANUAL, message, name, mark=True)


Command = command(find, __doc__ or "")
