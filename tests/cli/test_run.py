"""`migrate` and `check`: what is printed where, what is written, and the exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsdp_migrate.cli import main

FSDP1 = b"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(model)  # keep
"""
FSDP2 = b"""\
from fsdp_migrate.runtime import like_fsdp1
from torch.distributed.fsdp import fully_shard
# Keeps FSDP1's behaviour; fsdp-migrate verify says when it can go
with like_fsdp1(model):
    fully_shard(model)  # keep
"""
CLEAN = b"print('no sharding here')\n"
MANUAL = b"model.register_comm_hook(state, hook)\n"
IMPORTED = "1:1 FSDP001 `torch.distributed.fsdp: FullyShardedDataParallel`: Removed: nothing uses it any more."
SHARDED = "2:9 FSDP002 `FSDP(...)`: Replaced by `fully_shard`, which shards the model in place: it is still the same object."
HOOKED = (
    "3:1 FSDP361 `model.register_comm_hook`: This call raises under FSDP2, which has no communication hooks. To compress "
    "gradients, set `reduce_dtype` of the mixed precision policy."
)

Cli = Callable[..., Any]


def put(folder: Path, **files: bytes) -> None:
    for name, content in files.items():
        (folder / f"{name}.py").write_bytes(content)


def test_in_place(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1, b=CLEAN, c=FSDP1 + MANUAL)
    result = real_cli(".")
    assert (result.code, result.err) == (0, "")
    assert (folder / "a.py").read_bytes() == FSDP2
    assert (folder / "b.py").read_bytes() == CLEAN
    assert result.text.splitlines() == [
        "rewrote a.py: 2 rewritten",
        "rewrote c.py: 2 rewritten, 1 needs you",
        "raises (1): stops with an error",
        f"c.py:{HOOKED}",
        "5 uses of FSDP1 in 2 files: 4 rewritten for FSDP2, 1 needs you (1 raises).",
        "Next: read about 1 finding: `fsdp-migrate explain FSDP361`",
        "Next: sign off a finding with a comment on its line: `# fsdp-migrate: ignore[FSDP361]`",
        "Next: compare how both train: `fsdp-migrate verify ORIGINAL --migrated SCRIPT`",
    ]


def test_migrate_is_the_default_command(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1)
    shown = real_cli("migrate", "a.py", "--diff")
    assert real_cli("a.py", "--diff") == shown == real_cli("--diff", "a.py")
    assert real_cli("--exclude", "a.py", ".").text == "No FSDP1 of torch in 0 files.\n"
    (folder / "check").mkdir()
    put(folder / "check", a=FSDP1)
    assert real_cli("./check").code == 0
    assert (folder / "check/a.py").read_bytes() == FSDP2


def test_check_lists_what_each_form_would_say(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1)
    printed = {
        form: real_cli("check", ".", "-v", "--form", form) for form in ("auto", "bridge", "torch")
    }
    assert {result.code for result in printed.values()} == {1}
    assert printed["auto"].text == real_cli("check", ".", "-v").text
    assert "Now imported from `fsdp_migrate.runtime`." in printed["bridge"].text
    assert "FSDP003" in printed["torch"].text
    assert "FSDP003" not in printed["auto"].text
    assert (folder / "a.py").read_bytes() == FSDP1


def test_a_folder_without_files_is_named(real_cli: Cli, folder: Path) -> None:
    (folder / "empty").mkdir()
    (folder / "empty/README.txt").write_text("FSDP\n")
    result = real_cli("check", "empty")
    assert result.code == 0
    assert result.err == "note: empty: no Python, notebook or configuration files found\n"
    assert real_cli("check", "empty", "-q").err == ""
    passed = json.loads(real_cli("check", "empty", "--format", "json").text)["passed"]
    assert passed[0]["path"] == "empty"
    (folder / "empty/other.yaml").write_text("a: 1\n")
    assert real_cli("check", "empty").err == "", "a configuration, though not of FSDP"
    result = real_cli("check", "empty", "--exclude", "*.yaml")
    assert result.err == "note: empty: `exclude` leaves out every file\n"


def test_a_slip_in_the_command_writes_nothing(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1)
    result = real_cli("chekc", ".")
    assert result.code == 2
    assert "'check' is one" in result.err
    assert (folder / "a.py").read_bytes() == FSDP1


@pytest.mark.parametrize("command", [("check",), ("migrate", "--check"), ("--check",)])
def test_check_writes_nothing(real_cli: Cli, folder: Path, command: tuple[str, ...]) -> None:
    put(folder, a=FSDP1, b=FSDP1)
    result = real_cli(*command, ".")
    assert (result.code, result.err) == (1, "")
    assert (folder / "a.py").read_bytes() == FSDP1
    assert result.text.splitlines() == [
        "rewritten (2): fsdp-migrate replaces it by code for FSDP2",
        f"a.py:{SHARDED}",
        "    also b.py:2",
        "",
        "-v also lists 2 imports and references.",
        "4 uses of FSDP1 in 2 files: 4 to be rewritten for FSDP2, none needs you.",
        "Next: try it on a copy: `fsdp-migrate verify SCRIPT`",
        "Next: rewrite the files: `fsdp-migrate .`",
    ]
    assert real_cli(*command, "b.py", "--exclude", "x").code == 1


def test_diff_leaves_words_to_stderr(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1 + MANUAL)
    result = real_cli(".", "--diff")
    assert result.code == 0
    assert all(line[:1] in b"d-+@ " for line in result.out.splitlines())
    assert f"a.py:{HOOKED}" in result.err
    assert "3 uses of FSDP1" in result.err
    assert real_cli(".", "--diff", "--check").code == 1
    assert (folder / "a.py").read_bytes() == FSDP1 + MANUAL


BAD = {
    "syntax": (b"FSDP(\nif:\n", ":"),
    "not_utf8": (b"FSDP = '\xff'\n", ":1: cannot be decoded"),
    "nul": (b"FSDP = '\0'\n", ":1: holds a NUL byte"),
    "cookie": (b"# coding: nonsense, FSDP\n", ":1: cannot be decoded: unknown encoding"),
    "deep": (b"FSDP = " + b"-" * 100_000 + b"1\n", "does not parse"),
    "python2": (b"print 'FSDP'\n", ":1: does not parse"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_is_named_and_others_are_done(real_cli: Cli, folder: Path, kind: str) -> None:
    content, words = BAD[kind]
    put(folder, a=FSDP1, bad=content, z=FSDP1)
    result = real_cli("a.py", "bad.py", "z.py")
    assert result.code == 2
    (error,) = result.err.splitlines()
    assert error.startswith("error: bad.py:")
    assert words in error
    assert (folder / "bad.py").read_bytes() == content
    assert (folder / "a.py").read_bytes() == (folder / "z.py").read_bytes() == FSDP2
    assert real_cli("check", "bad.py").err == (result.err if content else "")


def test_files_without_fsdp_are_not_read_closely(real_cli: Cli, folder: Path) -> None:
    """A hook names every file of a repository."""
    put(folder, empty=b"", broken=b"def f(:\n", clean=CLEAN)
    result = real_cli("check", "empty.py", "broken.py", "clean.py")
    assert (result.code, result.err) == (0, "")
    assert real_cli(".").code == 0
    assert real_cli("check", "missing.py").code == 2


def test_dirty_files_are_refused_and_nothing_is_written(
    real_cli: Cli, folder: Path, repository: Any
) -> None:
    put(folder, a=FSDP1, b=FSDP1)
    repository.commit()
    put(folder, b=FSDP1 + CLEAN)
    result = real_cli(".")
    assert result.code == 2
    assert result.err.splitlines() == [
        "error: b.py: has uncommitted changes: commit them first, or use --allow-dirty",
        "Nothing was written: the files of a program are migrated together.",
    ]
    assert "rewrote" not in result.text
    assert (folder / "a.py").read_bytes() == FSDP1
    assert real_cli(".", "--diff").code == 0, "a diff writes nothing"
    assert real_cli(".", "--allow-dirty").code == 0
    assert (folder / "b.py").read_bytes() == FSDP2 + CLEAN


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "PATH"),
        (("check",), "PATH"),
        (("a.py", "--diff", "--format", "json"), "--report"),
        (("a.py", "--format", "xml"), "xml"),
        (("a.py", "--nonsense"), "--nonsense"),
        (("a.py", "--form", "fsdp2"), "fsdp2"),
        (("a.py", "--target-torch", "2.x"), "2.x is not a release"),
        (("a.py", "--target-torch", "2"), "2 is not a release"),
        (("check", "a.py", "--target-torch", "2.6"), "2.6 is too old: programs need torch 2.8"),
        (("a.py", "--jobs", "0"), "--jobs"),
        (("a.py", "--bridge"), "--bridge"),
        (("check", "a.py", "--form", "fsdp2"), "fsdp2"),
        (("check", "a.py", "--diff"), "--diff"),
        (("a.py", "--report", "no/such/folder/x.json"), "cannot be written"),
    ],
)
def test_wrong_usage(real_cli: Cli, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    put(folder, a=FSDP1)
    result = real_cli(*arguments)
    assert result.code == 2
    if arguments:
        assert words in result.err


def test_a_second_run_does_not_propose_to_rewrite(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1 + b"model = FSDP(model)\nmodel.clip_grad_norm_(1.0)\n")
    assert "Next: rewrite the files" in real_cli(".", "--diff").err
    assert real_cli(".", "--allow-dirty").code == 0
    again = real_cli(".", "--allow-dirty")
    assert "clip_grad_norm_" in (folder / "a.py").read_text()
    assert "1 use of FSDP1" in again.text
    assert "Next: " not in again.text


def test_codes_with_a_slip_are_refused(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1)
    assert real_cli("check", ".", "--select", "fsdp002").code == 1
    result = real_cli("check", ".", "--ignore", "FSDP002,FSDP0O2")
    assert result.code == 2
    assert "--ignore: no rule has the code FSDP0O2; close ones: FSDP" in result.err
    (folder / "pyproject.toml").write_text('[tool.fsdp-migrate]\nselect = ["FSDP0O2"]\n')
    assert "pyproject.toml: no rule has the code FSDP0O2" in real_cli("check", ".").err


def test_the_start_of_a_code_is_for_all_that_have_it(real_cli: Cli, folder: Path) -> None:
    put(folder, a=FSDP1 + b"FSDP(m, use_orig_params=True)\n")
    for chosen in (("--select", "fsdp2"), ("--ignore", "FSDP0")):
        listed = real_cli("check", ".", "-q", *chosen).text
        assert "FSDP206" in listed
        assert "FSDP002" not in listed
    (folder / "pyproject.toml").write_text('[tool.fsdp-migrate]\nselect = ["FSDP2"]\n')
    assert (
        real_cli("check", ".", "-q").text == real_cli("check", ".", "-q", "--select", "FSDP2").text
    )


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(RuntimeError("broken rule"), 2, "internal error"), (KeyboardInterrupt(), 130, "interrupted")],
)
def test_what_ends_the_tool_is_no_finding(
    real_cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, error: Any, code: int, words: str
) -> None:
    put(folder, a=FSDP1)
    monkeypatch.setattr("fsdp_migrate.engine.analyse", mock.Mock(side_effect=error))
    result = real_cli(".")
    assert result.code == code
    assert words in result.err
    assert str(error) in result.err


def test_json(real_cli: Cli, folder: Path) -> None:
    put(folder, b=FSDP1, a=FSDP1, bad=b"FSDP(\n")
    result = real_cli("check", "b.py", "a.py", "bad.py", "missing.py", "--format", "json")
    assert result.code == 2
    document = json.loads(result.text)
    assert list(document) == ["version", "tool", "form", "findings", "errors", "passed", "summary"]
    assert (document["version"], document["form"]) == (1, "auto")
    assert document["tool"].startswith("fsdp-migrate ")
    places = [(finding["path"], finding["line"]) for finding in document["findings"]]
    assert places == [("a.py", 1), ("a.py", 2), ("b.py", 1), ("b.py", 2)]
    assert document["findings"][0] == {
        "code": "FSDP001",
        "name": "fsdp1-import",
        "path": "a.py",
        "line": 1,
        "column": 1,
        "end_line": 1,
        "end_column": 68,
        "action": "rewrite",
        "safe": True,
        "message": "Replaced by an import of `fully_shard`: nothing uses the old names any more.",
        "construct": "torch.distributed.fsdp: FullyShardedDataParallel",
        "severity": None,
        "still_fsdp1": False,
        "assumption": False,
    }
    assert [sorted(error) for error in document["errors"]] == [["line", "message", "path"]] * 2
    assert [error["path"] for error in document["errors"]] == ["bad.py", "missing.py"]
    assert document["summary"].pop("seconds") > 0
    counts = {"files": 3, "candidates": 3, "findings": 4, "baseline": 0}
    assert document["summary"] == {**counts, "rewrite": 4, "runtime": 0, "manual": 0}


def test_a_name_that_no_terminal_can_print(real_cli: Cli, folder: Path) -> None:
    name = os.fsdecode(b"caf\xe9\n\x1b[31m.py")
    (folder / name).write_bytes(FSDP1)
    result = real_cli("check", ".")
    assert result.code == 1
    assert "\ncaf\\udce9\\n\\x1b[31m.py:2:9 " in result.text
    json.loads(real_cli("check", ".", "--format", "json").text)
    assert real_cli(".", "--diff").out.startswith(b'diff --git "a/caf\\351\\n\\033[31m.py" ')


def test_colour_follows_the_environment(
    real_cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(folder, a=FSDP1)
    assert b"\x1b" not in real_cli("check", ".").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert b"\x1b[" in real_cli("check", ".").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert b"\x1b" not in real_cli("check", ".").out


def fresh(*code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, check=False)


def test_a_reader_that_leaves_early_is_no_error(folder: Path) -> None:
    program = "from fsdp_migrate.cli import main; import sys; sys.argv[1:] = ['rules']; main()"
    done = subprocess.Popen([sys.executable, "-c", program], stdout=-1, stderr=-1)
    assert done.stdout is not None
    done.stdout.close()
    _, errors = done.communicate()
    assert (done.returncode, errors) == (141, b"")


def test_version_and_start_cost(folder: Path) -> None:
    """Help, version and `check` import none of the libraries that take time."""
    put(folder, a=b"from torch.distributed.fsdp import (\n  FullyShardedDataParallel as F)\nF(m)\n")
    done = fresh("-m", "fsdp_migrate", "--version")
    assert (done.returncode, done.stdout) == (0, "fsdp-migrate 0.1.0\n")
    program = (
        "import sys; from fsdp_migrate.cli import exit_code as run; run(['--version']);"
        "print(run(['check', '.']), [m for m in ('torch', 'libcst', 'black') if m in sys.modules])"
    )
    assert fresh("-c", program).stdout.splitlines()[-1] == "1 []"


def test_a_shell_can_complete_a_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("_FSDP_MIGRATE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "fsdp-migrate check --form")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit, match="0"):
        main()
    assert capsys.readouterr().out == "plain,--format\nplain,--form\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("explain FSDP00", "plain,FSDP005\n"),
        ("check --select FSDP002,fsdp50", "plain,FSDP002,FSDP507\n"),
        ("--dif", "plain,--diff\n"),
        ("src", "file,src\n"),
        ("ch", "plain,check\nplain,checkpoint\n"),
    ],
)
def test_a_shell_completes_codes_and_what_needs_no_command(
    words: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("_FSDP_MIGRATE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"fsdp-migrate {words}")
    monkeypatch.setenv("COMP_CWORD", str(1 + words.count(" ")))
    with pytest.raises(SystemExit, match="0"):
        main()
    proposed = capsys.readouterr().out
    assert expected in proposed
    assert ("file," in proposed) == expected.startswith("file,")
