"""FSDP1 programs beside what the tool makes of them: `fully_shard` on their own modules, with no bridge in it.

Nowhere: HYBRID_SHARD on a mesh of shape (n, 1), where FSDP1 never reduces over the replicas (pytorch#154888), and devices
by number, which need a GPU. Nor a unit that is used twice in one forward: FSDP2 gathers it once more in backward.

Each fault is a program whose plain form is changed to what a wrong translation would be; the comparison finds it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import models
from .swapped import imports
from .train import Case


@dataclass(frozen=True)
class Program:
    """A program and its training.

    Attributes:
        source: a module with a function ``run(train)``, which wraps a model and trains it.
        case: the training; of the case's own model only the batches are used.
    """

    source: str
    case: Case

    @property
    def name(self) -> str:
        return self.case.name


_TEMPLATE = """\
{imports}
from equivalence.models import {models}

{top}
def run(train):
{body}
    return train(
        model,
        lambda: model.no_sync(),
        lambda limit, kind: model.clip_grad_norm_(limit, kind),
    )
"""


def program(
    name: str,
    arguments: str = "",
    *,
    top: str = "",
    body: str = "model = MODEL()\nmodel = FSDP(model, ARGUMENTS)",
    model: type[Any] = models.Transformer,
    **training: Any,
) -> Program:
    """A program whose function ``run`` has the statements of ``body``."""
    body = body.replace("MODEL", model.__name__).replace(
        ", ARGUMENTS", f", {arguments}" * bool(arguments)
    )
    code = f"{top}\n{body}"
    used = [cls for cls in ("Attention", "Block", model.__name__) if cls in code] or [
        model.__name__
    ]
    own = ("Block", "Attention", "model")
    lines = [line for line in imports(code) if not any(line.endswith(f" {n}") for n in own)]
    source = _TEMPLATE.format(
        imports="\n".join(lines),
        models=", ".join(used),
        top=f"{top}\n" if top else "",
        body="\n".join(f"    {line}" for line in body.splitlines()),
    )
    case = Case(f"program-{name}", model=model, **{"ranks": (2,), **training})
    return Program(source, case)


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


def _args(mode: str) -> str:
    return (
        f"from types import SimpleNamespace\n\nargs = SimpleNamespace(mode={mode!r}, sync=True)\n"
    )


_ZERO2 = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
_LISTED = _BY_LIST.replace("model.blocks", "net.layers")  # a loop over them: Net makes each

PLAIN = [
    *[
        program(
            f"plain-{mode}",
            f"process_group=group, {_CPU}, {_STRATEGY}, auto_wrap_policy={_BY_LIST}, sync_module_states=args.sync",
            top=_args(mode),
            body=_GROUP,
            rank_seeds=True,
            ranks=(2, 4),
            micro_batches=2,
            clip=0.5,
        )
        for mode in ("zero3", "zero2")
    ],
    program("plain-unused", f"auto_wrap_policy={_LISTED}", top=_NET, body=_OWN, model=models.Stack),
    program("plain-evaluated", _BY_BLOCK, top=_EVALUATE, body=_EVALUATED),
    program("plain-norm", _BY_BLOCK, top=_NORM, body=_SCALED, ranks=(2, 4)),
    program("plain-apply", _BY_BLOCK, top=_INITIALIZE, body=_INITIALIZED),
    program(
        "plain-partial",
        f"{_ZERO2}, {_BY_BLOCK}",
        body="shard = partial(FSDP, ARGUMENTS)\nmodel = shard(MODEL())",
    ),
    program("plain-wrap", _ZERO2, body=_WRAPPED),
    program(
        "plain-norms",
        "auto_wrap_policy=ModuleWrapPolicy({nn.Conv2d}), mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, "
        "torch.bfloat16)",
        top="# the word BatchNorm: FSDP1 makes units of them\n",
        model=models.ConvNet,
    ),
]
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
