"""What keeps the memory of flat parameters that get other values, as moving averages do."""

from pathlib import Path

import pytest

from .programs import analysed

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Average:
    def __init__(self, model):
        self.model, self.kept, self.own = model, {{}}, {{}}

    def swap(self):
        for n, p in self.model.named_parameters():
            {keep}
            {write}


average = Average(FSDP(build(), use_orig_params={original}))
average.swap()
"""
WRITE = "p.data = self.own[n]"


def is_found(folder: Path, keep: str, write: str, form: str, original: bool) -> bool:
    program = PROGRAM.format(keep=keep, write=write, original=original)
    found = analysed(folder, program, form).findings
    return any("This keeps the memory of a parameter" in each.message for each in found)


@pytest.mark.parametrize(
    ("keep", "write"),
    [
        ("self.kept[n] = p.data", WRITE),
        ("kept.append(p.data)", WRITE),
        ("p.data, self.own[n] = self.own[n], p.data", "pass"),
        ("self.last = p.data", WRITE),
        ("kept.update({n: p.data})", WRITE),
    ],
)
def test_memory_that_is_written_now(keep: str, write: str, tmp_path: Path) -> None:
    assert is_found(tmp_path / "flat", keep, write, "auto", original=False)
    # FSDP1 wrote into it as well, at the next forward; and torch alone does nothing.
    assert not is_found(tmp_path / "original", keep, write, "auto", original=True)
    assert not is_found(tmp_path / "torch", keep, write, "torch", original=False)


@pytest.mark.parametrize(
    ("keep", "write"),
    [
        ("self.kept[n] = p.data.clone()", WRITE),
        ("self.kept[n] = p.data", "p.data.copy_(self.own[n])"),
        ("self.kept[n] = x.data", WRITE),
        ("norm = p.data.abs()", WRITE),
    ],
)
def test_copies_and_other_memory(keep: str, write: str, tmp_path: Path) -> None:
    assert not is_found(tmp_path, keep, write, "auto", original=False)
