"""Sums, shapes and choices of sharded parameters that FSDP2 answers otherwise, and those of others, which it does not."""

from pathlib import Path

import pytest

from .programs import analysed

HEAD = """\
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

net = build()
model = FSDP(net, use_orig_params=True)
"""

OTHERWISE = {
    "a product": "total = sum((p.grad * q).sum() for p, q in zip(model.parameters(), old))",
    "a difference": "total = sum((q - p).norm() for p, q in zip(model.parameters(), old))",
    "a dot product": "for p in model.parameters():\n    total = torch.dot(p.grad, p)",
    "a loss": "for p in model.parameters():\n    total = F.mse_loss(p, old)",
    "a size by keyword": "for p in model.parameters():\n    total = torch.normal(0, 1, size=p.data.size())",
    "a size in pieces": "for p in model.parameters():\n    total = torch.randn(*p.shape)",
    "rows": "model.head.weight.grad[:8] = 0",
    "rows of a mask": "for p in model.parameters():\n    total = p.grad[mask]",
    "a count": "total = [p for p in model.parameters() if p.numel() > 4096]",
}


@pytest.mark.parametrize("use", OTHERWISE)
def test_what_fsdp2_answers_otherwise_is_found(use: str, tmp_path: Path) -> None:
    last = OTHERWISE[use].splitlines()[-1]
    assert analysed(tmp_path, HEAD + OTHERWISE[use] + "\n").codes(last) == {"FSDP507"}


@pytest.mark.parametrize("use", OTHERWISE)
def test_of_another_model_it_is_not(use: str, tmp_path: Path) -> None:
    text = OTHERWISE[use].replace("model.", "critic.")
    assert analysed(tmp_path, f"{HEAD}{text}\n").codes(text.splitlines()[-1]) == set()


@pytest.mark.parametrize(
    "use",
    [
        "first = model.layers[0]",
        "total = loss + 0.5 * penalty.sum()",
        "for p in model.parameters():\n    p.grad.mul_(2 * scale.mean())",
        "total = [p for p in model.parameters() if p.grad is not None][0]",
    ],
)
def test_what_stays_is_left_alone(use: str, tmp_path: Path) -> None:
    assert analysed(tmp_path, f"{HEAD}{use}\n").codes(use.splitlines()[-1]) == set()


@pytest.mark.parametrize(
    ("taken", "sought", "found"),
    [
        ("head = {id(p) for p in net.head.parameters()}", "id(p) in head", True),
        ("head = list(map(id, net.head.parameters()))", "id(p) not in head", True),
        ("head = set(net.head.parameters())", "p in head", True),
        ("", "id(p) in after", False),
        ("head = {'a'}", "p in head", False),
    ],
)
def test_parameters_that_are_sought_among_those_of_before_wrapping(
    taken: str, sought: str, found: bool, tmp_path: Path
) -> None:
    program = HEAD.replace("model = ", f"{taken}\nmodel = ")
    program += "after = {id(p) for p in model.head.parameters()}\n"
    program += f"rest = filter(lambda p: {sought}, model.parameters())\n"
    assert analysed(tmp_path, program).codes("rest =") == ({"FSDP507"} if found else set())
    flat = program.replace("use_orig_params=True", "")
    assert analysed(tmp_path, flat).codes("rest =") == set()


def test_flat_parameters_of_a_part_were_those_of_its_units(tmp_path: Path) -> None:
    program = f"{HEAD}optimizer = torch.optim.AdamW(model.module.head.parameters())\n"
    flat = program.replace("use_orig_params=True", "")
    asked = [analysed(tmp_path, each).codes("optimizer =") for each in (program, flat)]
    assert ["FSDP507" in codes for codes in asked] == [False, True]
    assert "FSDP507" not in analysed(tmp_path, flat.replace(".head", "")).codes("optimizer =")
