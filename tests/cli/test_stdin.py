"""A program from standard input, as editors give it."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
Piped = Callable[..., Any]

FSDP1 = b"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(model)  # \xc3\xa9\r
"""
FSDP2 = b"""\
from torch.distributed.fsdp import fully_shard
fully_shard(model)  # \xc3\xa9\r
"""


@pytest.fixture
def piped(real_cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Piped:
    """A command line whose first argument is standard input."""

    def run(content: bytes, *arguments: str) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
        return real_cli(*arguments)

    return run


def test_the_program_goes_to_standard_output_and_words_elsewhere(
    piped: Piped, folder: Path
) -> None:
    result = piped(FSDP1, "-", "--form", "torch")
    assert (result.code, result.out) == (0, FSDP2)
    assert result.err.startswith("2 uses of FSDP1 in 1 file")
    assert "Next:" not in result.err
    assert not list(folder.iterdir()), "no file is written"
    assert piped(FSDP1, "-", "--form", "torch", "-q").err == ""
    other = b"print(1)\r\n\xff"
    assert piped(other, "-", "-q").out == other, "what speaks of no FSDP is given back"


def test_findings_and_diffs_have_the_name_that_is_given(piped: Piped) -> None:
    result = piped(FSDP1, "check", "-", "--stdin-filename", "src/a.py")
    assert result.code == 1
    assert "\nsrc/a.py:2:9 FSDP002 " in result.text
    document = json.loads(piped(FSDP1, "check", "-", "--format", "json").out)
    assert {finding["path"] for finding in document["findings"]} == {"stdin.py"}
    patch = piped(FSDP1, "-", "--diff", "--stdin-filename", "src/a.py")
    assert b"+++ b/src/a.py" in patch.out


def test_imports_and_settings_are_those_of_the_place(piped: Piped, folder: Path) -> None:
    package = folder / "project"
    package.mkdir()
    (package / "pyproject.toml").write_text('[tool.fsdp-migrate]\nform = "bridge"\n')
    imported = "from torch.distributed.fsdp import ShardingStrategy\n"
    (package / "names.py").write_text(f"{imported}KIND = ShardingStrategy.NO_SHARD\n")
    (package / "train.py").write_text("what the disk has does not count\n")
    program = FSDP1.replace(b"FSDP(model)", b"FSDP(model, sharding_strategy=KIND)")
    program = b"from names import KIND\n" + program
    known = piped(program, "-", "--form", "torch", "--stdin-filename", "project/train.py")
    assert b'mesh_dim_names=("replicate", "shard")' in known.out, known.out
    bridge = piped(FSDP1, "-", "--stdin-filename", "project/new.py")
    assert b"from fsdp_migrate.runtime import" in bridge.out


def test_a_notebook_and_a_configuration_by_their_names(piped: Piped) -> None:
    settings = b"fsdp_config:\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_version: 1\n"
    result = piped(settings, "-", "--stdin-filename", "accelerate.yaml")
    assert b"fsdp_version: 2" in result.out, result.err
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": FSDP1.decode()}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    text = json.dumps(notebook, indent=1).encode()
    result = piped(text, "-", "--stdin-filename", "a.ipynb", "--form", "torch")
    assert "fully_shard(model)" in json.loads(result.out)["cells"][0]["source"]


def test_what_does_not_parse_gives_no_program(piped: Piped) -> None:
    result = piped(b"FSDP(\nif:\n", "-")
    assert (result.code, result.out) == (2, b"")
    assert result.err.startswith("error: stdin.py:")
    assert "Nothing was written" not in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["a.py"], "pass no other PATH"),
        (["--format", "json"], "share standard output"),
        (["--vendor", "rt"], "--vendor needs the file itself"),
    ],
)
def test_what_standard_input_does_not_go_with(
    piped: Piped, arguments: list[str], says: str
) -> None:
    result = piped(FSDP1, "-", *arguments)
    assert (result.code, result.out) == (2, b"")
    assert says in result.err
