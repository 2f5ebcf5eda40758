"""What a program computes beside the model's forward: a loss from a part's parameters, and methods of the model's own."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..registry import each, holds
from . import common


class Headless(common.Net):
    """A model whose last layer the loss applies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.stem(x))


def headless() -> Headless:
    torch.manual_seed(1)
    return Headless()


def by_weight(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """In pieces, as fused losses do."""
    weight, bias = model.head.weight, model.head.bias
    return torch.cat([piece @ weight.t() + bias for piece in hidden.chunk(2)])


def by_call(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    return model.head(hidden)


def by_unit(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """A penalty on what forward has used as well."""
    block = model.blocks[-1]
    penalty = block.up.weight.float().pow(2).mean() + block.down.bias.float().pow(2).mean()
    return model.head(hidden) + penalty


Head = Callable[[Any, torch.Tensor], torch.Tensor]


def trained_outside(api: Any, head: Head, steps: int = 3, **options: Any) -> Any:
    """Losses and parameters of a model whose last layer the loss applies."""
    model = common.in_blocks(api, headless(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for x in common.batches(steps):
        optimizer.zero_grad()
        hidden = model(x)
        loss = head(model, hidden).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(set(losses)) == steps
    return losses, common.full(api, model)


KEPT = {"sharding_strategy": "SHARD_GRAD_OP"}
FLAT = {"use_orig_params": False}
LOW = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}

READ: dict[str, tuple[Any, ...]] = {
    "weight_of_kept_units": (
        "SHARD_GRAD_OP: a loss may read parameters after forward.",
        by_weight,
        KEPT,
    ),
    "call_of_kept_units": ("SHARD_GRAD_OP: a loss may call a part after forward.", by_call, KEPT),
    "penalty_on_kept_units": (
        "SHARD_GRAD_OP: parameters of units may be in the loss.",
        by_unit,
        KEPT,
    ),
    "penalty_on_flat_units": (
        "SHARD_GRAD_OP without `use_orig_params`: parameters of units may be in the loss.",
        by_unit,
        KEPT | FLAT,
    ),
    "weight_of_a_flat_root": (
        "Without `use_orig_params` a loss may read the root's parameters after forward.",
        by_weight,
        FLAT,
    ),
    "call_of_a_flat_root": (
        "Without `use_orig_params` a loss may call a part of the root after forward.",
        by_call,
        FLAT,
    ),
}


@each(READ, torch=True)
def read_after_forward(api: Any, head: Head, options: dict[str, Any]) -> Any:
    """In float32 and in bfloat16: what is read has the dtype of forward."""
    options = _named(api, options)
    results = [trained_outside(api, head, **options)]
    precision = api.MixedPrecision(**LOW)
    results.append(trained_outside(api, head, mixed_precision=precision, **options))
    return results


def _named(api: Any, options: dict[str, Any]) -> dict[str, Any]:
    name = options.get("sharding_strategy")
    strategy = {} if name is None else {"sharding_strategy": api.ShardingStrategy[name]}
    return {**options, **strategy}


@holds()
def parameters_are_the_trained_ones_meanwhile(api: Any) -> Any:
    """Without `use_orig_params` an optimizer may be made between forward and backward: it trains the model."""
    model = common.in_blocks(api, headless(), **_named(api, KEPT | FLAT))
    losses = []
    for x in common.batches(2):
        hidden = model(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss = model.head(hidden).pow(2).mean()
        loss.backward()
        optimizer.step()
        model.zero_grad()
        losses.append(loss.item())
    return losses, common.full(api, model)


@holds()
def read_without_backward(api: Any) -> Any:
    """What a loss has read, with no backward after it, is not what is saved, loaded or trained."""
    model = common.in_blocks(api, headless(), **_named(api, KEPT))
    (x,) = common.batches(1)
    before = by_weight(model, model(x)).detach()
    state = model.state_dict()
    model.load_state_dict({name: value + 1 for name, value in state.items()})
    saved = model.state_dict()
    changed = by_weight(model, model(x))
    assert not torch.equal(before, changed)
    changed.sum().backward()
    return before, changed.detach(), saved, common.full(api, model)


class Towers(nn.Module):
    """Two parts that methods of their own run, as CLIP's."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text = common.Block(), common.Block(4)
        self.project = nn.Linear(4, 6)

    def encode_image(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.image(x), dim=-1)

    def encode_text(self, x: torch.Tensor) -> torch.Tensor:
        return functional.normalize(self.text(x), dim=-1)

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> Any:
        return self.encode_image(image), self.project(self.encode_text(text))


METHODS: dict[str, tuple[Any, ...]] = {
    "methods_in_low_precision": (
        "Units that methods of the model run are roots, which cast their inputs.",
        {},
    ),
    "methods_without_casts": (
        "Unless `cast_root_forward_inputs` is off: then inputs in float32 are refused.",
        {"cast_root_forward_inputs": False},
    ),
    "methods_with_casts": (
        "`cast_forward_inputs` casts the inputs of units, and of those that methods run.",
        {"cast_forward_inputs": True},
    ),
}


@each(METHODS)
def run_by_methods(api: Any, casts: dict[str, bool]) -> Any:
    """The dtypes of what they give, and the gradients."""
    torch.manual_seed(1)
    precision = api.MixedPrecision(**LOW, **casts)
    model = common.in_blocks(api, Towers(), mixed_precision=precision)
    image, text = common.batches(1, 5, 6)[0], common.batches(1, 5, 4)[0]
    if casts == {"cast_root_forward_inputs": False}:
        return common.error(lambda: model.encode_image(image)).partition(":")[0]
    given = model.encode_image(image), model.encode_text(text)
    assert all(each.dtype is torch.bfloat16 for each in given)
    (given[0].float().sum() + given[1].float().pow(3).sum()).backward()
    # Of each by itself, as they are roots.
    shown = [common.gradients(api, unit) for unit in (model.image, model.text)]
    return [each.detach() for each in given], shown
