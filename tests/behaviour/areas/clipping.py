"""`clip_grad_norm_`."""

from typing import Any

import torch
from torch import nn

from ..registry import holds
from .common import Block, batches, close, error, full, gradients, in_blocks, net, said
from .process_groups import two_by_two

NEAR = 1e-6  # norms add up differently shaped shards


def with_gradients(api: Any, factor: float = 100.0, **options: Any) -> Any:
    model = in_blocks(api, **options)
    (factor * model(*batches(1)).pow(2).mean()).backward()
    return model


def clipped(api: Any, norm_type: float, largest: float = 2.5, **options: Any) -> Any:
    """The norm, and gradients that have none above the largest."""
    model = with_gradients(api, **options)
    before = gradients(api, model)
    flat = torch.cat([g.flatten() for g in before.values() if g is not None])
    norm = model.clip_grad_norm_(largest, norm_type)
    torch.testing.assert_close(norm, flat.norm(norm_type))
    assert norm > largest
    after = gradients(api, model)
    flat = torch.cat([g.flatten() for g in after.values() if g is not None])
    assert flat.norm(norm_type) <= largest * 1.0001
    return norm, after


@holds(tolerance=NEAR)
def norm_of_all_gradients(api: Any) -> Any:
    """The norm is that of the whole model, and the gradients are scaled down to the largest."""
    return clipped(api, 2)


@holds(tolerance=NEAR)
def other_norms(api: Any) -> Any:
    """The norms of type 1 and infinity are clipped to in the same way."""
    return clipped(api, 1), clipped(api, float("inf"))


@holds(tolerance=NEAR)
def gradients_that_are_not_reduced(api: Any) -> Any:
    """Inside of no_sync() each rank scales its own gradients, by a norm of all ranks'."""
    model = in_blocks(api)
    with model.no_sync():
        (100 * model(*batches(1)).pow(2).mean()).backward()
    norms = [model.clip_grad_norm_(2.5), model.clip_grad_norm_(2.5, float("inf"))]
    model(*batches(1)).pow(2).mean().backward()
    return norms, gradients(api, model)


@holds(tolerance=NEAR)
def with_no_shard(api: Any) -> Any:
    """NO_SHARD counts each gradient once."""
    return clipped(api, 2, sharding_strategy=api.ShardingStrategy.NO_SHARD)


@holds(tolerance=NEAR)
def with_shard_grad_op(api: Any) -> Any:
    """SHARD_GRAD_OP clips the same."""
    return clipped(api, 2, sharding_strategy=api.ShardingStrategy.SHARD_GRAD_OP)


@holds(tolerance=NEAR)
def with_offload(api: Any) -> Any:
    """Gradients on the CPU are clipped the same."""
    return clipped(api, 2, cpu_offload=api.CPUOffload(offload_params=True))


@holds(ranks=4, tolerance=NEAR)
def hybrid(api: Any) -> Any:
    """HYBRID_SHARD counts each gradient once."""
    model = two_by_two(api, sharding_strategy=api.ShardingStrategy.HYBRID_SHARD)
    (100 * model(*batches(1)).pow(2).mean()).backward()
    return model.clip_grad_norm_(2.5), gradients(api, model)


@holds(tolerance=NEAR)
def strategies_side_by_side(api: Any) -> Any:
    """Sharded and unsharded units are clipped by one norm."""
    strategies, model = api.ShardingStrategy, net()
    shared = {"use_orig_params": True}
    model.blocks[0] = api.FSDP(model.blocks[0], sharding_strategy=strategies.NO_SHARD, **shared)
    model.blocks[1] = api.FSDP(model.blocks[1], **shared)
    model = api.FSDP(model, **shared)
    (100 * model(*batches(1)).pow(2).mean()).backward()
    norm = model.clip_grad_norm_(2.5)
    reference = with_gradients(api)
    torch.testing.assert_close(norm, reference.clip_grad_norm_(2.5))
    return norm, gradients(api, model)


@holds(tolerance=NEAR)
def flat_parameters(api: Any) -> Any:
    """Without `use_orig_params` the norm is the same, and so is the step after it."""
    model = with_gradients(api, use_orig_params=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    norm = model.clip_grad_norm_(2.5)
    optimizer.step()
    return norm, full(api, model)


@holds()
def below_the_largest(api: Any) -> Any:
    """Gradients whose norm is below the largest stay, bit for bit."""
    model = with_gradients(api, 1.0)
    before = gradients(api, model)
    model.clip_grad_norm_(1e6)
    after = gradients(api, model)
    assert close(before, after)
    return after


@holds(tolerance=NEAR)
def what_it_returns(api: Any) -> Any:
    """The norm is a plain tensor without dimensions, the same on every rank."""
    model = with_gradients(api)
    norm = model.clip_grad_norm_(max_norm=1.0, norm_type=2.0)
    assert type(norm) is torch.Tensor
    both = [torch.empty_like(norm) for _ in range(2)]
    torch.distributed.all_gather(both, norm)
    assert torch.equal(both[0], both[1])
    return norm, f"{norm:.4f}", str(norm.device)


@holds(tolerance=NEAR)
def ignored_parameters(api: Any) -> Any:
    """Ignored parameters are part of each rank's norm and are clipped with the others."""
    model = net()
    head = model.head
    model = in_blocks(api, model, ignored_modules=[head])
    (100 * model(*batches(1)).pow(2).mean()).backward()
    before = head.weight.grad.clone()
    norm = model.clip_grad_norm_(2.5)
    assert not torch.equal(head.weight.grad, before)
    # Each rank scales its shards by its own norm, and the shards are not the same elements.
    return norm, head.weight.grad.clone()


@holds(tolerance=NEAR)
def frozen_parameters(api: Any) -> Any:
    """Parameters without gradients do not disturb it."""
    model = in_blocks(api)
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(False)
    (100 * model(*batches(1)).pow(2).mean()).backward()
    return model.clip_grad_norm_(2.5), gradients(api, model)


@holds(tolerance=NEAR)
def after_accumulation(api: Any) -> Any:
    """The norm is that of the gradients that were accumulated."""
    model, (first, second) = in_blocks(api), batches(2)
    with model.no_sync():
        (100 * model(first).pow(2).mean()).backward()
    (100 * model(second).pow(2).mean()).backward()
    return model.clip_grad_norm_(2.5), gradients(api, model)


@holds(tolerance=NEAR)
def every_step(api: Any) -> Any:
    """Training that clips in every step gives the same norms and losses."""
    model = in_blocks(api)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = []
    for step, x in enumerate(batches(4)):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss = model(x).pow(2).mean()
        loss.backward()
        found.append((loss.item(), model.clip_grad_norm_(0.05)))
        optimizer.step()
    return found


@holds()
def without_gradients(api: Any) -> Any:
    """Before any backward the norm is zero in float32, and a warning says that there are no gradients."""
    for use_orig_params in (True, False):
        model = in_blocks(
            api,
            use_orig_params=use_orig_params,
            mixed_precision=api.MixedPrecision(param_dtype=torch.float16),
        )
        model(*batches(1))
        norms: list[torch.Tensor] = []
        texts = said(lambda m=model, n=norms: n.append(m.clip_grad_norm_(1)))
        wanted = [text for text in texts if "no gradients" in text]
        assert len(wanted) == 1
        assert norms[0].dtype == torch.float32
    return wanted, norms[0]


@holds()
def only_the_root(api: Any) -> Any:
    """`clip_grad_norm_` of a unit inside of another one is an error."""
    model = with_gradients(api)
    text = error(lambda: model.blocks[0].clip_grad_norm_(2))
    assert "should only be called on the root FSDP instance" in text
    return text


@holds(tolerance=NEAR)
def dtypes(api: Any) -> Any:
    """The norm has the dtype of the gradients."""
    precision = api.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    stored = with_gradients(api, mixed_precision=precision).clip_grad_norm_(2.5)
    half = in_blocks(api, net().to(torch.bfloat16))
    half(batches(1)[0].to(torch.bfloat16)).sum().backward()
    assert stored.dtype == torch.float32
    return stored, str(half.clip_grad_norm_(2.5).dtype)


@holds(tolerance=NEAR)
def norms_by_name(api: Any) -> Any:
    """The type of the norm may be text, as for torch's own function."""
    model = with_gradients(api)
    assert isinstance(model.blocks[0].module, Block)
    return model.clip_grad_norm_("2.5", "inf")


@holds(tolerance=NEAR, in_place="fully_shard refuses a ModuleDict whose class has no forward")
def unused_parameters(api: Any) -> Any:
    """Parameters of a used unit that no forward used count with gradients of zero."""
    torch.manual_seed(1)
    model = nn.ModuleDict({"used": nn.Linear(4, 4), "unused": nn.Linear(4, 4)})
    model.forward = lambda x: model["used"](x)  # type: ignore[method-assign]
    wrapped = api.FSDP(model, use_orig_params=True)
    (100 * wrapped(*batches(1)).pow(2).mean()).backward()
    norm = wrapped.clip_grad_norm_(1.0)
    return norm, gradients(api, wrapped)
