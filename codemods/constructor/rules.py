"""The rules of the call itself."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example, Rule, bridged

CONSTRUCTOR = Rule(
    "FSDP002",
    "fsdp1-constructor",
    "FSDP(model, ...) runs on the bridge, or becomes fully_shard(model, ...)",
    """The runtime's `FullyShardedDataParallel` has FSDP1's constructor and interface on FSDP2's engine: the call runs as it
is. It becomes `fully_shard` where plain PyTorch says the same. `fully_shard` shards a module in place and returns the same
module, so nothing may depend on the wrapper any more. That is decided once for all constructors that can share a model:

- the arguments of every constructor among them are known here;
- every use of FSDP1's interface (`no_sync`, `clip_grad_norm_`, `.module`, the class itself) can be rewritten with it; static
  functions of the class, such as `state_dict_type`, are the runtime's, which take a plain model as well;
- no code depends on names of parameters with the wrapper in them, or on the class of a unit;
- the model is made in the same program, and its parameters are not read before it is wrapped: an optimizer that was built
  earlier would train nothing.

A call inside an expression becomes one of a function above the statement, where it takes a loop. A `partial` of the class that
is only called becomes one of `fully_shard`, or such a function. `wrap` becomes `fully_shard` where it certainly runs under
the one `enable_wrap` of its file; of a call in another function a run has to confirm it. A wrapper directly
around another unit goes: under FSDP1 it had no parameters of its own.

FSDP1 gave unused parameters zero gradients, on which weight decay and momentum act, and FSDP2 gives them none. Where a
forward of this program's model may leave a part unused, `fill_unused_gradients` goes on giving them. A model of another
package is taken to use all.

FSDP1's models save whole tensors by their own `state_dict()`, wherever that is called, and FSDP2's save shards. Where code may
call it, or `load_state_dict()`, on the model or on what holds it, `use_full_state_dicts` keeps them as they were.

After a forward without gradients FSDP2's root goes on holding whole parameters, and FSDP1's shows its shards again. Where an
optimizer may be made then, the root gets `reshard_after_forward=True`, at the cost of one more all-gather in a backward.
Parameters that are changed then stay on the bridge: FSDP1's root evaluates by the values that it gathered before.

In doubt all of them stay on the bridge, and the finding names the first fact that keeps them there. Positional arguments are
bound to FSDP1's signature, the same from torch 2.2 to 2.13. Each argument has a rule of its own.

What no file shows, a run can: `fsdp-migrate values` records what each constructor is given, and `--values` makes it plain for
that configuration, with checks that it is that one.""",
    (
        Example(
            "the simplest call",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = Net()
model = FSDP(model)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = Net()
fully_shard(model)
""",
        ),
        Example(
            "arguments by position, comments at arguments",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = Net()
model = FSDP(
    model,
    None,
    ShardingStrategy.SHARD_GRAD_OP,  # there is plenty of memory
    use_orig_params=True,  # for the weight decay of some
)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = Net()
# there is plenty of memory
# FSDP1's use_orig_params=True:
# for the weight decay of some
fully_shard(model, reshard_after_forward=False)
""",
        ),
        Example(
            "inside an expression",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from model import Block, Net

models = [FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block})) for _ in range(2)]
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Block, Net


def shard(model):
    for module in reversed(list(model.modules())):
        if module is not model and isinstance(module, Block):
            fully_shard(module)
    return fully_shard(model)


models = [shard(Net()) for _ in range(2)]
""",
        ),
        bridged(
            "an optimizer from before",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = Net()
optimizer = torch.optim.AdamW(model.parameters())
model = FSDP(model, use_orig_params=True)
""",
            message="an optimizer may already hold",
        ),
    ),
)
UNPACKED = Rule(
    "FSDP004",
    "dynamic-constructor",
    "the runtime binds arguments that come from an unpacked dictionary",
    """`FSDP(model, **options)` gives arguments that are known where the dictionary is written. The runtime's class has
FSDP1's signature and binds them. Where this file shows the dictionary, each key has a finding of its own.""",
    (
        bridged(
            "arguments from elsewhere",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), **options)
""",
            message="when the program runs",
        ),
    ),
)
UNKNOWN = Rule(
    "FSDP019",
    "unknown-argument",
    "an argument that FSDP1 does not have",
    """The call raises TypeError under FSDP1 as well, or the class is not torch's.""",
    (
        bridged(
            "an argument of another library",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), mesh=mesh)
""",
            message="not an argument of FSDP1",
        ),
    ),
)
