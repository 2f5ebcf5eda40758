"""Places in the code of a program that a result names: where it clips, and where only some ranks go."""

from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_migrate.verify import failures, syntax
from fsdp_migrate.verify.causes import Cause
from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.left import Left
from fsdp_migrate.verify.options import Options
from fsdp_migrate.verify.processes import Outcome
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict

from .written import run, verdict

CLIPS = """\
for x in data:
    model(x).sum().backward()
    model.clip_grad_norm_(0.5)
    optimizer.step()
"""
PLAIN = """\
for x in data:
    model(x).sum().backward()
    optimizer.step()
"""
SAVES = """\
def save(model):
    torch.save(get_model_state_dict(model), "m.pt")
if dist.get_rank() == 0:
    save(model)
    dist.barrier()
if steps == 0:
    dist.barrier()
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in (("before", CLIPS), ("after", PLAIN)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    return tmp_path / "before", tmp_path / "after"


def clipping(one: list[str], other: list[str]) -> Verdict:
    def ran(limits: list[str]) -> Run:
        norm = 0.25 if limits else 4.0
        given = run([2.0])
        ranks = [
            replace(rank, limits=[limits], squares=[norm], files=["train.py"])
            for rank in given.ranks
        ]
        return replace(given, ranks=ranks)

    both = verdict(ran(one), ran(other))
    norms = Difference(1, 3, -1, "gradient norm", "0.5 against 2")
    return replace(both, differences=[norms], cause=Cause("clipping", "a title", "Look."))


def test_a_clip_that_is_missing_has_its_line_and_the_place_where_it_belongs(
    folders: tuple[Path, Path],
) -> None:
    before, after = folders
    found = syntax.clipped_at(clipping(["0.5"], []), before, after, str)
    assert found is not None
    assert found.advice == (
        "The original clips at train.py:3: `model.clip_grad_norm_(0.5)`. "
        "Call torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5) in the migrated program "
        "after train.py:2: `model(x).sum().backward()`."
    )
    found = syntax.clipped_at(clipping([], ["0.5"]), after, before, str)
    assert found is not None
    assert found.advice == "Remove the call at train.py:3 from the migrated program."
    other = replace(clipping(["0.5"], []), cause=Cause("averaging", "a title", "Look."))
    assert syntax.clipped_at(other, before, after, str) is other.cause


@pytest.mark.parametrize(
    ("frames", "expected"),
    [([4, 2], 3), ([5], 3), ([2], None), ([7], None), ([3], None), ([99], None)],
)
def test_the_branch_of_some_ranks(frames: list[int], expected: int | None, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    found = syntax.branch_of_some_ranks(tmp_path, [("train.py", line) for line in frames])
    assert (found and found.line) == expected


def test_a_call_that_one_rank_makes_is_told_with_its_branch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    program = Program("migrated", tmp_path, tmp_path / "train.py", tmp_path)
    trace = "".join(f'  File "{tmp_path}/train.py", line {line}, in x\n    y\n' for line in (4, 2))
    failure = ProgramFailed("migrated", "rank 0 was in a collective (train.py:2)", "", trace)
    failure.hints = [failures._TOGETHER]
    failures.explain(failure, program, Left(tmp_path))
    assert failure.hints == [
        "cause: only some ranks make this call. All ranks must make it: move it out of "
        "`if dist.get_rank() == 0:` (train.py:3), and keep only the writing of the file inside."
    ]


def test_a_rank_that_waits_is_told_with_the_branch_around_its_call(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SAVES)
    program = Program("migrated", tmp_path, tmp_path / "train.py", tmp_path)
    torch = [f'  File "/x/lib/python3/torch/_ops{n}.py", line 9 in call' for n in range(5)]
    torch.append('  File "/x/lib/python3/site/torch/distributed/tensor/a.py", line 9 in wait')
    own = [f'  File "{tmp_path}/train.py", line {line} in x' for line in (2, 4)]
    stacks = (("0", "\n".join([*torch, *own])), ("1", own[1]))
    outcome = Outcome(-1, 30.0, timed_out=True, stacks=stacks)
    with pytest.raises(ProgramFailed) as caught:
        failures.check(failures.Scene(program, outcome, tmp_path / "logs", 2, []))
    failures.explain(caught.value, program, Left(tmp_path))
    reason = "it did not end within 30 seconds; all but rank 1 wait in a collective"
    assert caught.value.reason == reason
    assert caught.value.place == "train.py:2"
    assert "move it out of `if dist.get_rank() == 0:` (train.py:3)" in caught.value.hints[0]


def test_the_options_of_a_run_as_they_are_typed() -> None:
    assert Options(device="cpu").typed == "--nproc 2 --device cpu"
    how = Options(
        device="cpu",
        ranks=4,
        tolerance=1e-5,
        canonical=False,
        links=[Path("data")],
        arguments=["--name", "a b"],
    )
    assert how.typed == (
        "--nproc 4 --device cpu --tolerance 1e-05 --link data --no-canonical -- --name 'a b'"
    )
