"""What nothing reads after the edits: entries of dictionaries, attributes, parameters."""

from pathlib import Path

import pytest

from .programs import analysed

OPTIONS = """\
import torch
from torch.distributed.fsdp import (
    BackwardPrefetch,
    FullyShardedDataParallel as FSDP,
    ShardingStrategy,
)


def shard(model, args):
    options = {{{literal}}}
    if args.early:
        options["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE
    if args.hybrid:
        options["sharding_strategy"] = ShardingStrategy.HYBRID_SHARD
    {use}
    return FSDP(model, **options)
"""


@pytest.mark.parametrize(
    ("literal", "use", "goes"),
    [
        ("", "print(options)", True),
        ("", "logger.info(f'with {options}')", True),
        ("", "print(options['sharding_strategy'], options.get('sharding_strategy'))", True),
        ('"use_orig_params": True', "print(options)", True),
        ("", "options['backward_prefetch'] = None", True),
        ("", "print(options['backward_prefetch'])", False),
        ("", "print(options.get('backward_prefetch'))", False),
        ("", "args.given = options", False),
        ("", "assert options", False),
        ("", "note(options)", False),
        ("", "other = Other(**options)", False),
        ("", "options.update(backward_prefetch=None)", False),
    ],
)
@pytest.mark.parametrize("form", ["auto", "torch"])
def test_entries_that_nothing_reads(
    form: str, literal: str, use: str, goes: bool, tmp_path: Path
) -> None:
    program = analysed(tmp_path, OPTIONS.format(literal=literal, use=use), form)
    after = program.after["train.py"]
    assert "fully_shard" in after
    assert ("args.early" not in after) is goes
    assert ("BackwardPrefetch" not in after) is goes
    assert ('["backward_prefetch"]' not in after) is goes
    assert 'options["sharding_strategy"] = ' in after
    assert "use_orig_params" not in after
    if goes:
        assert "FSDP203" in program.codes('options["backward_prefetch"]')


def test_a_dictionary_without_entries_that_are_read(tmp_path: Path) -> None:
    text = """\
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


        def shard(model, early):
            options = {}
            if early:
                options["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE
            return FSDP(model, **options)
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "options" not in after
    assert "BackwardPrefetch" not in after


def test_a_dictionary_that_is_removed_as_a_whole(tmp_path: Path) -> None:
    text = """\
        from torch.distributed.fsdp import BackwardPrefetch, FullyShardedDataParallel as FSDP


        def shard(model, early):
            options = {
                "limit_all_gathers": True,  # for memory
                "use_orig_params": True,
            }
            options["backward_prefetch"] = BackwardPrefetch.BACKWARD_PRE
            return FSDP(model, **options)
        """
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert "options" not in after
    assert "memory" not in after


def test_what_else_an_entry_does(tmp_path: Path) -> None:
    text = OPTIONS.format(literal='"limit_all_gathers": limits.pop()', use="print(options)")
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert '"limit_all_gathers": limits.pop()' in after


ATTRIBUTE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, StateDictType

from model import Net
{above}

class Trainer{bases}:
    def __init__(self, kind, path):
        self.path = path
        self.kind = {value}
        self.model = FSDP(Net())

    def save(self):
        with FSDP.state_dict_type(self.model, self.kind, FullStateDictConfig(rank0_only=True)):
            return self.model.state_dict()
{below}

trainer = Trainer(StateDictType.FULL_STATE_DICT, "out")
trainer.save()
"""


@pytest.mark.parametrize(
    ("case", "other", "goes"),
    [
        ({}, "", True),
        ({"bases": "(Base)", "above": "class Base:\n    pass\n"}, "", True),
        ({"bases": "(ABC)", "above": "from abc import ABC\n"}, "", True),
        ({"bases": "(Base)", "above": "from package import Base\n"}, "", False),
        ({"below": "\n    def shown(self):\n        return self.kind"}, "", False),
        ({"below": "\n    def shown(self):\n        return vars(self)"}, "", False),
        ({"below": "\n    def shown(self, name):\n        return getattr(self, name)"}, "", False),
        ({"value": "check(kind)"}, "", False),
        ({}, "def show(trainer):\n    print(trainer.kind)", False),
        ({}, "SHOWN = ['kind']", False),
    ],
)
def test_an_attribute_that_nothing_reads(
    case: dict[str, str], other: str, goes: bool, tmp_path: Path
) -> None:
    filled = {"above": "", "bases": "", "value": "kind", "below": "", **case}
    files = {"train.py": ATTRIBUTE.format(**filled), "other.py": f"{other}\n"}
    program = analysed(tmp_path, files, "torch")
    after = program.after["train.py"]
    assert "state_dict_type" not in after
    assert ("self.kind = " not in after) is goes
    assert "self.path = path" in after
    if goes:
        assert "FSDP022" in program.codes("self.kind = ")


def test_an_attribute_that_nothing_read_before_stays(tmp_path: Path) -> None:
    text = ATTRIBUTE.format(above="", bases="", value="kind", below="")
    assert "self.path = path" in analysed(tmp_path, text, "torch").after["train.py"]


PARAMETER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from model import Net

{above}
def shard({parameters}):{doc}
    return FSDP(model, device_id=place, limit_all_gathers=True)


def main(place, args):
    torch.cuda.set_device(place)
    model = {call}
    return model{below}
"""


@pytest.mark.parametrize(
    ("parameters", "call", "after"),
    [
        ("model, place", "shard(Net(), place)", ("model", "shard(Net())")),
        ("place, model", "shard(place, Net())", ("model", "shard(Net())")),
        ("model, place=None", "shard(Net(), place=place)", ("model", "shard(Net())")),
        ("model, place=None", "shard(Net())", ("model", "shard(Net())")),
        ("model: Net, place: int = 0", "shard(Net(), 0)", ("model: Net", "shard(Net())")),
        (
            "model, place, strict=True",
            "shard(model=Net(), place=place, strict=False)",
            ("model, strict=True", "shard(model=Net(), strict=False)"),
        ),
        ("\n    model,\n    place,\n", "shard(Net(), place)", ("\n    model,\n", "shard(Net())")),
    ],
)
def test_a_parameter_that_nothing_reads(
    parameters: str, call: str, after: tuple[str, str], tmp_path: Path
) -> None:
    text = PARAMETER.format(parameters=parameters, call=call, above="", doc="", below="")
    program = analysed(tmp_path, text, "torch")
    assert f"def shard({after[0]}):" in program.after["train.py"]
    assert f"model = {after[1]}\n" in program.after["train.py"]
    found = [each for each in program.findings if each.code == "FSDP022"]
    assert {each.action.value for each in found} == {"rewrite"}


@pytest.mark.parametrize(
    ("case", "other"),
    [
        ({"call": "shard(Net(), find(args))"}, ""),
        ({"call": "shard(*args)"}, ""),
        ({"call": "shard(Net(), **args)"}, ""),
        ({"below": "\n\n\nwith_place = functools.partial(shard, place=0)"}, ""),
        ({"above": "@torch.no_grad()"}, ""),
        ({"doc": '\n    """Shards on a device.\n\n    place: the device\n    """'}, ""),
        ({"parameters": "model, *, place"}, ""),
        ({"parameters": "model, # the model\n    place"}, ""),
        ({}, "from train import shard\n"),
    ],
)
def test_a_parameter_that_others_may_give(case: dict[str, str], other: str, tmp_path: Path) -> None:
    filled = {"parameters": "model, place", "call": "shard(Net(), place=place)"}
    filled |= {"above": "", "doc": "", "below": "", **case}
    files = {"train.py": PARAMETER.format(**filled), "other.py": other}
    program = analysed(tmp_path, files, "torch")
    assert filled["call"] in program.after["train.py"]
    (found,) = [each for each in program.findings if each.code == "FSDP022"]
    assert found.action.value == "manual"


def test_a_strategy_of_a_removed_parameter_is_no_use(tmp_path: Path) -> None:
    """Neither as a default nor in a call: the import goes, and no finding says that it is unchanged."""
    text = """\
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

        from model import Net


        def shard(model, verbose, strategy=ShardingStrategy.FULL_SHARD):
            print(verbose)
            return FSDP(model, sharding_strategy=strategy)


        shard(Net(), True, strategy=ShardingStrategy.SHARD_GRAD_OP)
        """
    program = analysed(tmp_path, text, "torch")
    assert "ShardingStrategy" not in program.after["train.py"]
    assert "FSDP017" not in {each.code for each in program.findings}
