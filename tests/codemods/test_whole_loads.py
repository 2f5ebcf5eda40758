"""`model.load_state_dict(state)` without a type: by torch's function where FSDP certainly shards the model."""

from pathlib import Path

import pytest

from .programs import analysed

TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)


def main(args, net, path):
    model = build(net)
    saved = torch.load(path, map_location="cpu")
    LINE


if __name__ == "__main__":
    main(*parse())
"""
LOADED = "set_model_state_dict("
# What is loaded was read from a file.
WHOLE = {
    "model.load_state_dict(saved)": "saved",
    "model.load_state_dict(saved['model'], strict=False)": "saved['model']",
    "model.load_state_dict(saved.get('model'))": "saved.get('model')",
    "model.load_state_dict(torch.load(path))": "torch.load(path)",
    "model._orig_mod.load_state_dict(saved)": "saved",
}


@pytest.mark.parametrize("line", WHOLE)
def test_a_whole_state_is_sent_from_rank_0(line: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, TRAIN.replace("LINE", line), "torch")
    after = program.after["train.py"].replace("\n", " ")
    call = " ".join(after[after.index("    options") :].split())
    assert "StateDictOptions( full_state_dict=True" in call or "StateDictOptions(full" in call
    assert "broadcast_from_rank0=True" in call
    assert ("strict=False" in call) is ("strict" in line)
    assert f"{LOADED}model, {WHOLE[line]}" in call or f"{LOADED} model, {WHOLE[line]}" in call
    assert "FSDP003" not in program.codes(line)


# Where the model may be another one, or the state shards: each replaces a part of the program.
OPEN = {
    "the model is sharded under an option": (
        "    model = build(net)",
        "    model = net\n    if args.fsdp:\n        model = build(net)",
    ),
    "the constructor is called under one": (
        "    return FSDP(net)",
        "    if wanted():\n        return FSDP(net)\n    return net",
    ),
    "there is DDP": (
        "import torch\n",
        "import torch\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n",
    ),
    "the state is the model's own": ('torch.load(path, map_location="cpu")', "model.state_dict()"),
    "the state comes from elsewhere": ("saved = torch", "other = torch"),
}


@pytest.mark.parametrize("case", OPEN)
def test_what_may_not_be_whole_or_sharded_needs_the_user(case: str, tmp_path: Path) -> None:
    line = "model.load_state_dict(saved)"
    text = TRAIN.replace(*OPEN[case]).replace("LINE", line)
    if case == "the state comes from elsewhere":
        text = text.replace("args, net, path", "args, net, path, saved")
    program = analysed(tmp_path, text, "torch")
    assert LOADED not in program.after["train.py"]
    assert program.is_kept(line)
