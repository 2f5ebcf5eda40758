"""What is written depends on the releases that a project takes; each was tried with the libraries themselves."""

import re
from pathlib import Path

import pytest

from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.report import Report

RECIPE = "learning_rate: 1.0\nfsdp: shard_grad_op auto_wrap offload\n"
FLAG = """\
learning_rate: 1.0
fsdp_config:
  version: 2
  reshard_after_forward: false
  cpu_offload: true
fsdp: true
"""
WORDS = """\
learning_rate: 1.0
fsdp_config:
  version: 2
  reshard_after_forward: false
fsdp: shard_grad_op auto_wrap offload
"""
AXOLOTL = "base_model: m\nfsdp: [full_shard, auto_wrap, offload]\nfsdp_config:\n  {key}: true\n"
LISTED = """\
base_model: m
fsdp: [full_shard, auto_wrap, offload]
fsdp_config:
  fsdp_version: 2
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_reshard_after_forward: true
"""
TOP = """\
base_model: m
fsdp_version: 2
fsdp_config:
  state_dict_type: FULL_STATE_DICT
  reshard_after_forward: true
  offload_params: true
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
"""
EITHER = """\
base_model: m
fsdp: [full_shard, auto_wrap, offload]
fsdp_version: 2
fsdp_config:
  state_dict_type: FULL_STATE_DICT
  reshard_after_forward: true
"""
ACCELERATE = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {}\nnum_machines: 2\nnum_processes: 4\n"


def migrated(folder: Path, needs: str, text: str, name: str = "settings.yaml") -> tuple[str, str]:
    """The text that a file becomes in a project with some requirements, and what is said of it."""
    (folder / "requirements.txt").write_text(needs)
    (folder / name).write_text(text)
    report: Report = analyse(discover([folder]))
    after = report.changes[0].after.decode() if report.changes else text
    return after, " / ".join(each.message for each in report.findings)


@pytest.mark.parametrize(
    ("needs", "before", "after", "says"),
    [
        ("transformers>=5.10", RECIPE, FLAG, "only turns FSDP on"),
        ("transformers==5.24.0", RECIPE, FLAG, "only turns FSDP on"),
        ("transformers==5.2.0", RECIPE, WORDS, "saves sharded states: for whole ones"),
        ("", RECIPE, WORDS, "transformers 4 ignores the version: launch with `FSDP_VERSION=2`"),
        ("transformers>=4.40", RECIPE, WORDS, "transformers 4 ignores the version: launch with `FSDP_VERSION=2`"),
        ("transformers==4.57.1", RECIPE, None, "`FSDP_VERSION=2`, `FSDP_RESHARD_AFTER_FORWARD=false`"),
        ("transformers>=4.46,<5", RECIPE, None, "the project allows transformers>=4.46,<5 of requirements.txt:1"),
        ("transformers==4.57.1\naccelerate==1.5.2", RECIPE, None, "Raise that requirement, then run"),
        ("transformers==4.57.1", "learning_rate: 1\nfsdp: no_shard\n", "learning_rate: 1\n", "DistributedData"),
        ("", AXOLOTL.format(key="limit_all_gathers"), EITHER, "Use it with axolotl 0.12"),
        ("axolotl==0.13.2", AXOLOTL.format(key="limit_all_gathers"), TOP, ""),
        ("axolotl[deepspeed]==0.9.2", AXOLOTL.format(key="fsdp_use_orig_params"), LISTED, ""),
        ("axolotl<0.8", AXOLOTL.format(key="fsdp_use_orig_params"), None, "FSDP2 needs axolotl 0.8"),
        ("accelerate==1.5.2", ACCELERATE.format("FULL_SHARD"), None, "FSDP2 needs Accelerate 1.6"),
        ("accelerate>=1.0", ACCELERATE.format("FULL_SHARD"), "", "Use it with Accelerate 1.6"),
        ("accelerate==1.9.0", ACCELERATE.format("HYBRID_SHARD"), None, "`parallelism_config` only since 1.10"),
        ("accelerate==1.10.0", ACCELERATE.format("HYBRID_SHARD"), "", "`dp_replicate_size` is"),
        ("accelerate==1.5.2", ACCELERATE.format("NO_SHARD"), "", "DistributedDataParallel"),
    ],
)  # fmt: skip
def test_settings_are_those_of_the_releases(
    needs: str, before: str, after: str | None, says: str, tmp_path: Path
) -> None:
    made, said = migrated(tmp_path, needs, before)
    assert says in said
    if after is None:
        assert made == before
    elif after:
        assert made == after
    else:
        assert made != before


@pytest.mark.parametrize(("strategy", "release"), [("FULL_SHARD", "1.6"), ("HYBRID_SHARD", "1.10")])
def test_one_least_release_is_named(strategy: str, release: str, tmp_path: Path) -> None:
    _, said = migrated(tmp_path, "", ACCELERATE.format(strategy))
    assert re.findall(r"Use it with Accelerate ([\d.]+\d)", said) == [release]


@pytest.mark.parametrize("needs", ["accelerate==1.5.2", "accelerate>=1.6"])
def test_a_plugin_is_of_the_releases_too(needs: str, tmp_path: Path) -> None:
    name = "FullyShardedDataParallelPlugin"
    text = f"from accelerate import {name}\n\nplugin = {name}(use_orig_params=True)\n"
    made, said = migrated(tmp_path, needs, text, "train.py")
    if needs.startswith("accelerate=="):
        assert made == text
        assert "the project allows accelerate==1.5.2 of requirements.txt:1" in said
    else:
        assert "fsdp_version=2" in made


@pytest.mark.parametrize(
    ("version", "said"),
    [('{"version": 2}', ""), ('{"min_num_params": 1}', "Write version 2 into `config/f")],
)
def test_a_file_that_is_named_is_looked_at(version: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "f.json").write_text(version)
    text = "learning_rate: 1.0\nfsdp: full_shard\nfsdp_config: config/f.json\n"
    made, found = migrated(tmp_path, "", text)
    assert made == text
    assert said in found
    assert bool(found) == bool(said)


def test_units_by_size_stay_units_by_size(tmp_path: Path) -> None:
    text = "learning_rate: 1.0\nfsdp: full_shard auto_wrap\nfsdp_config:\n  min_num_params: 2000\n"
    assert "  auto_wrap_policy: SIZE_BASED_WRAP\n" in migrated(tmp_path, "", text)[0]
    assert "auto_wrap_policy" not in migrated(tmp_path, "", text.replace("2000", "0"))[0]


@pytest.mark.parametrize(
    ("made", "becomes"),
    [
        ("MixedPrecision(torch.bfloat16)", "MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.bfloat16)"),
        ("MixedPrecision(reduce_dtype=torch.float32)", "MixedPrecisionPolicy(reduce_dtype=torch.float32)"),
        ("MixedPrecision(param_dtype=torch.bfloat16, keep_low_precision_grads=True)", None),
        ("MixedPrecision(param_dtype=torch.bfloat16, **more)", None),
        ("precision", None),
    ],
)  # fmt: skip
def test_the_precision_of_a_plugin(made: str, becomes: str | None, tmp_path: Path) -> None:
    text = (
        "import torch\nfrom accelerate import FullyShardedDataParallelPlugin\n"
        "from torch.distributed.fsdp import MixedPrecision\n\n"
        f"plugin = FullyShardedDataParallelPlugin(mixed_precision_policy={made})\n"
    )
    after, said = migrated(tmp_path, "", text, "train.py")
    if becomes is None:
        assert made in after
        assert "Write `MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)`" in said
    else:
        assert f"mixed_precision_policy={becomes}" in after
        assert "import MixedPrecisionPolicy\n" in after
