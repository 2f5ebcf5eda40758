"""A failure of the migrated program, and a number that it prints, lead to the finding that says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Finding
from fsdp_migrate.verify import failures, outputs
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.left import Left
from fsdp_migrate.verify.sources import Sources

ORIGINAL = """\
import torch
model = FSDP(Net(), device_id=0)
optimizer = Adam(model.parameters())
def count(m):
    return sum(p.numel() for p in m.parameters())
size = count(model)
print(f"the model has {size:,} weights")
print("learned", score, "of", size)
optimizer.load_state_dict(
    torch.load("opt.pt")
)
optimizer.step()
"""
MIGRATED = """\
import torch
from torch.distributed.fsdp import fully_shard
model = Net()
for module in model.modules():
    fully_shard(module)
optimizer = Adam(model.parameters())
def count(m):
    return sum(p.numel() for p in m.parameters())
size = count(model)
print(f"the model has {size:,} weights")
print("learned", score, "of", size)
optimizer.load_state_dict(
    torch.load("opt.pt")
)
optimizer.step()
"""


def finding(line: int, last: int, construct: str, path: str = "train.py") -> Finding:
    message = "means something else"
    return Finding(path, line, 1, last, 9, "FSDP335", "rule", Action.MANUAL, message, construct)


LOAD = finding(9, 11, "optimizer.load_state_dict(...)")
COUNT = finding(5, 5, "p.numel")
WRAPPED = finding(2, 2, "FSDP(...)")
OTHER = finding(12, 12, "opt.step()", "lib/train.py")


@pytest.fixture
def left(tmp_path: Path) -> Left:
    for name, text in (("before", ORIGINAL), ("after", MIGRATED)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    return Left(tmp_path / "before", lambda: [OTHER, LOAD, COUNT, WRAPPED])


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([13], LOAD),  # inside of a call of several lines
        ([9, 8], COUNT),  # the innermost line counts
        ([5, 8], COUNT),  # of two lines with findings, too
        ([5], WRAPPED),  # a line that the migration has written
        ([12, 1], LOAD),  # the innermost frame has none
        ([15], OTHER),  # the construct is the same, in another file of this name
        ([6], None),
    ],
)
def test_a_failure_names_the_finding(
    frames: list[int], expected: Finding | None, left: Left, tmp_path: Path
) -> None:
    after = tmp_path / "after"
    trace = "".join(f'  File "{after}/train.py", line {n}, in x\n    y\n' for n in frames)
    trace += '  File "/lib/python3/torch/x.py", line 9, in z\nRuntimeError: no\n'
    program = Program("migrated", after, after / "train.py", tmp_path)
    failure = ProgramFailed("migrated", "rank 0 raised RuntimeError", "", trace)
    failures.explain(failure, program, left)
    if expected is None:
        assert len(failure.others) == 4
        told = f"4 findings may explain it. The first one: {left.text(OTHER)}"
    else:
        told = f"finding: {left.text(expected)}"
    assert str(failure).splitlines()[1:] == [told]
    assert failure.place == f"train.py:{frames[-1]}"


def test_a_failure_names_the_line_of_the_original(left: Left, tmp_path: Path) -> None:
    after = tmp_path / "after"
    copied = Left(left.root, origins={"train.py": (1, 2, 2, 2, 3)})
    program = Program("migrated", after, after / "train.py", tmp_path)
    trace = f'  File "{after}/train.py", line 4, in x'
    failure = ProgramFailed("migrated", "rank 0 raised X (train.py:4)", "", trace)
    failures.explain(failure, program, copied)
    assert failure.reason == "rank 0 raised X (train.py:2, line 4 of the migrated copy)"
    assert (failure.place, failure.written) == ("train.py:2", 4)


def test_without_findings_a_failure_has_no_hint(left: Left, tmp_path: Path) -> None:
    program = Program("migrated", tmp_path / "after", tmp_path / "after" / "train.py", tmp_path)
    failure = ProgramFailed("migrated", "no", "", f'  File "{tmp_path}/after/train.py", line 8')
    failures.explain(failure, program, Left(left.root))
    assert str(failure) == "the migrated program failed: no"


@pytest.mark.parametrize(
    ("one", "other", "named"),
    [
        ("the model has 700 weights", "the model has 1,500 weights", True),
        ("learned 3 of 700", "learned 3 of 1500", True),
        ("learned 3 of 700", "learned 4 of 700", False),
    ],
)
def test_a_number_that_is_printed_names_its_finding(
    one: str, other: str, named: bool, left: Left
) -> None:
    sources = Sources([left.root / "train.py"], left)
    (line,) = outputs.written("log", one, other, 1e-6, sources)
    assert line.cause == (left.text(COUNT) if named else "")


CLOCKS = """\
import time
from timeit import default_timer as now_in_seconds
class Watch:
    def __init__(self):
        self.began = time.monotonic()
    def lap(self):
        return time.monotonic() - self.began
class Mean:
    def update(self, value):
        self.total += value
        self.mean = self.total / 2
def main():
    t0 = time.time()
    loss = train()
    dt = time.time() - t0
    print(f"epoch done in {dt:.2f} with {loss:.3f}")
    print("needed", round(time.perf_counter() - t0, 2), "for", loss)
    logger.info("all of it: %.2f, best %.2f", dt, loss)
    finish(dt)
    note("a", dt)
    note("b", loss)
    print("lap {:.1f} of {}".format(watch.lap(), loss))
    mean.update(dt)
    mean.update(loss)
    print("mean of all", mean.mean)
    print(f"words {tokens / dt:.0f}")
def finish(x):
    print("finished after {:.1f}".format(x))
def note(name, x):
    print("value {} is {:.1f}".format(name, x))
"""


@pytest.mark.parametrize(
    ("one", "other", "differs"),
    [
        ("epoch done in 3.21 with 2.000", "epoch done in 9.21 with 2.000", False),
        ("epoch done in 3.21 with 2.000", "epoch done in 3.21 with 2.900", True),
        ("needed 2.3 for 1.5", "needed 5.3 for 1.5", False),
        ("needed 2.3 for 1.5", "needed 2.3 for 1.9", True),
        ("INFO all of it: 2.31, best 7.00", "INFO all of it: 3.31, best 7.00", False),
        ("INFO all of it: 2.31, best 7.00", "INFO all of it: 2.31, best 8.00", True),
        ("finished after 2.3", "finished after 9.9", False),
        ("lap 2.3 of 1.5", "lap 9.9 of 1.5", False),
        ("words 512", "words 600", False),
        # what is sometimes a time
        ("value b is 2.3", "value b is 9.9", True),
        ("mean of all 2.3", "mean of all 9.9", True),
        # not printed by this code
        ("something 2.3", "something 9.9", True),
    ],
)
def test_a_time_is_one_by_the_code_that_prints_it(
    one: str, other: str, differs: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(CLOCKS)
    sources = Sources([tmp_path / "train.py"])
    assert bool(outputs.written("", one, other, 1e-6, sources)) == differs
    assert outputs.written("", one, other, 1e-6), "by its words it is none"
