"""Types of state dicts that are set for good, and local ones."""

from pathlib import Path

import pytest

from .programs import analysed
from .state_dicts import FULL, HEADER


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("torch.save(optimizer.state_dict(), rank)", {"FSDP331"}),
        ("torch.save(model.state_dict(), rank)", {"FSDP331", "FSDP334"}),
        ("trainer.save(rank)", {"FSDP334"}),
    ],
)
def test_a_local_type_around_nothing_of_the_model_does_not_raise(
    body: str, code: set[str], tmp_path: Path
) -> None:
    context = "with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):"
    text = f"{HEADER}model = FSDP(net)\n{context}\n    {body}\n"
    found = analysed(tmp_path, text)
    assert found.codes("with") == code
    raising = [
        f
        for f in found.findings
        if f.message.startswith("This raises for LOCAL_STATE_DICT, because")
    ]
    assert len(raising) == (code == {"FSDP334"})


@pytest.mark.parametrize("kind", ["SHARDED_STATE_DICT", "LOCAL_STATE_DICT", "FULL_STATE_DICT"])
def test_shards_that_other_code_asks_for_need_no_context(kind: str, tmp_path: Path) -> None:
    context = f"with FSDP.state_dict_type(model, StateDictType.{kind}):"
    text = f"{HEADER}def save(model, trainer, rank):\n    {context}\n        trainer.save(rank)\n"
    program = analysed(tmp_path, text, "torch")
    is_whole = kind == "FULL_STATE_DICT"
    assert program.is_kept(context) is is_whole
    assert ("\n    trainer.save(rank)\n" in program.after["train.py"]) is not is_whole
    wanted = {"FULL_STATE_DICT": {"FSDP331"}, "LOCAL_STATE_DICT": {"FSDP331", "FSDP334"}}
    assert program.codes("with") - {"FSDP022"} == wanted.get(kind, {"FSDP331"})


@pytest.mark.parametrize("name", ["state_dict_type", "set_state_dict_type"])
def test_local_state_dict_is_for_a_person_once(name: str, tmp_path: Path) -> None:
    call = f"FSDP.{name}(model, state_dict_type=StateDictType.LOCAL_STATE_DICT)"
    program = analysed(tmp_path, f"{HEADER}trainer.enter({call})\n")
    found = [f for f in program.findings if f.code.startswith("FSDP33")]
    assert [(f.code, f.action.value) for f in found] == [("FSDP334", "manual")]


SET = f"""{HEADER}
def build(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.LOCAL_STATE_DICT)
    return model
"""
SAVE = f"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from build import build

model = build(net)
with {FULL}:
    whole = model.state_dict()
torch.save(optimizer.state_dict(), path)
"""


@pytest.mark.parametrize(
    ("more", "reported"),
    [
        ("", False),
        ("model.load_state_dict(old)\n", True),
        ("FSDP.optim_state_dict(model, o)\n", True),
    ],
)
def test_a_local_type_that_applies_to_no_state_dict_does_not_raise(
    more: str, reported: bool, tmp_path: Path
) -> None:
    found = analysed(tmp_path, {"build.py": SET, "train.py": SAVE + more})
    assert found.codes("set_state_dict_type", "build.py") == {"FSDP334" if reported else "FSDP332"}


def test_a_local_type_does_not_apply_to_another_program(tmp_path: Path) -> None:
    other = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nFSDP.optim_state_dict(model, o)\n"
    found = analysed(tmp_path, {"build.py": SET, "train.py": SAVE, "other/main.py": other})
    assert found.codes("set_state_dict_type", "build.py") == {"FSDP332"}


FOR_GOOD = f"""{HEADER}def save(model, other, optimizer, whole):
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(True, True))
    BELOW


MORE
"""
GET = (
    "get_model_state_dict(\n        model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True)\n    )"
)


@pytest.mark.parametrize(
    ("below", "wanted"),
    [
        ("return model.state_dict()", f"    return {GET}\n"),
        (
            "if whole:\n        state = model.state_dict()",
            "        state = get_model_state_dict(\n",
        ),
        (
            "model.load_state_dict(torch.load('x'))",
            "    set_model_state_dict(model, torch.load('x'), options=options)\n",
        ),
        ("save_whole(model)", "    save_whole(model)\n"),
        ("state = other.state_dict()", "    state = other.state_dict()\n"),
        (
            "FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n    s = model.state_dict()",
            "    s = model.state_dict()\n",
        ),
    ],
)
def test_a_type_for_good_becomes_options_where_its_function_asks(
    below: str, wanted: str, tmp_path: Path
) -> None:
    program = analysed(tmp_path, FOR_GOOD.replace("BELOW", below).replace("MORE", ""), "torch")
    after = program.after["train.py"]
    assert wanted in after
    asks = "model_state_dict(" in wanted
    assert ("StateDictType.FULL_STATE_DICT" not in after) is asks
    assert program.codes("FSDP.set_state_dict_type") == {"FSDP332"}


def test_a_type_for_good_that_a_branch_changes_needs_you(tmp_path: Path) -> None:
    below = (
        "if whole:\n        FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)\n"
        "    state = model.state_dict()"
    )
    text = FOR_GOOD.replace("BELOW", below).replace("MORE", "")
    program = analysed(tmp_path, text, "torch")
    assert program.is_kept("state = model.state_dict()")
    found = [f for f in program.findings if f.code == "FSDP332" and f.line == 10]
    assert [f.action.value for f in found] == ["manual"]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_code_elsewhere_that_asks_for_a_state_dict_is_named(
    elsewhere: bool, tmp_path: Path
) -> None:
    more = "model = FSDP(net)\nsave(model, 0, 0, 0)\n"
    more += "print(model.state_dict())\n" if elsewhere else ""
    text = FOR_GOOD.replace("BELOW", "return model.state_dict()").replace("MORE", more)
    program = analysed(tmp_path, text, "torch")
    (found,) = [f for f in program.findings if f.code == "FSDP332" and "set_state" in f.construct]
    assert found.action.value == ("manual" if elsewhere else "rewrite")
    assert ("Other code" in found.message) is elsewhere
    assert f"    return {GET}\n" in program.after["train.py"]


@pytest.mark.parametrize(
    ("called", "is_found"), [("super().load(path)", True), ("evaluate(self.model)", False)]
)
def test_a_type_around_other_code_is_not_that_of_all(
    called: str, is_found: bool, tmp_path: Path
) -> None:
    text = f"""\
        import torch
        from base import Checkpointer
        from model import Net
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


        class Saver(Checkpointer):
            def load(self, path):
                with FSDP.state_dict_type(self.model, StateDictType.LOCAL_STATE_DICT):
                    print(path)
                    return {called}


        def evaluate(model):
            state = keep(model)
            print(state)


        def keep(model):
            return model.state_dict()


        model = FSDP(Net())
        Saver(model).load("here")
        evaluate(model)
        """
    program = analysed(tmp_path, text, "torch")
    assert ("FSDP003" in program.codes("return model.state_dict()")) is is_found
