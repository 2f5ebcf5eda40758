"""Mixed precision: dtypes in forward, of buffers, gradients and states."""

import os
from typing import Any

import torch
from torch import nn

from ..registry import cannot, holds
from .common import Block, batches, clean, full, gradients, in_blocks, net, train

HALF = torch.bfloat16


class Noting(nn.Linear):
    """Notes the dtypes that its forward sees."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("offset", torch.zeros(1))
        self.seen: list[str] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += [str(x.dtype), str(self.weight.dtype), str(self.offset.dtype)]
        return super().forward(x.to(self.weight.dtype)) + self.offset


def noting() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(Noting(4, 4), Noting(4, 2))


def seen(model: Any) -> list[list[str]]:
    return [module.seen for module in model.modules() if isinstance(module, Noting)]


@holds()
def parameters_inputs_and_outputs(api: Any) -> Any:
    """`param_dtype` is the dtype of parameters and inputs in forward, and of the output."""
    precision = api.MixedPrecision(param_dtype=HALF)
    model = api.FullyShardedDataParallel(noting(), mixed_precision=precision)
    model(*batches(1))
    plain = api.FullyShardedDataParallel(nn.Linear(4, 4), mixed_precision=precision)
    out = plain(*batches(1))
    assert out.dtype == HALF
    found = seen(model)
    assert found[0] == ["torch.bfloat16", "torch.bfloat16", "torch.float32"]
    return found, str(out.dtype)


@holds()
def stored_parameters_and_gradients(api: Any) -> Any:
    """Stored parameters and gradients stay in full precision, and so does the optimizer."""
    precision = api.MixedPrecision(param_dtype=HALF, reduce_dtype=HALF)
    model = in_blocks(api, mixed_precision=precision)
    model(*batches(1)).sum().backward()
    kinds = {str(p.dtype) for p in model.parameters()}
    kinds |= {str(p.grad.dtype) for p in model.parameters() if p.grad is not None}
    assert kinds == {"torch.float32"}
    return gradients(api, model)


@holds()
def training(api: Any) -> Any:
    """Training in bfloat16 gives the same losses and parameters, whichever dtype gradients are reduced in."""
    results = []
    for reduce_dtype in (None, HALF, torch.float32):
        precision = api.MixedPrecision(param_dtype=HALF, reduce_dtype=reduce_dtype)
        model = in_blocks(api, mixed_precision=precision)
        results.append((train(model), full(api, model)))
    return results


@holds()
def reduction_only(api: Any) -> Any:
    """`reduce_dtype` alone changes only how gradients are reduced."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision(reduce_dtype=HALF))
    out = model(*batches(1))
    assert out.dtype == torch.float32
    out.sum().backward()
    return out.detach(), gradients(api, model)


@holds()
def buffers(api: Any) -> Any:
    """`buffer_dtype` is the dtype of floating-point buffers from the first forward on; state dicts have their own again."""
    precision = api.MixedPrecision(param_dtype=HALF, buffer_dtype=torch.float16)
    model = api.FullyShardedDataParallel(noting(), mixed_precision=precision)
    model(*batches(1))
    inside = {name: str(b.dtype) for name, b in model.named_buffers()}
    saved = {name: str(t.dtype) for name, t in model.state_dict().items()}
    assert set(inside.values()) == {"torch.float16"}
    assert set(saved.values()) == {"torch.float32"}
    return seen(model), inside, saved


@holds()
def buffer_dtype_alone(api: Any) -> Any:
    """`buffer_dtype` alone leaves parameters and inputs as they are."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision(buffer_dtype=HALF))
    out = model(*batches(1))
    return str(out.dtype), {name: str(b.dtype) for name, b in model.named_buffers()}


@holds()
def units_in_different_precision(api: Any) -> Any:
    """One unit can run in full precision among others that do not."""
    FSDP, precision = api.FullyShardedDataParallel, api.MixedPrecision
    model = noting()
    whole = precision(param_dtype=torch.float32, cast_forward_inputs=True)
    model[0] = FSDP(model[0], mixed_precision=precision(param_dtype=HALF, cast_forward_inputs=True))
    model[1] = FSDP(model[1], mixed_precision=whole)
    model = FSDP(model)
    losses = train(model)
    assert seen(model)[0][1] == "torch.bfloat16"
    assert seen(model)[1][1] == "torch.float32"
    return losses, seen(model), full(api, model)


@holds()
def whole_parameters_in_full_precision(api: Any) -> Any:
    """`summon_full_params` and state dicts give the stored precision, also between forward and backward."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision(param_dtype=HALF))
    out = model(*batches(1))
    between = full(api, model)
    out.sum().backward()
    saved = model.state_dict()
    assert {t.dtype for t in between.values()} == {torch.float32}
    assert {t.dtype for t in saved.values()} == {torch.float32}
    return between, saved, gradients(api, model)


@holds()
def evaluation(api: Any) -> Any:
    """Evaluation runs in the same precision."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision(param_dtype=HALF))
    model.eval()
    with torch.no_grad():
        out = model(*batches(1))
        assert not torch.equal(out, in_blocks(api)(*batches(1)))
    return out


@holds()
def under_autocast(api: Any) -> Any:
    """A model without mixed precision runs under autocast."""
    model = in_blocks(api)
    with torch.autocast("cpu", dtype=HALF):
        out = model(*batches(1))
    out.float().sum().backward()
    assert model.module.head.weight.dtype == torch.float32
    return out.detach(), gradients(api, model)


@holds()
def batch_norms(api: Any) -> Any:
    """With a policy, batch norms run in full precision and give the precision of the others."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model = api.FullyShardedDataParallel(
        model,
        auto_wrap_policy=api.wrap.ModuleWrapPolicy({nn.Linear}),
        mixed_precision=api.MixedPrecision(param_dtype=HALF, buffer_dtype=HALF),
        use_orig_params=True,
    )
    losses = train(model)
    kinds = {name: str(b.dtype) for name, b in model.named_buffers()}
    return losses, kinds, full(api, model)


@holds()
def half_after_wrapping(api: Any) -> Any:
    """`.half()` and `.to(dtype)` after wrapping change parameters and buffers."""
    model = in_blocks(api).to(torch.bfloat16)
    x = batches(1)[0].to(HALF)
    out = model(x)
    out.sum().backward()
    saved = model.state_dict()
    assert {t.dtype for t in saved.values()} == {HALF}
    half = in_blocks(api).half()
    return out.detach(), saved, {str(p.dtype) for p in half.parameters()}.pop()


@holds()
def a_model_in_half_precision(api: Any) -> Any:
    """A model whose parameters are in bfloat16 themselves trains."""
    model = in_blocks(api, net().to(HALF))
    # A rate that is a power of two: how other products round depends on the shape of a shard.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    return train(model, optimizer, inputs=[x.to(HALF) for x in batches(3)]), full(api, model)


@holds()
def attributes(api: Any) -> Any:
    """`mixed_precision` of a unit is what it was given, and its classes to ignore."""
    precision = api.MixedPrecision(param_dtype=HALF, reduce_dtype=torch.float32)
    model = in_blocks(api, mixed_precision=precision)
    found = model.mixed_precision
    assert model.blocks[0].mixed_precision == found
    return str(found.param_dtype), str(found.reduce_dtype), str(found.buffer_dtype), repr(found)


@holds()
def classes_to_ignore(api: Any) -> Any:
    """`_module_classes_to_ignore` names the classes that run in full precision, as units of their own."""
    precision = api.MixedPrecision(param_dtype=HALF, _module_classes_to_ignore=[nn.LayerNorm])
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model = api.FullyShardedDataParallel(
        model,
        auto_wrap_policy=api.wrap.ModuleWrapPolicy({Block}),
        mixed_precision=precision,
        use_orig_params=True,
    )
    assert isinstance(model[1], api.FullyShardedDataParallel)
    return train(model), full(api, model)


@holds()
def averages_in_another_precision(api: Any) -> Any:
    """A moving average of a model, wrapped by itself in full precision, follows the model that trains in a lower one."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision(param_dtype=HALF))
    average = in_blocks(api)
    optimizer, outputs = torch.optim.SGD(model.parameters(), lr=0.1), []
    (x,) = batches(1)
    for _ in range(3):
        train(model, optimizer, inputs=[x])
        with torch.no_grad():
            whole = full(api, model)
            with api.FullyShardedDataParallel.summon_full_params(average):
                for name, mean in average.named_parameters():
                    mean.mul_(0.5).add_(whole[clean(name)], alpha=0.5)
            outputs.append(average.eval()(x))
    assert {output.dtype for output in outputs} == {torch.float32}
    return outputs, full(api, average)


@holds()
def an_empty_policy(api: Any) -> Any:
    """`MixedPrecision()` without a dtype changes nothing."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision())
    losses, whole = train(model), in_blocks(api)
    assert losses == train(whole)
    return losses, full(api, model)


@holds()
def with_other_options(api: Any) -> Any:
    """Parameters are whole and low in forward, and stored as they were, with every strategy, on the CPU, and prefetched."""
    strategy, results = api.ShardingStrategy, []
    for options in (
        {"sharding_strategy": strategy.SHARD_GRAD_OP},
        {"sharding_strategy": strategy.NO_SHARD},
        {"cpu_offload": api.CPUOffload(offload_params=True)},
        {"backward_prefetch": None},
        {"forward_prefetch": True},
        {"use_orig_params": False},
    ):
        precision = api.MixedPrecision(param_dtype=HALF, reduce_dtype=torch.float32)
        model = api.FullyShardedDataParallel(noting(), mixed_precision=precision, **options)
        losses = train(model)
        assert {names[1] for names in seen(model)} == {"torch.bfloat16"}
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        results.append((losses, seen(model), full(api, model)))
    return results


@holds()
def stored_in_double_precision(api: Any) -> Any:
    """Parameters in float64 compute in a lower precision, and are stored, trained and summoned in float64."""
    results = []
    for dtypes in ({"param_dtype": HALF}, {"reduce_dtype": HALF}, {"param_dtype": torch.float32}):
        model = in_blocks(api, net().double(), mixed_precision=api.MixedPrecision(**dtypes))
        inputs = [x.double() for x in batches(3)]
        losses = train(model, inputs=inputs)
        assert {p.dtype for p in model.parameters()} == {torch.float64}
        results.append((losses, full(api, model), gradients(api, model)))
    return results


@holds()
def a_float16_model_with_a_scaler(api: Any) -> Any:
    """Training in float16 with `ShardedGradScaler` gives the same losses, scale and parameters."""
    precision = api.MixedPrecision(torch.float16, torch.float16, torch.float16)
    model = in_blocks(api, mixed_precision=precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = api.sharded_grad_scaler.ShardedGradScaler("cpu", init_scale=8.0)
    for x in batches(3):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        assert loss.dtype == torch.float16
        scaler.scale(loss).backward()
        assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
        scaler.step(optimizer)
        scaler.update()
    return loss.detach(), scaler.get_scale(), full(api, model)


@holds()
def buffers_of_a_root_without_parameters(api: Any) -> Any:
    """A root whose parameters all belong to its units casts its own buffers too."""

    class Scaled(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.scale

    torch.manual_seed(1)
    model = Scaled(nn.Linear(4, 4), nn.Linear(4, 2))
    model.register_buffer("scale", torch.full((1,), 0.5))
    model = api.FullyShardedDataParallel(
        model,
        auto_wrap_policy=api.wrap.ModuleWrapPolicy({nn.Linear}),
        mixed_precision=api.MixedPrecision(param_dtype=HALF, buffer_dtype=HALF),
    )
    out = model(*batches(1))
    assert model.module.scale.dtype == HALF
    return str(out.dtype), out.detach()


@cannot("FSDP2 keeps gradients that are not reduced yet apart from the parameters")
def gradients_inside_of_no_sync(api: Any) -> Any:
    """Inside of `no_sync` gradients are in `param_dtype`, and after the reduction in the parameters' own dtype."""
    precision = api.MixedPrecision(param_dtype=HALF, reduce_dtype=torch.float32)
    model, found = in_blocks(api, mixed_precision=precision), []
    with model.no_sync():
        model(*batches(1)).sum().backward()
        found.append(sorted({str(p.grad.dtype) for p in model.parameters() if p.grad is not None}))
    model(*batches(1)).sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    return found


@cannot("FSDP2 computes in one precision; a warning says so")
def full_precision_in_evaluation(api: Any) -> Any:
    """`FSDP_USE_FULL_PREC_IN_EVAL=1` evaluates in full precision: inputs, parameters and buffers."""
    os.environ["FSDP_USE_FULL_PREC_IN_EVAL"] = "1"
    try:
        model = in_blocks(api, mixed_precision=api.MixedPrecision(param_dtype=HALF)).eval()
        with torch.no_grad():
            return model(*batches(1))
    finally:
        del os.environ["FSDP_USE_FULL_PREC_IN_EVAL"]


@cannot("FSDP2 leaves the gradients; a warning says so")
def a_forward_that_no_backward_uses(api: Any) -> Any:
    """In low precision the backward after a forward that no backward used leaves no gradients."""
    model = in_blocks(api, mixed_precision=api.MixedPrecision(param_dtype=HALF))
    (x,) = batches(1)
    model(x)
    model(x).sum().backward()
    is_fsdp1 = api.FSDP.__module__.startswith("torch.")
    assert is_fsdp1 == all(p.grad is None for p in model.parameters())
    model.zero_grad()
    model(x).sum().backward()
    assert not is_fsdp1 or any(p.grad is not None for p in model.parameters())
    return [p.grad is None for p in model.parameters()]
