"""Norms that a program adds up over ranks: which are taken of shards, and which are left to a person."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import MODEL, TRAIN, Analysed, analysed

HEAD = "import torch\nimport torch.distributed as dist\n\n\n"
LOOP = """\
def norm_of(model):
    total = 0.0
    for p in model.parameters():
        total += p.grad.norm() ** 2
    dist.all_reduce(total)
    return total ** 0.5
"""
ADDED = {
    "squares": LOOP,
    "numbers": LOOP.replace("norm() ** 2", "detach().norm(2).item() ** 2.0")
    .replace("    dist", "    over_ranks = torch.tensor(total).cuda()\n    dist")
    .replace("(total)\n    return total", "(over_ranks)\n    return over_ranks"),
    "elements": LOOP.replace("norm() ** 2", "float().pow(2).sum(dtype=torch.float64)"),
    "a variable": LOOP.replace(
        "total += p.grad.norm() ** 2", "norm = p.grad.norm(p=2)\n        total += norm.square()"
    ),
    "an order": LOOP.replace("norm()", "norm(order)").replace("** 2", "** order"),
    "a sum": LOOP.replace("0.0", "sum(torch.linalg.vector_norm(p.grad) ** 2 for p in model.parameters())")
    .replace("    for p in model.parameters():\n        total += p.grad.norm() ** 2\n", ""),
    "a sum over ranks by name": LOOP.replace("(total)", "(total, op=dist.ReduceOp.SUM)"),
    "a sum over ranks by position": LOOP.replace("(total)", "(total, dist.ReduceOp.SUM)"),
    "more than one rank": LOOP.replace("    dist", "    if dist.get_world_size() > 1:\n        dist"),
    "no gradients": LOOP.replace("        total", "        with torch.no_grad():\n            total"),
}  # fmt: skip
LEFT = {
    "no power": LOOP.replace(" ** 2", ""),
    "another power": LOOP.replace("** 2", "** 3"),
    "another order": LOOP.replace("norm()", "norm(1)"),
    "rows": LOOP.replace("norm()", "norm(dim=0)"),
    "a norm of a matrix": LOOP.replace("p.grad.norm()", "torch.linalg.norm(p.grad, 2)"),
    "a sum of rows": LOOP.replace("norm() ** 2", "sum(0)"),
    "a mean": LOOP.replace("norm() ** 2", "mean()"),
    "a difference": LOOP.replace("+= p", "-= p"),
    "a group": LOOP.replace("(total)", "(total, group=group)"),
    "a group by position": LOOP.replace("(total)", "(total, dist.ReduceOp.SUM, group)"),
    "the largest by position": LOOP.replace("(total)", "(total, dist.ReduceOp.MAX)"),
    "the largest": LOOP.replace("(total)", "(total, op=dist.ReduceOp.MAX)"),
    "no sum over ranks": LOOP.replace("dist.all_reduce", "dist.broadcast"),
    "a sum over some ranks": LOOP.replace("    dist", "    if sharded:\n        dist"),
    "a sum that is read beside its copy": LOOP.replace(
        "    dist.all_reduce(total)", "    copy = torch.tensor(total)\n    dist.all_reduce(copy)"
    ),
    "read before": LOOP.replace("    dist", "    print(total)\n    dist"),
    "read in the loop": LOOP.replace("    dist", "        print(total)\n    dist"),
    "read in the next round": LOOP.replace("        total +=", "        print(total)\n        total +="),
    "reduced in the loop": LOOP.replace("    dist", "        dist"),
    "a norm that is read elsewhere": LOOP.replace(
        "total += p.grad.norm() ** 2",
        "norm = p.grad.norm()\n        norms.append(norm)\n        total += norm ** 2",
    ),
    "a norm of another parameter": LOOP.replace(
        "total += p.grad.norm() ** 2",
        "norm = p.grad.norm()\n        if small:\n            norm = p.norm()\n        total += norm ** 2",
    ),
}  # fmt: skip


def _program(folder: Path, function: str, form: str = "auto") -> Analysed:
    """A training program, with a file without FSDP that takes the norm."""
    train = f"from norms import norm_of\n{TRAIN}    norm_of(model)\n"
    return analysed(
        folder, {"train.py": train, "model.py": MODEL, "norms.py": HEAD + function}, form
    )


@pytest.mark.parametrize("case", ADDED)
def test_a_sum_over_ranks_is_one_of_shards(tmp_path: Path, case: str) -> None:
    program = _program(tmp_path, ADDED[case])
    expected = ADDED[case].replace("p.grad", "local_shard(p.grad)")
    assert program.after["norms.py"].endswith(f"import local_shard\n\n\n{expected}")
    again = analysed(tmp_path / "again", program.after)
    assert again.after == program.after
    for each in (program, again):
        assert not [f for f in each.findings if f.action is Action.MANUAL]


@pytest.mark.parametrize("case", LEFT)
def test_what_may_come_out_otherwise_is_left_to_a_person(tmp_path: Path, case: str) -> None:
    program = _program(tmp_path, LEFT[case])
    assert program.after["norms.py"] == program.before["norms.py"]
    assert "FSDP507" in {f.code for f in program.findings}


def test_on_the_bridge_alone_it_is_left_to_a_person(tmp_path: Path) -> None:
    program = _program(tmp_path, LOOP, "bridge")
    assert program.after["norms.py"] == program.before["norms.py"]
    assert program.codes("norm()", "norms.py") == {"FSDP507"}


def test_the_norm_of_another_model_is_left_alone(tmp_path: Path) -> None:
    train = TRAIN.replace("model = FSDP(model)", "other = FSDP(Net())")
    program = analysed(
        tmp_path,
        {
            "train.py": f"from norms import norm_of\n{train}    norm_of(model)\n",
            "model.py": MODEL,
            "norms.py": HEAD + LOOP,
        },
    )
    assert program.after["norms.py"] == program.before["norms.py"]
    assert not {"FSDP507", "FSDP508"} & {f.code for f in program.findings}
