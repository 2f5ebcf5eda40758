"""The whole tool on files as they are found: other encodings and line endings, and what is no program at all."""

import ast
import codecs
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = (
    "# naïve, but it trains\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
    "\n"
    "\n"
    "def wrap(model):\n"
    "    model = FSDP(\n"
    "        model,\n"
    "        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # é\n"
    "        limit_all_gathers=True,\n"
    "    )\n"
    "    return model\n"
)
KINDS = {
    "plain": PROGRAM.encode(),
    "crlf": PROGRAM.replace("\n", "\r\n").encode(),
    "bom": codecs.BOM_UTF8 + PROGRAM.encode(),
    "bom crlf": codecs.BOM_UTF8 + PROGRAM.replace("\n", "\r\n").encode(),
    "latin-1": ("# -*- coding: latin-1 -*-\n" + PROGRAM).encode("latin-1"),
    "latin-1 crlf": ("# coding: latin-1\n" + PROGRAM).replace("\n", "\r\n").encode("latin-1"),
    "no final newline": PROGRAM.encode().rstrip(b"\n"),
    "form feed": PROGRAM.replace("\n\n\ndef", "\n\x0c\ndef").encode(),
    "tabs": PROGRAM.replace("    ", "\t").encode(),
    "mixed endings": PROGRAM.replace("model,\n", "model,\r\n").encode(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_and_line_endings_are_kept_and_the_diff_applies(
    real_cli: Callable[..., Any], repository: Any, kind: str
) -> None:
    before = KINDS[kind]
    file = repository.root / "a b.py"
    file.write_bytes(before)
    repository.commit()
    diff = real_cli(".", "--diff")
    assert (diff.code, file.read_bytes()) == (0, before)
    repository.git("apply", stdin=diff.out)
    after = file.read_bytes()
    repository.git("checkout", "-q", ".")
    assert real_cli(".").code == 0
    assert file.read_bytes() == after != before
    ast.parse(after)
    assert after.startswith(codecs.BOM_UTF8) == before.startswith(codecs.BOM_UTF8)
    assert after.endswith(b"\n") == before.endswith(b"\n")
    if "crlf" in kind:
        assert after.count(b"\n") == after.count(b"\r\n")
    elif kind != "mixed endings":
        assert b"\r" not in after
    sign = "é".encode("latin-1" if "latin-1" in kind else "utf-8")
    assert b"# " + sign in after, "the comment moves, in the encoding of the file"
    assert real_cli("check", ".").text == "No FSDP1 of torch in 1 file.\n"
    assert real_cli(".", "--allow-dirty").code == 0
    assert file.read_bytes() == after


def test_check_is_silent_on_the_bridge(real_cli: Callable[..., Any], folder: Path) -> None:
    (folder / "train.py").write_bytes(
        PROGRAM.encode() + b"\nmodel = wrap(model)\nmodel.no_sync()\n"
    )
    (folder / "loop.py").write_bytes(
        b"# FSDP\nfrom train import model\n\nmodel.clip_grad_norm_(1.0)\n"
    )
    assert real_cli("check", ".").code == 1
    assert real_cli("check", ".", "--select", "FSDP002").code == 1
    assert real_cli(".", "--form", "bridge").code == 0
    checked = real_cli("check", ".")
    assert (checked.code, checked.text) == (0, "No FSDP1 of torch in 2 files.\n")
    listed = real_cli("check", ".", "--bridge", "-v")
    assert listed.code == 0
    assert "train.py:2:1 FSDP001" in listed.text


def test_check_for_torch_lists_what_the_form_torch_rewrites_again(
    real_cli: Callable[..., Any], folder: Path
) -> None:
    (folder / "train.py").write_bytes(PROGRAM.encode() + b"\nmodel = wrap(model)\n")
    assert real_cli(".").code == 0
    assert real_cli("check", ".").text == "No FSDP1 of torch in 1 file.\n"
    checked = real_cli("check", ".", "--form", "torch")
    assert checked.code == 1
    assert "FSDP008 `like_fsdp1`: Removed" in checked.text
    assert real_cli(".", "--form", "torch", "--allow-dirty").code == 0
    checked = real_cli("check", ".", "--form", "torch")
    assert (checked.code, checked.text) == (0, "No FSDP1 of torch in 1 file.\n")


def test_check_knows_an_import_by_name(real_cli: Callable[..., Any], folder: Path) -> None:
    file = folder / "a.py"
    file.write_text("import importlib\nfsdp = importlib.import_module('torch.distributed.fsdp')\n")
    assert real_cli("check", ".").code == 1
    assert real_cli(".").code == 0
    assert "'fsdp_migrate.runtime'" in file.read_text()
    assert real_cli("check", ".").code == 0

    raises = b"from torch.distributed.fsdp._flat_param import FlatParamHandle\n"
    (folder / "private.py").write_bytes(raises)
    checked = real_cli("check", ".")
    assert checked.code == 1
    quiet = real_cli("check", ".", "-q")
    assert {line.split(":")[0] for line in quiet.text.splitlines()} == {"private.py"}
    assert "`fsdp-migrate explain FSDP" in checked.text


def test_jobs_change_nothing(real_cli: Callable[..., Any], folder: Path) -> None:
    for number in range(40):
        shared = f"from file{number - 1} import wrap\n" if number % 2 else ""
        (folder / f"file{number}.py").write_bytes(PROGRAM.encode() + shared.encode())
    (folder / "bad.py").write_bytes(b"FSDP(\n")
    for command in (
        ("check", ".", "--format", "sarif"),
        (".", "--diff"),
        (".", "--form", "bridge", "--diff"),
    ):
        one, two = real_cli(*command), real_cli(*command, "--jobs", "3")
        assert (one.code, one.out, one.err) == (two.code, two.out, two.err)
        assert b"file39.py" in one.out


@pytest.mark.parametrize("code", ["FSDP002", "fsdp002"])
def test_catalogue(real_cli: Callable[..., Any], code: str) -> None:
    listed = real_cli("rules")
    assert (listed.code, listed.err) == (0, "")
    assert "FSDP002  " in listed.text
    explained = real_cli("explain", code)
    assert explained.code == 0
    assert explained.text.startswith("# FSDP002 ")
    assert "\n```diff\n" in explained.text
    assert real_cli("explain", "fsdp1-constructor") == explained
    unknown = real_cli("explain", "fsdp1-construct")
    assert unknown.code == 2
    assert "close ones: fsdp1-constructor" in unknown.err
    unknown = real_cli("explain", "FSDP00")
    assert unknown.code == 2
    assert unknown.err.startswith("Error: no rule has the code FSDP00; close ones: ")


def test_check_passes_what_is_silenced_as_the_readme_says(
    real_cli: Callable[..., Any], folder: Path
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    blocks = [part.partition("```")[0] for part in readme.split("```python\n")[1:]]
    block = next(each for each in blocks if "fsdp-migrate: ignore[" in each)
    (folder / "train.py").write_text(block)
    assert real_cli("check", "train.py").code == 0
    (folder / "train.py").write_text(block.replace("# fsdp-migrate: ", "# "))
    assert real_cli("check", "train.py").code == 1
