"""What makes the package fit to be copied into another repository."""

import ast
import re
import subprocess
import sys
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


# One interpreter that has imported torch, with all that the runtime needs of it: each import of that is in a process forked
# from it.
IMPORTS = """
import os, sys, torch, torch._dynamo, torch.distributed.fsdp, warnings
for version, silenced in {cases}:
    if not os.fork():
        torch.__version__ = version
        if silenced:
            warnings.filterwarnings("ignore", "fsdp-migrate")
        from fsdp_migrate import runtime
        from fsdp_migrate.runtime import FSDPModule
        sys.exit()
    assert os.wait()[1] == 0
    print("END", file=sys.stderr, flush=True)
"""


def test_a_release_of_torch_that_nobody_tried_is_warned_of_once() -> None:
    major, minor = TRIED[-1].split(".")
    next_one = f"{major}.{int(minor) + 1}.0.dev1+cpu"
    tried = [f"{TRIED[-1]}.3", "2.8.0+cu128"]
    cases = [(next_one, False), (next_one, True), *[(version, False) for version in tried]]
    command = [sys.executable, "-c", IMPORTS.format(cases=cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    told, *others = done.stderr.split("END\n")
    assert told.count("fsdp-migrate's runtime was tried") == 1
    assert f"{', '.join(TRIED)}, and not with {next_one}" in told
    assert len(others) == 1 + len(tried) + 1
    assert not any("fsdp-migrate" in other for other in others)


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
