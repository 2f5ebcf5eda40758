"""The runtime copied into a project: what is copied, later runs, and a program that trains with the copy alone."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.vendor import MARK, Package

from ..launch import TESTS, launch, results_in

Cli = Callable[..., Any]

TRAIN = """\
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

torch.manual_seed(0)
layers = [torch.nn.Linear(8, 8) for _ in range(3)]
model = FSDP(
    torch.nn.Sequential(*layers),
    sharding_strategy=ShardingStrategy[os.environ.get("STRATEGY", "FULL_SHARD")],
    auto_wrap_policy=size_based_auto_wrap_policy,
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for step in range(3):
    loss = model(torch.full((2, 8), float(dist.get_rank() + step))).square().mean()
    loss.backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
"""
HELPER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(torch.nn.Linear(8, 8), use_orig_params=True)
with model.no_sync():
    model(torch.ones(2, 8)).sum().backward()
"""


@pytest.fixture
def project(folder: Path) -> Path:
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text(HELPER)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*.*") if file.is_file() and ".git" not in file.parts)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_runtime_is_copied_and_imported_from_there(real_cli: Cli, project: Path) -> None:
    done = real_cli("helper.py", "--vendor", "lib/fsdp")
    assert (done.code, done.err) == (0, "")
    assert "copied fsdp_migrate.runtime to lib/fsdp" in done.text
    assert "where fsdp-migrate is not installed" not in done.text
    assert "from lib.fsdp import like_fsdp1" in (project / "helper.py").read_text()
    copy = project / "lib" / "fsdp"
    assert "Redistribution" in (copy / "LICENSE").read_text()
    assert {"__init__", "bridge", "in_place"} <= {file.stem for file in copy.glob("*.py")}
    assert all(file.read_text().startswith(MARK) for file in copy.glob("*.py"))

    # A later run without the option finds the copy.
    (project / "other.py").write_text("from lib.fsdp import like_fsdp1\n" + TRAIN)
    assert real_cli("other.py", "--form", "bridge").code == 0
    assert "from lib.fsdp import FullyShardedDataParallel" in (project / "other.py").read_text()


def test_what_needs_no_runtime_gets_no_copy(real_cli: Cli, folder: Path) -> None:
    (folder / "train.py").write_text(HELPER.partition("with ")[0])
    assert real_cli("train.py", "--form", "torch", "--vendor", "rt").code == 0
    assert "fully_shard" in (folder / "train.py").read_text()
    assert not (folder / "rt").exists()


def test_later_runs_know_the_copy_and_bring_it_up_to_date(real_cli: Cli, project: Path) -> None:
    assert real_cli(".", "--form", "bridge", "--vendor", "fsdp2").code == 0
    assert "from fsdp2.wrap import size_based" in (project / "train.py").read_text()
    before = contents(project)
    assert real_cli(".", "--form", "bridge").code == 0
    assert real_cli("check", ".").code == 0
    listed = real_cli("check", ".", "--bridge", "-v")
    assert "fsdp2: FullyShardedDataParallel" in listed.text
    findings = [line for line in listed.text.splitlines() if ": " in line and " FSDP0" in line]
    assert findings
    assert not any("fsdp_migrate.runtime" in line for line in findings)
    assert contents(project) == before

    (project / "fsdp2" / "clip.py").write_text(f"{MARK} 0.0.1\n")
    assert real_cli("train.py", "--form", "bridge").code == 0
    assert contents(project) == before
    before_helper = (project / "helper.py").read_text()
    assert "rewrote helper.py" in real_cli(".").text  # the copy shares no model
    (project / "helper.py").write_text(before_helper)
    assert "rewrote helper.py" in real_cli("helper.py").text  # the copy is found beside it
    assert "from fsdp2 import like_fsdp1" in (project / "helper.py").read_text()


def test_a_diff_with_the_copy_applies(real_cli: Cli, project: Path, repository: Any) -> None:
    repository.commit()
    diff = real_cli(".", "--vendor", "fsdp2", "--diff")
    repository.git("apply", stdin=diff.out)
    applied = contents(project)
    repository.git("checkout", "-q", ".")
    repository.git("clean", "-fdq")
    assert real_cli(".", "--vendor", "fsdp2").code == 0
    assert contents(project) == applied


def test_folders_that_cannot_hold_it(real_cli: Cli, project: Path) -> None:
    before = contents(project)
    (project / "full").mkdir()
    (project / "full" / "own.txt").write_text("mine")
    for folder, reason in (
        ("full", "is not a copy of fsdp_migrate.runtime"),
        ("with-dash", "is no name"),
        ("../elsewhere", "no program of this run could import it"),
    ):
        refused = real_cli(".", "--vendor", folder)
        assert refused.code == 2
        assert reason in refused.err
    assert {**before, "full/own.txt": b"mine"} == contents(project)


def test_a_package_that_scripts_import_is_named(real_cli: Cli, folder: Path) -> None:
    """A script outside of an installed package: the copy goes into that, once it is part of the run."""
    for name in ("scripts/train.py", "src/pkg/__init__.py"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    text = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as F\nF(m, param_init_fn=f)\n"
    )
    (folder / "scripts/train.py").write_text(text)
    refused = real_cli("scripts", "--vendor", "src/pkg/rt")
    assert "or name its package as well" in refused.err
    done = real_cli("scripts", "src/pkg", "--vendor", "src/pkg/rt")
    assert (done.code, done.err) == (0, "")
    assert "from pkg.rt import like_fsdp1, units" in (folder / "scripts/train.py").read_text()


@pytest.mark.parametrize("name", ["lib.fsdp", "fsdp"])
def test_spellings_are_inverse(name: str) -> None:
    package = Package(name, Path("x"))
    text = (
        "from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP\n"
        "import fsdp_migrate.runtime as f, os\nimport fsdp_migrate.runtime\n"
        "from fsdp_migrate.runtime.wrap import wrap\nfrom fsdp_migrate import runtime as fsdp\n"
        "m = fsdp_migrate.runtime.FullyShardedDataParallel(fsdp_config, fsdp=fsdp)\n"
    )
    spelled = package.spelled(text)
    assert "fsdp_migrate" not in spelled
    assert package.spelled(package.unspelled(spelled)) == spelled
    ast.parse(spelled)
    ast.parse(package.unspelled(spelled))


RANKS = f"""
import json, os, runpy, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from forked import record, run_ranks

folder = Path(sys.argv[1])
sys.modules["fsdp_migrate"] = None  # it cannot be imported

def run(rank):
    for name in ("original", "migrated"):
        if name == "migrated":  # as on a torch without FSDP1
            import torch.distributed.fsdp as fsdp
            for gone in ("FullyShardedDataParallel", "ShardingStrategy", "MixedPrecision", "CPUOffload",
                         "BackwardPrefetch", "StateDictType", "api", "fully_sharded_data_parallel"):
                delattr(fsdp, gone)
        sys.path[0] = str(folder / name)
        record(folder, name, lambda: dict(losses=runpy.run_path(str(folder / name / "train.py"))["losses"]))

run_ranks(2, folder, run)
"""


@pytest.mark.ranks
def test_a_program_trains_with_the_copy_alone(real_cli: Cli, folder: Path) -> None:
    for name in ("original", "migrated"):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(TRAIN)
    assert real_cli("migrated", "--vendor", "migrated/fsdp2").code == 0
    failed = launch(folder, "-c", RANKS, str(folder))
    assert not failed
    results = results_in(folder)
    losses = {name: [one.get("losses", one) for one in results[name]] for name in results}
    assert losses["migrated"] == losses["original"]
    assert len(losses["original"]) == 2
    assert "fsdp_migrate" not in (folder / "migrated" / "train.py").read_text()
