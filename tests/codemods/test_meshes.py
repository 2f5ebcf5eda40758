"""Meshes of two dimensions without names, made anywhere in the program: `fully_shard` raises for them."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Action, Severity

from .programs import analysed

MESHES = """\
from torch.distributed.device_mesh import init_device_mesh


def make_mesh(replicas, shards):
    mesh = init_device_mesh("cuda", (replicas, shards))
    if mesh is None:
        raise RuntimeError("no mesh")
    return mesh
"""
IMPORTS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from meshes import make_mesh


"""
IN_A_BRANCH = """\
def main(model, config):
    mesh = None
    if config.hybrid:
        mesh = make_mesh(2, 8)
    return FSDP(model, sharding_strategy=config.strategy, device_mesh=mesh)
"""
IN_THE_CALL = """\
def main(model):
    hybrid = ShardingStrategy.HYBRID_SHARD
    return FSDP(model, sharding_strategy=hybrid, device_mesh=make_mesh(2, 8))
"""
# What the mesh is made of, and whether names are missing.
MADE = {
    '"cuda", (replicas, shards)': True,
    '"cuda", mesh_shape=(replicas, shards)': True,
    '"cuda", SHAPE': True,
    '"cuda", (replicas, shards), mesh_dim_names=("replicate", "shard")': False,
    '"cuda", (replicas, shards), ("replicate", "shard")': False,
    '"cuda", (replicas, shards), **options': False,
    '"cuda", (shards,)': False,
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("main", [IN_A_BRANCH, IN_THE_CALL])
def test_a_mesh_that_a_function_of_another_file_makes(main: str, made: str, tmp_path: Path) -> None:
    meshes = MESHES.replace('"cuda", (replicas, shards)', made)
    program = analysed(tmp_path, {"train.py": IMPORTS + main, "meshes.py": meshes}, "torch")
    found = [each for each in program.findings if each.code == "FSDP107"]
    raising = [each for each in found if each.severity == Severity.RAISES]
    assert len(raising) == MADE[made]
    assert all(each.action == Action.MANUAL for each in raising)
    assert "make_mesh(2, 8)" in program.after["train.py"]


@pytest.mark.parametrize("made", [*MADE][:2])
def test_names_are_added_where_the_file_is_about_fsdp(made: str, tmp_path: Path) -> None:
    meshes = "# For FullyShardedDataParallel\n" + MESHES.replace('"cuda", (replicas, shards)', made)
    program = analysed(tmp_path, {"train.py": IMPORTS + IN_THE_CALL, "meshes.py": meshes}, "torch")
    assert [each for each in program.findings if each.action == Action.MANUAL] == []
    added = f'init_device_mesh({made}, mesh_dim_names=("replicate", "shard"))'
    assert added in program.after["meshes.py"]
