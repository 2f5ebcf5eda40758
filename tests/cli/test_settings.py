"""`[tool.fsdp-migrate]` in the pyproject.toml of the project at hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from fsdp_migrate.cli import check, migrate
from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.settings import LISTS, ONCE, OPTIONS, load_settings, split_codes
from fsdp_migrate.verify.command import verify_command

Cli = Callable[..., Any]
FSDP1 = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
"""
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
        (
            TABLE + "excludes = []\ncores = 2\n",
            "unknown key in [tool.fsdp-migrate]: cores, excludes",
        ),
        (TABLE + "diff = true\n", "diff says what one run does: give it on the command line"),
        (TABLE + "verify = 2\n", "verify in [tool.fsdp-migrate] must be a table"),
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
    assert "\nsub/a.py:1:1 " in f"\n{result.text}"
    assert "in 1 file" in result.text
    (folder / "pyproject.toml").write_text(TABLE + "cores = 2\n")
    result = real_cli("check", "sub")
    assert result.code == 2
    assert result.err.splitlines()[-1].startswith("Error: ")
    assert "unknown key" in result.err


def options(command: click.Command) -> set[str]:
    """The options of a command without their dashes."""
    found = [each for each in command.params if isinstance(each, click.Option)]
    return {max(each.opts, key=len).removeprefix("--") for each in found}


def test_every_option_of_the_command_line_can_be_set() -> None:
    """But those that say what one run does."""
    assert {*LISTS, *OPTIONS, *ONCE} == options(migrate) | options(check)


def test_options_come_from_pyproject(real_cli: Cli, folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/a.py").write_text(FSDP1)
    table = TABLE + 'form = "bridge"\nformat = "json"\ntarget-torch = "2.9"\njobs = 2\n'
    (folder / "pyproject.toml").write_text(table + 'report = "out/report.md"\nquiet = true\n')
    (folder / "out").mkdir()
    result = real_cli("src", "--check")
    actions = [finding["action"] for finding in json.loads(result.out)["findings"]]
    assert actions == ["runtime", "runtime"]
    assert (folder / "out/report.md").read_text().startswith("#")
    assert "Replaced by `fully_shard`" in real_cli("src", "--check", "--form", "auto").text
    assert real_cli("src", "--check", "--format", "text").text.count("\n") == 1, "quiet"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("jobs = '2'", "jobs in [tool.fsdp-migrate] must be a whole number"),
        ("jobs = true", "jobs in [tool.fsdp-migrate] must be a whole number"),
        ("jobs = 0", "jobs in [tool.fsdp-migrate]: 0 is not in the range x>=1."),
        ("form = 'plain'", "form in [tool.fsdp-migrate]: 'plain' is not one of"),
        ("target-torch = 2.10", "target-torch in [tool.fsdp-migrate] must be a string"),
        ("target-torch = '2.1'", "target-torch in [tool.fsdp-migrate]: 2.1 is too old"),
        ("quiet = 'yes'", "quiet in [tool.fsdp-migrate] must be true or false"),
    ],
)
def test_a_value_that_does_not_suit_is_refused(
    real_cli: Cli, folder: Path, line: str, says: str
) -> None:
    (folder / "a.py").write_text(FSDP1)
    (folder / "pyproject.toml").write_text(f"{TABLE}{line}\n")
    result = real_cli("a.py", "--diff")
    assert result.code == 2
    assert result.out == b""
    assert result.err.startswith(f"Error: {folder / 'pyproject.toml'}: {says}"), result.err


def test_verify_has_a_table_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "train.py").write_text(FSDP1)
    (folder / "pyproject.toml").write_text(
        '[tool.fsdp-migrate]\nform = "torch"\n'
        "[tool.fsdp-migrate.verify]\nnproc = 4\n"
        'tolerance = 1e-3\ncanonical = false\nlink = ["data"]\n'
    )
    arguments = [str(folder / "train.py"), "--device", "cpu"]
    seen: dict[str, Any] = {}
    monkeypatch.setattr(verify_command, "callback", lambda **given: seen.update(given))
    with verify_command.make_context("verify", arguments) as context:
        verify_command.invoke(context)
    assert (seen["ranks"], seen["tolerance"], seen["canonical"]) == (4, 1e-3, False)
    assert seen["form"] == "torch", "as migrate has it"
    assert (seen["device"], seen["links"]) == ("cpu", (folder / "data",))


def test_a_wrong_key_of_verify_is_refused(real_cli: Cli, folder: Path) -> None:
    (folder / "train.py").write_text(FSDP1)
    (folder / "pyproject.toml").write_text("[tool.fsdp-migrate.verify]\nranks = 4\n")
    result = real_cli("verify", "train.py")
    assert result.code == 2
    assert "unknown key in [tool.fsdp-migrate.verify]: ranks" in result.err
