"""FSDP1 and the bridge on one rank: what both have and say; of a model that is FSDP1's still, functions are FSDP1's own."""

import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as Theirs
from torch.distributed.fsdp._common_utils import _override_module_mixed_precision

from fsdp_migrate import runtime
from fsdp_migrate.runtime import FullyShardedDataParallel as Ours
from fsdp_migrate.runtime.precision import run_in_full_precision
from fsdp_migrate.runtime.refusals import PRIVATE_PARTS

from ..nets import Block, Transformer

pytestmark = pytest.mark.usefixtures("one_rank")

STATIC = sorted(
    name
    for name, member in vars(Theirs).items()
    if isinstance(member, staticmethod) and not name.startswith("_")
)


def model_of_fsdp1() -> nn.Module:
    return Theirs(nn.Linear(2, 2), use_orig_params=True, device_id=torch.device("cpu"))


@pytest.mark.parametrize("name", STATIC)
def test_static_functions_are_fsdp1s(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = model_of_fsdp1(), []
    monkeypatch.setattr(Theirs, name, staticmethod(lambda *args: given.append(args)))
    getattr(Ours, name)(nn.Sequential(model), "second")
    ((outer, second),) = given
    assert outer[0] is model
    assert second == "second"


def test_options_are_handed_to_fsdp1_as_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Own:
        """Of no name that FSDP1's module has."""

    own, taken = Own(), []

    def take(*args: Any, **kwargs: Any) -> None:
        taken.extend([*args[1:], *kwargs.values()])

    monkeypatch.setattr(Theirs, "set_state_dict_type", staticmethod(take))
    kind = runtime.StateDictType.SHARDED_STATE_DICT
    full = runtime.FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    theirs = fsdp.FullStateDictConfig()
    Ours.set_state_dict_type(model_of_fsdp1(), kind, full, theirs, optim_state_dict_config=own)  # type: ignore[arg-type, misc]
    assert taken[0] is fsdp.StateDictType.SHARDED_STATE_DICT
    assert type(taken[1]) is fsdp.FullStateDictConfig
    assert (taken[1].offload_to_cpu, taken[1].rank0_only) == (True, True)
    assert taken[2] is theirs
    assert taken[3] is own


def test_private_parts_are_names_of_fsdp1() -> None:
    folder = Path(inspect.getfile(fsdp)).parent
    text = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    unknown = {name for name in PRIVATE_PARTS if not re.search(rf"\b{name}\b", text)}
    assert unknown == {"_handles", "_streams"}  # of older releases


def told(cls: Any, api: Any, frozen: dict[str, bool], use_orig_params: bool) -> list[str]:
    """The error, or the warnings, of a model with frozen parameters, by name and whether they are ignored."""
    model = Transformer()
    parameters = dict(model.named_parameters())
    for name in frozen:
        parameters[name].requires_grad_(False)
    options = {
        "auto_wrap_policy": api.wrap.ModuleWrapPolicy({Block, nn.Sequential}),
        "ignored_states": [parameters[name] for name, is_ignored in frozen.items() if is_ignored],
        "use_orig_params": use_orig_params,
        "device_id": torch.device("cpu"),
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            cls(model, **options)
        except ValueError as error:
            return [str(error)]
    texts = [str(each.message) for each in caught]
    return [text for text in texts if "requires_grad" in text]


FROZEN = {
    "in the first unit": ({"blocks.0.norm.weight": False}, 1),
    "in the last one": ({"blocks.1.norm.weight": False, "blocks.0.norm.weight": True}, 1),
    "in a unit inside of another": ({f"blocks.0.mlp.{n}": False for n in ("0.bias", "2.bias")}, 1),
    "the whole of a unit": (
        {f"blocks.0.mlp.{n}.{p}": False for n in "02" for p in ("weight", "bias")},
        0,
    ),
    "ignored": ({"blocks.1.norm.weight": True}, 0),
}


@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("case", FROZEN)
def test_units_frozen_in_part_are_spoken_of_as_by_fsdp1(case: str, use_orig_params: bool) -> None:
    frozen, count = FROZEN[case]
    expected = told(Theirs, fsdp, frozen, use_orig_params)
    assert len(expected) == count
    assert told(Ours, runtime, frozen, use_orig_params) == expected


def test_options_that_look_like_torchs() -> None:
    assert (runtime.ShardingStrategy.FULL_SHARD == "FULL_SHARD") is False
    other = Enum("ShardingStrategies", "FULL_SHARD").FULL_SHARD  # type: ignore[attr-defined]
    assert other != runtime.ShardingStrategy.FULL_SHARD
    assert runtime.CPUOffload() != type("CPUOffload", (), {})()
    assert (runtime.CPUOffload() == make_dataclass("CPUOffload", ["own"])(1)) is False
    assert (runtime.StateDictConfig() == runtime.LocalStateDictConfig()) is False
    with pytest.raises(ValueError, match="is not a valid ShardingStrategy"):
        Ours(nn.Linear(2, 2), sharding_strategy=["FULL_SHARD"])
    half = type("Half", (), {"buffer_dtype": None})()
    with pytest.raises(ValueError, match="is not a MixedPrecision"):
        Ours(nn.Linear(2, 2), mixed_precision=half)
    model, kind = model_of_fsdp1(), runtime.StateDictType.FULL_STATE_DICT
    with pytest.raises(RuntimeError, match="FullStateDictConfig"):  # FSDP1's own words
        Ours.set_state_dict_type(model, kind, type("FullStateDictConfig", (), {})())  # type: ignore[misc]


def test_only_what_torch_makes_public_is_taken_from_it() -> None:
    assert runtime.fully_shard is fsdp.fully_shard
    assert hasattr(fsdp, "_flat_param")
    assert not hasattr(runtime, "_flat_param")


def test_a_tied_parameter_has_a_name_as_under_fsdp1() -> None:
    def names(cls: Any, **options: Any) -> list[list[str]]:
        inner = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
        inner["b"].weight = inner["a"].weight
        inner["b"].register_buffer("one", torch.ones(1))
        inner["a"].register_buffer("two", inner["b"].one)
        model = cls(inner, use_orig_params=True, device_id=torch.device("cpu"))
        return [
            [name for name, _ in method(**given)]
            for method in (model.named_parameters, model.named_buffers)
            for given in ({}, {"remove_duplicate": False})
        ]

    assert names(Ours) == names(Theirs)


class Seen(nn.Module):
    """Gives back what it was given, and notes it."""

    def forward(self, *given: Any) -> Any:
        self.given = given
        return given


def test_what_is_cast_on_the_way_into_full_precision_and_out_of_it() -> None:
    half, whole = torch.ones(2, dtype=torch.bfloat16), torch.ones(2)
    count = torch.ones(2, dtype=torch.int64)
    nested = {"a": [half, count], "b": (half, "text"), "c": count}

    def dtypes(each: Any) -> Any:
        if isinstance(each, dict):
            return {key: dtypes(value) for key, value in each.items()}
        if isinstance(each, list | tuple):
            return [type(each), *map(dtypes, each)]
        return each.dtype if isinstance(each, torch.Tensor) else each

    def run(module: Seen) -> Iterator[Any]:
        # Whole after half: what came last decides what goes out.
        for given in ((count,), (whole,), (nested,), (half, whole), (whole,), (whole.double(),)):
            out = module(*given)
            yield dtypes(module.given), dtypes(out)

    ours, theirs = Seen(), Seen()
    run_in_full_precision(ours)
    _override_module_mixed_precision(theirs, [Seen])
    assert [*run(ours)] == [*run(theirs)]
    assert ours.given[0].dtype == torch.float32


def test_what_a_unit_says_while_it_runs() -> None:
    model, seen = Ours(nn.Linear(2, 2)), []

    def look(module: nn.Module, args: Any) -> None:
        seen.append(model.training_state)
        with pytest.raises(ValueError, match="expected to be in states"):
            model.clip_grad_norm_(1.0)
        with pytest.raises(ValueError, match="expected to be in states"), model.no_sync():
            pass

    model.module.register_forward_pre_hook(look)
    model(torch.ones(1, 2))
    assert seen == [runtime.TrainingState.FORWARD_BACKWARD]


def test_instances_of_a_subclass_are_its_own() -> None:
    class Own(Ours):
        pass

    assert isinstance(model_of_fsdp1(), Ours)
    assert not isinstance(model_of_fsdp1(), Own)
    assert not issubclass(Theirs, Own)


def test_states_of_a_unit_with_parameters_of_its_own_have_clean_names() -> None:
    inner = nn.BatchNorm1d(2)
    assert list(get_model_state_dict(Ours(inner))) == list(nn.BatchNorm1d(2).state_dict())


def test_a_group_of_one_old_parameter_gets_the_new_one() -> None:
    inner = nn.Linear(2, 2)
    old = inner.weight
    first = torch.optim.SGD(inner.parameters(), lr=0.1)
    model = Ours(inner, use_orig_params=True)
    assert [id(p) for p in first.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    second = torch.optim.SGD([model.bias], lr=0.1)
    second.add_param_group({"params": old})
    assert second.param_groups[1]["params"] == [model.weight]
    with torch._C.DisableTorchFunctionSubclass():  # whose functions it refuses
        assert old.numel() == 0


def test_a_norm_that_is_not_finite_is_refused_where_asked() -> None:
    for value, refused in ((1.0, False), (float("inf"), True)):
        model = Ours(nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        for parameter in model.parameters():
            parameter.grad.mul_(value)
        if refused:
            with pytest.raises(RuntimeError, match="non-finite"):
                runtime.clip_grad_norm_(model, 1.0, error_if_nonfinite=True)
        else:
            assert runtime.clip_grad_norm_(model, 1.0, error_if_nonfinite=True) > 0


def test_norms_are_computed_in_float32() -> None:
    def norm(cls: Any) -> torch.Tensor:
        torch.manual_seed(0)
        dtype = torch.bfloat16
        layers = [nn.Linear(8, 8, dtype=dtype) for _ in range(4)]
        model = cls(nn.Sequential(*layers), use_orig_params=True, device_id=torch.device("cpu"))
        model(torch.rand(1, 8, dtype=dtype)).pow(2).sum().backward()
        return model.clip_grad_norm_(1.0)

    assert torch.equal(norm(Ours), norm(Theirs))
    model = Ours(nn.Linear(2, 1, bias=False, dtype=torch.float16))
    model(torch.ones(1, 2, dtype=torch.float16)).sum().backward()
    model.weight.grad.mul_(60000)  # float16 has no such norm
    model.clip_grad_norm_(1.0)
    assert (model.weight.grad.full_tensor() > 0.7).all()


def test_clipping_takes_gradients_as_they_are() -> None:
    def norms(cls: Any) -> list[float]:
        model = cls(
            nn.Linear(2, 2, bias=False), use_orig_params=True, device_id=torch.device("cpu")
        )
        with model.no_sync():
            model(torch.ones(1, 2)).sum().backward()
        before = model.clip_grad_norm_(1.0)  # it is not reduced yet
        model(torch.ones(1, 2)).sum().backward()
        model.weight.grad.requires_grad_()
        after = model.clip_grad_norm_(1.0)
        assert torch.allclose(runtime.local_shard(model.weight.grad), torch.full((2, 2), 0.5))
        return [before.item(), after.item()]

    assert norms(Ours) == norms(Theirs) == pytest.approx([2, 3])
