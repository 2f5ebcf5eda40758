"""A parameter of two units, as the units' modules say."""

from __future__ import annotations

import pytest
from torch import nn

from fsdp_migrate.runtime.ties import check_ties


def tied() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


def test_two_units_are_refused_by_name() -> None:
    net = tied()
    with pytest.raises(
        ValueError, match=r"'2\.weight' and '0\.weight' are one parameter in two units"
    ):
        check_ties(net, [[net[0]], [net, net[1], net[2]]])


def test_one_unit_may_share() -> None:
    net = tied()
    check_ties(net, [[net[1]], [net, net[0], net[2]]])


def test_ignored_parameters_may_be_shared() -> None:
    net = tied()
    check_ties(net, [[net[0]], [net, net[1], net[2]]], {net[0].weight})
