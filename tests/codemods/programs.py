"""Programs of several files, analysed together."""

from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Finding
from fsdp_migrate.settings import Options

TRAIN = """\
import torch
from model import Net
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    model = Net()
    model = FSDP(model)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
"""
MODEL = """\
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)
"""


@dataclass(frozen=True)
class Analysed:
    """What the tool says of a program, and what it makes of it.

    Attributes:
        before, after: the text of each file.
        findings: of all files.
    """

    before: dict[str, str]
    after: dict[str, str]
    findings: list[Finding]

    def codes(self, part: str, file: str = "train.py") -> set[str]:
        """The codes of the findings on the lines of a file that contain some text."""
        lines = [n for n, line in enumerate(self.before[file].splitlines(), 1) if part in line]
        assert lines, part
        return {f.code for f in self.findings if Path(f.path).name == file and f.line in lines}

    def is_kept(self, part: str, file: str = "train.py") -> bool:
        """Whether the lines that contain some text are the same afterwards."""

        def lines(text: str) -> list[str]:
            return [line for line in text.splitlines() if part in line]

        assert lines(self.before[file]), part
        return lines(self.before[file]) == lines(self.after[file])


def analysed(folder: Path, files: dict[str, str] | str, form: str = "auto") -> Analysed:
    """Writes a program below a folder and analyses it; one string is the file `train.py`.

    Imports are followed below folders of any name: these have a dot and a space in theirs.
    """
    folder = folder / "v2.0" / "my project"
    texts = {"train.py": files} if isinstance(files, str) else files
    before = {name: dedent(text).lstrip("\n") for name, text in texts.items()}
    for name, text in before.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    report = analyse(discover([folder]), Options(form=form))
    assert not report.errors, report.errors
    changed = {
        change.path.relative_to(folder).as_posix(): change.after.decode()
        for change in report.changes
    }
    return Analysed(before, {**before, **changed}, report.findings)


def is_plain(after: str) -> bool:
    """Whether a constructor of this text has become `fully_shard`, and none is left."""
    return "fully_shard(" in after and "FullyShardedDataParallel" not in after


def table(text: str) -> dict[str, tuple[str, str]]:
    """Programs before and after by title: ``=== title``, the program, ``---`` and what becomes of it."""
    cases = (section.partition("\n") for section in text.split("=== ")[1:])
    return {title: tuple(program.split("---\n")) for title, _, program in cases}  # type: ignore[misc]
