"""Arguments of the constructor by their expression: by default, and in torch's form where the bridge stands elsewhere."""

from typing import Any

from ..registry import each, holds
from .programs import trained

POLICIES = """\
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp.wrap import (
    _or_policy, size_based_auto_wrap_policy, transformer_auto_wrap_policy
)

def deep(module):
    return isinstance(module, Block) and module.training


def own_policy(module, recurse, nonwrapped_numel):
    return True if recurse else isinstance(module, nn.Linear) and nonwrapped_numel >= 0

"""
ACCUMULATED = {"rank_seeds": True, "micro_batches": 2, "clip": 0.5}
# Without accumulation: torch frees parameters after each backward, FSDP1 kept those of SHARD_GRAD_OP in no_sync.
CLIPPED = {"rank_seeds": True, "clip": 0.5}
CPU = "device_id=torch.device('cpu'), sync_module_states=True"


def sharded(api: Any, arguments: str, above: str = "", top: str = "", **how: Any) -> Any:
    """The Transformer, sharded with some arguments."""
    body = f"{above}model = Transformer()\nmodel = FSDP(\n    model, {arguments}\n)"
    seen, collectives, *others = trained(api, body, top, bridge="torch", **how)
    # torch's clipping adds up the norm by functional collectives, which are not counted.
    collectives.pop("all-reduce", None)
    return seen, collectives, *others


def strategy(api: Any, mode: str) -> Any:
    """A strategy from a table with NO_SHARD in it, over a group."""
    table = (
        "{'full': ShardingStrategy.FULL_SHARD, 'zero2': ShardingStrategy.SHARD_GRAD_OP, "
        "'replicas': ShardingStrategy.NO_SHARD}[args.mode]"
    )
    above = (
        f"args = SimpleNamespace(mode='{mode}')\n"
        "group = dist.new_group(list(range(dist.get_world_size())))\n"
    )
    arguments = f"auto_wrap_policy=ModuleWrapPolicy({{Block}}), sharding_strategy={table}, process_group=group, {CPU}"
    how = ACCUMULATED if mode == "full" else CLIPPED
    return sharded(api, arguments, above, **how)


@holds(tolerance=1e-6)
def a_strategy_from_a_table(api: Any) -> Any:
    """FULL_SHARD among other strategies."""
    return strategy(api, "full")


@holds(tolerance=1e-6)
def a_strategy_from_a_table_that_keeps_parameters(api: Any) -> Any:
    """SHARD_GRAD_OP among other strategies."""
    return strategy(api, "zero2")


EVEN = """\
from torch.distributed.device_mesh import init_device_mesh


class Even(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.head = nn.Linear(16, 16)

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x)

    @staticmethod
    def batch(generator):
        return (torch.randn(4, 16, generator=generator),)

"""
MESHES = """\
args = SimpleNamespace(mode="{mode}")
world = init_device_mesh("cpu", (dist.get_world_size(),))
nodes = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
"""
EXPRESSIONS = {
    "table": (
        "{'full': ShardingStrategy.FULL_SHARD, 'zero2': ShardingStrategy.SHARD_GRAD_OP, "
        "'replicas': ShardingStrategy.NO_SHARD, 'nodes': ShardingStrategy.HYBRID_SHARD, "
        "'nodes zero2': ShardingStrategy._HYBRID_SHARD_ZERO2}[args.mode]"
    ),
    "name": (
        "ShardingStrategy[{'full': 'FULL_SHARD', 'zero2': 'SHARD_GRAD_OP', 'replicas': 'NO_SHARD', "
        "'nodes': 'HYBRID_SHARD', 'nodes zero2': '_HYBRID_SHARD_ZERO2'}[args.mode]]"
    ),
    "conditions": (
        "(ShardingStrategy.HYBRID_SHARD if args.mode == 'nodes' else ShardingStrategy._HYBRID_SHARD_ZERO2) "
        "if args.mode.startswith('nodes') else ShardingStrategy.FULL_SHARD if args.mode == 'full' "
        "else ShardingStrategy.NO_SHARD if args.mode == 'replicas' else ShardingStrategy.SHARD_GRAD_OP"
    ),
}


@each(
    {
        f"{shape}_that_chooses_{mode.replace(' ', '_')}": (
            f"One of the five strategies, {mode}, by a {shape}: as many collectives, of as many bytes.",
            shape,
            mode,
        )
        for shape in EXPRESSIONS
        for mode in ("full", "zero2", "replicas", "nodes", "nodes zero2")
        # A name that is not shown leaves the program's mesh as it is, and the finding says so.
        if (shape, mode) != ("name", "replicas")
    },
    ranks=4,
    tolerance=1e-6,
)
def strategy_by_expression(api: Any, shape: str, mode: str) -> Any:
    arguments = (
        f"auto_wrap_policy=ModuleWrapPolicy({{nn.Linear}}), sharding_strategy={EXPRESSIONS[shape]}, "
        f"device_mesh=nodes if args.mode.startswith('nodes') else world, {CPU}"
    )
    body = f"{MESHES.format(mode=mode)}model = Even()\nmodel = FSDP(\n    model, {arguments}\n)"
    return trained(api, body, EVEN, net="Even", bridge="torch", sizes=True, rank_seeds=True)


@holds(tolerance=1e-6)
def a_strategy_by_a_condition(api: Any) -> Any:
    """A conditional expression."""
    arguments = (
        "auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy="
        f"ShardingStrategy.FULL_SHARD if args.full else ShardingStrategy.SHARD_GRAD_OP, {CPU}"
    )
    return sharded(api, arguments, "args = SimpleNamespace(full=False)\n", **CLIPPED)


@holds(tolerance=1e-6)
def a_strategy_by_its_name(api: Any) -> Any:
    """A name of a configuration, and a mesh of the program's own."""
    above = (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "args = SimpleNamespace(name='SHARD_GRAD_OP')\n"
        "mesh = init_device_mesh('cpu', (dist.get_world_size(),))\n"
    )
    arguments = (
        "auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=ShardingStrategy[args.name], "
        f"device_mesh=mesh, {CPU}"
    )
    return sharded(api, arguments, above, **CLIPPED)


@holds()
def a_policy_with_a_condition(api: Any) -> Any:
    """A function of the program's own, behind torch's lambda_auto_wrap_policy."""
    arguments = "auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=deep)"
    return sharded(api, arguments, top=POLICIES)


@holds()
def a_policy_of_policies(api: Any) -> Any:
    """torch's _or_policy."""
    policies = (
        "[partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m is net.head), "
        "partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})]"
    )
    body = f"net = Transformer()\nmodel = FSDP(net, auto_wrap_policy=partial(_or_policy, policies={policies}))"
    return trained(api, body, POLICIES, bridge="torch")


@holds()
def a_policy_by_size(api: Any) -> Any:
    """torch's size_based_auto_wrap_policy."""
    arguments = "auto_wrap_policy=partial(size_based_auto_wrap_policy, min_num_params=300)"
    return sharded(api, arguments, top=POLICIES)


@holds()
def a_policy_that_is_asked(api: Any) -> Any:
    """A policy of the program's own, which a function gives."""
    top = f"{POLICIES}def policy_of(kind):\n    return own_policy if kind else None\n\n\n"
    return sharded(api, "auto_wrap_policy=policy_of(True)", top=top)


PRECISIONS = """\
half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
whole = MixedPrecision(reduce_dtype=torch.float32)


def precision_of(kind):
    if kind == "none":
        return None
    return half if kind == "half" else whole

"""


@holds(tolerance=2e-3)
def a_precision_that_a_function_gives(api: Any) -> Any:
    """One of several, made at the top of the file."""
    arguments = "auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision_of('half')"
    return sharded(api, arguments, top=PRECISIONS)


@holds()
def no_precision(api: Any) -> Any:
    """None, where others are given elsewhere."""
    arguments = "auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=precision_of('none')"
    return sharded(api, arguments, top=PRECISIONS)


@holds()
def an_unpacked_dictionary(api: Any) -> Any:
    """One that grows under a condition."""
    above = (
        "args = SimpleNamespace(zero2=True)\noptions = {'use_orig_params': True}\n"
        "if args.zero2:\n    options['sharding_strategy'] = ShardingStrategy.SHARD_GRAD_OP\n"
    )
    return sharded(api, "auto_wrap_policy=ModuleWrapPolicy({Block}), **options", above)


@holds(tolerance=1e-6)
def a_broadcast_under_a_condition(api: Any) -> Any:
    """Ranks with values of their own, which begin with rank 0's."""
    arguments = (
        "auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device('cpu'), "
        "sync_module_states=args.sync, forward_prefetch=True"
    )
    return sharded(api, arguments, "args = SimpleNamespace(sync=True)\n", rank_seeds=True)


@holds(tolerance=1e-6)
def values_that_rank_0_alone_has(api: Any) -> Any:
    """The other ranks have their model on the meta device."""
    body = """\
args = SimpleNamespace(first=dist.get_rank() == 0)
if args.first:
    model = Transformer()
else:
    with torch.device("meta"):
        model = Transformer()
model = FSDP(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=torch.device("cpu"),
    sync_module_states=True,
    param_init_fn=(lambda m: m.to_empty(device=torch.device("cpu"), recurse=False)) if not args.first else None,
)"""
    return trained(api, body, bridge="torch", rank_seeds=True)


@holds(tolerance=1e-6)
def values_that_rank_0_alone_has_by_a_function(api: Any) -> Any:
    """The other ranks get memory by a function that every module is given."""
    top = """\
def give_memory(module):
    if dist.get_rank() != 0:
        module.to_empty(device=torch.device("cpu"), recurse=False)

"""
    body = """\
if dist.get_rank() == 0:
    model = Transformer()
else:
    with torch.device("meta"):
        model = Transformer()
model = FSDP(
    model,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    device_id=torch.device("cpu"),
    sync_module_states=True,
    param_init_fn=give_memory,
)"""
    return trained(api, body, top, bridge="torch", rank_seeds=True)


FILL = """\
def fill(module):
    is_block = isinstance(module, Block)
    tensors = [*module.parameters(recurse=is_block), *module.buffers(recurse=is_block)]
    if any(tensor.is_meta for tensor in tensors):
        module.to_empty(device=torch.device("cpu"), recurse=is_block)
        for tensor in (*module.parameters(recurse=is_block), *module.buffers(recurse=is_block)):
            nn.init.constant_(tensor, 0.02 if is_block else 0.01)

def fill_own(module):
    module.to_empty(device=torch.device("cpu"), recurse=False)
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        nn.init.constant_(tensor, 0.01)

def fill_deep(module):
    module.to_empty(device=torch.device("cpu"))
    for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
        nn.init.constant_(tensor, 0.01)

"""
ON_META = """\
with torch.device("meta"):
    model = Transformer()
"""


@each(
    {
        "values_that_a_module_gives_its_parts": (
            "`param_init_fn` fills a module that has no tensors of its own.",
            f"{ON_META}model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), param_init_fn=fill)",
        ),
        "memory_that_a_module_gives_its_parts": (
            "`param_init_fn` of the root gives memory to all, and that of each module its values.",
            f"{ON_META}model = FSDP(model, param_init_fn=fill_deep)",
        ),
        "values_of_one_unit": (
            "A unit that has its values already keeps them.",
            f"{ON_META}block = Block(18)\nmodel.blocks[0] = block\n"
            "model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), param_init_fn=fill_own)",
        ),
        "values_that_are_there": (
            "A model with values keeps them, whatever function could give it others.",
            "model = Transformer()\nmodel = FSDP(model, param_init_fn=fill_own)",
        ),
    },
    tolerance=1e-6,
)
def filled(api: Any, body: str) -> Any:
    return trained(api, body, FILL, bridge="torch")


BLOCKS = "auto_wrap_policy=ModuleWrapPolicy({Block})"
BRANCHES = """\
args = SimpleNamespace(mode="zero2", half=True)
if args.mode == "full":
    strategy = ShardingStrategy.FULL_SHARD
elif args.mode == "zero2":
    strategy = ShardingStrategy.SHARD_GRAD_OP
else:
    strategy = None
"""
CONFIGURED = """\
class Precisions:
    half = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Trainer:
    def __init__(self, half):
        self.mixed_precision = Precisions.half if half else None

    def shard(self, model, strategy=ShardingStrategy.SHARD_GRAD_OP):
        return FSDP(
            model,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            sharding_strategy=strategy,
            mixed_precision=self.mixed_precision,
        )


class Named:
    def __init__(self, name):
        self.strategy = ShardingStrategy[name]

    def shard(self, model):
        return FSDP(
            model, auto_wrap_policy=ModuleWrapPolicy({Block}), sharding_strategy=self.strategy
        )


def chosen_strategy(args):
    if args.name == "ddp":
        strategy = ShardingStrategy.NO_SHARD
    else:
        strategy = ShardingStrategy.FULL_SHARD
    return strategy


def strategy_of(args):
    return getattr(ShardingStrategy, args.name)


def by_class(module, recurse, **kwargs):
    return recurse or isinstance(module, Block)


def by_count(module, recurse, nonwrapped_numel):
    return nonwrapped_numel >= 200

"""
OFFLOADED = """\
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

"""


@each(
    {
        "a_strategy_in_branches": (
            "A variable that branches give a strategy, or None.",
            f"{BRANCHES}model = FSDP(Transformer(), {BLOCKS}, sharding_strategy=strategy)",
        ),
        "a_strategy_that_a_function_gives": (
            "An expression that names no strategy.",
            "args = SimpleNamespace(name='SHARD_GRAD_OP')\n"
            f"model = FSDP(Transformer(), {BLOCKS}, sharding_strategy=strategy_of(args))",
        ),
        "a_strategy_by_default": (
            "A strategy as the default of a parameter, and a precision in an attribute that is None.",
            "model = Trainer(False).shard(Transformer())",
        ),
        "a_strategy_by_a_key": (
            "A strategy that another method asks for by its name.",
            "model = Named('SHARD_GRAD_OP').shard(Transformer())",
        ),
        "a_policy_of_classes_in_branches": (
            "Classes that branches give a variable, and a policy made of it.",
            "args = SimpleNamespace(own=True)\nif args.own:\n    layers = {Block}\nelse:\n    layers = {nn.Linear}\n"
            "policy = partial(transformer_auto_wrap_policy, transformer_layer_cls=layers)\n"
            "model = FSDP(Transformer(), auto_wrap_policy=policy)",
        ),
        "a_strategy_that_a_function_chooses": (
            "Replicas, by a function that chooses among meshes of two kinds.",
            "args = SimpleNamespace(name='ddp', backend='gloo')\nchosen = chosen_strategy(args)\n"
            f"model = FSDP(Transformer(), {BLOCKS}, sharding_strategy=chosen)",
        ),
        "units_in_a_loop": (
            "Layers that are wrapped one by one, before the model.",
            "model = Transformer()\nfor n, block in enumerate(model.blocks):\n"
            "    model.blocks[n] = FSDP(block)\nmodel = FSDP(model)",
        ),
        "a_policy_of_the_program": (
            "A function that is asked about each module.",
            "model = FSDP(Transformer(), auto_wrap_policy=by_class)",
        ),
        "a_policy_that_counts": (
            "A function that is given the parameters that no unit has yet.",
            "model = FSDP(Transformer(), auto_wrap_policy=by_count)",
        ),
        "a_mesh_that_is_not_there": (
            "Replicas on a mesh of the program's own, which may be None.",
            "args = SimpleNamespace(mesh=False)\n"
            f"model = FSDP(Transformer(), {BLOCKS}, sharding_strategy=ShardingStrategy.NO_SHARD, "
            "device_mesh=mesh if args.mesh else None, device_id=torch.device('cpu'))",
        ),
        "a_call_in_an_expression": (
            "A call whose value goes on in an expression.",
            f"models = [FSDP(Transformer(), {BLOCKS}, use_orig_params=True)]\nmodel = models[0]",
        ),
        "ignored_modules": (
            "Modules of the model that no unit has.",
            f"model = Transformer()\nmodel = FSDP(model, {BLOCKS}, ignored_modules=[model.norm])",
        ),
        "a_flag_that_offloads_nothing": (
            "CPUOffload by a flag that is not set.",
            "args = SimpleNamespace(offload=False)\n"
            f"model = FSDP(Transformer(), {BLOCKS}, cpu_offload=CPUOffload(offload_params=args.offload))",
        ),
        "wrap_in_enable_wrap": (
            "`wrap` of a layer, of it again, and of the model.",
            "model = Transformer()\nwith enable_wrap(wrapper_cls=FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP):\n"
            "    model.head = wrap(wrap(model.head))\n    model = wrap(model)",
        ),
        "without_effect": (
            "Arguments without effect under FSDP2, whatever their expressions.",
            "args = SimpleNamespace(limit=True, orig=True)\n"
            f"model = FSDP(Transformer(), {BLOCKS}, limit_all_gathers=args.limit, use_orig_params=args.orig)",
        ),
    }
)
def rows(api: Any, body: str) -> Any:
    return trained(api, body, OFFLOADED + CONFIGURED, bridge="torch")


@each(
    {
        "a_precision_in_an_attribute": (
            "A precision that another method has put into an attribute.",
            "model = Trainer(True).shard(Transformer(), ShardingStrategy.FULL_SHARD)",
        ),
        "a_precision_in_branches": (
            "A precision that one branch makes, and None.",
            f"{BRANCHES}mp = None\nif args.half:\n    mp = MixedPrecision(torch.bfloat16, reduce_dtype=torch.float32)\n"
            f"model = FSDP(Transformer(), {BLOCKS}, mixed_precision=mp)",
        ),
        "buffers_in_another_type": (
            "Buffers in low precision.",
            f"mp = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)\n"
            f"model = FSDP(Transformer(), {BLOCKS}, mixed_precision=mp)",
        ),
    },
    tolerance=2e-3,
)
def low_precision(api: Any, body: str) -> Any:
    return trained(api, body, CONFIGURED, bridge="torch")


@holds(tolerance=2e-3)
def batch_norms_by_name(api: Any) -> Any:
    """Batch norms of a model in low precision, units of their own in float32."""
    body = """\
mp = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)
# No file of this program shows that ConvNet has a BatchNorm.
model = FSDP(ConvNet(), auto_wrap_policy=ModuleWrapPolicy({nn.Conv2d}), mixed_precision=mp)"""
    return trained(api, body, net="ConvNet", bridge="torch")
