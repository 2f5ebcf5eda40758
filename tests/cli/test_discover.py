"""Which files a path means."""

import os
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.discover import discover, mentions_fsdp


def write(folder: Path, *names: str) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"import torch\n")


def names(folder: Path, *paths: str, **options: Any) -> list[str]:
    found = discover([Path(path) for path in paths], **options)
    assert not found.problems
    return [file.relative_to(folder).as_posix() for file in found.files]


def test_walk_takes_python_files_only(folder: Path) -> None:
    write(folder, "a.py", "b.pyi", "c.txt", "sub/d.py", "sub.py/e.py", "__init__.py")
    assert names(folder, ".") == ["__init__.py", "a.py", "sub/d.py", "sub.py/e.py"]


@pytest.mark.parametrize(
    "skipped",
    [".hidden", ".venv", "venv", "node_modules", "build", "dist", "__pycache__", "a/site-packages"],
)
def test_walk_skips_what_is_not_source(folder: Path, skipped: str) -> None:
    write(folder, "keep.py", f"{skipped}/x.py")
    assert names(folder, ".") == ["keep.py"]
    assert names(folder, f"{skipped}/x.py") == [f"{skipped}/x.py"], "named files are always taken"


def test_walk_takes_a_package_called_dist(folder: Path) -> None:
    write(folder, "own/dist/__init__.py", "own/dist/x.py", "dist/lib/x.py")
    assert names(folder, ".") == ["own/dist/__init__.py", "own/dist/x.py"]


def test_walk_skips_a_virtual_environment_of_any_name(folder: Path) -> None:
    write(folder, "keep.py", "env311/lib/x.py")
    (folder / "env311/pyvenv.cfg").touch()
    assert names(folder, ".") == ["keep.py"]


def test_git_decides_where_there_is_a_repository(folder: Path, repository: Any) -> None:
    write(folder, "tracked.py", "new.py", "ignored.py", "build/source.py", "tracked_ignored.py")
    repository.git("add", "tracked.py", "tracked_ignored.py")
    (folder / ".gitignore").write_text("ignored.py\ntracked_ignored.py\n")
    expected = ["build/source.py", "new.py", "tracked.py", "tracked_ignored.py"]
    assert names(folder, ".") == expected
    assert names(folder, "build") == ["build/source.py"]
    (folder / "tracked.py").unlink()
    assert "tracked.py" not in names(folder, ".")


def test_scripts_without_an_ending_are_programs(
    folder: Path, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {
        "bin/train": b"#!/usr/bin/env python3\nimport torch\n",
        "bin/launch": b"#!/bin/sh\npython train\n",
        "bin/data": b"import torch\n",
        "LICENSE": b"#!/usr/bin/python\n",
    }
    for name, content in scripts.items():
        write(folder, name)
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o644 if name == "LICENSE" else 0o755)
    assert names(folder, ".") == ["bin/train"]
    monkeypatch.setattr("fsdp_migrate.git.listed_files", lambda folder: None)
    assert names(folder, ".") == ["bin/train"], "without git's list"


def test_an_ignored_folder_that_is_named_is_walked(folder: Path, repository: Any) -> None:
    write(folder, "a.py", "out/b.py")
    (folder / ".gitignore").write_text("out/\n")
    assert names(folder, ".") == ["a.py"]
    assert names(folder, "out") == ["out/b.py"]


def test_nested_repositories_are_walked_by_their_own_rules(folder: Path, repository: Any) -> None:
    write(folder, "a.py", "nested/b.py", "nested/c.py")
    repository.git("init", "-q", folder=folder / "nested")
    (folder / "nested/.gitignore").write_text("c.py\n")
    assert names(folder, ".") == ["a.py", "nested/b.py"]


def test_hook_variables_do_not_mislead_git(
    folder: Path, repository: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "a.py")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert names(folder, ".") == ["a.py"]


@pytest.mark.parametrize("with_git", [False, True])
def test_links_that_leave_the_folder_are_passed_over(
    folder: Path, request: pytest.FixtureRequest, with_git: bool
) -> None:
    if with_git:
        request.getfixturevalue("repository")
    write(folder, "root/a.py", "outside.py", "other/o.py")
    (folder / "root/out.py").symlink_to("../outside.py")
    (folder / "root/folder").symlink_to("../other")
    (folder / "root/broken.py").symlink_to("nowhere.py")
    (folder / "root/again.py").symlink_to("a.py")
    (folder / "root/loop").symlink_to(".")
    assert names(folder, "root") == ["root/a.py"]
    assert names(folder, "root/out.py") == ["root/out.py"], "a link that is named is taken"


def test_each_file_is_taken_once(folder: Path) -> None:
    write(folder, "a/x.py")
    (folder / "link").symlink_to("a")
    assert names(folder, "a", "a/x.py", "./a/../a/x.py", str(folder / "a"), "link") == ["a/x.py"]


def test_exclude_holds_below_folders_only(folder: Path) -> None:
    write(folder, "a.py", "third_party/b.py", "src/third_party/c.py", "src/gen/d.py", "gen/e.py")
    patterns = ["third_party/", "/gen/", "src/gen/*.py"]
    assert names(folder, ".", exclude=patterns) == ["a.py"]
    assert names(folder, "gen/e.py", exclude=patterns) == ["gen/e.py"]
    assert names(folder, "src", exclude=["/gen/"], root=folder / "src") == ["src/third_party/c.py"]


def test_what_cannot_be_taken_is_a_problem_and_the_rest_goes_on(folder: Path) -> None:
    write(folder, "a.py")
    os.mkfifo(folder / "pipe.py")
    found = discover([Path("missing.py"), Path("pipe.py"), Path("a\0b.py"), Path("a.py")])
    assert found.files == [folder / "a.py"]
    messages = {problem.path: problem.message for problem in found.problems}
    assert messages["missing.py"] == "does not exist"
    assert messages["pipe.py"] == "is not a regular file"
    assert len(messages) == 3


def test_others_are_those_of_the_repository(folder: Path, repository: Any) -> None:
    write(folder, "a.py", "lib/b.py", "lib/c.txt", "lib/deep/d.py", "gen/e.py", "ignored.py")
    (folder / ".gitignore").write_text("ignored.py\n")

    def others(*paths: str) -> list[str]:
        found = discover([Path(path) for path in paths], ["gen/"], folder)
        return [file.relative_to(folder).as_posix() for file in found.others()]

    assert others("lib/b.py", "lib/b.py") == ["a.py", "lib/deep/d.py"]
    assert others("lib") == []  # a folder is a program by itself
    assert others(".") == []


def test_without_a_repository_others_are_below_the_folder_of_a_file(folder: Path) -> None:
    write(folder, "a.py", "lib/b.py", "lib/deep/d.py")
    found = discover([Path("lib/b.py")])
    assert found.others() == [folder / "lib/deep/d.py"]
    assert discover([Path("lib")]).others() == []


def test_odd_names(folder: Path, repository: Any) -> None:
    odd = ["with space.py", "ünïcode.py", 'quote".py', "new\nline.py", "[red]x.py", "-dash.py"]
    write(folder, *odd)
    assert names(folder, ".") == sorted(odd)


def test_a_sentence_is_no_mention_of_fsdp() -> None:
    """A docstring may speak of FSDP; code, a bound name and a comment beside code are about it."""
    for text in (
        "Supports FSDP, Megatron and\nvLLM (e.g., FSDP FP32).",
        "is invariant to fsdp/megatron",
    ):
        assert not mentions_fsdp(f'"""{text}"""\nx = 1\n'.encode(), "a.py")
    for text in (
        "from wrapping import FSDP, load",
        "from wrapping import (\n    FSDP,\n    load,\n)",
        "model = FSDP(model)",
        "isinstance(model, FSDP)",
        "train(fsdp = 'full_shard')",
        "size = config.fsdp_size",
        "from wrappers import (\n    DDP, FSDP, Other,\n)",
        "train(FSDP, model)",
        "from wrappers import *\nchosen = DDP or FSDP",
        "model(batch)  # for FSDP",
        "x = 1\r# for FSDP\rmodel(batch)",
    ):
        assert mentions_fsdp(text.encode(), "a.py"), text
