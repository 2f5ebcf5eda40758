"""`torch.inference_mode` around state dicts, in which torch's functions raise (run on two ranks)."""

from pathlib import Path

import pytest

from .programs import analysed

TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(Net())
"""
SAVING = """\
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    torch.save(model.state_dict(), path)
"""
BLOCK = f"with torch.inference_mode():\n    {SAVING.replace(chr(10), chr(10) + '    ').rstrip()}\n"
METHOD = f"@torch.inference_mode()\ndef save(path):\n    {SAVING.replace(chr(10), chr(10) + '    ').rstrip()}\n"


@pytest.mark.parametrize("form", ["auto", "torch"])
@pytest.mark.parametrize("text", [BLOCK, METHOD], ids=["block", "decorator"])
def test_a_state_dict_is_made_without_inference_mode(text: str, form: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, TRAIN + text, form)
    assert "torch.no_grad()" in program.after["train.py"]
    assert "inference_mode" not in program.after["train.py"]
    assert "FSDP331" in program.codes("inference_mode")


# Nothing of a sharded model is saved there, or its own argument is kept.
OTHERS = {
    "a forward": "@torch.inference_mode()\ndef evaluate(x):\n    return model(x)\n",
    "an optimizer": "@torch.inference_mode()\ndef evaluate(optimizer):\n    return optimizer.state_dict()\n",
    "another model": "@torch.inference_mode()\ndef evaluate():\n    return Net().state_dict()\n",
    "a condition": METHOD.replace("inference_mode()", "inference_mode(mode)"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_inference_mode_is_kept(case: str, tmp_path: Path) -> None:
    assert analysed(tmp_path, TRAIN + OTHERS[case], "torch").is_kept("inference_mode")


def test_the_bridge_changes_imports_alone(tmp_path: Path) -> None:
    assert analysed(tmp_path, TRAIN + METHOD, "bridge").is_kept("inference_mode")
