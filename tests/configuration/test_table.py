"""The table of settings: its strategies are torch's, its values are read as the libraries read them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed.fsdp as fsdp

from fsdp_migrate.configuration.table import (
    FOREIGN,
    KEPT,
    OPTIONS,
    REMOVED,
    STRATEGIES,
    is_on,
    options_of,
    reshards,
    strategy_of,
)

from .test_shapes import analysed

NUMBERS = {str(member.value): member.name.lstrip("_") for member in fsdp.ShardingStrategy}


def test_strategies_are_torchs_in_their_order() -> None:
    assert [*NUMBERS.values()] == [*STRATEGIES]
    assert {number: strategy_of(number) for number in NUMBERS} == NUMBERS
    assert [strategy_of(each) for each in ("0", "6", 1, "full_shard", "_HYBRID_SHARD_ZERO2")] == [
        None,
        None,
        "FULL_SHARD",
        "FULL_SHARD",
        "HYBRID_SHARD_ZERO2",
    ]
    assert [strategy_of(each) for each in (None, "", "FULL")] == [None, None, None]
    assert [each for each in STRATEGIES if not reshards(each)] == [
        "SHARD_GRAD_OP",
        "HYBRID_SHARD_ZERO2",
    ]


@pytest.mark.parametrize("data", [True, 1, "true", "1", "yes", "2"])
def test_flags_that_are_on(data: Any) -> None:
    assert is_on(data)


@pytest.mark.parametrize("data", [None, False, 0, "", "false", "False", "0", "no", "No"])
def test_flags_that_are_off(data: Any) -> None:
    assert not is_on(data)


def test_options_of_transformers() -> None:
    words = ["auto_wrap", "offload", *(name.lower() for name in STRATEGIES)]
    assert sorted(words) == sorted(OPTIONS)
    assert options_of("full_shard auto_wrap") == options_of(["full_shard", "auto_wrap"])
    assert options_of("full_shard auto_wrap") == ["full_shard", "auto_wrap"]
    for other in ("full_shard unknown", ["full_shard", 1], [["full_shard"]], {"full_shard": 1}, 1):
        assert options_of(other) == []


GONE = (
    "backward_prefetch",
    "backward_prefetch_policy",
    "forward_prefetch",
    "limit_all_gathers",
    "param_init_fn",
    "sync_module_states",
    "use_orig_params",
)
BEFORE = """\
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_{key}: true
"""


@pytest.mark.parametrize("key", GONE)
def test_a_setting_that_fsdp2_does_not_have_is_removed(key: str) -> None:
    report, after = analysed(BEFORE.format(key=key), "yaml")
    assert f"fsdp_{key}" not in after
    assert "fsdp_reshard_after_forward: true" in after
    assert any(REMOVED[key] in finding.message for finding in report.findings)


STAYING = (
    "activation_checkpointing activation_checkpointing_offload auto_wrap_policy cpu_offload cpu_offload_pin_memory"
    " cpu_ram_efficient_loading final_state_dict_type ignored_modules min_num_params mixed_precision_policy offload_params"
    " reshard_after_forward sharding_strategy state_dict_type transformer_layer_cls_to_wrap"
)


@pytest.mark.parametrize("key", STAYING.split())
def test_a_file_of_transformers_may_have_any_setting_that_stays(key: str) -> None:
    sign = next(each for each in ("transformer_layer_cls_to_wrap", "min_num_params") if each != key)
    text = f'{{"{sign}": 1, "{key}": "FULL_SHARD", "use_orig_params": true}}'
    other = text.replace(key, "unheard_of")
    assert '"version": 2' in analysed(text, "json")[1]
    assert analysed(other, "json")[1] == other


BESIDE = (
    "base_model fsdp_transformer_layer_cls_to_wrap gradient_accumulation_steps learning_rate max_steps num_train_epochs"
    " output_dir per_device_train_batch_size"
)


@pytest.mark.parametrize("key", BESIDE.split())
def test_fsdp_is_a_trainers_beside_any_setting_of_one(key: str) -> None:
    text = f"fsdp: full_shard\n{key}: 1\n"
    assert "version: 2" in analysed(text, "yaml")[1]
    assert analysed(text.replace(key, "title"), "yaml")[1] == text.replace(key, "title")


def test_a_setting_has_one_meaning() -> None:
    assert set(GONE) == set(REMOVED)
    assert not KEPT & REMOVED.keys()
    assert not FOREIGN & (KEPT | REMOVED.keys())
    assert {*STAYING.split(), "version"} == KEPT


@pytest.mark.parametrize(
    "key", ["_target_", "fsdp_size", "optimizer_offload", "param_offload", "wrap_policy"]
)
def test_settings_of_another_framework_are_left_alone(key: str) -> None:
    text = f"fsdp_config:\n  {key}: true\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_use_orig_params: true\n"
    report, after = analysed(text, "yaml")
    assert after == text
    control = text.replace(key, "fsdp_cpu_offload")
    assert analysed(control, "yaml")[1] != control
    assert not [f for f in report.findings if f.action.value == "rewrite"]
