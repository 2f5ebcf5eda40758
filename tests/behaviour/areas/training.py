"""Forward and backward: what trains, what is gathered, and which inputs and hooks are let through."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from ..registry import each, holds
from . import common

ROWS = {
    "full_shard": (
        "FULL_SHARD trains as the model does without FSDP.",
        lambda api: {"sharding_strategy": api.ShardingStrategy.FULL_SHARD},
    ),
    "shard_grad_op": (
        "SHARD_GRAD_OP trains as the model does without FSDP.",
        lambda api: {"sharding_strategy": api.ShardingStrategy.SHARD_GRAD_OP},
    ),
    "no_shard": (
        "NO_SHARD trains as the model does without FSDP.",
        lambda api: {"sharding_strategy": api.ShardingStrategy.NO_SHARD},
    ),
    "flat": (
        "Without `use_orig_params` the model trains the same.",
        lambda api: {"use_orig_params": False},
    ),
    "cpu_offload_flat": (
        "`CPUOffload` trains the same without `use_orig_params`.",
        lambda api: {"cpu_offload": api.CPUOffload(offload_params=True), "use_orig_params": False},
    ),
    "no_prefetch": (
        "Without backward prefetch the model trains the same.",
        lambda api: {"backward_prefetch": None},
    ),
    "prefetch_after": (
        "BACKWARD_POST and forward prefetch train the same.",
        lambda api: {
            "backward_prefetch": api.BackwardPrefetch.BACKWARD_POST,
            "forward_prefetch": True,
        },
    ),
}


@each(ROWS, torch=True)
def trained(api: Any, options: Callable[[Any], Any] = lambda api: {}) -> Any:
    """Losses, parameters and collectives of a model in blocks, which trains as without FSDP."""
    alone = common.train_alone(common.net())
    model = common.in_blocks(api, **options(api))
    with common.counted_collectives() as collectives:
        losses = common.train(model)
    parameters = common.full(api, model)
    assert common.close(parameters, alone)
    return losses, parameters, dict(sorted(collectives.items()))


@holds()
def cpu_offload(api: Any) -> Any:
    """`CPUOffload` trains the same, with the parameters on the CPU."""
    model = common.in_blocks(api, cpu_offload=api.CPUOffload(offload_params=True))
    devices = {str(p.device) for p in model.parameters()}
    return common.train(model), common.full(api, model), devices


def is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear)


def as_alone(api: Any, plain: Any, units: Any = None, **options: Any) -> Any:
    """Losses and parameters of a model, those of the model without FSDP; ``units`` says which modules are units."""
    alone = common.train_alone(plain)
    policy = units and partial(api.wrap.lambda_auto_wrap_policy, lambda_fn=units)
    options = {"use_orig_params": True, "auto_wrap_policy": policy, **options}
    model = api.FSDP(plain, **options)
    losses, found = common.train(model), common.full(api, model)
    assert common.close(found, alone)
    return losses, found


@holds(ranks=4, tolerance=1e-6)
def four_ranks(api: Any) -> Any:
    """Over four ranks the model trains as it does without FSDP, with rows that four does not divide."""
    return trained(api)


@holds(ranks=4, tolerance=1e-6)
def empty_shards(api: Any) -> Any:
    """Ranks that hold no element of a parameter train with the others."""
    torch.manual_seed(1)
    return as_alone(api, nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 2)))


@holds()
def a_unit_called_twice(api: Any) -> Any:
    """A unit that runs twice in one forward trains as it does without FSDP."""
    twice = common.layers(
        lambda m, x: m.outer(m.inner(x) + m.inner(2 * x)), inner=(4, 4), outer=(4, 5)
    )
    return as_alone(api, twice, lambda m: m is twice.inner)


@holds()
def a_unit_called_twice_in_a_reentrant_checkpoint(api: Any) -> Any:
    """A unit that runs twice in reentrant checkpoints has the gradients of both, and is freed."""

    def run(model: Any, x: torch.Tensor) -> torch.Tensor:
        x = model.outer(x)
        for scale in 1, 2:
            x = x + checkpoint(model.inner, scale * x, use_reentrant=True)
        return x

    twice = common.layers(run, outer=(4, 4), inner=(4, 4))
    return as_alone(api, twice, lambda m: m is twice.inner)


@holds()
def inference_before_training(api: Any) -> Any:
    """What has loaded a state dict may run in inference mode first, and train then."""
    model = common.in_blocks(api)
    model.load_state_dict(model.state_dict())
    with torch.inference_mode():
        model(common.batches(1)[0])
    return common.train(model), common.full(api, model)


@holds()
def inputs_changed_in_place(api: Any) -> Any:
    """A unit may change its input in place, and whoever gave it sees the change."""

    class Changing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            before = 2 * input
            input += 1
            input.relu_()
            return super().forward(input) + before

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = m.first(x)
        part = m.first(2 * x)[:, :]
        return m.changing(hidden) + hidden + m.changing(input=part)

    using = common.layers(forward, first=(4, 4))
    using.changing = Changing(4, 4)
    return as_alone(api, using, lambda m: isinstance(m, Changing))


@holds()
def lists_and_dicts_that_units_add_to(api: Any) -> Any:
    """What a unit adds to a list or a dict that it is given is seen by whoever gave it, and trained."""

    class Adding(nn.Linear):
        def forward(self, x: torch.Tensor, seen: Any, *, kept: Any) -> torch.Tensor:
            hidden: torch.Tensor = super().forward(x)
            seen[0].append(hidden.square().mean())
            kept["last"] = kept.get("last", 0) + hidden
            return hidden

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        seen: Any = ([], x)
        kept: dict[str, torch.Tensor] = {}
        for layer in (m.first, m.second, m.third):
            x = layer(x, seen, kept=kept)
        return kept["last"] + sum(seen[0])

    using = common.layers(forward, Adding, first=(4, 4), second=(4, 4), third=(4, 4))
    return as_alone(api, using, is_linear)


@holds()
def lists_and_dicts_as_inputs(api: Any) -> Any:
    """A list or a dict as an input arrives as one, also by keyword."""

    def forward(m: Any, given: Any) -> torch.Tensor:
        return m.layer(given[0] if isinstance(given, list) else given["x"])

    model = api.FSDP(common.layers(forward, layer=(4, 4)), use_orig_params=True)
    (x,) = common.batches(1)
    outputs = [model([x]), model({"x": x}), model(given={"x": x})]
    assert torch.equal(outputs[0], outputs[2])
    outputs[-1].sum().backward()
    return [out.detach() for out in outputs], common.gradients(api, model)


Pair = namedtuple("Pair", ["a", "b"])


@dataclass
class Output:
    first: torch.Tensor
    rest: dict[str, Any]


@holds()
def structured_outputs(api: Any) -> Any:
    """Named tuples, dicts, lists and dataclasses come out as they are, and gradients flow through them."""

    def forward(m: Any, x: torch.Tensor) -> Output:
        y = m.layer(x)
        return Output(y, {"pair": Pair(y + 1, y + 2), "list": [y * 2, "text", None]})

    model = api.FSDP(common.layers(forward, layer=(4, 4)), use_orig_params=True)
    out = model(*common.batches(1))
    assert type(out) is Output
    assert type(out.rest["pair"]) is Pair
    (out.first.sum() + out.rest["pair"].b.sum() + out.rest["list"][0].sum()).backward()
    return common.gradients(api, model), out.rest["list"][1:]


@holds()
def outputs_without_gradients(api: Any) -> Any:
    """A model whose output does not depend on its parameters runs."""
    model = api.FSDP(common.layers(lambda m, pair: pair, layer=(4, 4)))
    one = torch.ones(1, requires_grad=True)
    out = model(Pair(one, one * 2))
    return type(out).__name__, [t.detach() for t in out]


@holds()
def evaluation_under_no_grad(api: Any) -> Any:
    """After a step, the output under `no_grad` is that of `eval()`."""
    model = common.in_blocks(api)
    losses = common.train(model)
    model.eval()
    (x,) = common.batches(1)
    reference = model(x).detach()
    with torch.no_grad():
        assert torch.equal(model(x), reference)
    return losses, reference


@holds()
def evaluation_between_steps(api: Any) -> Any:
    """Evaluations before the optimizer is built, and between two steps, do not change the training."""
    results = []
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
        model = common.in_blocks(api, sharding_strategy=api.ShardingStrategy[strategy])
        with torch.no_grad():
            model(*common.batches(1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x in common.batches(2):
            results.append(common.train(model, optimizer, inputs=[x]))
            with torch.no_grad():
                results.append(model(x).pow(2).mean().item())
        assert common.close(common.full(api, model), common.train_alone(common.net()))
    return results, common.full(api, model)


@holds()
def forward_called_by_name(api: Any) -> Any:
    """`model.forward(x)` gathers the parameters as `model(x)` does, and trains."""
    model = common.in_blocks(api)
    (x,) = common.batches(1)
    called, named = model(x).detach(), model.forward(x)
    assert torch.equal(called, named)
    named.sum().backward()
    return called, common.gradients(api, model)


@holds(in_place="a hook of `model.module` is one of the model")
def forward_hooks(api: Any) -> Any:
    """Forward hooks of units and of the modules in them run, in order, with whole outputs."""
    model = common.in_blocks(api)
    seen: list[Any] = []

    def note(name: str) -> Any:
        return lambda module, args, out: seen.append((name, tuple(out.shape)))

    model.register_forward_hook(note("root"))
    model.blocks[0].register_forward_hook(note("unit"))
    model.blocks[0].module.register_forward_hook(note("inner"))
    model.head.register_forward_pre_hook(lambda module, args: seen.append(("head", len(args))))
    model(*common.batches(1)).sum().backward()
    assert [name for name, _ in seen] == ["inner", "unit", "head", "root"]
    return seen


@holds()
def hooks_that_change_outputs(api: Any) -> Any:
    """What a hook of a unit returns takes the place of its output."""
    model = common.in_blocks(api)
    model.blocks[1].register_forward_hook(lambda module, args, out: out * 2)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return common.train(model), common.full(api, model)


@holds()
def backward_hooks(api: Any) -> Any:
    """Full backward hooks of modules inside and hooks of activations run."""
    model = common.in_blocks(api)
    seen: list[Any] = []
    model.head.register_full_backward_hook(
        lambda module, inputs, outputs: seen.append(("head", tuple(outputs[0].shape)))
    )
    out = model(*common.batches(1))
    out.register_hook(lambda gradient: seen.append(("out", tuple(gradient.shape))))
    out.sum().backward()
    assert sorted(name for name, _ in seen) == ["head", "out"]
    return seen, common.gradients(api, model)


@holds()
def activation_checkpoints(api: Any) -> Any:
    """Activation checkpoint wrappers inside and outside of units, and around units in them, train the same."""
    results = []
    alone = common.train_alone(common.net())
    for place in ("inside", "outside", "around"):
        model = common.net()
        for i, block in enumerate(model.blocks):
            if place == "around":
                block.up = api.FSDP(block.up)
            model.blocks[i] = (
                checkpoint_wrapper(api.FSDP(block))
                if place == "outside"
                else api.FSDP(checkpoint_wrapper(block))
            )
        model = api.FSDP(model)
        results.append(common.train(model))
        assert common.close(common.full(api, model), alone)
    return results


@holds(in_place="there are no wrappers to count")
def train_and_eval_flags(api: Any) -> Any:
    """`train()` and `eval()` reach every module in a unit."""
    model = common.in_blocks(api)
    flags = [[m.training for m in model.modules()]]
    model.eval()
    flags.append([m.training for m in model.modules()])
    model.train()
    assert all(m.training for m in model.modules())
    return flags


@holds()
def two_models(api: Any) -> Any:
    """Two models train beside each other, one on what the other gives."""
    torch.manual_seed(1)
    first = api.FSDP(nn.Linear(4, 4), use_orig_params=True)
    second = api.FSDP(nn.Linear(4, 2), use_orig_params=True)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for x in common.batches(3):
        optimizer.zero_grad()
        loss = second(first(x)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, common.full(api, first), common.full(api, second)


@holds()
def units_under_a_plain_root(api: Any) -> Any:
    """Units train inside of a module that is none."""
    model = common.blocks_by_hand(api, use_orig_params=True)
    optimizer = torch.optim.SGD(model.blocks.parameters(), lr=0.1)
    return common.train(model, optimizer), common.full(api, model)


@holds()
def two_forwards_before_a_backward(api: Any) -> Any:
    """With NO_SHARD two forwards can come before one backward."""
    model = common.in_blocks(api, sharding_strategy=api.ShardingStrategy.NO_SHARD)
    first, second = common.batches(2)
    loss = model(first).pow(2).mean() + model(second).pow(2).mean()
    loss.backward()
    return loss.item(), common.gradients(api, model)


@holds()
def data_of_another_shape(api: Any) -> Any:
    """An assignment of another shape to `.data` is an error, at the latest in the next forward."""
    # Each rank has a part of it: a rank without one would wait for the others, which have stopped.
    model = api.FSDP(nn.Linear(4, 4, bias=False), use_orig_params=True)
    weight = next(model.parameters())

    def assign() -> None:
        weight.data = torch.zeros(*[size + 1 for size in weight.shape], 2)
        model(*common.batches(1))

    return bool(common.error(assign))
