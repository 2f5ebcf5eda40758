"""What makes the package fit to be copied into another repository."""

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate import runtime
from fsdp_migrate.runtime.torch_private import TRIED

FILES = sorted(Path(runtime.__file__).parent.glob("*.py"))
FSDP2 = {"CPUOffloadPolicy", "FSDPModule", "MixedPrecisionPolicy", "OffloadPolicy", "fully_shard"}


def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path: Path) -> None:
    """torch and the standard library only, its own modules relatively, and of FSDP1 policies alone."""
    for node in imports(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            continue
        modules = (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
        for module in modules:
            assert module is not None
            top = module.partition(".")[0]
            assert top == "torch" or top in sys.stdlib_module_names
            if module == "torch.distributed.fsdp.wrap":  # of activation checkpointing, too
                continue
            if module.startswith("torch.distributed.fsdp"):
                assert module == "torch.distributed.fsdp"
                assert {alias.name for alias in node.names} <= FSDP2


def test_all_names_what_is_there() -> None:
    assert sorted(runtime.__all__) == sorted(set(runtime.__all__))
    assert all(hasattr(runtime, name) for name in runtime.__all__)


IMPORTS = """
import torch, warnings
torch.__version__ = {version!r}
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    warnings.filterwarnings("ignore", {silenced!r})
    from fsdp_migrate import runtime
    from fsdp_migrate.runtime import FSDPModule
of_ours = [str(each.message) for each in told if "fsdp-migrate" in str(each.message)]
assert len(of_ours) == {times}, of_ours
assert all({tells!r} in each for each in of_ours), of_ours
"""


@pytest.mark.parametrize("silenced", ["nothing", "fsdp-migrate"])
def test_a_release_of_torch_that_nobody_tried_is_warned_of_once(
    silenced: str, fresh: Callable[[str], None]
) -> None:
    major, minor = TRIED[-1].split(".")
    next_one = f"{major}.{int(minor) + 1}.0.dev1+cpu"
    tells = f"runtime was tested with torch {', '.join(TRIED)}, not with {next_one}"
    for version in (next_one, f"{TRIED[-1]}.3", "2.8.0+cu128"):
        times = int(version == next_one and silenced == "nothing")
        fresh(IMPORTS.format(version=version, silenced=silenced, times=times, tells=tells))


def test_the_releases_that_were_tried_are_those_that_are_run() -> None:
    root = Path(__file__).parents[2]
    runs = re.search(r"^TORCHES := (.*) newest$", (root / "Makefile").read_text(), re.MULTILINE)
    pinned = re.search(r"^torch==(.*)$", (root / "constraints.txt").read_text(), re.MULTILINE)
    assert runs
    assert pinned
    tried = {release_of(version) for version in (*runs[1].split(), pinned[1])}
    assert tried <= {*TRIED}
    assert f"{TRIED[0]} to {TRIED[-1]}" in (root / "README.md").read_text()


def release_of(version: str) -> str:
    return ".".join(version.split(".")[:2])
