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


def test_the_parameters_that_a_named_lambda_is_given_are_known(tmp_path: Path) -> None:
    program = f"""{SHARDED}
exclude = lambda n, p: p.ndim < 2 or "bias" in n
named = list(model.named_parameters())
rest = [p for n, p in named if exclude(n, p)]
"""
    assert analysed(tmp_path, program).codes("p.ndim") == {"FSDP507"}
    other = program.replace("model.named_parameters", "critic.named_parameters")
    assert analysed(tmp_path, other).codes("p.ndim") == set()


def test_the_parameters_that_a_function_yields_are_known(tmp_path: Path) -> None:
    program = f"""{SHARDED}
def named(module):
    for n, p in module.named_parameters():
        yield n, p


rest = [p for n, p in named(model) if p.ndim < 2]
"""
    assert analysed(tmp_path, program).codes("p.ndim") == {"FSDP507"}
    other = program.replace("named(model)", "named(critic)")
    assert analysed(tmp_path, other).codes("p.ndim") == set()


def test_the_parameters_of_a_model_that_shards_its_parts_are_known(tmp_path: Path) -> None:
    program = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Clip(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.image = FSDP(torch.nn.Linear(8, 8))


class Other(torch.nn.Module):
    pass


def main():
    model = Clip()
    return [p for p in model.parameters() if p.ndim < 2]
"""
    assert analysed(tmp_path, program).codes("p.ndim") == {"FSDP507"}
    other = program.replace("model = Clip", "model = Other")
    assert analysed(tmp_path, other).codes("p.ndim") == set()
