"""Mixed precision of inputs: which are cast, by the root and by its units."""

from typing import Any

import torch
from torch import nn

from ..registry import holds
from .common import batches, error, full, train
from .precision import HALF, Noting, noting, seen


@holds()
def integer_inputs_and_buffers(api: Any) -> Any:
    """Integers are cast neither as inputs nor as buffers."""

    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.embed = nn.Embedding(7, 4)
            self.register_buffer("shift", torch.ones(1, dtype=torch.int64))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            assert tokens.dtype == torch.int64
            return self.embed((tokens + self.shift) % 7)

    precision = api.MixedPrecision(param_dtype=HALF, buffer_dtype=HALF)
    model = api.FullyShardedDataParallel(Lookup(), mixed_precision=precision)
    return model(torch.arange(5)).detach(), str(model.shift.dtype)


@holds()
def inputs_of_inner_units(api: Any) -> Any:
    """By default only the root's inputs are cast; `cast_forward_inputs` casts each unit's that has parameters."""
    FSDP, results = api.FullyShardedDataParallel, []
    for cast in (False, True):
        model = noting()
        inner = api.MixedPrecision(param_dtype=torch.float16, cast_forward_inputs=cast)
        model[1] = FSDP(model[1], mixed_precision=inner)
        idle = api.MixedPrecision(HALF, cast_forward_inputs=True)
        model.append(FSDP(nn.Identity(), mixed_precision=idle))
        model = FSDP(model, mixed_precision=api.MixedPrecision(param_dtype=HALF))
        out = model(*batches(1))
        results.append((seen(model), str(out.dtype)))
    assert results[0][0][1][0] == "torch.float32"
    assert results[1][0][1][0] == "torch.float16"
    return results


@holds()
def inputs_of_the_root_as_they_are(api: Any) -> Any:
    """`cast_root_forward_inputs=False` leaves the root's inputs as they are."""
    precision = api.MixedPrecision(param_dtype=HALF, cast_root_forward_inputs=False)
    model = api.FullyShardedDataParallel(noting(), mixed_precision=precision)
    model(*batches(1))
    found = seen(model)
    assert found[0][0] == "torch.float32"
    return found


@holds()
def gradients_of_inputs(api: Any) -> Any:
    """The gradient of an input has the input's dtype."""
    model = api.FullyShardedDataParallel(
        nn.Linear(4, 4), mixed_precision=api.MixedPrecision(param_dtype=HALF)
    )
    x = batches(1)[0].requires_grad_()
    model(x).sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    return x.grad


@holds()
def embeddings(api: Any) -> Any:
    """An embedding, whose inputs are integers, trains in low precision, whatever of it the policy names."""
    results = []
    for names in ((), ("param_dtype",), ("reduce_dtype",), ("param_dtype", "reduce_dtype")):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 3))
        model = api.FullyShardedDataParallel(
            model, mixed_precision=api.MixedPrecision(**dict.fromkeys(names, HALF))
        )
        tokens = [torch.arange(6) + step for step in (0, 1)]
        results.append((train(model, inputs=tokens), full(api, model)))
    return results


class External(nn.Module):
    """Its second layer gets an input that the first did not make."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x), torch.ones(5, 4))


class Two(Noting):
    """Takes two inputs."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        self.seen.append(str(y.dtype))
        return super().forward(x + y)


@holds()
def inputs_from_outside_of_units(api: Any) -> Any:
    """A unit casts all of its inputs, those that were made between units too."""
    FSDP = api.FullyShardedDataParallel
    precision = api.MixedPrecision(param_dtype=HALF, cast_forward_inputs=True)
    torch.manual_seed(1)
    second = FSDP(Two(4, 2), mixed_precision=precision)
    model = FSDP(External(Noting(4, 4), second), mixed_precision=precision)
    losses = train(model)
    assert set(seen(model)[1]) == {"torch.bfloat16", "torch.float32"}
    return losses, seen(model), full(api, model)


@holds()
def nested_inputs(api: Any) -> Any:
    """Tensors in tuples, lists, dictionaries and keywords are cast; what is no tensor arrives as it is."""
    kinds: list[str] = []

    class Nested(nn.Linear):
        def forward(self, pair: Any, *, more: Any, name: str) -> torch.Tensor:  # type: ignore[override]
            assert name == "mask"
            kinds.extend(str(x.dtype) for x in (pair[0], pair[1][0], more["mask"], more["bias"]))
            return super().forward(pair[0] + pair[1][0]) * more["mask"].sum() + more["bias"]

    torch.manual_seed(1)
    precision = api.MixedPrecision(param_dtype=HALF)
    model = api.FullyShardedDataParallel(Nested(4, 2), mixed_precision=precision)
    x, y = batches(2)
    more = {"mask": torch.ones(3, dtype=torch.bool), "bias": torch.ones(2, dtype=torch.float64)}
    out = model((x, [y]), more=more, name="mask")
    assert kinds == ["torch.bfloat16", "torch.bfloat16", "torch.bool", "torch.bfloat16"]
    return kinds, out.detach()


@holds()
def inputs_in_evaluation(api: Any) -> Any:
    """The root casts its inputs in evaluation as in training, with and without `cast_forward_inputs`."""
    results = []
    for cast in (True, False):
        precision = api.MixedPrecision(HALF, HALF, HALF, cast_forward_inputs=cast)
        model = api.FullyShardedDataParallel(noting(), mixed_precision=precision)
        model(*batches(1)).sum().backward()
        model.eval()
        model(*batches(1))
        assert {name for names in seen(model) for name in names} == {"torch.bfloat16"}
        results.append(seen(model))
    return results


@holds()
def inputs_that_nobody_casts(api: Any) -> Any:
    """A unit whose inputs are not cast raises torch's error of dtypes: by its policy, beside others, or if it is ignored."""
    FSDP, MixedPrecision = api.FullyShardedDataParallel, api.MixedPrecision
    half = MixedPrecision(param_dtype=torch.float16)

    def layers() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    told_not_to = layers()
    told_not_to[0] = FSDP(told_not_to[0], mixed_precision=half)
    beside_another = layers()
    beside_another[0] = FSDP(beside_another[0], mixed_precision=MixedPrecision(HALF))
    ignored = layers()
    models = [
        FSDP(told_not_to),
        FSDP(beside_another, mixed_precision=half),
        FSDP(ignored, ignored_modules=[ignored[1]], mixed_precision=half),
    ]
    found = [error(lambda m=model: m(*batches(1))) for model in models]
    assert all("must have the same dtype" in text for text in found)
    return found


@holds()
def inputs_that_only_a_unit_casts(api: Any) -> Any:
    """A root that leaves its inputs, and computes in full precision, may hold a unit that casts its own."""
    FSDP, MixedPrecision = api.FullyShardedDataParallel, api.MixedPrecision
    model = noting()
    inner = MixedPrecision(torch.float16, cast_forward_inputs=True, cast_root_forward_inputs=False)
    model[0] = FSDP(model[0], mixed_precision=inner)
    model = FSDP(model, mixed_precision=MixedPrecision(cast_root_forward_inputs=False))
    model.module[1].register_forward_pre_hook(lambda m, args: (args[0].float(),))
    losses = train(model)
    assert [names[:2] for names in seen(model)] == [["torch.float16"] * 2, ["torch.float32"] * 2]
    return losses, seen(model), full(api, model)
