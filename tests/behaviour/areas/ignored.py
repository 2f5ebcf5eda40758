"""Ignored modules and parameters."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..registry import holds
from .common import (
    Block,
    batches,
    close,
    error,
    full,
    gradients,
    in_blocks,
    initial,
    net,
    said,
    train,
    tree,
    units,
)


def ignoring(api: Any, kind: str, **options: Any) -> Any:
    """A model that ignores its second block: by its module, or by its parameters."""
    model = net()
    block = model.blocks[1]
    states = {
        "ignored_modules": [block],
        "ignored_states": list(block.parameters()),
        "states as modules": [block],
    }[kind]
    given = "ignored_modules" if kind == "ignored_modules" else "ignored_states"
    return in_blocks(api, model, **{given: states}, **options), block


@holds()
def ignored_modules(api: Any) -> Any:
    """An ignored module is no unit, and its parameters stay whole plain ones on every rank."""
    model, block = ignoring(api, "ignored_modules")
    assert units(api, model) == ["", "blocks.0"]
    assert block.up.weight.shape == (12, 6)
    assert type(block.up.weight) is nn.Parameter
    return tree(api, model), block.up.weight.detach().clone()


@holds()
def ignored_states(api: Any) -> Any:
    """Ignored parameters stay whole plain ones too, and their module may be a unit."""
    model, block = ignoring(api, "ignored_states")
    assert type(block.up.weight) is nn.Parameter
    assert block.up.weight.shape == (12, 6)
    return tree(api, model), list(model.state_dict())


@holds()
def ignored_states_that_are_modules(api: Any) -> Any:
    """`ignored_states` takes modules as well."""
    model, block = ignoring(api, "states as modules")
    return tree(api, model), tuple(block.up.weight.shape)


@holds()
def training(api: Any) -> Any:
    """Ignored parameters train on each rank's own gradients, the others on the mean."""
    results = []
    for kind in ("ignored_modules", "ignored_states"):
        model, block = ignoring(api, kind)
        results.append((train(model), full(api, model), block.up.weight.detach().clone()))
    both = [torch.empty_like(block.up.weight) for _ in range(2)]
    dist.all_gather(both, block.up.weight.detach())
    assert not torch.equal(both[0], both[1])
    return results


@holds()
def gradients_of_ignored_parameters(api: Any) -> Any:
    """The gradient of an ignored parameter is this rank's."""
    model, block = ignoring(api, "ignored_modules")
    (x,) = batches(1)
    model(x).sum().backward()
    plain = net()
    plain(x).sum().backward()
    torch.testing.assert_close(block.up.weight.grad, plain.blocks[1].up.weight.grad)
    return gradients(api, model)


@holds()
def ignored_biases(api: Any) -> Any:
    """Single parameters of a unit can be ignored."""
    model = net()
    biases = [block.up.bias for block in model.blocks]
    model = in_blocks(api, model, ignored_states=biases)
    assert model.blocks[0].module.up.bias is biases[0]
    return tree(api, model), train(model), dict(sorted(full(api, model).items()))


@holds()
def children_of_ignored_modules(api: Any) -> Any:
    """What is inside of an ignored module is ignored with it."""
    model = net()
    blocks = model.blocks
    model = in_blocks(api, model, ignored_modules=[blocks])
    assert units(api, model) == [""]
    return tree(api, model), train(model), full(api, model)


@holds()
def units_inside_of_ignored_modules(api: Any) -> Any:
    """A unit inside of an ignored module stays a unit of its own."""
    model = net()
    model.blocks[0] = api.FSDP(model.blocks[0], use_orig_params=True)
    blocks = model.blocks
    model = api.FSDP(model, ignored_modules=[blocks], use_orig_params=True)
    assert units(api, model) == ["", "blocks.0"]
    assert model.blocks[1].up.weight.shape == (12, 6)
    return tree(api, model), train(model), full(api, model)


@holds()
def ignored_by_an_inner_unit(api: Any) -> Any:
    """What an inner unit ignores, the outer one leaves alone, whether it is told to or not."""
    results = []
    for told in (False, True):
        model = net()
        down = model.blocks[0].down
        model.blocks[0] = api.FSDP(model.blocks[0], ignored_modules=[down], use_orig_params=True)
        options = {"ignored_modules": [down]} if told else {}
        model = api.FSDP(model, use_orig_params=True, **options)
        assert tuple(down.weight.shape) == (6, 12)
        results.append((tree(api, model), train(model), full(api, model)))
    return results


@holds()
def different_modules_on_different_ranks(api: Any) -> Any:
    """Each rank may ignore modules that others do not have."""

    class Extra(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.eye(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight

    model = net()
    extras = [Extra() for _ in range(dist.get_rank() + 1)]
    model.blocks = nn.Sequential(model.blocks[0], *extras, model.blocks[1])
    model.blocks = api.FSDP(model.blocks, ignored_modules=extras)
    model = api.FSDP(model)
    return units(api, model), train(model)


@holds()
def modules_outside_of_the_unit(api: Any) -> Any:
    """Modules that are not in the wrapped one may be named."""
    model = net()
    outside = [model.blocks[1]]
    model.head = api.FSDP(model.head, ignored_modules=outside)
    return units(api, model), tuple(model.blocks[1].up.weight.shape)


@holds()
def ignoring_a_unit(api: Any) -> Any:
    """A unit cannot be ignored."""
    model = net()
    model.blocks = api.FSDP(model.blocks)
    text = error(lambda: api.FSDP(model, ignored_modules=[model.blocks]))
    assert "`ignored_modules` should not include FSDP modules" in text
    return text


@holds()
def ignoring_everything(api: Any) -> Any:
    """Ignoring the wrapped module itself warns, and leaves nothing sharded."""
    model, built = net(), []
    texts = said(lambda: built.append(api.FSDP(model, ignored_modules=[model])))
    wanted = [text for text in texts if "ignore the top-level module" in text]
    assert len(wanted) == 1
    assert model.head.weight.shape == (3, 6)
    # FSDP1 names the last module that it looked at, not the one that was passed.
    return wanted[0].partition(": ")[0], tree(api, built[0]), train(built[0])


@holds()
def modules_and_states(api: Any) -> Any:
    """Both arguments at once are an error."""
    model = net()
    states = {"ignored_modules": [model.head], "ignored_states": [model.stem.weight]}
    text = error(lambda: in_blocks(api, model, **states))
    assert "Cannot pass both ignored_modules and ignored_states at the same time" in text
    return text


@holds()
def elements_of_the_wrong_kind(api: Any) -> Any:
    """Elements of the wrong kind are errors that name the kinds."""
    model = net()
    texts = [
        error(lambda: in_blocks(api, model, ignored_modules=list(model.head.parameters()))),
        error(lambda: in_blocks(api, model, ignored_states=[model.head, model.stem.weight])),
    ]
    assert "ignored_modules expects nn.Module list elements but got types" in texts[0]
    assert "ignored_states expects all nn.Parameter or all nn.Module" in texts[1]
    return texts


@holds()
def generators_of_parameters(api: Any) -> Any:
    """`ignored_states` may be a generator; the units of a policy ignore them all the same."""
    model = net()
    head = model.head
    model = api.FSDP(model, ignored_states=(p for p in head.parameters()))
    assert isinstance(model.module.blocks[0], Block)
    return tuple(head.weight.shape), tree(api, model)


@holds()
def mixed_precision(api: Any) -> Any:
    """Ignored parameters and buffers are not cast."""
    seen: list[str] = []
    model = net()
    norm = nn.BatchNorm1d(6)
    model.blocks[1] = norm
    norm.register_forward_pre_hook(lambda m, args: (args[0].float(),))
    norm.register_forward_hook(lambda m, args, out: seen.append(str(m.running_mean.dtype)))
    precision = api.MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    model = api.FSDP(model, ignored_modules=[norm], mixed_precision=precision, use_orig_params=True)
    model.head.register_forward_pre_hook(lambda m, args: (args[0].to(m.weight.dtype),))
    model(*batches(1))
    assert seen == ["torch.float32"]
    return seen, str(norm.weight.dtype), str(norm.running_mean.dtype)


@holds()
def whole_parameters(api: Any) -> Any:
    """`summon_full_params` shows ignored parameters beside the others, under their names."""
    model, _ = ignoring(api, "ignored_modules")
    found = full(api, model)
    assert close(found, initial())
    return found
