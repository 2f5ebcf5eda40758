"""What makes the package fit to be copied into another repository."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate import runtime

FILES = sorted(Path(runtime.__file__).parent.glob("*.py"))
FSDP2 = {
    "CPUOffloadPolicy",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "fully_shard",
}


def imports(path: Path) -> list[ast.Import | ast.ImportFrom]:
    tree = ast.parse(path.read_text())
    return [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path: Path) -> None:
    """torch and the standard library only, its own modules relatively, and nothing of FSDP1."""
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
            if module.startswith("torch.distributed.fsdp"):
                assert module == "torch.distributed.fsdp"
                assert {alias.name for alias in node.names} <= FSDP2


def test_all_names_what_is_there() -> None:
    assert sorted(runtime.__all__) == sorted(set(runtime.__all__))
    assert all(hasattr(runtime, name) for name in runtime.__all__)


PROGRAM = """
import torch
import torch.distributed.fsdp as fsdp
for name in ("FullyShardedDataParallel", "ShardingStrategy", "MixedPrecision", "CPUOffload",
             "BackwardPrefetch", "StateDictType", "api", "wrap", "fully_sharded_data_parallel"):
    delattr(fsdp, name)
import torch.distributed as dist
from elsewhere.sharding import FullyShardedDataParallel, ModuleWrapPolicy, clip_grad_norm_, no_sync
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}))
with no_sync(model):
    model(torch.ones(2, 4)).sum().backward()
model(torch.ones(2, 4)).sum().backward()
print("norm", clip_grad_norm_(model, 1.0).item() > 0)
dist.destroy_process_group()
"""


def test_a_copy_works_elsewhere_and_without_fsdp1(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere" / "sharding"
    folder.mkdir(parents=True)
    for path in FILES:
        shutil.copy(path, folder)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "norm True" in run.stdout.splitlines(), run.stderr
