"""Code that becomes the same as other code."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import analysed

CLIPPING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(model, optimizer, limit, args, is_sharded):
    loss = model(torch.ones(1)).sum()
    loss.backward()
    if TEST:
        model.clip_grad_norm_(limit)
    else:
        OTHER
    optimizer.step()


model = FSDP(torch.nn.Linear(8, 8))
"""
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), limit)"


@pytest.mark.parametrize(
    ("test", "other", "are_one"),
    [
        ("isinstance(model, FSDP)", CLIP, True),
        ("args.fsdp", CLIP, True),
        ("is_sharded and not args.ddp", CLIP, True),
        ("args.strategy == 'fsdp'", CLIP, True),
        ("is_sharded(model)", CLIP, False),
        ("isinstance(next(models), FSDP)", CLIP, False),
        ("args.fsdp", CLIP.replace("limit", "2 * limit"), False),
        ("args.fsdp", CLIP.replace("model.", "model.module."), False),
        ("args.fsdp", f"{CLIP}  # not sharded", False),
        ("args.fsdp", f"print(limit)\n        {CLIP}", False),
        ("args.fsdp", "clip(model.parameters(), limit)", False),
    ],
)
def test_branches_that_clip_alike_are_one(
    test: str, other: str, are_one: bool, tmp_path: Path
) -> None:
    text = CLIPPING.replace("TEST", test).replace("OTHER", other)
    program = analysed(tmp_path, text, "torch")
    after = program.after["train.py"]
    assert ("if " not in after) is are_one
    assert (f"loss.backward()\n    {CLIP}\n    optimizer.step()" in after) is are_one
    assert not program.is_kept("model.clip_grad_norm_")
    assert "        FSDP" not in after
    assert program.codes("    if ") >= ({"FSDP020"} if are_one else set())


def test_strings_over_several_lines_are_not_indented_otherwise(tmp_path: Path) -> None:
    shown = "print('''\n        clips''')"
    text = CLIPPING.replace("TEST", "args.fsdp").replace("OTHER", f"{shown}\n        {CLIP}")
    text = text.replace("model.clip", f"{shown}\n        model.clip")
    assert analysed(tmp_path, text, "torch").after["train.py"].count(f"        {shown}") == 2


def test_an_elif_stays(tmp_path: Path) -> None:
    text = CLIPPING.replace(
        "    if TEST", "    if limit is None:\n        pass\n    elif args.fsdp"
    )
    after = analysed(tmp_path, text.replace("OTHER", CLIP), "torch").after["train.py"]
    assert f"    elif args.fsdp:\n        {CLIP}\n    else:\n        {CLIP}\n" in after


@pytest.mark.parametrize("form", ["auto", "bridge"])
def test_what_the_model_answers_stays(form: str, tmp_path: Path) -> None:
    text = CLIPPING.replace("TEST", "args.fsdp").replace("OTHER", CLIP)
    program = analysed(tmp_path, text, form)
    assert program.is_kept("model.clip_grad_norm_")
    assert program.is_kept("if args.fsdp")


def test_branches_are_one_where_their_call_needs_the_user(tmp_path: Path) -> None:
    text = CLIPPING.replace("TEST", "isinstance(model, FSDP)").replace("OTHER", CLIP)
    offload = "FSDP(torch.nn.Linear(8, 8), cpu_offload=CPUOffload(True), ignored_states=[])"
    text = text.replace("FSDP(torch.nn.Linear(8, 8))", offload)
    text = text.replace("as FSDP\n", "as FSDP\nfrom torch.distributed.fsdp import CPUOffload\n")
    program = analysed(tmp_path, text, "torch")
    assert "if " not in program.after["train.py"].partition("optimizer.step")[0]
    assert "FSDPModule" not in program.after["train.py"]
    (clip,) = [each for each in program.findings if each.code == "FSDP301"]
    assert clip.action is Action.MANUAL
    assert "a backend for the CPU" in clip.message
    assert "FSDP018" not in {each.code for each in program.findings}


METHODS = '''\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def clip(self):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.limit).item()


class Sharded(BASE):
    limit = 1.0

    def clip(self):
        """For FSDP."""
        return self.model.clip_grad_norm_(self.limit).item()


model = FSDP(torch.nn.Linear(8, 8))
'''


@pytest.mark.parametrize(
    ("old", "new", "goes"),
    [
        ("", "", True),
        ("Sharded(BASE):", "Between(BASE):\n    pass\n\n\nclass Sharded(Between):", True),
        ("BASE", "Trainer, Mixin", False),
        ("BASE", "other.Trainer", False),
        ("BASE", "Trainer, metaclass=Meta", False),
        ("self.limit).item()\n\n\nmodel", "2 * self.limit).item()\n\n\nmodel", False),
        ('"""For FSDP."""', "# for FSDP", False),
        ('    def clip(self):\n        "', '    @timed\n    def clip(self):\n        "', False),
        ('    def clip(self):\n        "', '    def clip(self, by=2):\n        "', False),
        ("self.limit", "self.__limit", False),
        ("self.limit", "super().limit", False),
        ("self.limit", "self.__limit__", True),
        ("    limit = 1.0\n", "    limit = 1.0\n    clip = None\n", False),
    ],
)
def test_a_method_that_does_what_its_base_does(
    old: str, new: str, goes: bool, tmp_path: Path
) -> None:
    text = METHODS.replace(old, new).replace("BASE", "Trainer")
    program = analysed(tmp_path, text, "torch")
    assert (program.after["train.py"].count("def clip") == 1) is goes
    assert ("FSDP020" in program.codes("    def clip")) is goes


SAVING = """\
import torch
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, optimizer, quick):
    policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
        torch.save(model.state_dict(), "model.pt")
    BETWEEN
    policy = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, optim_state_dict_config=policy
    ):
        torch.save(FSDP.optim_state_dict(model, optimizer), "optimizer.pt")


model = FSDP(torch.nn.Linear(8, 8))
"""


@pytest.mark.parametrize(
    ("old", "new", "times"),
    [
        ("BETWEEN", "print()", 1),
        ("BETWEEN", "for policy in ():\n        pass", 0),
        ("    BETWEEN", "    if quick:\n        return", 1),
    ],
)
def test_options_are_given_once(old: str, new: str, times: int, tmp_path: Path) -> None:
    text = SAVING.replace(old, new).replace("BETWEEN", "print()")
    after = analysed(tmp_path, text, "torch").after["train.py"]
    assert after.count("policy = StateDictOptions(") == times
