"""Parameters and gradients in training: frozen, unused, tied, changed by hand and averaged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ..registry import cannot, holds
from .common import Tied, batches, cloned, close, full, gradients, in_blocks, layers, net, train
from .training import as_alone, is_linear


@holds()
def gradients_are_means(api: Any) -> Any:
    """A gradient is the mean of the ranks' gradients: one step of a 3 x 3 weight over two ranks is what it says."""
    torch.manual_seed(1)
    layer = nn.Linear(3, 3, bias=False)
    weight = layer.weight.detach().clone()
    model = api.FSDP(layer, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    (x,) = batches(1, 2, 3)
    model(x).sum().backward()
    mean = x.sum(0)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    gradient = gradients(api, model)["weight"]
    torch.testing.assert_close(gradient, mean.repeat(3, 1))
    optimizer.step()
    after = full(api, model)["weight"]
    torch.testing.assert_close(after, weight - 0.1 * mean.repeat(3, 1))
    return gradient, after


@holds()
def tied_parameters(api: Any) -> Any:
    """A model with a weight that two layers share trains the same."""
    torch.manual_seed(1)
    tied = Tied()
    tokens = torch.arange(6).view(2, 3) + dist.get_rank() - 1
    tokens = tokens.clamp(min=0)
    model = in_blocks(api, tied)
    return train(model, inputs=[tokens] * 3), full(api, model)


@holds()
def a_frozen_unit_called_many_times(api: Any) -> Any:
    """Frozen and trained units that run many times, with and without gradients, train the same."""

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        x = m.first(x)
        for _ in range(3):
            x = m.frozen(m.trained(x))
            with torch.no_grad():
                x += m.trained(x)
        return x

    many = layers(forward, first=(4, 4), frozen=(4, 4), trained=(4, 4))
    many.frozen.requires_grad_(False)
    return as_alone(api, many, is_linear)


def alternating(frozen: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    found = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    found[0].requires_grad_(not frozen)
    found[4].requires_grad_(not frozen)
    return found


@holds()
def frozen_units_among_trained_ones(api: Any) -> Any:
    """Frozen units keep their parameters, and the units between them train."""
    results = []
    for use_orig_params in (False, True):
        before = alternating()[0].weight
        found = as_alone(api, alternating(), is_linear, use_orig_params=use_orig_params)
        assert torch.equal(found[1]["0.weight"], before)
        results.append(found)
    return results


@holds()
def units_unfrozen_later(api: Any) -> Any:
    """Units that are unfrozen between two steps train from then on."""
    model = api.FSDP(
        alternating(), auto_wrap_policy=api.wrap.ModuleWrapPolicy({nn.Linear}), use_orig_params=True
    )
    before = full(api, model)
    losses = train(model)
    assert torch.equal(full(api, model)["0.weight"], before["0.weight"])
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    losses += train(model, inputs=batches(6)[3:])
    after = full(api, model)
    assert not torch.equal(after["0.weight"], before["0.weight"])
    return losses, after


@holds()
def frozen_after_wrapping(api: Any) -> Any:
    """Parts that are frozen after they were wrapped, units or parameters of units, stay as they are; so do parts whose
    gradients are set to None before each step."""
    results = []
    for part, drops in (("blocks", False), ("blocks", True), ("bias", False)):
        model = in_blocks(api)
        frozen = [(n, p) for n, p in model.named_parameters() if part in n]
        for _, parameter in frozen:
            parameter.requires_grad_(drops)
        before, losses = full(api, model), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x in batches(3):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            for _, parameter in frozen:
                parameter.grad = None
            optimizer.step()
            losses.append(loss.item())
        after = full(api, model)
        assert all(torch.equal(p, before[n]) == (part in n) for n, p in after.items())
        results.append((losses, after))
    return results


@holds()
def frozen_after_an_evaluation(api: Any) -> Any:
    """Parameters that are frozen after a forward without gradients stay as they are, and train again when they are unfrozen
    after another one, also where units are still gathered."""
    results = []
    for name in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        model = in_blocks(api, sharding_strategy=api.ShardingStrategy[name])
        found = []
        for part in ("", "blocks", "head", ""):
            with torch.no_grad():
                model(*batches(1))
            for parameter_name, parameter in model.named_parameters():
                parameter.requires_grad_(not part or part not in parameter_name)
            before = full(api, model)
            losses = train(model, inputs=batches(2))
            after = full(api, model)
            for key, value in after.items():
                assert torch.equal(value, before[key]) == bool(part and part in key)
            found.append((losses, after))
        results.append(found)
    return results


@holds()
def frozen_units_with_unused_inputs(api: Any) -> Any:
    """A frozen unit one of whose inputs needs gradients but is not used trains with its neighbours."""

    class Ignoring(nn.Linear):
        def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        unused = torch.ones(1, requires_grad=True)
        return torch.cat([m.first(x, unused), m.frozen(x, unused), m.last(x, unused)])

    mixed = layers(forward, Ignoring, first=(4, 4), frozen=(4, 4), last=(4, 4))
    mixed.frozen.requires_grad_(False)
    return as_alone(api, mixed, is_linear)


@holds()
def not_all_outputs_used(api: Any) -> Any:
    """When the loss leaves an output out from some step on, the parameters go on as without FSDP."""

    def run(model: nn.Module, average: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step, x in enumerate(batches(4)):
            optimizer.zero_grad()
            a, b = model(x)
            ((a * b).sum() if step < 2 else a.sum()).backward()
            for p in model.parameters():
                if average and p.grad is not None:
                    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
            optimizer.step()

    def two_heads() -> nn.Module:
        return layers(lambda m, x: (m.a(x), m.b(x)), a=(4, 4), b=(4, 4))

    alone = two_heads()
    run(alone, average=True)
    expected = {name: p.detach() for name, p in alone.named_parameters()}
    results = []
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        heads = two_heads()
        chosen = api.ShardingStrategy[strategy]
        heads.a = api.FSDP(heads.a, sharding_strategy=chosen)
        model = api.FSDP(heads, sharding_strategy=chosen)
        run(model, average=False)
        results.append(full(api, model))
        assert close(results[-1], expected)
    return results


def optional(forward: Callable[..., Any] = lambda m, x: m.used(x)) -> nn.Module:
    """Two layers, the second of which is not used."""
    return layers(forward, used=(4, 4), unused=(4, 4))


@holds()
def unused_units_have_no_gradients(api: Any) -> Any:
    """The parameters of a unit that no forward used have no gradients, and stay."""
    model = api.FSDP(optional(), auto_wrap_policy=api.wrap.always_wrap_policy, use_orig_params=True)
    before = full(api, model)["unused.weight"]
    for x in batches(2):
        model(x).sum().backward()
        found = gradients(api, model)
        assert found["unused.weight"] is None
        assert found["used.weight"] is not None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    optimizer.step()
    after = full(api, model)
    assert torch.equal(after["unused.weight"], before)
    return found, after


@holds()
def unused_parameters_of_used_units(api: Any) -> Any:
    """Unused parameters of a unit that was used have gradients of zero: weight decay and momentum act on them."""
    model = api.FSDP(optional(), use_orig_params=True)
    before = full(api, model)["unused.weight"]
    losses = train(model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5))
    after = full(api, model)
    assert torch.allclose(after["unused.weight"], before * 0.95**2)
    return losses, after


@holds()
def parameters_that_only_some_ranks_use(api: Any) -> Any:
    """Parameters of one unit that one rank uses and another does not have the mean of their gradients."""
    by_rank = optional(lambda m, x: m.unused(x) if dist.get_rank() else m.used(x))
    model = api.FSDP(by_rank, use_orig_params=True)
    return train(model), full(api, model)


@holds()
def changed_in_place(api: Any) -> Any:
    """A change in place of a parameter or of its `.data`, and an assignment to `.data`, show in the next forward."""
    results: list[Any] = []
    for change in (
        lambda p: p.mul_(0.5),
        lambda p: p.data.mul_(0.5),
        lambda p: setattr(p, "data", p.data * 0.5),
    ):
        model = in_blocks(api)
        losses = train(model)
        before = full(api, model)
        with torch.no_grad():
            for parameter in model.parameters():
                change(parameter)
        found = full(api, model)
        assert close(found, {name: p * 0.5 for name, p in before.items()})
        results.append((losses, model(*batches(1)).detach(), found))
    return results


@holds()
def moving_averages(api: Any) -> Any:
    """A second model that is moved towards the first with `lerp_` or `mul_` and `add_` is its moving average."""
    model, average = in_blocks(api), in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, x in enumerate(batches(3)):
        losses += train(model, optimizer, inputs=[x])
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                if step == 1:
                    a.lerp_(p, 0.5)
                else:
                    a.mul_(0.5).add_(p, alpha=0.5)
    found = full(api, average)
    assert not close(found, full(api, model))
    return losses, found, average(*batches(1)).detach()


@holds()
def changed_after_an_evaluation(api: Any) -> Any:
    """Changes of the root's parameters right after an evaluation do not show in the next one."""
    model, (x,) = in_blocks(api), batches(1)
    with torch.no_grad():
        model(x)
        for parameter in model.parameters():
            parameter.mul_(0.5)
        return model(x)


@holds()
def averages_of_replicas(api: Any) -> Any:
    """Under NO_SHARD an evaluation sees the averages that were written after the one before."""
    options = {"use_orig_params": True, "sharding_strategy": api.ShardingStrategy.NO_SHARD}
    model, average = api.FSDP(net(), **options), api.FSDP(net(), **options)
    average.requires_grad_(False)
    alone, losses = net(), []
    for x in batches(3):
        train(model, inputs=[x])
        whole = full(api, model)
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(parameter, 0.5)
            for name, mean in alone.named_parameters():
                mean.lerp_(whole[name], 0.5)
            losses.append(average(x).pow(2).mean().item())
            assert losses[-1] == pytest.approx(alone(x).pow(2).mean().item(), rel=1e-6)
    return losses


@cannot("the bridge shows the stored parameters, FSDP1 what it had gathered for the root")
def summoned_after_an_evaluation(api: Any) -> Any:
    """Changes of the root's parameters right after an evaluation do not show in `summon_full_params`."""
    model = in_blocks(api)
    with torch.no_grad():
        model(*batches(1))
        for parameter in model.parameters():
            parameter.mul_(0.5)
    return full(api, model)


@holds()
def whole_parameters_in_forward(api: Any) -> Any:
    """Inside of `forward` a unit's parameters are whole, under their names, and no distributed tensors: any operation
    works on them."""
    seen: list[Any] = []

    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        parameters = m.named_parameters()
        seen.extend((name, tuple(p.shape), type(p.data).__name__) for name, p in parameters)
        return torch.einsum("bi,oi->bo", x, m.layer.weight.view(-1).view(3, 5)) + m.layer.bias

    model = api.FSDP(layers(forward, layer=(5, 3)), use_orig_params=True)
    out = model(torch.ones(1, 5))
    out.sum().backward()
    assert [each[:2] for each in seen] == [("layer.weight", (3, 5)), ("layer.bias", (3,))]
    return seen, tuple(out.shape)


@holds()
def experts_of_a_rank(api: Any) -> Any:
    """Experts over a group of one rank keep gradients of their own, and the rest is shared."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    mine = groups[dist.get_rank()]
    torch.manual_seed(1)
    shared = nn.Linear(4, 4)
    torch.manual_seed(10 + dist.get_rank())
    expert = api.FSDP(nn.Linear(4, 4), process_group=mine)
    model = api.FSDP(nn.Sequential(shared, expert))
    losses = train(model)
    found = full(api, model)
    both = [torch.empty_like(found["1.weight"]) for _ in range(2)]
    dist.all_gather(both, found["1.weight"])
    assert not torch.equal(both[0], both[1])
    return losses, found


@holds()
def buffers_are_not_sharded(api: Any) -> Any:
    """Buffers are whole on every rank, and updates in forward stay."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = api.FSDP(model)
    losses = train(model)
    assert model[1].num_batches_tracked.item() == 2
    return losses, cloned(dict(model.named_buffers()))


@cannot("parameters of FSDP2 are distributed tensors of the whole shape, FSDP1's are flat shards")
def shapes_of_shards(api: Any) -> Any:
    """Outside of forward, `numel()` of a parameter counts this rank's elements."""
    return [(p.numel(), p.dim()) for p in in_blocks(api).parameters()]


@cannot("FSDP2 shards each parameter by rows and FSDP1 a whole unit, so that a rank holds others")
def norms_by_hand(api: Any) -> Any:
    """A norm of gradients by hand is that of the elements of a unit that this rank holds."""
    model = in_blocks(api)
    model(*batches(1)).sum().backward()
    return [p.grad.norm().item() for p in model.parameters() if p.grad is not None]


@cannot(
    "each gradient of FSDP2 has the dtype of its parameter", refusal="keep_low_precision_grads=True"
)
def low_precision_gradients(api: Any) -> Any:
    """`keep_low_precision_grads` leaves gradients in the dtype of the computation."""
    precision = api.MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)
    model = in_blocks(api, mixed_precision=precision)
    model(*batches(1)).sum().backward()
    return sorted({str(p.grad.dtype) for p in model.parameters() if p.grad is not None})


@cannot("FSDP2 adds gradients up wherever they are; FSDP1 documents that it does not so")
def gradients_on_the_cpu_outside_of_no_sync(api: Any) -> Any:
    """With parameters on the CPU, of several backwards outside of `no_sync` the last one's gradients are left."""
    model = in_blocks(api, cpu_offload=api.CPUOffload(offload_params=True))
    for x in batches(2):
        model(x).pow(2).mean().backward()
    return gradients(api, model)


@holds()
def gradients_replaced(api: Any) -> Any:
    """A tensor put in the place of a gradient, or of its `.data`, is what the optimizer uses."""
    results = []
    for data in (False, True):
        model = in_blocks(api)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        model(*batches(1)).sum().backward()
        for parameter in model.parameters():
            if parameter.grad is None:
                continue
            if data:
                parameter.grad.data = torch.ones_like(parameter) * 2
            else:
                parameter.grad = torch.ones_like(parameter) * 2
        optimizer.step()
        results.append(full(api, model))
        expected = {n: p.detach() - 0.25 for n, p in net().named_parameters()}
        assert close(results[-1], expected)
    return results


@holds()
def parameters_replaced(api: Any) -> Any:
    """A new nn.Parameter put in the place of a layer's weight is what the next forward uses."""
    model = in_blocks(api)
    head = model.module.head
    head.weight = nn.Parameter(torch.ones_like(head.weight) * 2)
    (x,) = batches(1)
    found = full(api, model)
    assert (found["head.weight"] == 2).all()
    return found, model(x).detach()
