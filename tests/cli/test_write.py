"""Writing in place: all files or none, and nothing that git could not bring back."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.report import Change
from fsdp_migrate.write import dirty_problems, write_changes

BEFORE, AFTER = b"old\r\n", b"new\r\n"


def change(file: Path, content: bytes = BEFORE) -> Change:
    file.write_bytes(content)
    return Change(file, content, AFTER)


def test_writes_bytes_and_keeps_the_mode(folder: Path) -> None:
    one = change(folder / "a.py")
    one.path.chmod(0o755)
    assert write_changes([one]) == []
    assert one.path.read_bytes() == AFTER
    assert stat.S_IMODE(one.path.stat().st_mode) == 0o755
    assert os.listdir(folder) == ["a.py"]


def test_a_link_stays_a_link(folder: Path) -> None:
    one = change(folder / "a.py")
    (folder / "link.py").symlink_to("a.py")
    assert write_changes([Change(folder / "link.py", BEFORE, AFTER)]) == []
    assert (folder / "link.py").is_symlink()
    assert one.path.read_bytes() == AFTER


def test_all_or_none_if_a_file_changed_meanwhile(folder: Path) -> None:
    changes = [change(folder / name) for name in ("a.py", "b.py", "c.py")]
    changes[1].path.write_bytes(b"edited\n")
    (problem,) = write_changes(changes)
    assert problem.path == "b.py"
    assert "changed while it was analysed" in problem.message
    assert changes[0].path.read_bytes() == changes[2].path.read_bytes() == BEFORE
    assert sorted(os.listdir(folder)) == ["a.py", "b.py", "c.py"]


def test_all_or_none_if_a_file_is_read_only(folder: Path) -> None:
    changes = [change(folder / name) for name in ("a.py", "b.py")]
    changes[1].path.chmod(0o444)
    (problem,) = write_changes(changes)
    assert (problem.path, problem.message) == ("b.py", "cannot be written: it is read-only")
    assert changes[0].path.read_bytes() == BEFORE


def test_a_full_disk_loses_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [change(folder / name) for name in ("a.py", "b.py")]

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fsdp_migrate.write._copy_rights", full)
    problems = write_changes(changes)
    assert "No space left" in problems[0].message
    assert sorted(os.listdir(folder)) == ["a.py", "b.py"]
    assert all(one.path.read_bytes() == BEFORE for one in changes)


def test_a_deleted_file_is_not_brought_back(folder: Path) -> None:
    one = change(folder / "a.py")
    one.path.unlink()
    assert "No such file" in write_changes([one])[0].message
    assert os.listdir(folder) == []


def test_guard_is_silent_without_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = [change(folder / "a.py")]
    assert dirty_problems(changes) == []
    monkeypatch.setenv("PATH", "")
    assert dirty_problems(changes) == []


def test_guard_names_what_git_could_not_bring_back(folder: Path, repository: Any) -> None:
    names = ["clean.py", "edited.py", "staged.py", "link's target.py"]
    changes = {name: change(folder / name) for name in names}
    (folder / "link.py").symlink_to("link's target.py")
    repository.commit()
    assert dirty_problems(list(changes.values())) == []
    changes["edited.py"].path.write_bytes(b"x\n")
    changes["staged.py"].path.write_bytes(b"x\n")
    changes["link's target.py"].path.write_bytes(b"x\n")
    repository.git("add", "staged.py")
    untracked = change(folder / "un*tracked.py")
    link = Change(folder / "link.py", BEFORE, AFTER)
    problems = dirty_problems([*list(changes.values())[:3], link, untracked])
    named = [problem.path for problem in problems]
    assert named == ["edited.py", "staged.py", "link.py", "un*tracked.py"]
    assert all("--allow-dirty" in problem.message for problem in problems)


def test_guard_stops_at_ignored_files(folder: Path, repository: Any) -> None:
    (folder / ".gitignore").write_text("ignored.py\n")
    assert len(dirty_problems([change(folder / "ignored.py")])) == 1  # git cannot bring it back
