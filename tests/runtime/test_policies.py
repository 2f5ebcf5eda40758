"""The policies give torch's answers."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch.distributed.fsdp.wrap as torch_wrap
from torch import nn

from fsdp_migrate import runtime

MODULES = [
    nn.Linear(2, 3),
    nn.ModuleList([nn.Linear(2, 2)]),
    nn.ModuleDict(),
    nn.MultiheadAttention(4, 2),
    nn.Sequential(nn.ReLU()),
    nn.BatchNorm1d(3),
]
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "always_wrap_policy": [{}],
    "transformer_auto_wrap_policy": [
        {"transformer_layer_cls": {nn.Linear}},
        {"transformer_layer_cls": {nn.Module}},
        {"transformer_layer_cls": set()},
    ],
    "_module_wrap_policy": [{"module_classes": {nn.Linear, nn.Sequential}}],
    "lambda_auto_wrap_policy": [{"lambda_fn": lambda m: isinstance(m, nn.Sequential)}],
    "size_based_auto_wrap_policy": [
        {},
        {"min_num_params": 100},
        {"min_num_params": 100, "force_leaf_modules": {nn.Linear}},
        {"min_num_params": 100, "force_leaf_modules": set()},
        {"min_num_params": 100, "exclude_wrap_modules": {nn.Sequential}},
        {"min_num_params": 100, "exclude_wrap_modules": set()},
    ],
    "_or_policy": [
        {
            "policies": [
                lambda module, recurse, nonwrapped_numel: nonwrapped_numel == 100,
                partial(
                    torch_wrap.transformer_auto_wrap_policy, transformer_layer_cls={nn.BatchNorm1d}
                ),
            ]
        },
        {"policies": []},
    ],
}


def questions() -> Iterator[dict[str, Any]]:
    for module, recurse, numel in itertools.product(
        MODULES, (True, False), (0, 99, 100, 10**8 - 1, 10**8)
    ):
        yield {"module": module, "recurse": recurse, "nonwrapped_numel": numel}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        pytest.param(n, a, id=f"{n}-{i}")
        for n, many in ARGUMENTS.items()
        for i, a in enumerate(many)
    ],
)
def test_answers(name: str, arguments: dict[str, Any]) -> None:
    theirs = partial(getattr(torch_wrap, name), **arguments)
    ours = partial(getattr(runtime, name), **arguments)
    answers = [bool(ours(**question)) for question in questions()]
    assert answers == [bool(theirs(**question)) for question in questions()]


@pytest.mark.parametrize("name", [n for n in ARGUMENTS if n != "always_wrap_policy"])
def test_signatures(name: str) -> None:
    def described(function: Any) -> list[tuple[str, Any]]:
        return [(p.name, p.default) for p in inspect.signature(function).parameters.values()]

    assert described(getattr(runtime, name)) == described(getattr(torch_wrap, name))


@pytest.mark.parametrize("attribute", ["FORCE_LEAF_MODULES", "EXCLUDE_WRAP_MODULES"])
def test_size_based_defaults(attribute: str) -> None:
    theirs = getattr(torch_wrap.size_based_auto_wrap_policy, attribute)
    assert getattr(runtime.size_based_auto_wrap_policy, attribute) == theirs


def test_size_based_defaults_can_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    question = {"module": nn.Linear(2, 2), "recurse": False, "nonwrapped_numel": 10}
    policy = partial(runtime.size_based_auto_wrap_policy, min_num_params=5)
    assert policy(**question)
    monkeypatch.setattr(runtime.size_based_auto_wrap_policy, "EXCLUDE_WRAP_MODULES", {nn.Linear})
    assert not policy(**question)


def test_module_wrap_policy_gives_each_module_its_own_arguments() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    units = runtime.ModuleWrapPolicy({nn.Linear})._run_policy(model, set(), {"a": 1})
    units[model[0]]["a"] = 2
    assert units[model[1]] == {"a": 1}


def test_custom_policy_merges_the_dict_into_the_roots_arguments() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.GELU())
    answers = {model[0]: {"a": 2}, model[1]: True, model[2]: {}}
    for policy in (runtime.CustomPolicy, torch_wrap.CustomPolicy):
        units = policy(lambda m: answers.get(m, False))._run_policy(model, set(), {"a": 1, "b": 1})
        assert units == {model[0]: {"a": 2, "b": 1}, model[1]: {"a": 1, "b": 1}}
