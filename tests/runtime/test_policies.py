"""The policies have torch's arguments and defaults; `test_plan` compares what they choose."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import pytest
import torch.distributed.fsdp.wrap as torch_wrap
from torch import nn

from fsdp_migrate import runtime


@pytest.mark.parametrize(
    "name",
    [
        "transformer_auto_wrap_policy",
        "_module_wrap_policy",
        "lambda_auto_wrap_policy",
        "size_based_auto_wrap_policy",
        "_or_policy",
    ],
)
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
