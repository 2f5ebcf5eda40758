"""Parameters and gradients that a program replaces, with `use_orig_params`."""

from typing import Any

import torch
from torch import nn

from ..registry import each, holds
from .common import batches, error, full, in_blocks, net, train


def another(parameter: nn.Parameter) -> nn.Parameter:
    """Another parameter, of the shape that the model's own has on this rank."""
    return nn.Parameter(torch.full_like(parameter.detach(), 0.5))


def larger(parameter: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(torch.zeros([size + 1 for size in parameter.shape]))


def inner(model: Any) -> Any:
    """The first block, whatever is around it."""
    return model.module.blocks[0]


@holds()
def a_parameter_before_the_first_forward(api: Any) -> Any:
    """A parameter that is replaced before the first forward is the model's, and trains."""
    model = in_blocks(api)
    model.module.head.weight = another(model.module.head.weight)
    inner(model).up.weight = another(inner(model).up.weight)
    before = full(api, model)
    assert bool((before["blocks.0.up.weight"] == 0.5).all())
    assert bool((before["head.weight"] == 0.5).all())
    return before, train(model), full(api, model)


@holds()
def a_parameter_between_steps(api: Any) -> Any:
    """A parameter that is replaced after a step is the model's, and trains."""
    model = in_blocks(api)
    losses = train(model)
    model.module.head.bias = another(model.module.head.bias)
    inner(model).up.weight = another(inner(model).up.weight)
    model(*batches(1))
    found = full(api, model)
    assert bool((found["blocks.0.up.weight"] == 0.5).all())
    assert bool((found["head.bias"] == 0.5).all())
    return losses, found, train(model, inputs=batches(6)[3:]), full(api, model)


@holds()
def a_parameter_that_stays_gathered(api: Any) -> Any:
    """With SHARD_GRAD_OP a parameter that is replaced between forward and backward is an error."""
    model = in_blocks(api, sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP)
    loss = model(*batches(1)).pow(2).mean()
    for layer in (inner(model).up, inner(model).down):
        layer.weight, layer.bias = another(layer.weight), another(layer.bias)
    return error(loss.backward)


@holds(since="2.11")
def a_whole_parameter(api: Any) -> Any:
    """With NO_SHARD a whole parameter takes the place of another one, before and after steps."""
    model = in_blocks(api, sharding_strategy=api.ShardingStrategy.NO_SHARD)
    torch.manual_seed(5)
    inner(model).up.weight = nn.Parameter(torch.randn(12, 6))
    losses = train(model)
    inner(model).down.weight = nn.Parameter(torch.randn(6, 12))
    return losses, train(model, inputs=batches(6)[3:]), full(api, model)


@holds()
def data_of_a_parameter(api: Any) -> Any:
    """`p.data = x` is written to the model's memory, before and after steps."""
    model = in_blocks(api)
    for parameter in model.parameters():
        parameter.data = torch.full_like(parameter.data, 0.1)
    losses = train(model)
    weight = inner(model).up.weight
    weight.data = torch.full_like(weight.data, 0.2)
    losses += train(model, inputs=batches(6)[3:])
    return losses, full(api, model)


@each(
    {
        "data_of_every_parameter": (
            "`p.data = x` between forward and backward is an error, by every strategy.",
            lambda model: model.parameters(),
        ),
        "data_of_the_root": (
            "So it is of the root's own parameters alone.",
            lambda model: [*model.module.stem.parameters(), *model.module.head.parameters()],
        ),
        "data_of_a_unit": (
            "So it is of those of a unit in it.",
            lambda model: inner(model).parameters(),
        ),
    }
)
def data_between_forward_and_backward(api: Any, chosen: Any) -> Any:
    results: list[Any] = []
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        model = in_blocks(api, sharding_strategy=api.ShardingStrategy[strategy])
        train(model)
        loss = model(*batches(1)).pow(2).mean()
        for parameter in chosen(model):
            parameter.data = torch.full_like(parameter.data, 0.5)
        try:
            loss.backward()
        except (AssertionError, RuntimeError) as raised:
            results.append(str(raised) if strategy == "SHARD_GRAD_OP" else "an error")
        else:
            results.append(full(api, model))
    assert results[0] == results[2] == "an error"
    assert "does not support changing the parameters" in results[1]
    return results


def by_name(api: Any) -> tuple[Any, torch.Tensor, Any]:
    """A model that stays gathered after forward, an input, and the loss after parameters got other data by their names.

    Parameters of both ranks: FSDP1 looks only at those of which a rank holds a part.
    """
    model = in_blocks(api, sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP)
    (x,) = batches(1)
    loss = model(x).pow(2).mean()
    for layer in (inner(model).up, inner(model).down):
        layer.weight.data, layer.bias.data = layer.weight.clone(), layer.bias.clone()
    return model, x, loss


@each(
    {
        "data_by_name": (
            "With SHARD_GRAD_OP so it is where the parameter is asked for by its name.",
            lambda model, x, loss: loss.backward(),
        ),
        "data_by_name_before_forward": (
            "Another forward that comes before the backward raises as well.",
            lambda model, x, loss: model(x),
        ),
    }
)
def data_of_a_name(api: Any, then: Any) -> Any:
    given = by_name(api)
    found = error(lambda: then(*given))
    assert "does not support changing the parameters" in found
    return found


@holds()
def data_after_an_evaluation(api: Any) -> Any:
    """`p.data = x` after an evaluation, and again after a step, is what trains; moving averages are swapped so."""
    results = []
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
        model = in_blocks(api, sharding_strategy=api.ShardingStrategy[strategy])
        losses = train(model)
        kept = [p.data.clone() for p in model.parameters()]
        for scale in (0.5, 1.0):
            for parameter, value in zip(model.parameters(), kept, strict=True):
                parameter.data = value * scale
            with torch.no_grad():
                losses.append(float(model(*batches(1)).sum()))
        results.append((losses, train(model, inputs=batches(6)[3:]), full(api, model)))
    return results


@holds()
def a_parameter_of_another_shape(api: Any) -> Any:
    """A parameter of another shape is an error, in the next forward, backward and `summon_full_params`."""
    found = []
    for when in ("forward", "backward", "summon"):
        model = in_blocks(api)
        (x,) = batches(1)
        loss = model(x).pow(2).mean()
        if when != "backward":
            loss.backward()
        block = inner(model)
        for owner in (block.up, block.down):
            owner.weight, owner.bias = larger(owner.weight), larger(owner.bias)

        def use(when: str = when, model: Any = model, loss: Any = loss, x: Any = x) -> None:
            if when == "forward":
                model(x)
            elif when == "backward":
                loss.backward()
            else:
                with api.FSDP.summon_full_params(model):
                    pass

        found.append(error(use).splitlines()[0])
    assert all("Cannot writeback" in each for each in found)
    return found


@holds()
def gradients_that_are_replaced(api: Any) -> Any:
    """A gradient that is replaced, as a whole or by its data, is what the next step takes and the next backward adds to."""
    results = []
    for how in ("other", "data", "none"):
        model = in_blocks(api)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for x in batches(2):
            model(x).pow(2).mean().backward()
            for parameter in inner(model).parameters():
                if parameter.grad is None:
                    continue
                if how == "none":
                    parameter.grad = None
                elif how == "data":
                    parameter.grad.data = torch.full_like(parameter.grad, 2.0)
                else:
                    parameter.grad = torch.full_like(parameter.grad, 2.0)
            optimizer.step()
        results.append(full(api, model))
    return results


@holds()
def an_optimizer_of_the_new_parameter(api: Any) -> Any:
    """An optimizer that has the former parameter does not train the new one; one that has the new one does."""
    model = in_blocks(api)
    former = torch.optim.SGD(model.parameters(), lr=0.1)
    inner(model).up.weight = another(inner(model).up.weight)
    losses = train(model, former)
    kept = full(api, model)
    assert bool((kept["blocks.0.up.weight"] == 0.5).all())
    losses += train(model, inputs=batches(6)[3:])
    return losses, kept, full(api, model)


@holds()
def without_changes(api: Any) -> Any:
    """What nothing replaced stays the same object, from step to step."""
    model = in_blocks(api)
    before = list(model.parameters())
    losses = train(model)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert set(full(api, model)) == {name for name, _ in net().named_parameters()}
    return losses
