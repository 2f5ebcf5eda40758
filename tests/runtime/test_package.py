"""What makes the package fit to be copied into another repository."""

from __future__ import annotations

import ast
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
