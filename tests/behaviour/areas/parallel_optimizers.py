"""Optimizers of tensor-parallel models with `use_orig_params=True`, on a mesh of two dimensions."""

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from ..registry import each
from .common import Block


def parallel(mesh: DeviceMesh, *plain: nn.Module) -> nn.Module:
    """Two blocks that are split, and layers that are not."""
    torch.manual_seed(1)
    model = nn.Sequential(Block(4), Block(4), *plain)
    for block in (model[0], model[1]):
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def trained(
    api: Any, shape: tuple[int, int], units: set[type[nn.Module]], *plain: type[nn.Module]
) -> list[float]:
    """The losses with an optimizer that is made after the sharding."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "tp"))
    net = parallel(mesh, *[layer(4, 4) for layer in plain])
    policy = api.wrap.ModuleWrapPolicy(units) if units else None
    model = api.FSDP(net, device_mesh=mesh["dp"], auto_wrap_policy=policy, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4, generator=generator)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(set(losses)) == 3
    return losses


# The mesh, the classes of units, and layers that are not split.
ONE: dict[str, tuple[Any, ...]] = {
    "over_one_rank": ("A model whose layers are all split trains the same.", (2, 1), set()),
    "in_units_over_one_rank": ("So does one whose blocks are units.", (2, 1), {Block}),
    "beside_layers_over_one_rank": (
        "So does one with units of other layers.",
        (2, 1),
        {Block, nn.Linear},
        nn.Linear,
    ),
}
TWO = {
    name.replace("one_rank", "two_ranks"): (f"{sentence[:-1]}, over two ranks.", (2, 2), *given)
    for name, (sentence, _, *given) in ONE.items()
}


@each(ONE, tolerance=1e-6)
def of_one(api: Any, *given: Any) -> Any:
    return trained(api, *given)


@each(TWO, ranks=4, tolerance=1e-6)
def of_two(api: Any, *given: Any) -> Any:
    return trained(api, *given)
