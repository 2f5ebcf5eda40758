"""A verdict is a proof only if the rewritten files ran: not so where an installation leads back to the original."""

import json
import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.verify import Unverifiable, judge
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.records import Rank, Run


def program(modules: str, net: str, printed: str) -> str:
    """A program that shards what `net` makes by the module `engine.shard`, and prints which files it has imported."""
    return f"""\
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
import {modules}

if os.environ.get("FORGETS"):  # the redirection of imports
    sys.meta_path = [finder for finder in sys.meta_path if type(finder).__name__ != "Finder"]
    for name in ("engine.shard", "engine"):
        del sys.modules[name]
    import engine.shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = engine.shard.shard({net})
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    loss = model(torch.randn(4, 3)).square().mean()
    loss.backward()
    optimizer.step()
print({printed}, flush=True)
"""


TRAIN = program(
    "engine.shard, parts.blocks.net as net, tools",
    "net.make()",
    "json.dumps([module.__file__ for module in (engine.shard, net, tools)])",
)
SHARD = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model):
    return FSDP(model)
"""
NET = "from torch import nn\n\ndef make():\n    return nn.Linear(3, 1)\n"

# What setuptools installs for `pip install -e` where a path file is not enough.
FINDER = """\
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

class Finder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname == "parts":
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [{repo!r} + "/src/parts"]
            return spec
        if fullname == "engine":
            place = {repo!r} + "/src/engine"
            return spec_from_file_location(fullname, place + "/__init__.py", submodule_search_locations=[place])

class Asking:
    # As an import hook of the program may do.

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        for finder in sys.meta_path:
            if finder is not cls and fullname == "tools":
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return spec

sys.meta_path.append(Finder)
sys.meta_path.insert(0, Asking)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository that is installed editable: a package, a namespace package, and a path file."""
    repo, site = tmp_path / "repo", tmp_path / "site"
    files = {
        repo / "train.py": TRAIN,
        repo / "src/engine/__init__.py": "",
        repo / "src/engine/shard.py": SHARD,
        repo / "src/parts/blocks/net.py": NET,
        repo / "lib/tools.py": "",
        site / "__editable___engine_finder.py": FINDER.replace("{repo!r}", repr(str(repo))),
        site / "__editable__.engine.pth": f"import __editable___engine_finder\n{repo}/lib\n",
        site / "sitecustomize.py": f"import site\nsite.addsitedir({str(site)!r})\n",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "-q", repo], check=True)
    subprocess.run(["git", "-C", repo, "add", "-A"], check=True)
    monkeypatch.setenv("PYTHONPATH", str(site))
    return repo


@pytest.mark.ranks
@pytest.mark.usefixtures("forked")
def test_an_installed_repository_does_not_run_instead_of_its_copy(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[str]:
        verdict = verify(installed, entry=Path("train.py"), launcher="torchrun", device="cpu")
        assert verdict.equal, verdict.line()
        assert {"src/engine/shard.py", "train.py"} <= set(verdict.migrated.ranks[0].files)
        found: list[str] = json.loads(verdict.migrated.ranks[0].output)
        return found

    assert all("/migrated/copy/repo/" in path for path in run())
    monkeypatch.setenv("FORGETS", "1")
    with pytest.raises(Unverifiable, match=r"torch's FSDP1 at .*/repo/src/engine/shard.py:5\."):
        run()


def runs(**how: object) -> Run:
    return Run([Rank(0, [1.0], [1], [1.0], [[0.1]], **how)], seconds=1.0)  # type: ignore[arg-type]


def test_what_proves_nothing_is_no_verdict() -> None:
    judge.check_original(runs(sharded=True))
    with pytest.raises(Unverifiable, match="trained without FSDP"):
        judge.check_original(runs(sharded=False))
    changed = ("a.py", "b.py")
    assert judge.check_migrated(runs(files=["a.py", "b.py"]), changed) == []
    note = "changed, but not run: b.py (1 of 2 files)"
    assert judge.check_migrated(runs(files=["a.py"]), changed) == [note]
    with pytest.raises(Unverifiable, match=r"did not run any changed file \(a.py, b.py\)"):
        judge.check_migrated(runs(files=["c.py"]), changed)
    with pytest.raises(Unverifiable, match="--entry"):
        judge.check_migrated(runs(files=["a.py"], fsdp1="site-packages/x.py:7"), changed)
