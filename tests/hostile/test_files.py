"""Files under attack: killed runs, full disks, other runs, rights, links, names. Every file is old or new, and nothing is left over."""

import multiprocessing
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from fsdp_migrate.report import Change
from fsdp_migrate.write import write_changes

OLD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)  # {}\n"
NEW = OLD.replace("torch.distributed.fsdp", "fsdp_migrate.runtime")
COMMAND = [Path(sys.executable).parent / "fsdp-migrate", "--form", "bridge", "--allow-dirty"]
KILLS = 60


def tree(folder: Path, many: int) -> list[Path]:
    """Files with FSDP1 in some folders."""
    files = [folder / f"part{n % 7}" / f"file{n}.py" for n in range(many)]
    for number, file in enumerate(files):
        file.parent.mkdir(exist_ok=True)
        file.write_text(OLD.format(number))
    return files


def states(files: list[Path]) -> list[str]:
    """`old` or `new` for each file; anything else is a file that was lost."""
    known = [{OLD.format(n): "old", NEW.format(n): "new"} for n in range(len(files))]
    return [names[file.read_text()] for names, file in zip(known, files, strict=True)]


def left_over(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".py")
    return [str(path.relative_to(folder)) for path in files]


def migrate(folder: Path) -> None:
    subprocess.run([*COMMAND, "."], cwd=folder, capture_output=True, check=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_killed_at_any_moment(tmp_path: Path, name: str) -> None:
    """Prints how many of the files were new after each kill, and what a killed run left."""
    rng, sent = random.Random(0), signal.Signals[name]
    files = tree(tmp_path, 500)
    started = time.monotonic()
    migrate(tmp_path)
    whole = time.monotonic() - started
    midway = left = before = 0
    for _ in range(KILLS // 3 + 1):
        files = tree(tmp_path, 500)
        run = subprocess.Popen(
            [*COMMAND, "."],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # What runs in the background of a shell ignores SIGINT, and so does what it starts.
            preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL) if name == "SIGINT" else None,
        )
        # Half of the kills fall into the part of the run that writes.
        time.sleep(rng.uniform(0, whole) if rng.random() < 0.5 else 0)
        if rng.random() < 0.5:
            _wait_for_a_new_file(files, run)
        run.send_signal(sent)
        run.wait()
        found = states(files)
        midway += len(set(found)) > 1
        before += set(found) == {"old"}
        left += len(left_over(tmp_path))
        assert len(left_over(tmp_path)) <= (sent == signal.SIGKILL)
        for rest in left_over(tmp_path):
            (tmp_path / rest).unlink()
    assert before + midway
    tree(tmp_path, 500)
    migrate(tmp_path)
    assert set(states(files)) == {"new"}
    print(
        f"{sent.name}: {KILLS // 3 + 1} kills, {before} before the first file, {midway} midway, {left} files left over"
    )


def _wait_for_a_new_file(files: list[Path], run: subprocess.Popen[bytes]) -> None:
    inodes = {file: file.stat().st_ino for file in files[:3]}
    while run.poll() is None and all(file.stat().st_ino == inode for file, inode in inodes.items()):
        time.sleep(0.0005)


def test_two_runs_at_once(tmp_path: Path) -> None:
    """One of three that begin to write in the same moment does, and the others find it done and put nothing back."""
    fork, wanted = multiprocessing.get_context("fork"), changes(tmp_path, 100)
    begin, said = fork.Barrier(3), fork.SimpleQueue()

    def write() -> None:
        begin.wait()
        said.put([problem.message for problem in write_changes(wanted)])

    runs = [fork.Process(target=write) for _ in range(3)]
    for run in runs:
        run.start()
    touched = ["cannot be written: it was changed while it was analysed"] * 100
    assert sorted(said.get() for _ in runs) == [[], touched, touched]
    assert set(states([change.path for change in wanted])) == {"new"}
    assert left_over(tmp_path) == []


def changes(folder: Path, many: int = 4) -> list[Change]:
    return [
        Change(file, file.read_bytes(), NEW.format(n).encode())
        for n, file in enumerate(tree(folder, many))
    ]


@pytest.fixture
def wanted(tmp_path: Path) -> Iterator[list[Change]]:
    yield changes(tmp_path)
    assert left_over(tmp_path) == []


def replacements(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> None:
    """Those that fail, by their number, and the others."""
    replace, numbers = os.replace, count(1)

    def broken(source: str, target: str) -> None:
        if fails(next(numbers)):
            raise OSError(5, "Input/output error")
        replace(source, target)

    monkeypatch.setattr("fsdp_migrate.write.os.replace", broken)


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_replacement_that_fails_is_undone(
    wanted: list[Change], monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    replacements(monkeypatch, lambda number: number == failing)
    (problem,) = write_changes(wanted)
    assert "Input/output error" in problem.message
    assert states([change.path for change in wanted]) == ["old"] * 4


def test_what_stays_is_named(wanted: list[Change], monkeypatch: pytest.MonkeyPatch) -> None:
    replacements(monkeypatch, lambda number: number > 2)
    problems = write_changes(wanted)
    assert states([change.path for change in wanted]) == ["new", "new", "old", "old"]
    named = [problem.path for problem in problems if "could not be put back" in problem.message]
    assert named == [str(change.path) for change in wanted[:2]]


def test_interrupted_midway(wanted: list[Change], monkeypatch: pytest.MonkeyPatch) -> None:
    replace, numbers = os.replace, count(1)

    def interrupted(source: str, target: str) -> None:
        replace(source, target)
        if next(numbers) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("fsdp_migrate.write.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_changes(wanted)
    assert states([change.path for change in wanted]) == ["old"] * 4


def test_hard_links_modes_and_owners(tmp_path: Path) -> None:
    (change,) = changes(tmp_path, 1)
    (tmp_path / "other").hardlink_to(change.path)
    change.path.chmod(0o4751)
    owner = (1234, 4321) if not os.geteuid() else (os.geteuid(), os.getegid())
    os.chown(change.path, *owner)
    change.path.chmod(0o4751)
    assert write_changes([change]) == []
    found = change.path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*owner, 0o4751)
    # Nothing outside of what was named is written.
    assert (tmp_path / "other").read_bytes() == change.before
    assert left_over(tmp_path) == ["other"]


def test_a_file_of_another_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (change,) = changes(tmp_path, 1)

    def refused(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("fsdp_migrate.write.os.fchown", refused)
    no_ones = os.stat_result((0, 0, 0, 0, -1, -1, 0, 0, 0, 0))
    monkeypatch.setattr("fsdp_migrate.write.os.fstat", lambda _: no_ones)
    (problem,) = write_changes([change])
    assert problem.message == "cannot be written: its owner or group could not be kept"
    assert change.path.read_bytes() == change.before
    assert left_over(tmp_path) == []
