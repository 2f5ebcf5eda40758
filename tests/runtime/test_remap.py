"""Optimizers that keep their model while it is sharded, without processes: sharding stands for itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fsdp_migrate.runtime import remap_optimizer


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def replace_parameters(module: nn.Module) -> None:
    """What sharding does to the parameters: new objects under the old names, ties kept."""
    new: dict[nn.Parameter, nn.Parameter] = {}
    for child in module.modules():
        for name, old in list(child.named_parameters(recurse=False)):
            new.setdefault(old, nn.Parameter(old.detach().clone(), old.requires_grad))
            setattr(child, name, new[old])


def test_groups_stay_and_hold_the_new_parameters() -> None:
    net = model()
    other = nn.Parameter(torch.zeros(2))
    groups = [{"params": net[1].parameters(), "lr": 0.5}, {"params": [net[0].weight, other]}]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    lists = [group["params"] for group in optimizer.param_groups]
    with remap_optimizer(optimizer, net):
        replace_parameters(net)
    expected = [[net[1].weight, net[1].bias], [net[0].weight, other]]
    for group, before, after in zip(optimizer.param_groups, lists, expected, strict=True):
        assert group["params"] is before
        assert [id(p) for p in before] == [id(p) for p in after]
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    net(torch.ones(1, 3)).sum().backward()
    old = net[0].weight.detach().clone()
    optimizer.step()
    schedule.step()
    assert not torch.equal(net[0].weight, old)


def test_without_it_nothing_is_trained() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    replace_parameters(net)
    net(torch.ones(1, 3)).sum().backward()
    old = net[0].weight.detach().clone()
    optimizer.step()
    assert torch.equal(net[0].weight, old)


def test_ties_are_one_parameter() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with remap_optimizer(optimizer, net):
        replace_parameters(net)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in net.parameters()]


def test_parameters_that_stay_are_left_alone() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = list(net.parameters())
    with remap_optimizer(optimizer, net):
        pass
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in before]


def test_a_wrapped_optimizer_and_none() -> None:
    net = model()

    class Wrapper:
        def __init__(self, optimizer: torch.optim.Optimizer) -> None:
            self.optimizer = optimizer

    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with remap_optimizer(Wrapper(Wrapper(optimizer)), net), remap_optimizer(None, net):  # type: ignore[arg-type]
        replace_parameters(net)
    assert optimizer.param_groups[0]["params"][0] is net[0].weight


def test_an_optimizer_that_has_stepped_is_refused() -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"state for '0\.weight'"), remap_optimizer(optimizer, net):
        pass


def test_momentum_that_is_none_is_no_state() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with remap_optimizer(optimizer, net):
        replace_parameters(net)
    assert optimizer.param_groups[0]["params"][0] is net[0].weight


def test_a_parameter_that_went_away_is_named() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with (
        pytest.raises(ValueError, match=r"'1\.weight' is no longer"),
        remap_optimizer(optimizer, net),
    ):
        net[1] = nn.Identity()


def test_an_error_in_the_body_is_not_hidden() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(KeyError), remap_optimizer(optimizer, net):
        raise KeyError


def test_what_is_no_optimizer_is_refused() -> None:
    with pytest.raises(TypeError, match="str is no optimizer"), remap_optimizer("adam", model()):
        pass
