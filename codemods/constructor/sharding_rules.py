"""The rules of the arguments that say which ranks shard, and when parameters are freed."""

from __future__ import annotations

from fsdp_migrate.codemods.rule import Example, Rule, bridged

FULL_SHARD = Rule(
    "FSDP101",
    "full-shard",
    "FULL_SHARD is FSDP2's default",
    """FSDP1 frees the parameters of every unit after forward, except the root's (`_runtime_utils.py`,
`_post_forward_reshard`). `fully_shard` with `reshard_after_forward` left out does the same: True below the root, False at
the root (`_fully_shard/_fsdp_state.py`). Writing True at the root, as guides say, costs an all-gather in every backward.""",
    (
        Example(
            "the default, written out",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(Net(), sharding_strategy=ShardingStrategy.FULL_SHARD)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net())
""",
        ),
    ),
)
SHARD_GRAD_OP = Rule(
    "FSDP102",
    "shard-grad-op",
    "SHARD_GRAD_OP keeps parameters gathered until backward: reshard_after_forward=False",
    """Gradients and optimizer states are sharded, and parameters stay gathered between forward and backward (ZeRO-2). Under
FSDP2 that is `reshard_after_forward=False` for every unit, the root included.""",
    (
        Example(
            "one unit",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(Net(), sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net(), reshard_after_forward=False)
""",
        ),
    ),
)
NO_SHARD = Rule(
    "FSDP103",
    "no-shard",
    "NO_SHARD replicates: a mesh of shape (world, 1)",
    """NO_SHARD is data parallelism without sharding. `reshard_after_forward=False` would shard gradients and optimizer
states; a two-dimensional mesh whose shard dimension has size 1 does not, and trains bit for bit like FSDP1's NO_SHARD. The
runtime builds that mesh on the device type that the program runs on.""",
    (
        bridged(
            "replicas",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(Net(), sharding_strategy=ShardingStrategy.NO_SHARD)
""",
            message="(world, 1)",
        ),
    ),
)
HYBRID_SHARD = Rule(
    "FSDP104",
    "hybrid-shard",
    "HYBRID_SHARD shards within groups and replicates across them: a two-dimensional mesh",
    """FSDP1 takes a two-dimensional `device_mesh`, a tuple of process groups (shard, replicate), or makes groups of the
devices of one node. `fully_shard` takes a mesh with the dimensions (replicate, shard), which must have names. A mesh that has
names in this file is passed on; every other one is built by the runtime. _HYBRID_SHARD_ZERO2 keeps parameters gathered until
backward as well.""",
    (
        Example(
            "a mesh with names",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
model = FSDP(Net(), sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)
""",
            """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from model import Net

mesh = init_device_mesh("cuda", (2, 8), mesh_dim_names=("replicate", "shard"))
model = fully_shard(Net(), mesh=mesh)
""",
        ),
    ),
)
DYNAMIC = Rule(
    "FSDP105",
    "dynamic-strategy",
    "the runtime reads a strategy that is known only when the program runs",
    """Three of four real programs take the strategy from a configuration, a dictionary or a command line. Where the call, or
assignments that nothing else reads, show every member that it can be, each becomes the `reshard_after_forward` that it means.
The runtime reads whatever else arrives; `ShardingStrategy` comes from the runtime, too, so that configuration files and
comparisons go on working after torch removes FSDP1.""",
    (
        bridged(
            "from a configuration",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), sharding_strategy=config.strategy)
""",
            message="when the program runs",
        ),
        Example(
            "from a table",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

from model import Net

model = FSDP(
    Net(),
    sharding_strategy={
        "zero3": ShardingStrategy.FULL_SHARD,
        "zero2": ShardingStrategy.SHARD_GRAD_OP,
    }[args.mode],
)
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(
    Net(),
    reshard_after_forward={
        "zero3": None,
        "zero2": False,
    }[args.mode],
)
""",
        ),
    ),
)
GROUP = Rule(
    "FSDP106",
    "process-group",
    "a process group becomes a mesh",
    """`process_group=` has no counterpart in `fully_shard`. `DeviceMesh.from_group` makes a mesh of the very same group, so
collectives run on the same communicator; it needs the kind of device, which `device_id` shows. The runtime finds it out where
that is not known, or where the group may be None. `dist.group.WORLD` and None are the default mesh.""",
    (
        bridged(
            "a group of one's own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), process_group=group)
""",
            message="a mesh from this group",
        ),
        Example(
            "a group on a known device",
            """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

group = dist.new_group([0, 1])
model = FSDP(Net(), group, device_id=torch.cuda.current_device())
""",
            """\
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model import Net

group = dist.new_group([0, 1])
model = Net()
mesh = DeviceMesh.from_group(group, "cuda")
fully_shard(model, mesh=mesh)
""",
        ),
    ),
)
MESH = Rule(
    "FSDP107",
    "device-mesh",
    "device_mesh becomes the argument mesh",
    """A mesh that has one dimension, as this file shows, is passed on as `mesh=`. `fully_shard` takes one of two dimensions
for HYBRID_SHARD whatever the strategy was, so a mesh of another origin stays with the runtime, which looks at its shape. For
HYBRID_SHARD itself see FSDP104.""",
    (
        Example(
            "one dimension",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), device_mesh=mesh["dp"])
""",
            """\
from torch.distributed.fsdp import fully_shard

from model import Net

model = fully_shard(Net(), mesh=mesh["dp"])
""",
        ),
        bridged(
            "a shape that another function knows",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

model = FSDP(Net(), device_mesh=build_mesh(config))
""",
            message="reads its shape",
        ),
    ),
)
