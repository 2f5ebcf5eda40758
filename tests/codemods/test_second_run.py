"""A program in the default form becomes torch's by a second run: the same as by one, or a finding says why not."""

import ast
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.findings import Action
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options

from ..bundled import FIXTURES
from .test_examples import analyse as analyse_text

CASES = Path(__file__).parents[1] / "cases" / "programs"
PROGRAMS = {
    **{folder.parent.name: folder for folder in sorted(FIXTURES.glob("*/original"))},
    **{folder.name: folder for folder in sorted(CASES.iterdir())},
}

# What a second run leaves, and words of the finding at the line that says why.
LEFT = {
    "indirect": "the call unpacks arguments (`**kwargs`)",
    "wraps-itself": "the call unpacks arguments (`**kwargs`)",
}


def run(folder: Path, form: str) -> Report:
    """One run over a folder, which writes."""
    report = analyse(discover([folder], root=folder), Options(form=form))
    assert not report.errors
    for change in report.changes:
        change.path.write_bytes(change.after)
    return report


class _WithoutImports(ast.NodeTransformer):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        self.names |= {alias.name for alias in node.names}

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names |= {alias.name for alias in node.names}


def meaning(file: Path) -> tuple[str, set[str]]:
    """A program without its layout and the order of its imports."""
    imports = _WithoutImports()
    tree = imports.visit(ast.parse(file.read_text("utf-8")))
    return ast.unparse(tree), imports.names


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_run_ends_where_one_does(name: str, tmp_path: Path) -> None:
    once, twice = tmp_path / "once", tmp_path / "twice"
    for folder in (once, twice):
        shutil.copytree(PROGRAMS[name], folder)
    directly = run(once, "torch")
    run(twice, "auto")
    report = run(twice, "torch")
    files = sorted(file.relative_to(once) for file in once.rglob("*.py"))
    other = [file for file in files if meaning(once / file) != meaning(twice / file)]
    if name in LEFT:
        assert other, "it is the same now: LEFT need not name it"
        assert any(LEFT[name] in finding.message for finding in report.manual)
        return
    assert other == []
    assert not any("fsdp_migrate" in (twice / file).read_text("utf-8") for file in files)
    for action in (Action.MANUAL, Action.REWRITE):
        said, expected = messages(report, action), messages(directly, action)
        assert expected <= said, "nothing that one run says is silent after two"


def messages(report: Report, action: Action) -> Counter[str]:
    """What findings by hand say, and assumptions without their places: the lines of two runs are not the same."""
    return Counter(
        re.sub(r" Check (?:for example )?`.*?`\.(?= |$)", "", finding.message)
        for finding in report.findings
        if finding.action is action and (action is Action.MANUAL or finding.code == "FSDP003")
    )


# The second constructor keeps FSDP1's interface: it has an argument that FSDP1 does not have.
IGNORED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

model = FSDP(model, ignored_modules=[model.head])
other = FSDP(other, mesh=mesh)
scaler = ShardedGradScaler()
"""


def test_what_a_first_run_has_rewritten_still_ignores_parameters() -> None:
    """Torch's scaler raises where one optimizer has sharded parameters and others."""
    _, once = analyse_text(IGNORED)
    assert "fully_shard(model, ignored_params=" in once
    assert "scaler = ShardedGradScaler()" in once
    assert analyse_text(once)[1] == once
