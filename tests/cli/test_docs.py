"""The documentation: its worked example works, and its pages are the ones that the site lists."""

import fnmatch
import re
import types
from pathlib import Path

import pytest
import yaml

from fsdp_migrate.codemods import registry
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse, analyse_source
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from ..codemods.pages import examples_on

ROOT = Path(__file__).parents[2]


def test_the_codemod_of_the_guide_does_what_its_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "codemod.md").read_text("utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert code is not None
    known = registry.codemods()
    codemod = types.ModuleType("fsdp_migrate.codemods.uses.root_check")
    exec(compile(code[1], "<root_check.py>", "exec"), codemod.__dict__)
    added = registry._registered.pop()
    assert added.find is codemod.find
    monkeypatch.setattr(registry, "codemods", lambda: [added, *known])
    page = re.search(r"````markdown\n(.*?)````", text, re.DOTALL)
    assert page is not None
    examples = examples_on(page[1])
    assert examples
    for example in examples:
        report = analyse_source(Source(Path("/nowhere/x.py"), "x.py", example.before.encode()))
        assert not report.errors
        assert report.changes[0].after.decode() == example.after
        assert codemod.RULE.code in {finding.code for finding in report.findings}


PROGRAM = """\
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


class Block(nn.Module):
    def forward(self, x):
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def main(args):
    model = Net()
    model = FSDP(
        model,
        auto_wrap_policy=partial(
            transformer_auto_wrap_policy, transformer_layer_cls={Block}
        ),
        sharding_strategy={
            "fsdp": ShardingStrategy.FULL_SHARD,
            "sdp": ShardingStrategy.SHARD_GRAD_OP,
        }[args.data_parallel],
        mixed_precision=MixedPrecision(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32
        ),
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
        limit_all_gathers=True,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in batches():
        model(batch).mean().backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_the_changes_in_the_readme_are_what_the_tool_makes() -> None:
    """One program in the three forms, a part of each."""
    diffs = re.findall(r"```diff\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    for form, diff in zip(("torch", "auto", "bridge"), diffs, strict=True):
        source = Source(Path("/nowhere/train.py"), "train.py", PROGRAM.encode())
        after = analyse_source(source, Options(form)).changes[0].after.decode()
        for part in diff.split(" ...\n"):
            lines = part.splitlines(keepends=True)
            for signs, text in ((" -", PROGRAM), (" +", after)):
                shown = "".join(line[1:] for line in lines if line[0] in signs)
                assert f"\n{shown}" in f"\n{text}", shown


def test_the_programs_of_the_guide_become_what_it_says(tmp_path: Path) -> None:
    text = (ROOT / "docs/guide.md").read_text("utf-8")
    section = text.partition("\n## Four programs\n")[2].partition("\n## ")[0]
    shown = re.findall(r"```diff\n(.*?)```", section, re.DOTALL)
    assert len(shown) == 4
    (tmp_path / "model.py").write_text("class Block: ...\n")
    for diff in shown:
        lines = diff.splitlines(keepends=True)
        before, after = ("".join(e[1:] for e in lines if e[0] in f" {sign}") for sign in "-+")
        (tmp_path / "train.py").write_text(before)
        (change,) = analyse(discover([tmp_path])).changes
        assert change.after.decode() == after


def test_the_site_has_every_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = {page for entry in site["nav"] for page in entry.values()}
    pages = {file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs").rglob("*.md")}
    assert listed <= pages
    unlisted = site["not_in_nav"].split()
    assert pages - listed == {page for each in unlisted for page in fnmatch.filter(pages, each)}
