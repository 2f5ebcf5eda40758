"""A function that no program with a sharded model uses needs nobody, unless code may use it without its name."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action

from .programs import analysed

TOOLS = """\
import torch


class Scaler:
    def __call__(self, loss, parameters):
        loss.backward()
        return norm(parameters)


def norm(parameters):
    return torch.stack([torch.norm(p.grad.detach()) for p in parameters])


def log(text):
    print(text)
"""
FSDP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from model import Net
from tools import Scaler, log


def main():
    model = FSDP(Net())
    for x in range(3):
        model(x).sum().backward()
        log(model)


if __name__ == "__main__":
    main()
"""
DDP = """\
from tools import Scaler

from model import Net

if __name__ == "__main__":
    model = Net()
    Scaler()(model(1), model.parameters())
"""
FILES = {"tools.py": TOOLS, "train.py": FSDP, "plain.py": DDP}


def needs_user(folder: Path, files: dict[str, str]) -> bool:
    """Whether the norms of gradients need the user."""
    found = [each for each in analysed(folder, files).findings if each.code == "FSDP507"]
    assert found
    assert all(
        "Needs nothing now" not in each.message or "If one does: " in each.message for each in found
    )
    (action,) = {each.action for each in found}
    return action is Action.MANUAL


def test_a_function_of_other_programs(tmp_path: Path) -> None:
    assert not needs_user(tmp_path, FILES)


USES = {
    "by its name": ("train.py", "        log(model)", "        Scaler()(1, model.parameters())"),
    "by another name": ("train.py", "Scaler, log", "Scaler as Scale, log"),
    "by a module": ("train.py", "log(model)", "tools.Scaler()"),
    "by a string": ("train.py", "log(model)", 'getattr(tools, "Scaler")'),
    "by another function": ("tools.py", "print(text)", "norm(text)"),
    "by its own file": ("tools.py", "def log", "log = norm\n\n\ndef log"),
    "by a decorator": ("tools.py", "class Scaler", "@register\nclass Scaler"),
    "by any name": ("train.py", "log(model)", "globals()"),
    "by a library that shards": (
        "plain.py",
        "model = Net()",
        "model = Accelerator().prepare(Net())",
    ),
    "by who imports the program": ("plain.py", "from tools", "from train import main\nfrom tools"),
}


@pytest.mark.parametrize("use", USES)
def test_a_function_that_may_be_used(use: str, tmp_path: Path) -> None:
    name, old, new = USES[use]
    files = dict(FILES)
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    assert needs_user(tmp_path, files)
