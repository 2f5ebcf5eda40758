"""How wide new code is: by the settings of the target's formatter, else by the file; and expressions that keep their lines."""

import re
from pathlib import Path

import pytest

from fsdp_migrate.codemods.edit.kept import kept
from fsdp_migrate.codemods.edit.text import formatted
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.line_length import of_code, of_project
from fsdp_migrate.settings import Options

SETTINGS = {
    "a formatter": ({"pyproject.toml": "[tool.ruff]\nline-length = 100\n"}, 100),
    "yapf": ({"pyproject.toml": "[tool.yapf]\ncolumn_limit = 110\n"}, 110),
    "ruff's own file": ({".ruff.toml": "line-length = 99\n"}, 99),
    "a hook": ({".pre-commit-config.yaml": "args: [--line-length=119]\n"}, 119),
    "a hook, of two items": ({".pre-commit-config.yaml": '- --line-length\n- "119"\n'}, 119),
    "make": ({"Makefile": "format:\n\tblack -l 100 src\n"}, 100),
    "a linter": ({"setup.cfg": "[flake8]\nmax-line-length = 100\n"}, 100),
    "a linter's own file": ({".flake8": "[flake8]\nmax-line-length = 79\n"}, 79),
    "a formatter before a linter": (
        {"pyproject.toml": "[tool.black]\n", ".flake8": "[flake8]\nmax-line-length = 100\n"},
        88,
    ),
    "a hook's default before a linter": (
        {
            ".pre-commit-config.yaml": "hooks:\n- id: black\n",
            ".flake8": "[flake8]\nmax-line-length = 100\n",
        },
        88,
    ),
    "a hook's width before the default of a formatter": (
        {
            "pyproject.toml": "[tool.black]\n",
            ".pre-commit-config.yaml": "- id: black\n  args: [--line-length=120]\n",
        },
        120,
    ),
    "a linter that allows anything": ({".flake8": "[flake8]\nmax-line-length = 300\n"}, None),
    "isort alone": ({"setup.cfg": "[isort]\nline_length = 79\n"}, None),
    "another tool's limit": ({"Makefile": "pylint --max-line-length=120 src\n"}, None),
    "no settings": ({"setup.cfg": "[metadata]\nname = x\n"}, None),
    "settings that do not parse": (
        {"pyproject.toml": "[tool.black\n", "setup.cfg": "line\n", "Makefile": "x\n"},
        None,
    ),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_the_width_that_a_project_sets(case: str, tmp_path: Path) -> None:
    files, width = SETTINGS[case]
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert of_project(tmp_path / "src") == width


def test_the_nearest_folder_decides_up_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.black]\nline-length = 100\n")
    inner = tmp_path / "repository" / "part"
    inner.mkdir(parents=True)
    assert of_project(inner) == 100
    (inner / "pyproject.toml").write_text("[tool.black]\nline-length = 60\n")
    assert of_project(inner) == 60
    (inner / "pyproject.toml").unlink()
    (inner.parent / ".git").mkdir()
    assert of_project(inner) is None


def lines(*widths: int) -> str:
    return "".join(f"{'a' * (width - 4)} = 1\n" for width in widths)


SHORT = (40,) * 200
CODE = {
    "narrow": (lines(*SHORT), 88),
    "wide": (lines(*SHORT, 100, 101, 102, 103, 104), 101),
    "very wide": (lines(*SHORT, 200, 200, 200, 200, 200), 120),
    "two wide lines": (lines(40, 40, 110, 110), 88),
    "few lines": (lines(110), 88),
    "wide comments": (lines(*SHORT) + f"x = 1  # {'a' * 100}\n" * 20, 88),
    "wide text": (lines(*SHORT) + f'"""\n{"a b " * 30}\n"""\n' * 20, 88),
    "code that does not end": ("x = (\n" + "a" * 110 + ",\n", 88),
}


@pytest.mark.parametrize("case", CODE)
def test_the_width_that_a_file_shows(case: str) -> None:
    text, width = CODE[case]
    assert of_code(text) == width


PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import Net


def main(kind):
    model = FSDP(
        Net(),
        use_orig_params=True,
        mixed_precision=MixedPrecision(
            param_dtype={
                "fp32": torch.float, "tf32": torch.float,
                "bf16": torch.bfloat16, "fp16": torch.float16,
            }[kind],
            reduce_dtype={"fp32": torch.float, "tf32": torch.float,
                          "bf16": torch.bfloat16, "fp16": torch.float16}[kind],
        ),
        ignored_modules=[
            Net.head,
        ],
    )
"""
LINES = """\
            param_dtype={
                "fp32": torch.float, "tf32": torch.float,
                "bf16": torch.bfloat16, "fp16": torch.float16,
            }[kind],
            reduce_dtype={"fp32": torch.float, "tf32": torch.float,
                          "bf16": torch.bfloat16, "fp16": torch.float16}[kind],
"""


@pytest.mark.parametrize("step", ["    ", "  ", "\t"], ids=["four", "two", "tab"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_a_kept_argument_keeps_its_lines(step: str, end: str, tmp_path: Path) -> None:
    """The call is new around it; an argument that one line has room for is on one."""
    own = in_steps(LINES, step)
    assert own in in_steps(PROGRAM, step)
    text = in_steps(PROGRAM, step).replace("\n", end)
    (tmp_path / "train.py").write_bytes(text.encode())
    report = analyse(discover([tmp_path]), Options(form="torch"))
    after = report.changes[0].after.decode()
    assert own.replace("\n", end) in after
    assert f"{{p for m in [Net.head] for p in m.parameters()}}{end}" in after


def test_a_policy_that_is_on_one_line_now_is_written_once(tmp_path: Path) -> None:
    """No finding says that it is not, because of the comma behind its last argument."""
    policy = "MixedPrecision(\n            param_dtype=torch.bfloat16,\n        )"
    program = f"{PROGRAM[: PROGRAM.index('MixedPrecision(')]}{policy},\n    )\n"
    (tmp_path / "train.py").write_text(program)
    report = analyse(discover([tmp_path]), Options(form="torch"))
    assert "param_dtype=torch.bfloat16, reduce_dtype=" in report.changes[0].after.decode()
    assert not [each for each in report.findings if "Not done" in each.message]


def in_steps(code: str, step: str) -> str:
    """Code indented by another step; what is aligned with something above stays so."""
    return re.sub("(?m)^( {4})+(?=[^ ])", lambda found: step * (len(found[0]) // 4), code)


def test_lines_that_are_no_code_of_their_own_are_laid_out_anew() -> None:
    """What stands in brackets of another expression, text, and what the file does not have."""
    for source in ("a\n or b", 'f("""a\n""")', "f(\\\na)", "f(\n b)"):
        text = f"x = ({source})" if source != "f(\n b)" else "x = 1"
        code = f"y = ({source}, {'a' * 60})"
        assert kept(text, code, 40, lambda each: formatted(each, 40))[1] == []
    code = f"y = (f(\n b), {'a' * 60})"
    assert len(kept("x = f(\n b)", code, 4, lambda each: formatted(each, 4))[1]) == 1
