"""Branches that become the same."""

from pathlib import Path

import pytest

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
    assert program.codes("    if ") >= ({"FSDP301"} if are_one else set())


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
