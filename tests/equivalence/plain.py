"""FSDP1 programs beside what the tool makes of them: `fully_shard` on their own modules, with no bridge in it.

Each fault is a program whose plain form is changed to what a wrong translation would be; the comparison finds it.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import models
from .programs import Program, program

_CPU = 'device_id=torch.device("cpu")'
_STRATEGY = """sharding_strategy={
    "zero3": ShardingStrategy.FULL_SHARD,
    "zero2": ShardingStrategy.SHARD_GRAD_OP,
}[args.mode]"""
_BY_LIST = "partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in list(model.blocks))"
_GROUP = """\
group = dist.new_group(list(range(dist.get_world_size())))
model = MODEL()
model = FSDP(model, ARGUMENTS)"""
_NET = """\
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 10)
        self.register_buffer("scale", torch.tensor(1.0 + 1 / 3))

    def forward(self, x):
        return x + torch.relu(self.linear(x * self.scale.to(x.dtype)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(2)])
        self.extra = nn.Linear(10, 10)
        self.head = nn.Linear(10, 1)
        self.steps = 0

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.steps += 1
        if self.steps == 1:
            x = self.extra(x)
        return self.head(x)

"""
_BY_BLOCK = "auto_wrap_policy=ModuleWrapPolicy({Block})"
_OWN = "net = Net()\nmodel = FSDP(net, ARGUMENTS)"
_BY_LAYER = "auto_wrap_policy=ModuleWrapPolicy({Layer})"
_CHECKPOINTED = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing

"""
_AVERAGE = """\
from collections import OrderedDict


@torch.no_grad()
def average(average_model, model):
    average_params = OrderedDict(average_model.named_parameters())
    model_params = OrderedDict(model.named_parameters())
    assert set(average_params.keys()) == set(model_params.keys())
    for name, param in model_params.items():
        average_params[name].mul_(0.5).add_(param.data, alpha=0.5)

"""
_AVERAGED = """\
other = MODEL()
other = FSDP(other, ARGUMENTS)
model = MODEL()
model = FSDP(model, ARGUMENTS)
average(model, other)"""
_EVALUATE = """\
@torch.no_grad()
def evaluate(model):
    model(*Transformer.batch(torch.Generator().manual_seed(5)))

"""
_NORM = """\
def norm_of(model):
    total = torch.zeros(())
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.norm(dtype=torch.float64) ** 2
    dist.all_reduce(total)
    return total.sqrt().item()

"""
_SCALED = """\
model = MODEL()
model = FSDP(model, ARGUMENTS)
model(*Transformer.batch(torch.Generator().manual_seed(5))).pow(2).mean().backward()
torch.optim.SGD(model.parameters(), lr=0.1 / norm_of(model)).step()
model.zero_grad()"""
_EVALUATED = """\
model = MODEL()
model = FSDP(model, ARGUMENTS)
evaluate(model)
optimizer = torch.optim.SGD(model.parameters())"""  # the harness makes another one there
_STATES = """\
def halve(module, other):
    other.load_state_dict(module.state_dict())
    module.load_state_dict({name: value / 2 for name, value in other.state_dict().items()})

"""
_HALVED = """\
other = MODEL()
model = MODEL()
model = FSDP(model, ARGUMENTS)
halve(model, other)"""
_INITIALIZE = """\
def initialize(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.1)

"""
_INITIALIZED = "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)\nmodel.apply(initialize)"
_WRAPPED = """\
model = MODEL()
with enable_wrap(wrapper_cls=FSDP, ARGUMENTS):
    model.head = wrap(wrap(model.head))
    model = wrap(model)"""
_PAIR = """\
shard_group, _ = dist.new_subgroups(2)
pairs = [dist.new_group(list(range(start, dist.get_world_size(), 2))) for start in range(2)]
replicate_group = pairs[dist.get_rank() % 2]
model = MODEL()
model = FSDP(model, ARGUMENTS)"""


def _args(mode: str, sync: bool) -> str:
    return (
        f"from types import SimpleNamespace\n\nargs = SimpleNamespace(mode={mode!r}, sync={sync})\n"
    )


def _programs() -> Iterator[Program]:
    group = f"process_group=group, {_CPU}, {_STRATEGY}, auto_wrap_policy={_BY_LIST}"
    for mode in ("zero3", "zero2"):
        yield program(
            f"plain-{mode}",
            f"{group}, sync_module_states=args.sync",
            top=_args(mode, sync=True),
            body=_GROUP,
            rank_seeds=True,
            ranks=(2, 4),
            micro_batches=2,
            clip=0.5,
        )
    yield program(
        "plain-unsynced",
        f"{group}, sync_module_states=args.sync",
        top=_args("zero3", sync=False),
        body=_GROUP,
    )
    for low in (True, False):
        label = "on" if low else "off"
        yield program(
            f"plain-offload-{label}",
            f"cpu_offload=CPUOffload(offload_params=True) if LOW else None, {_BY_BLOCK}",
            top=f"LOW = {low}\n",
        )
        yield program(
            f"plain-precision-{label}",
            f"mixed_precision=precision, {_BY_LAYER}",
            top=f"{_NET}\nLOW = {low}\n",
            body=(
                "precision = None\nif LOW:\n    precision = MixedPrecision(torch.bfloat16, torch.float32)\n"
                + _OWN
            ),
            model=models.Stack,
        )
        yield program(
            f"plain-assigned-{label}",
            f"sharding_strategy=strategy, {_BY_BLOCK}",
            top=f"LOW = {low}\n",
            body=(
                "strategy = ShardingStrategy.SHARD_GRAD_OP\nif LOW:\n    strategy = ShardingStrategy.FULL_SHARD\n"
                "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)"
            ),
        )
    listed = _BY_LIST.replace("model.blocks", "net.layers")  # a loop over them: Net makes each
    policy = f"auto_wrap_policy={listed}"
    yield program("plain-unused", policy, top=_NET, body=_OWN, model=models.Stack)
    yield program(
        "plain-unused-no-sync",
        f"sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, {policy}",
        top=_NET,
        body=_OWN,
        model=models.Stack,
        micro_batches=3,
    )
    yield program(
        "plain-checkpointed",
        _BY_BLOCK,
        top=_CHECKPOINTED,
        body=(
            "model = MODEL()\nblocks = list(model.blocks)\nmodel = FSDP(model, ARGUMENTS)\n"
            "apply_activation_checkpointing(model, check_fn=lambda m: m in blocks)"
        ),
    )
    yield program("plain-average", _BY_BLOCK, top=_AVERAGE, body=_AVERAGED)
    yield program("plain-evaluated", _BY_BLOCK, top=_EVALUATE, body=_EVALUATED)
    yield program("plain-norm", _BY_BLOCK, top=_NORM, body=_SCALED, ranks=(2, 4))
    yield program("plain-states", _BY_BLOCK, top=_STATES, body=_HALVED)
    yield program("plain-apply", _BY_BLOCK, top=_INITIALIZE, body=_INITIALIZED)
    zero2 = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
    yield program(
        "plain-expression",
        f"{zero2}, {_BY_BLOCK}",
        body="models = [FSDP(MODEL(), ARGUMENTS)]\nmodel = models[0]",
    )
    yield program(
        "plain-unused-expression",
        top=_NET,
        body="nets = [FSDP(Net(), ARGUMENTS)]\nmodel = nets[0]",
        model=models.Stack,
    )
    partial = "shard = partial(FSDP, ARGUMENTS)\nmodel = shard(MODEL())"
    yield program("plain-partial", zero2, body=partial)
    yield program("plain-partial-units", f"{zero2}, {_BY_BLOCK}", body=partial)
    yield program("plain-wrap", zero2, body=_WRAPPED)
    yield program(
        "plain-param-dtype-only",
        f"mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), {_BY_BLOCK}",
    )
    yield program(
        "plain-norms",
        "auto_wrap_policy=ModuleWrapPolicy({nn.Conv2d}), mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, "
        "torch.bfloat16)",
        top="# the word BatchNorm: FSDP1 makes units of them\n",
        model=models.ConvNet,
    )
    hybrid = _STRATEGY.replace("}[", '    "hsdp": ShardingStrategy.HYBRID_SHARD,\n}[')
    yield program(
        "plain-hybrid",
        f"process_group=(shard_group, replicate_group), {_CPU}, {hybrid}, {_BY_BLOCK}, sync_module_states=True",
        top=_args("hsdp", sync=True),
        body=_PAIR,
        rank_seeds=True,
        ranks=(4,),
    )


PLAIN = list(_programs())
# A program, a part of its plain form, what a wrong translation would have there, and what is found to differ.
FAULTS = {
    "strategies-exchanged": (
        "program-plain-zero3",
        '"zero3": ShardingStrategy.FULL_SHARD',
        '"zero3": ShardingStrategy.SHARD_GRAD_OP',
        "collectives",
    ),
    "no-units": ("program-plain-zero3", "in list(model.blocks)", "in []", "collectives"),
    "not-broadcast": ("program-plain-zero3", "=args.sync", "=not args.sync", "losses"),
    "unused-forgotten": (
        "program-plain-unused",
        "like_fsdp1(net)",
        "like_fsdp1(net, zero_gradients=False)",
        "parameters",
    ),
    "left-gathered": (
        "program-plain-evaluated",
        "like_fsdp1(model)",
        "like_fsdp1(model, sharded_after_forward=False)",
        "parameters",
    ),
    "drawn-on-shards": (
        "program-plain-apply",
        "like_fsdp1(model)",
        "like_fsdp1(model, whole_in_apply=False)",
        "parameters",
    ),
    "whole-norms": (
        "program-plain-norm",
        "local_shard(p.grad)",
        "p.grad.full_tensor()",
        "parameters",
    ),
    "wrap-forgotten": (
        "program-plain-wrap",
        "model.head = wrap(wrap(model.head))",
        "pass",
        "collectives",
    ),
}
