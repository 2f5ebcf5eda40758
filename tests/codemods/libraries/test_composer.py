"""Composer's and llm-foundry's settings of FSDP1 have one finding each, with what to write."""

from pathlib import Path

import pytest

from fsdp_migrate.cli import exit_code

from .test_project import migrated

PYTHON = "from composer import Trainer\n\n{}\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("Trainer(parallelism_config={'fsdp': {}})", "`reshard_after_forward: true` and `state_dict_type: full`"),
        ("Trainer(parallelism_config={'fsdp': {'sharding_strategy': 'shard_grad_op'}})", "`reshard_after_forward: false`"),
        ("fsdp = {'cpu_offload': True}\nTrainer(parallelism_config={'fsdp': fsdp})", "Remove `cpu_offload`, which"),
        ("Trainer(parallelism_config={'fsdp': {'sharding_strategy': 'NO_SHARD'}})", "which does the same as NO_SHARD"),
        ("Trainer(parallelism_config={'fsdp': {'sharding_strategy': 'HYBRID_SHARD'}})", "a `device_mesh` of two dimensions"),
        ("Trainer(parallelism_config={'fsdp': {'sharding_strategy': name}})", "`reshard_after_forward` (true for FULL_SHARD"),
        ("Trainer(parallelism_config={'fsdp': settings(), 'tp': None})", "unless it is an `FSDP2Config`"),
        ("Trainer(fsdp_config={'sharding_strategy': 'FULL_SHARD'})", "`reshard_after_forward: true`"),
        ("from composer.utils import FSDPConfig\nconfig = FSDPConfig(state_dict_type='local')", "`state_dict_type: sharded`"),
        ("from composer.core.state import fsdp_state_dict_type_context as c\nwith c(model):\n    pass", "get_model_state_dict"),
        ("from composer.distributed import prepare_fsdp_module\nprepare_fsdp_module(model)", "This wraps with FSDP1"),
    ],
)  # fmt: skip
def test_python_that_sets_it(code: str, expected: str, tmp_path: Path) -> None:
    text = PYTHON.format(code)
    after, said = migrated(tmp_path, "", text, "train.py")
    assert after == text
    assert expected in said
    assert said.count("with FSDP1") + said.count("selects FSDP1") + said.count("has no effect") == 1


@pytest.mark.parametrize(
    "code",
    [
        "Trainer(parallelism_config={'fsdp': None, 'tp': {}})",
        "Trainer(parallelism_config={'fsdp': FSDP2Config(reshard_after_forward=True)})",
        "Trainer(parallelism_config={'fsdp': {'reshard_after_forward': True, 'verbose': True}})",
        "Trainer(model, max_duration='1ep')  # no fsdp",
        "Accelerator(parallelism_config=ParallelismConfig(dp_shard_size=2))",
    ],
)
def test_python_that_is_no_fsdp1_of_composer(code: str, tmp_path: Path) -> None:
    assert migrated(tmp_path, "", PYTHON.format(code), "train.py")[1] == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max_duration: 1ep\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n", "launch with `FSDP_VERSION=2`"),
        ("fsdp_config:\n  sharding_strategy: SHARD_GRAD_OP\n  mixed_precision: PURE\n", "`reshard_after_forward: false`"),
        ("fsdp_config: {activation_cpu_offload: true, limit_all_gathers: true}\n", "Remove `limit_all_gathers`, which"),
        ("parallelism_config:\n  fsdp:\n    sharding_strategy: FULL_SHARD\n", "`reshard_after_forward: true`"),
        ("base: &f\n  mixed_precision: PURE\n  cpu_offload: true\nrun:\n  fsdp_config:\n    <<: *f\n", "Remove `cpu_offload`"),
        ("max_duration: 1ep\nfsdp_config:\n  reshard_after_forward: true\n", ""),
        ("max_duration: 1ep\nfsdp_config: null\n", ""),
        ("fsdp_config:\n  _target_: a.B\n  mixed_precision: bf16\n  param_offload: true\n", ""),
    ],
)  # fmt: skip
def test_files_of_llm_foundry(text: str, expected: str, tmp_path: Path) -> None:
    after, said = migrated(tmp_path, "", text)
    assert after == text
    assert expected in said
    assert bool(said) == bool(expected)
    assert exit_code(["check", str(tmp_path)]) == (1 if expected else 0)


def test_a_composer_without_fsdp2_is_named(tmp_path: Path) -> None:
    text = "max_duration: 1ep\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n"
    _, said = migrated(tmp_path, "mosaicml[nlp]==0.28.0", text)
    assert (
        "only since release 0.32, but the project allows mosaicml[nlp]==0.28.0 of requirements.txt:1"
        in said
    )
