"""`FSDP.summon_full_params(model)`: whole parameters for a while.

On an FSDP2 model FSDP1's context is empty: parameters stay sharded, without an error. `unshard()` is no substitute: it does
not recurse, casts to `param_dtype` and forgets changes (pytorch#129229). The runtime's context of the same name gathers,
shows and writes back as FSDP1's did.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import is_of_wrapper
from fsdp_migrate.codemods.checkpoints.runtime_function import members, renamed
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import SELF_RETURNING

RULE = Rule(
    "FSDP321",
    "summon-full-params",
    "summon_full_params comes from the runtime",
    """FSDP1's `summon_full_params` does nothing on an FSDP2 model, without an error. The runtime's takes the same arguments:
inside it parameters are whole and in their own dtype, changes are written back unless `writeback=False`, and what FSDP1
refused is refused. To read one parameter, `p.full_tensor()` on all ranks does as well and gathers no other. A forward inside
does not see changes that were made inside.""",
    (
        Example(
            "reading one parameter",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, writeback=False, rank0_only=True, offload_to_cpu=True):
    weight = model.head.weight.detach().clone()
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model, writeback=False, rank0_only=True, offload_to_cpu=True):
    weight = model.head.weight.detach().clone()
""",
        ),
        Example(
            "changing parameters and gradients",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, with_grads=True):
    model.head.weight.data.mul_(2)
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model, with_grads=True):
    model.head.weight.data.mul_(2)
""",
        ),
        Example(
            "reading parameters",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, writeback=False):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model, writeback=False):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
""",
        ),
        Example(
            "under a condition, and through the model",
            """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
context = FSDP.summon_full_params(model, recurse=False) if whole else nullcontext()
with model.summon_full_params(model), context:
    text = model.generate(prompt)
""",
            """\
from contextlib import nullcontext

from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
context = summon_full_params(model, recurse=False) if whole else nullcontext()
with summon_full_params(model), context:
    text = model.generate(prompt)
""",
        ),
        Example(
            "another library's",
            """\
from fairscale.nn import FullyShardedDataParallel as FSDP

with FSDP(model).summon_full_params():
    print(model.weight)
""",
            quiet=True,
        ),
    ),
)
OTHER_FORWARD = Rule(
    "FSDP365",
    "other-forward-method",
    "a method that computes inside summon_full_params can gather by itself",
    """Hooks gather parameters where the model is called, not in its other methods: programs put `generate` or `encode` into
`summon_full_params`, which holds the whole model, or the root's part with `recurse=False`. That goes on working. torch's
`register_fsdp_forward_method(model, "generate")`, called once after the sharding, makes FSDP2's hooks run around the method as
well: units gather as they are used, and no context is needed. Outside of such contexts nothing changes: a method that reads a
sharded parameter of the root fails under both.""",
    (
        Example(
            "generating",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model, recurse=False):
    text = model.generate(prompt)
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model, recurse=False):
    text = model.generate(prompt)
""",
            message='register_fsdp_forward_method(model, "generate")',
        ),
        Example(
            "reading",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.summon_full_params(model):
    names = [name for name, _ in model.named_parameters()]
""",
            """\
from fsdp_migrate.runtime import summon_full_params
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with summon_full_params(model):
    names = [name for name, _ in model.named_parameters()]
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE, OTHER_FORWARD)

# Methods of nn.Module, which compute nothing.
_MODULE_METHODS = SELF_RETURNING | {
    "buffers",
    "children",
    "forward",
    "load_state_dict",
    "modules",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "save_pretrained",
    "state_dict",
    "zero_grad",
}


def find(context: Context) -> Iterator[Draft]:
    """`summon_full_params` of the class and of models."""
    message = "the runtime's shows whole parameters and writes changes back, as FSDP1's did"
    for attribute, _, sites in members(context, "summon_full_params"):
        yield renamed(context, RULE, attribute, message, sites)
        yield from _computing(context, attribute)


def _computing(context: Context, attribute: ast.Attribute) -> Iterator[Draft]:
    """Methods of a model, other than its forward, that run inside a context of it."""
    call = context.module.parents[attribute]
    item = context.module.parents[call]
    block = context.module.parents[item]
    if not (isinstance(call, ast.Call) and isinstance(block, ast.With)):
        return
    models = {ast.dump(node) for node in (*call.args[:1], attribute.value)}
    for inner in (node for statement in block.body for node in ast.walk(statement)):
        if (
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Attribute)
            and inner.func.attr not in _MODULE_METHODS
            and ast.dump(inner.func.value) in models
            and (sites := context.sites(inner.func.value))
            and not is_of_wrapper(inner.func.attr)
        ):
            model, name = context.source(inner.func.value), inner.func.attr
            registered = f'register_fsdp_forward_method({model}, "{name}")'
            message = f"goes on working; {registered} after the sharding needs no context"
            yield Draft(
                OTHER_FORWARD, inner, Action.MANUAL, message, context.source(inner.func), sites
            )


Command = command(find, __doc__ or "")
