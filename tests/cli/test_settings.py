"""`[tool.fsdp-migrate]` in the pyproject.toml of the project at hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.settings import load_settings, split_codes

TABLE = "[tool.fsdp-migrate]\n"


def load(folder: Path, text: str, *paths: str) -> Any:
    (folder / "pyproject.toml").write_text(text)
    return load_settings([folder / path for path in paths or (".",)])


def test_all_keys(folder: Path) -> None:
    found = load(folder, TABLE + 'exclude = ["gen/"]\nselect = ["fsdp002"]\nignore = ["FSDP1"]\n')
    assert (found.root, found.exclude) == (folder, ("gen/",))
    assert (found.select, found.ignore) == ({"FSDP002"}, {"FSDP1"})


@pytest.mark.parametrize("text", ["", "[tool.migrate]\nx = 1\n", "[project]\nname = 'x'\n"])
def test_no_table(folder: Path, text: str) -> None:
    assert load(folder, text).exclude == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (TABLE + "excludes = []\njobs = 2\n", "unknown key in [tool.fsdp-migrate]: excludes, jobs"),
        (TABLE + "exclude = 'gen/'\n", "exclude in [tool.fsdp-migrate] must be a list of strings"),
        (TABLE + "select = [2]\n", "select in [tool.fsdp-migrate] must be a list of strings"),
        ("[tool]\nfsdp-migrate = 3\n", "must be a table"),
        (
            "[tool.fsdp_migrate]\n",
            "[tool.fsdp_migrate] is not read: the table is [tool.fsdp-migrate]",
        ),
        (f"{TABLE}[tool.FSDP-Migrate]\n", "[tool.FSDP-Migrate] is not read"),
        ("not toml", "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(folder: Path, text: str, words: str) -> None:
    with pytest.raises(Unusable) as caught:
        load(folder, text)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(folder / "pyproject.toml"))
    assert "\n" not in message


def test_nearest_table_up_to_the_root_of_the_repository(folder: Path) -> None:
    repository = folder / "repo"
    (repository / "a/b").mkdir(parents=True)
    (repository / "a/x.py").touch()
    (repository / "pyproject.toml").write_text(TABLE + 'exclude = ["outer"]\n')
    (repository / "a/pyproject.toml").write_text("[project]\n")
    assert load(folder, TABLE + 'exclude = ["beyond"]\n', "repo/a/x.py").exclude == ("outer",)
    assert load_settings([repository / "a/b", repository / "a/x.py"]).exclude == ("outer",)
    (repository / "pyproject.toml").unlink()
    assert load_settings([repository / "a/b"]).exclude == ("beyond",)
    (repository / ".git").mkdir()
    assert load_settings([repository / "a/b"]).exclude == ()


def test_split_codes() -> None:
    assert split_codes(["fsdp002, FSDP110", "", "FSDP002"]) == {"FSDP002", "FSDP110"}


def test_command_line(real_cli: Callable[..., Any], folder: Path) -> None:
    """Patterns hold from the folder of pyproject.toml, wherever the command runs."""
    (folder / "sub/gen").mkdir(parents=True)
    for name in ("sub/a.py", "sub/gen/b.py", "sub/c.py"):
        (folder / name).write_text("from torch.distributed.fsdp import FullyShardedDataParallel\n")
    (folder / "pyproject.toml").write_text(TABLE + 'exclude = ["/sub/gen/"]\n')
    result = real_cli("check", "sub", "--exclude", "c.py")
    assert result.text.startswith("sub/a.py:1:1 ")
    assert "in 1 file" in result.text
    (folder / "pyproject.toml").write_text(TABLE + "jobs = 2\n")
    result = real_cli("check", "sub")
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("Error: ")
    assert "unknown key" in result.err
