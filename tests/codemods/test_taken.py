"""Where parameters of a sharded model are known, in functions that return them or are given them one by one."""

from pathlib import Path

from .programs import analysed

SHARDED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build(), **options)
"""


def test_the_parameters_that_a_function_returns_are_known(tmp_path: Path) -> None:
    program = f"""{SHARDED}
def grads(ps):
    return [p.grad if p.grad is not None else zeros for p in ps]


total = sum(g.norm() for g in grads(model.parameters()))
"""
    assert analysed(tmp_path, program).codes("g.norm") == {"FSDP507"}
    other = program.replace("model.parameters", "critic.parameters")
    assert analysed(tmp_path, other).codes("g.norm") == set()


def test_the_parameters_that_a_function_in_a_filter_is_given_are_known(tmp_path: Path) -> None:
    program = f"{SHARDED}rest = filter(lambda p: p.ndim < 2, model.parameters())\n"
    assert analysed(tmp_path, program).codes("p.ndim") == {"FSDP507"}
    other = program.replace("model.parameters", "critic.parameters")
    assert analysed(tmp_path, other).codes("p.ndim") == set()
