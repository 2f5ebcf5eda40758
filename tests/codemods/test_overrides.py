"""Methods that only FSDP1 gave something to do besides what their bases do."""

import re
from pathlib import Path

import pytest

from .programs import analysed

SAVER = """\
from base import Checkpointer
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Saver(Checkpointer):
    {decorator}
    def load({taken}):
        {first}
        with FSDP.state_dict_type(self.model, StateDictType.LOCAL_STATE_DICT):
            return super().{name}({given})

    def last(self):
        return self.names[-1]


saver = Saver(FSDP(Net()))
saver.load("here")
"""
CASES = {
    "all that it is given": ("self, *args, **kwargs", "*args, **kwargs", {}, True),
    "the same names": ("self, path, *, strict", "path, strict=strict", {}, True),
    "a default of its own": ("self, path, strict=True", "path, strict", {}, False),
    "other arguments": ("self, path", "path, True", {}, False),
    "another method": ("self, path", "path", {"name": "load_all"}, False),
    "a statement": ("self, path", "path", {"first": "print(path)"}, False),
    "a docstring": ("self, path", "path", {"first": '"""Loads shards."""'}, False),
    "a comment": ("self, path", "path", {"first": "# Shards"}, False),
    "a decorator": ("self, path", "path", {"decorator": "@timed"}, False),
}


def saver(
    taken: str, given: str, *, name: str = "load", first: str = "", decorator: str = ""
) -> str:
    text = SAVER.format(taken=taken, given=given, name=name, first=first, decorator=decorator)
    return re.sub(r"(?m)^ +\n", "", text)


@pytest.mark.parametrize("case", CASES)
def test_a_method_that_only_calls_its_base_is_removed(case: str, tmp_path: Path) -> None:
    taken, given, more, goes = CASES[case]
    text = saver(taken, given, **more)
    program = analysed(tmp_path, text, "torch")
    after = program.after["train.py"]
    assert "state_dict_type" not in after
    assert ("def load(" not in after) is goes, after
    said = [f.message for f in program.findings if f.code == "FSDP020"]
    assert (said == ["Removed: it only calls the method that it overrides."]) is goes


def test_one_that_did_nothing_before_stays(tmp_path: Path) -> None:
    text = saver("self, path", "path")
    own = "    def save(self, path):\n        return super().save(path)\n\n    def last("
    after = analysed(tmp_path, text.replace("    def last(", own), "torch").after["train.py"]
    assert "def load(" not in after
    assert own.removesuffix("    def last(") in after


def test_one_that_is_all_of_its_class_stays(tmp_path: Path) -> None:
    text = saver("self, path", "path")
    only = text.replace("\n    def last(self):\n        return self.names[-1]\n", "")
    assert only != text
    after = analysed(tmp_path, only, "torch").after["train.py"]
    assert "        return super().load(path)\n" in after
