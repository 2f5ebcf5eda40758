"""What is said about names of FSDP1 in a program's tests."""

from pathlib import Path

import pytest

from .programs import analysed

TRAIN = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    return FSDP(build())
"""
TEST = """\
import train


def test_names(log):
    train.main()
    assert "{}" in log
"""


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("grad/model._fsdp_wrapped_module.0.weight", "This text matches no name under FSDP2"),
        (
            "grad/model._fsdp_wrapped_module._flat_param",
            "This name matches no parameter under FSDP2",
        ),
    ],
)
def test_a_name_of_fsdp1(name: str, start: str, tmp_path: Path) -> None:
    program = analysed(tmp_path, {"train.py": TRAIN, "test_train.py": TEST.format(name)}, "torch")
    (found,) = (each for each in program.findings if each.code == "FSDP526")
    assert found.message.startswith(start)
