"""`ShardedGradScaler`."""

import inspect
from typing import Any

import torch
import torch.distributed as dist

from ..registry import holds
from .common import batches, close, full, gradients, in_blocks, net


def scaler(api: Any, **options: Any) -> Any:
    return api.sharded_grad_scaler.ShardedGradScaler("cpu", **options)


@holds()
def signature(api: Any) -> Any:
    """The constructor has FSDP1's arguments and defaults."""
    found = inspect.signature(api.sharded_grad_scaler.ShardedGradScaler).parameters.values()
    return [
        (p.name, p.kind.name, str(p.default) if p.name != "process_group" else "") for p in found
    ]


@holds()
def scaling(api: Any) -> Any:
    """`scale` multiplies a tensor, and tensors in lists and tuples."""
    made = scaler(api, init_scale=2.0)
    one, two = torch.tensor([4.0]), torch.tensor([8.0])
    first, pair, both = made.scale([one, (one, two), [two, one]])
    assert [t.item() for t in (first, *pair, *both)] == [8.0, 8.0, 16.0, 16.0, 8.0]
    return made.get_scale(), first, pair, both


@holds()
def a_step(api: Any) -> Any:
    """`step` takes the scale off the gradients before it steps."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler(api, init_scale=8.0)
    (x,) = batches(1)
    made.scale(model(x).pow(2).mean()).backward()
    made.step(optimizer)
    made.update()
    plain = in_blocks(api)
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(x).pow(2).mean().backward()
    other.step()
    assert close(full(api, model), full(api, plain))
    return made.get_scale(), full(api, model)


@holds(tolerance=1e-6)
def unscaling_before_clipping(api: Any) -> Any:
    """`unscale_` gives the gradients that clipping wants."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler(api, init_scale=8.0)
    made.scale(model(*batches(1)).pow(2).mean()).backward()
    made.unscale_(optimizer)
    unscaled = gradients(api, model)
    norm = model.clip_grad_norm_(0.01)
    made.step(optimizer)
    made.update()
    return unscaled, norm, full(api, model)


def poison(model: Any) -> None:
    """Makes this rank's part of some gradient infinite."""
    for parameter in model.parameters():
        gradient = parameter.grad
        local = getattr(gradient, "to_local", lambda g=gradient: g)()
        if local is not None and local.numel():
            local.fill_(float("inf"))
            return


@holds()
def infinite_gradients_of_one_rank(api: Any) -> Any:
    """When one rank finds an infinite gradient no rank steps, and the scale is halved on all."""
    found = []
    for use_orig_params in (True, False):
        model = in_blocks(api, use_orig_params=use_orig_params)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        made = scaler(api, init_scale=8.0)
        for step, x in enumerate(batches(3)):
            optimizer.zero_grad()
            made.scale(model(x).pow(2).mean()).backward()
            if step == 1 and dist.get_rank() == 0:
                poison(model)
            before = full(api, model)
            made.step(optimizer)
            made.update()
            assert close(before, full(api, model)) == (step == 1)
            found.append((made.get_scale(), full(api, model)))
    return found


@holds()
def ignored_parameters(api: Any) -> Any:
    """Ignored parameters are unscaled with the others, and infinite gradients of theirs count."""
    model = net()
    head = model.head
    model = in_blocks(api, model, ignored_modules=[head])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler(api, init_scale=8.0)
    found = []
    for step, x in enumerate(batches(2)):
        optimizer.zero_grad()
        made.scale(model(x).pow(2).mean()).backward()
        if step == 1 and dist.get_rank() == 1:
            head.weight.grad.fill_(float("inf"))
        made.step(optimizer)
        made.update()
        found.append((made.get_scale(), full(api, model)))
    assert found[1][0] == 4.0
    return found


@holds()
def growth(api: Any) -> Any:
    """The scale grows after `growth_interval` steps, by `growth_factor`."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler(api, init_scale=4.0, growth_factor=3.0, growth_interval=2)
    scales = []
    for x in batches(4):
        optimizer.zero_grad()
        made.scale(model(x).pow(2).mean()).backward()
        made.step(optimizer)
        made.update()
        scales.append(made.get_scale())
    assert scales == [4.0, 12.0, 12.0, 36.0]
    return scales


@holds()
def states(api: Any) -> Any:
    """The scaler's state dict is torch's, and loads."""
    made, again = scaler(api, init_scale=4.0), scaler(api)
    made.scale(torch.ones(1))
    again.load_state_dict(made.state_dict())
    return made.state_dict(), again.get_scale(), made.get_backoff_factor()


@holds()
def disabled(api: Any) -> Any:
    """A disabled scaler does nothing."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler(api, enabled=False)
    loss = made.scale(model(*batches(1)).pow(2).mean())
    loss.backward()
    made.unscale_(optimizer)
    made.step(optimizer)
    made.update()
    return loss.item(), made.is_enabled(), made.state_dict(), full(api, model)


@holds()
def half_precision(api: Any) -> Any:
    """Training in float16 with a scaler gives the same losses and parameters."""
    precision = api.MixedPrecision(
        param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16
    )
    model = in_blocks(api, mixed_precision=precision)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = scaler(api, init_scale=64.0)
    losses = []
    for x in batches(3):
        optimizer.zero_grad()
        loss = model(x).float().pow(2).mean()
        made.scale(loss).backward()
        made.step(optimizer)
        made.update()
        losses.append(loss.item())
    return losses, made.get_scale(), full(api, model)
