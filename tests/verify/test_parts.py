"""The parts of `verify` that need no processes of their own, or one small one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdp_migrate.verify import launch, options
from fsdp_migrate.verify.command import verify_command
from fsdp_migrate.verify.folders import copy

SPAWNS = [
    "import torch.multiprocessing as mp\nmp.spawn(f, nprocs=2)\n",
    "import torch\ntorch.multiprocessing.spawn(f)\n",
    "from torch import multiprocessing\nmultiprocessing.spawn(f)\n",
    "from torch.multiprocessing import spawn as go, spawn\nspawn(f)\n",
    "import multiprocessing\nmultiprocessing.Process(target=f).start()\n",
]
SPAWNS_NOT = [
    "import torch.multiprocessing as mp\nmp.set_start_method('spawn')\n",
    "import torch\ntorch.distributed.init_process_group()\n",
    "def spawn(): ...\nspawn()\n",
    "this does not parse\n",
]


@pytest.mark.parametrize("text", SPAWNS + SPAWNS_NOT)
def test_auto_is_python_for_a_program_that_starts_ranks(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    expected = "python" if text in SPAWNS else "torchrun"
    assert launch.choose("auto", script) is expected
    assert launch.choose("torchrun", script) == "torchrun"


def test_a_program_runs_in_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "repo"
    (source / "pkg").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / "pkg" / "train.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("42")
    (source / "data").symlink_to("../data")
    (source / "loop").symlink_to("nowhere")
    program = copy("original", source, tmp_path / "a" / "b", entry=Path("pkg/train.py"))
    assert program.script == tmp_path / "a" / "b" / "repo" / "pkg" / "train.py"
    assert (program.root / "data" / "x").read_text() == "42"
    assert not (program.root / ".git").exists()
    assert program.folder == program.root
    monkeypatch.chdir(source / "pkg")
    assert program.folder == program.script.parent
    monkeypatch.chdir(source)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["pkg", str(tmp_path / "data")]))
    values = launch.environment(program, "cpu", tmp_path / "records")
    paths = values["PYTHONPATH"].split(os.pathsep)
    # What is imported from the folder that was copied is redirected (`fsdp_migrate/verify/recorder/imports.py`).
    assert (Path(paths[0]) / "sitecustomize.py").is_file()
    assert paths[1:3] == [str(source / "pkg"), str(tmp_path / "data")]
    assert json.loads(values["FSDP_MIGRATE_SETTINGS"])["copies"] == [
        [str(source), str(program.root)]
    ]
    assert values["CUDA_VISIBLE_DEVICES"] == ""


def test_what_torchrun_left_in_the_environment_is_not_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("")
    monkeypatch.setenv("RANK", "3")
    program = copy("original", tmp_path / "train.py", tmp_path.with_suffix(".copy"))
    assert "RANK" not in launch.environment(program, "cpu", tmp_path / "records")


@pytest.mark.parametrize(("given", "used"), [(None, "AUTO,STRICT"), ("", ""), ("AVX2", "AVX2")])
def test_matrices_are_multiplied_reproducibly_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    monkeypatch.delenv("MKL_CBWR")
    if given is not None:
        monkeypatch.setenv("MKL_CBWR", given)
    (tmp_path / "train.py").write_text("")
    program = copy("original", tmp_path / "train.py", tmp_path.with_suffix(".copy"))
    for device, values in (("cpu", [used, used]), ("cuda", [given, None])):
        environment = launch.environment(program, device, tmp_path / "records")
        told = launch.describe(options.Options(device=device), program)
        assert [environment.get("MKL_CBWR"), told.get("MKL_CBWR")] == values


def start(code: str, tmp_path: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a few lines in an interpreter with the recorder."""
    (tmp_path / "train.py").write_text("")
    program = copy("original", tmp_path / "train.py", tmp_path / "copy")
    (tmp_path / "records").mkdir()
    values = launch.environment(program, "cpu", tmp_path / "records")
    values["PYTHONPATH"] += f"{os.pathsep}{path}"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=values, capture_output=True, text=True, check=False)


def test_an_interpreter_without_torch_stays_without(tmp_path: Path) -> None:
    code = "import sys, json\nprint(any(name.startswith('torch') for name in sys.modules))"
    assert start(code, tmp_path).stdout == "False\n"
    assert not list((tmp_path / "records").iterdir())


def test_the_users_sitecustomize_runs_too(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.users_own = True\n")
    code = "import sys, sitecustomize\nprint(sys.users_own, sitecustomize.__file__)"
    assert start(code, tmp_path, str(own)).stdout.split() == ["True", str(own / "sitecustomize.py")]


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("import sys; sys.exit('a message')", 1),
        ("import sys; sys.exit()", 0),
        ("raise SystemExit(0)", 0),
        ("1 / 0", 1),
        ("try: raise SystemExit(5)\nexcept SystemExit as end: assert end.code == 5", 0),
        ("import os; os._exit(4)", 4),
    ],
)
def test_the_exit_status_is_the_programs_own(code: str, status: int, tmp_path: Path) -> None:
    assert start(code, tmp_path).returncode == status


def invoke(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(verify_command, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_wrong_usage_exits_with_2(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    for arguments in (
        [tmp_path / "nowhere.py"],
        [script, "--tolerance", "-1"],
        [script, "--nproc", "0"],
        [script, "--migrated", tmp_path / "nowhere.py"],
    ):
        status, output = invoke(*arguments)
        assert status == 2, output
    status, output = invoke(script, "--device", "cuda", "--nproc", "1000")
    assert status == 2
    assert "1000 ranks need 1000 CUDA devices" in output


def test_without_torch_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: None)
    status, output = invoke(script)
    assert status == 2
    assert "pip install 'fsdp-migrate[runtime]'" in output
    assert len(output.strip().splitlines()) == 1
