"""A parameter of two units."""

import pytest
from torch import nn

from fsdp_migrate.runtime.auto_wrap import check_ties
from fsdp_migrate.runtime.ignored import Ignored


def tied() -> nn.Sequential:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3))
    net[2].weight = net[0].weight
    return net


def test_two_units_are_refused_by_name() -> None:
    net = tied()
    with pytest.raises(
        ValueError, match=r"'2\.weight' and '0\.weight' are one parameter in two units"
    ):
        check_ties(net, [net[0], net], Ignored(set(), set()))


def test_one_unit_may_share() -> None:
    net = tied()
    check_ties(net, [net[1], net], Ignored(set(), set()))


def test_ignored_parameters_may_be_shared() -> None:
    net = tied()
    check_ties(net, [net[0], net], Ignored(set(), {net[0].weight}))
