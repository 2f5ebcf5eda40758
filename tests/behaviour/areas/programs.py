"""Programs that the tool has migrated: on the bridge with other imports, in place with `fully_shard` on their own modules."""

import re
from contextlib import nullcontext
from pathlib import Path
from textwrap import indent
from typing import Any

import torch
import torch.distributed as dist

import fsdp_migrate.migration  # noqa: F401  (imported once, before ranks are forked)
from fsdp_migrate.engine import analyse_source
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from ..registry import holds
from .common import by_rank_0, clean, counted_collectives, full

# Nowhere: HYBRID_SHARD on a mesh of shape (n, 1), where FSDP1 never reduces over the replicas (pytorch#154888), and devices
# by number, which need a GPU. Nor a unit that is used twice in one forward: FSDP2 gathers it once more in backward.
PROGRAM = """\
from functools import partial
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, lambda_auto_wrap_policy, wrap
from nets import Block, ConvNet, Stack, Transformer

{top}
def run(train):
{body}
    return train(model, model.no_sync, lambda limit: model.clip_grad_norm_(limit))
"""
FORMS = {"torch": "", "fsdp_migrate": "bridge", "in_place": "auto"}  # by the constructor's package


@by_rank_0
def migrated(source: str, form: str) -> str:
    """What the tool makes of a program; in place no constructor stays on the bridge."""
    file = Source(Path("program.py"), "program.py", source.encode())
    report = analyse_source(file, Options(form))
    assert not report.errors, report.errors
    (change,) = report.changes
    after = change.after.decode()
    assert form == "bridge" or not re.search(
        r"\bFSDP\b(?!Module)", after.partition("def run(")[2]
    ), after
    return after


def executed(api: Any, body: str, top: str = "", **how: Any) -> dict[str, Any]:
    """The names of a program, migrated to the form of `api`."""
    source = PROGRAM.format(top=top, body=indent(body, "    "))
    form = FORMS[api.FSDP.__module__.partition(".")[0]]
    if form := how.get(form, form):
        source = migrated(source, form)
    names: dict[str, Any] = {}
    exec(compile(source, "program", "exec"), names)
    return names


def trained(
    api: Any, body: str, top: str = "", net: str = "Transformer", micro_batches: int = 1, **how: Any
) -> Any:
    """Losses, norms, whole parameters, buffers and collectives of a program, whose bytes count with ``sizes=True``."""
    torch.manual_seed(dist.get_rank() if how.get("rank_seeds") else 0)
    names = executed(api, body, top, **how)

    def train(model: Any, no_sync: Any, clip: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        seen: list[float] = []
        with counted_collectives(how.get("sizes", False)) as collectives:
            for _ in range(
                2
            ):  # the second step starts from what the first has updated, and prefetches in its order
                optimizer.zero_grad()
                for left in reversed(range(micro_batches)):
                    with no_sync() if left else nullcontext():
                        loss = model(*names[net].batch(generator)).float().pow(2).mean()
                        loss.backward()
                    seen.append(loss.item())
                if "clip" in how:
                    seen.append(float(clip(how["clip"])))
                optimizer.step()
        assert len(set(seen)) > 1, "nothing was learned"
        buffers = {clean(name): b.clone() for name, b in model.named_buffers()}
        return seen, dict(sorted(collectives.items())), full(api, model), buffers

    return names["run"](train)


def strategy(mode: str) -> str:
    """A program with its strategy in a table, its group and its layers named by hand, and states of rank 0."""
    return f"""\
args = SimpleNamespace(mode="{mode}", sync=True)
group = dist.new_group(list(range(dist.get_world_size())))
model = Transformer()
model = FSDP(
    model,
    process_group=group,
    device_id=torch.device("cpu"),
    sharding_strategy={{
        "zero3": ShardingStrategy.FULL_SHARD,
        "zero2": ShardingStrategy.SHARD_GRAD_OP,
    }}[args.mode],
    auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in list(model.blocks)),
    sync_module_states=args.sync,
)"""


ACCUMULATED = {"rank_seeds": True, "micro_batches": 2, "clip": 0.5}


@holds(tolerance=1e-6)
def settings_of_a_launcher(api: Any) -> Any:
    """Arguments that only the run knows, in FULL_SHARD, with gradients that are accumulated and clipped."""
    return trained(api, strategy("zero3"), **ACCUMULATED)


@holds(tolerance=1e-6)
def another_setting_of_a_launcher(api: Any) -> Any:
    """The same program in SHARD_GRAD_OP."""
    return trained(api, strategy("zero2"), **ACCUMULATED)


@holds()
def a_layer_that_is_used_once(api: Any) -> Any:
    """A layer that only the first step uses goes on with gradients of zero."""
    top = """\
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
    body = """\
net = Net()
model = FSDP(net, auto_wrap_policy=partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in list(net.layers)))"""
    return trained(api, body, top, net="Stack")


@holds()
def wrapped_twice(api: Any) -> Any:
    """A wrapper around a wrapper, nested and in a second statement, trains as the inner one alone."""
    body = """\
low = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = FSDP(FSDP(Transformer(), auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=low), mixed_precision=low)
model = FSDP(model, mixed_precision=low)"""
    seen, _, parameters, buffers = trained(api, body)
    return (
        seen,
        parameters,
        buffers,
    )  # FSDP1 also freed the inner one after forward, which is the root now


SHARDED = "model = Transformer()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))\n"


@holds()
def evaluated_first(api: Any) -> Any:
    """A model that is evaluated before an optimizer is made of what is gathered then."""
    top = """\
@torch.no_grad()
def evaluate(model):
    model(*Transformer.batch(torch.Generator().manual_seed(5)))

"""
    return trained(
        api, f"{SHARDED}evaluate(model)\noptimizer = torch.optim.SGD(model.parameters())", top
    )


@holds()
def a_norm_by_hand(api: Any) -> Any:
    """A norm over the ranks' gradients, added up by hand (on the bridge once FSDP507's edit is made)."""
    top = """\
def norm_of(model):
    total = torch.zeros(())
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.norm(dtype=torch.float64) ** 2
    dist.all_reduce(total)
    return total.sqrt().item()

"""
    body = f"""{SHARDED}\
model(*Transformer.batch(torch.Generator().manual_seed(5))).pow(2).mean().backward()
torch.optim.SGD(model.parameters(), lr=0.1 / norm_of(model)).step()
model.zero_grad()"""
    return trained(api, body, top, bridge="auto")  # where FSDP507 leaves it to a person


@holds()
def drawn_by_apply(api: Any) -> Any:
    """Weights that `apply` draws after wrapping, whole."""
    top = """\
def initialize(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.1)

"""
    return trained(api, f"{SHARDED}model.apply(initialize)", top)


@holds()
def a_partial_constructor(api: Any) -> Any:
    """A `partial` of the constructor."""
    options = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, auto_wrap_policy=ModuleWrapPolicy({Block})"
    return trained(api, f"shard = partial(FSDP, {options})\nmodel = shard(Transformer())")


@holds()
def wrap_and_enable_wrap(api: Any) -> Any:
    """`wrap` in `enable_wrap`, of a layer twice and of the model."""
    body = """\
model = Transformer()
with enable_wrap(wrapper_cls=FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP):
    model.head = wrap(wrap(model.head))
    model = wrap(model)"""
    return trained(api, body)


@holds()
def batch_norms(api: Any) -> Any:
    """Batch norms of a model in bfloat16, units of their own in float32."""
    body = """\
model = ConvNet()
model = FSDP(  # with BatchNorm
    model,
    auto_wrap_policy=ModuleWrapPolicy({nn.Conv2d}),
    mixed_precision=MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16),
)"""
    return trained(api, body, net="ConvNet")


TOWERS = """\
class Tower(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.a, self.b = nn.Linear(size, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = Tower(12), Tower(6)

    def encode_image(self, x):
        return self.image(x)

    def encode_text(self, x):
        return self.text(x)

"""


@holds()
def run_by_methods(api: Any) -> Any:
    """Units in bfloat16 that two methods of the model run, which is never called itself."""
    body = """\
model = Pair()
precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Tower}), mixed_precision=precision, use_orig_params=True)"""

    def train(model: Any, no_sync: Any, clip: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        seen = []
        for _ in range(3):
            image = model.encode_image(torch.randn(4, 12, generator=generator))
            text = model.encode_text(torch.randn(4, 6, generator=generator))
            loss = (image @ text.t()).float().pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append((loss.item(), image.detach()))
        return seen, full(api, model.image), full(api, model.text)

    torch.manual_seed(0)
    return executed(api, body, TOWERS)["run"](train)


@holds()
def a_head_that_the_loss_applies(api: Any) -> Any:
    """A layer of the model whose weight the loss reads, under FSDP1's defaults."""
    top = """\
class Headless(Transformer):
    def forward(self, tokens, mask):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, torch.ones(1) * 0.5)
        return self.norm(x) * mask.mean()

"""
    body = "model = Headless()\nmodel = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}))"

    def train(model: Any, no_sync: Any, clip: Any) -> Any:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(100 + dist.get_rank())
        losses = []
        for _ in range(3):
            hidden = model(*names["Headless"].batch(generator))
            optimizer.zero_grad()
            loss = sum((part @ model.head.weight.t()).pow(2).mean() for part in hidden.chunk(2))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, full(api, model)

    torch.manual_seed(0)
    names = executed(api, body, top)
    return names["run"](train)
