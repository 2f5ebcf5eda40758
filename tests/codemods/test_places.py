"""Findings do not depend on where a program is: on the names of the folders above, links, or how its path is written."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.settings import Options

TESTS = Path(__file__).parents[1]
# Programs of this repository, most of them of several files.
PROGRAMS = (TESTS.parent / "fixtures", TESTS / "cases/programs", TESTS / "recall/shapes")
PLACES = ("a.b/c d", "src/host.com/x", "tests/run", "build/torch/distributed", ".cache/[x]%#")
RELATIVE = {
    "pkg/__init__.py": "from .build import build\n",
    "pkg/build.py": """\
from . import net
from .deep.wrap import shard


def build():
    return shard(net.Net())
""",
    "pkg/net.py": "import torch.nn as nn\n\n\nclass Net(nn.Module):\n    pass\n",
    "pkg/deep/__init__.py": "",
    "pkg/deep/wrap.py": """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from ..options import KINDS as kinds


def shard(model):
    return FSDP(model, **kinds)
""",
    "pkg/options.py": "KINDS = {'use_orig_params': False}\n",
    "pkg/deep/save.py": """\
import torch

from .. import build


def save(path):
    model = build()
    torch.save(model.state_dict(), path)
    inside = [n for n, _ in model.named_parameters() if "_fsdp_wrapped_module.head" in n]
    return [p.numel() for p in model.parameters()], inside
""",
    "pkg/tests/test_save.py": """\
from pkg.deep.save import save


def test_save(tmp_path):
    assert sum(save(tmp_path / "x")) > 0
""",
    "train.py": "from pkg.deep.save import save\n\nsave('here')\n",
}


def write(files: dict[str, str], root: Path) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def findings(path: Path, root: Path, form: str = "torch") -> list[tuple[object, ...]]:
    """All findings of a path, without the name of their program's folder."""
    report = analyse(discover([path]), Options(form=form))
    assert not report.errors
    real = os.path.realpath(root)
    return [
        (
            os.path.relpath(os.path.realpath(f.path), real),
            *(f.line, f.column, f.code, f.action, f.construct),
            re.sub(r"(?:\w+/)+(\w+\.py)", r"\1", f.message.replace(f"{root.as_posix()}/", "")),
        )
        for f in report.findings
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    root = write(RELATIVE, tmp_path_factory.mktemp("expected"))
    found = findings(root, root)
    told = {(f[0], f[3]) for f in found}
    assert {("pkg/deep/save.py", "FSDP507"), ("pkg/deep/save.py", "FSDP331")} <= told
    return found


@pytest.mark.parametrize("place", PLACES)
def test_below_any_folder(place: str, expected: list[object], tmp_path: Path) -> None:
    root = write(RELATIVE, tmp_path / place)
    (root / "pyproject.toml").touch()  # what is above a project says nothing of it
    assert findings(root, root) == expected


def test_through_a_link(expected: list[object], tmp_path: Path) -> None:
    root = write(RELATIVE, tmp_path / "a.b")
    link = tmp_path / "link"
    link.symlink_to(root)
    assert findings(link, link) == expected


def test_a_path_from_the_current_folder(
    expected: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(RELATIVE, tmp_path / "a.b")
    monkeypatch.chdir(root / "pkg")
    assert findings(Path("../../a.b"), root) == expected


@pytest.mark.parametrize("through", ["a.b/p q", "link"])
def test_a_file_of_a_repository(through: str, tmp_path: Path) -> None:
    """Git knows the repository without the link that the file is named through; the others are found all the same."""
    root = write(RELATIVE, tmp_path / "a.b/p q")
    subprocess.run(["git", "init", "-q", root], check=True)
    (tmp_path / "link").symlink_to(root)
    wrap = "pkg/deep/wrap.py"
    wanted = [each for each in findings(root, root, "auto") if each[0] == wrap]
    assert any("save.py:9 looks for the name" in str(each[-1]) for each in wanted)
    place = tmp_path / through
    assert findings(place / wrap, place, "auto") == wanted


def test_all_programs_below_a_folder_with_a_dot_and_a_space(tmp_path: Path) -> None:
    roots = [tmp_path / "plain", tmp_path / "a.b/c d"]
    for root in roots:
        for number, folder in enumerate(PROGRAMS):
            shutil.copytree(folder, root / f"{number}")
        write(RELATIVE, root / "relative")
    plain, below = (findings(root, root, "auto") for root in roots)
    assert len(plain) > 400
    assert below == plain
