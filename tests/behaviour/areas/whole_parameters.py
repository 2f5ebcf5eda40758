"""`summon_full_params`, and `apply`."""

import copy
import io
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..registry import holds
from .common import (
    Block,
    Tied,
    batches,
    blocks_by_hand,
    clean,
    close,
    enter,
    error,
    full,
    gradients,
    in_blocks,
    initial,
    layers,
    net,
    said,
    train,
)


def local(model: nn.Module) -> torch.Tensor:
    """This rank's elements of a model's parameters."""
    shards = [getattr(p, "to_local", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([shard.detach().flatten() for shard in shards])


@holds()
def values_shapes_and_names(api: Any) -> Any:
    """Inside, every parameter is a whole nn.Parameter, in the order and under the names of the wrapped model."""
    results = []
    for use_orig_params in (True, False):
        model = in_blocks(api, use_orig_params=use_orig_params)
        with api.FSDP.summon_full_params(model):
            pairs = zip(net().named_parameters(), model.named_parameters(), strict=True)
            for (name, p), (found, q) in pairs:
                assert name == found
                assert isinstance(q, nn.Parameter)
                assert torch.equal(p, q)
            names = [name for name, _ in model.named_parameters()]
            results.append((names, [type(p.data).__name__ for p in model.parameters()]))
    return results


@holds(in_place="there is no wrapper between the model and what it holds itself")
def names_with_prefix(api: Any) -> Any:
    """`prefix` and `recurse` of `named_parameters` and `named_buffers` act as on the wrapped model."""
    model, plain, found = in_blocks(api), net(), []
    with api.FSDP.summon_full_params(model):
        for call, prefix, recurse in itertools.product(
            ("named_parameters", "named_buffers"), ("", "before"), (True, False)
        ):
            names = [n for n, _ in getattr(model, call)(prefix=prefix, recurse=recurse)]
            expected = [n for n, _ in getattr(plain, call)(prefix=prefix, recurse=recurse)]
            assert names == expected or not recurse
            found.append(names)
    return found


@holds()
def changes_are_written_back(api: Any) -> Any:
    """Changes inside stay, of the root's parameters and of other units'."""
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"):
        model = in_blocks(api, sharding_strategy=api.ShardingStrategy[strategy])
        with api.FSDP.summon_full_params(model), torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(2)
        found = full(api, model)
        assert close(found, {n: 2 * p.detach() for n, p in net().named_parameters()})
    return found, model(*batches(1)).detach()


@holds()
def changes_are_not_written_back(api: Any) -> Any:
    """With `writeback=False` changes inside do not stay, of parameters or of gradients."""
    results = []
    for with_grads in (False, True):
        model, plain = in_blocks(api), in_blocks(api)
        for unit in (model, plain):
            unit(*batches(1)).sum().backward()
        context = api.FSDP.summon_full_params(model, writeback=False, with_grads=with_grads)
        with context, torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
                if with_grads:
                    parameter.grad.zero_()
        assert close(full(api, model), initial())
        assert close(gradients(api, model), gradients(api, plain))
        results.append((full(api, model), gradients(api, model), model(*batches(1)).detach()))
    return results


@holds()
def changes_of_no_shard(api: Any) -> Any:
    """With NO_SHARD changes inside stay whatever `writeback` says: the parameters are the stored ones."""
    strategy = api.ShardingStrategy.NO_SHARD
    model = in_blocks(api, sharding_strategy=strategy)
    with api.FSDP.summon_full_params(model, writeback=False), torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return full(api, model)


@holds()
def changes_of_one_rank(api: Any) -> Any:
    """Each rank writes back its own shard of what it changed, of one element too, which only one rank holds."""
    results = []
    for size, expected in ((4, [1.0] * 8 + [2.0] * 8), (1, [1.0])):
        model = api.FSDP(nn.Linear(size, size, bias=False))
        with api.FSDP.summon_full_params(model), torch.no_grad():
            model.weight.fill_(dist.get_rank() + 1)
        found = full(api, model)["weight"]
        assert found.flatten().tolist() == expected
        results.append((found, model(torch.ones(1, size)).detach()))
    return results


@holds()
def on_rank_0_only(api: Any) -> Any:
    """`rank0_only` shows whole parameters on rank 0, and shards elsewhere."""
    model = in_blocks(api)
    with api.FSDP.summon_full_params(model, rank0_only=True, writeback=False):
        if dist.get_rank() == 0:
            return {name: p.detach().clone() for name, p in model.named_parameters()}
        assert local(model).numel() < sum(p.numel() for p in net().parameters())
    return None


@holds()
def refused_options(api: Any) -> Any:
    """`rank0_only` with `writeback`, which is the default, `offload_to_cpu` with NO_SHARD, and `with_grads` without
    `use_orig_params`, or with `offload_to_cpu`, are errors."""

    def refused(options: dict[str, Any], **how: bool) -> str:
        model = in_blocks(api, **options)
        return error(lambda: enter(api.FSDP.summon_full_params(model, **how)))

    return [
        refused({}, rank0_only=True),
        refused({"sharding_strategy": api.ShardingStrategy.NO_SHARD}, offload_to_cpu=True),
        refused({"use_orig_params": False}, with_grads=True),
        refused({}, with_grads=True, offload_to_cpu=True),
    ]


@holds()
def on_the_cpu(api: Any) -> Any:
    """`offload_to_cpu` shows them on the CPU; without `rank0_only` a warning advises it."""
    model, found = in_blocks(api), []

    def look() -> None:
        with api.FSDP.summon_full_params(model, offload_to_cpu=True, writeback=False):
            found.extend((str(p.device), p.detach().clone()) for p in model.parameters())

    texts = [text for text in said(look) if "offload_to_cpu=True with rank0_only=True" in text]
    assert len(texts) == 1
    return found


@holds()
def not_recursive(api: Any) -> Any:
    """With `recurse=False` only the unit's own parameters are whole."""
    model = in_blocks(api)
    with api.FSDP.summon_full_params(model, recurse=False):
        assert model.head.weight.shape == (3, 6)
        own = model.head.weight.detach().clone()
        assert local(model.blocks).numel() < sum(p.numel() for p in net().blocks.parameters())
    return own


@holds()
def one_unit(api: Any) -> Any:
    """A unit inside of the model can be summoned alone, by its own method too."""
    model, found = in_blocks(api), []
    for summon in (
        lambda unit: api.FSDP.summon_full_params(unit),
        lambda unit: unit.summon_full_params(unit),
    ):
        with summon(model.blocks[1]):
            found.append({n: p.detach().clone() for n, p in model.blocks[1].named_parameters()})
            assert local(model.blocks[0]).numel() < found[0]["up.weight"].numel() * 2
    assert list(found[0]) == ["up.weight", "up.bias", "down.weight", "down.bias"]
    return found


@holds()
def a_root_that_is_no_unit(api: Any) -> Any:
    """All units below a module that is none are whole; without any unit nothing happens."""
    results = []
    for model in (blocks_by_hand(api), net()):
        with api.FSDP.summon_full_params(model):
            results.append({clean(n): p.detach().clone() for n, p in model.named_parameters()})
        assert close(results[-1], initial())
    return results


@holds()
def inside_of_itself(api: Any) -> Any:
    """`summon_full_params` is an error inside of itself, of a forward and of a backward, and `apply` inside of it."""
    model = in_blocks(api)
    with api.FSDP.summon_full_params(model):
        texts = [error(lambda: enter(api.FSDP.summon_full_params(model)))]
        texts.append(error(lambda: model.apply(lambda module: None)))
    assert "expected to be in states" in texts[1]
    unit = api.FSDP(layers(lambda m, unit: enter(unit.summon_full_params(unit)), layer=(4, 1)))
    texts.append(error(lambda: unit(unit)))
    unit = api.FSDP(nn.Linear(4, 1))
    out = unit(*batches(1))
    out.register_hook(lambda _: enter(api.FSDP.summon_full_params(unit)))
    texts.append(error(out.sum().backward))
    assert all("Cannot manually unshard parameters during" in text for text in texts[2:])
    return texts


@holds()
def between_forward_and_backward(api: Any) -> Any:
    """Between forward and backward it does not disturb the gradients."""
    for strategy in ("FULL_SHARD", "SHARD_GRAD_OP"):
        model = in_blocks(api, sharding_strategy=api.ShardingStrategy[strategy])
        out = model(*batches(1))
        whole = full(api, model)
        out.sum().backward()
    return whole, gradients(api, model)


@holds()
def between_two_forwards(api: Any) -> Any:
    """Between two evaluations it shows the same parameters; the model trains on, and clones made inside stay."""
    model, (x,) = in_blocks(api), batches(1)
    with torch.no_grad():
        first = model(x)
        whole = full(api, model)
        assert torch.equal(model(x), first)
    losses = train(model)
    assert close(whole, initial())
    return whole, first, losses, full(api, model)


@holds()
def between_backward_and_step(api: Any) -> Any:
    """Between backward and the step, gradients stay."""
    model = in_blocks(api)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(*batches(1)).sum().backward()
    before = full(api, model)
    optimizer.step()
    after = full(api, model)
    assert not close(before, after)
    return before, after


@holds()
def with_gradients(api: Any) -> Any:
    """`with_grads` shows None before any backward, then whole gradients, and writes their changes back."""
    model = in_blocks(api)
    assert set(gradients(api, model).values()) == {None}
    model(*batches(1)).sum().backward()
    before = gradients(api, model)
    with api.FSDP.summon_full_params(model, with_grads=True):
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.shape == parameter.shape
            parameter.grad *= 2
    after = gradients(api, model)
    assert close({n: 2 * g for n, g in before.items() if g is not None}, after)
    return before, after


@holds()
def after_an_error_inside(api: Any) -> Any:
    """After an error inside, the model goes on training."""
    model = in_blocks(api)

    def fail() -> None:
        with api.FSDP.summon_full_params(model):
            raise KeyError("mine")

    text = error(fail)
    assert local(model).numel() < sum(p.numel() for p in net().parameters())
    return text, train(model), full(api, model)


@holds()
def shared_parameters(api: Any) -> Any:
    """Parameters that two modules share are one inside, and a change shows in both; `apply` changes them too."""
    torch.manual_seed(1)
    model = in_blocks(api, Tied())
    with api.FSDP.summon_full_params(model), torch.no_grad():
        model.embed.weight.fill_(0.5)
        assert torch.equal(model.out.weight, model.embed.weight)
    found = full(api, model), model(torch.arange(4)).detach()
    with torch.no_grad():
        model.apply(lambda m: m.weight.fill_(3.0) if isinstance(m, nn.Embedding) else None)
    after = full(api, model)
    assert (after["embed.weight"] == 3).all()
    return found, after


@holds()
def loading_inside(api: Any) -> Any:
    """A plain `load_state_dict` of the wrapped module works inside."""
    model = in_blocks(api)
    torch.manual_seed(9)
    state = {name: torch.randn_like(t) for name, t in net().state_dict().items()}
    with api.FSDP.summon_full_params(model):
        for name, parameter in model.named_parameters():
            parameter.data.copy_(state[name])
    found = full(api, model)
    assert all(torch.equal(p, state[name]) for name, p in found.items())
    return found


@holds()
def apply_sees_whole_parameters(api: Any) -> Any:
    """`apply` calls its function with every module while its parameters are whole, and gives back the model."""
    model, shapes = in_blocks(api), []

    @torch.no_grad()
    def fill(module: nn.Module) -> None:
        if type(module) is nn.Linear:
            shapes.append(tuple(module.weight.shape))
            module.weight.fill_(1.0)
            module.bias.fill_(2.0)

    assert model.apply(fill) is model
    found = full(api, model)
    assert all((p == (1.0 if "weight" in n else 2.0)).all() for n, p in found.items())
    return shapes, found


@holds(in_place="there are no wrappers to visit")
def apply_below_a_plain_root(api: Any) -> Any:
    """`apply` of a module that is no unit reaches the units in it."""
    model = blocks_by_hand(api)
    seen: list[str] = []

    @torch.no_grad()
    def fill(module: nn.Module) -> None:
        seen.append(type(module).__name__)
        if type(module) is nn.Linear:
            module.weight.fill_(1.0)

    model.apply(fill)
    found = full(api, model)
    assert all((p == 1).all() for name, p in found.items() if "weight" in name)
    return seen, found


@holds()
def the_wrapped_module_is_pickled(api: Any) -> Any:
    """A model without inner units is saved whole as the module that was wrapped, and computes the same on its own."""
    torch.manual_seed(1)
    nets = {
        nn.Sequential(Block(), nn.Linear(6, 2)): torch.ones(2, 6),
        Tied(): torch.tensor([1, 2]),
        nn.Linear(6, 2): torch.ones(2, 6),
    }
    results: list[Any] = []
    for whole, given in nets.items():
        model = api.FSDP(whole, use_orig_params=True)
        model(given).sum().backward()
        file = io.BytesIO()
        with api.FSDP.summon_full_params(model, writeback=False):
            torch.save(model.module, file)
            copied = copy.deepcopy(model.module)
        is_wrapped = type(model).__name__ == "FullyShardedDataParallel"
        assert is_wrapped or b"fsdp" not in file.getvalue(), "it needs this package to be loaded"
        file.seek(0)
        alone = torch.load(file, weights_only=False)
        for each in (alone, copied):
            assert type(each) is type(model.module)
            results.append((each(given).detach(), sorted(each.state_dict()), each.training))
        # It is trained, saved and loaded as any other.
        alone(given).sum().backward()
        alone.load_state_dict(copied.state_dict())
        results.append([p.grad for p in alone.parameters()])
    return results
