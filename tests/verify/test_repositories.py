"""`verify` on a whole repository: what is copied, what is linked, where the program runs and writes."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.verify import Unverifiable, folders
from fsdp_migrate.verify.command import verify_command
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.migrated import migrate

PROGRAMS = Path(__file__).parent / "programs"


def git(folder: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "protocol.file.allow=always")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A package, a script, a link, and ignored data."""
    folder = tmp_path / "repo"
    files = {
        ".gitignore": "data/\nout/\n",
        "scripts/train.py": "import pkg\n",
        "pkg/__init__.py": "",
        "gone.py": "",
        "data/train.txt": "42",
        "out/old.txt": "old",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "alias.py").symlink_to("scripts/train.py")
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "all")
    (folder / "gone.py").unlink()
    (folder / "new.py").write_text("")
    return folder


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


LISTED = {".gitignore", "scripts/train.py", "pkg/__init__.py", "alias.py", "new.py"}
ENTRY = Path("scripts/train.py")


def test_a_repository_is_what_git_lists(repository: Path, tmp_path: Path) -> None:
    program = folders.copy("original", repository, tmp_path / "copy", entry=ENTRY)
    assert names(program.root) == LISTED
    assert program.script.read_text() == "import pkg\n"
    assert program.folder == program.root
    assert os.readlink(program.root / "alias.py") == "scripts/train.py"


def test_what_git_ignores_can_be_linked(repository: Path, tmp_path: Path) -> None:
    program = folders.copy(
        "original", repository, tmp_path / "copy", entry=ENTRY, links=[Path("data")]
    )
    assert (program.root / "data" / "train.txt").read_text() == "42"
    assert (program.root / "data").is_symlink()
    assert not (program.root / "out").exists()


def test_a_submodule_comes_along(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "code.py").write_text("x = 1\n")
    git(tmp_path / "lib", "init", "-q")
    git(tmp_path / "lib", "add", "-A")
    git(tmp_path / "lib", "commit", "-qm", "all")
    git(repository, "submodule", "add", "-q", str(tmp_path / "lib"), "lib")
    program = folders.copy("original", repository, tmp_path / "copy", entry=ENTRY)
    assert (program.root / "lib" / "code.py").read_text() == "x = 1\n"


def test_a_program_runs_in_the_working_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = folders.copy("original", repository, tmp_path / "copy", entry=ENTRY)
    monkeypatch.chdir(repository / "scripts")
    assert program.folder == program.root / "scripts"
    other = replace(program, source=tmp_path / "other", twin=repository)
    assert other.folder == other.root / "scripts", "of the program that it is compared with"


def test_without_git_the_folder_is_copied(tmp_path: Path) -> None:
    (tmp_path / "plain" / "data").mkdir(parents=True)
    (tmp_path / "plain" / "train.py").write_text("")
    (tmp_path / "plain" / "data" / "x").write_text("")
    program = folders.copy(
        "original", tmp_path / "plain", tmp_path / "copy", entry=Path("train.py")
    )
    assert names(program.root) == {"train.py", "data/x"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script, and beside it data and a virtual environment."""
    folder = tmp_path / "plain"
    for name in ("train.py", "data/a", "data/b", "environment/pyvenv.cfg", "environment/lib/x.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("12345")
    return folder / "train.py"


@pytest.mark.parametrize(("limit", "value"), [("_MOST_FILES", 2), ("_MOST_GIGABYTES", 14 / 10**9)])
def test_a_folder_that_is_too_large_is_refused(
    limit: str, value: float, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, limit, value)
    with pytest.raises(Unverifiable, match=r"plain has more than .*, too much to copy: .* --link"):
        folders.copy("original", script, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    program = folders.copy("original", script, tmp_path / "copy", links=[Path("data")])
    assert names(program.root) == {"train.py"}
    assert (program.root / "data").readlink() == script.parent / "data"


def test_a_copy_does_not_hold_itself(script: Path) -> None:
    program = folders.copy("original", script, script.parent / "temporary" / "copy")
    assert names(program.root) == {"train.py", "data/a", "data/b"}


def test_what_is_linked_is_not_copied(repository: Path, tmp_path: Path) -> None:
    program = folders.copy(
        "original", repository, tmp_path / "copy", entry=ENTRY, links=[Path("pkg"), Path("data")]
    )
    assert names(program.root) == LISTED - {"pkg/__init__.py"}
    assert (program.root / "pkg").is_symlink()
    assert (program.root / "data" / "train.txt").read_text() == "42"


def test_what_is_not_there_is_said(repository: Path, tmp_path: Path) -> None:
    for message, how in (
        ("is a folder: name the script to run with --entry", {}),
        ("train.py: no such file", {"entry": Path("train.py")}),
        ("no such file in", {"entry": Path("../repo/../x.py")}),
        ("git ignores it", {"entry": Path("out/old.txt")}),
        ("--link nowhere: nothing of that name", {"entry": ENTRY, "links": [Path("nowhere")]}),
    ):
        with pytest.raises(Unverifiable, match=message):
            folders.copy("original", repository, tmp_path / str(how), **how)  # type: ignore[arg-type]
    with pytest.raises(Unverifiable, match="--entry is for a folder"):
        folders.copy("original", repository / ENTRY, tmp_path / "copy", entry=ENTRY)


def test_the_projects_settings_hold(repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[tool.fsdp-migrate]\nexclude = ["old/"]\n')
    (repository / "old").mkdir()
    program = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nFSDP(model)\n"
    (repository / "old" / "train.py").write_text(program)
    with pytest.raises(Unverifiable, match="the migration changes nothing"):
        migrate(repository, "auto")
    (repository / "pyproject.toml").write_text("[tool.fsdp-migrate]\nexclude = 1\n")
    with pytest.raises(Unusable, match="exclude in"):
        migrate(repository, "auto")


def test_more_ranks_than_devices_name_the_way_out(repository: Path) -> None:
    with pytest.raises(Unverifiable, match="--device cpu runs on any number"):
        verify(repository, entry=ENTRY, device="cuda", ranks=512)


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_a_repository_end_to_end(repository: Path, tmp_path: Path) -> None:
    text = (PROGRAMS / "trap.py").read_text()
    reads = 'from pathlib import Path\n\nassert Path("data/train.txt").read_text() == "42"\n'
    writes = 'Path("out").mkdir(exist_ok=True)\nPath("out/new.txt").write_text("new")\n'
    body = text.replace("import contextlib\n", f"import contextlib\n{reads}{writes}", 1)
    (repository / ENTRY).write_text(body)
    (repository / "scripts" / "task.py").write_text((PROGRAMS / "task.py").read_text())
    before = names(repository)
    summary, result = tmp_path / "summary.md", tmp_path / "it.json"
    arguments = [repository, "--entry", ENTRY, "--link", "data", "--launcher", "python"]
    files = ["--summary", summary, "--json", result]
    programs = ["--", "--steps", "2"]
    done = CliRunner().invoke(verify_command, list(map(str, [*arguments, *files, *programs])))
    assert done.exit_code == 0, done.output
    assert names(repository) == before
    assert "same: 2 losses on 2 ranks bitwise equal" in done.output
    assert json.loads(result.read_text())["environment"]["arguments"] == "--steps 2"
    assert summary.read_text().startswith("### ✅ fsdp-migrate verify: `train.py`")
