"""The table of settings: its strategies are torch's, its values are read as the libraries read them."""

import pytest
import torch.distributed.fsdp as fsdp

from fsdp_migrate.codemods.libraries.configuration import table

from .test_shapes import analysed

NUMBERS = {str(member.value): member.name.lstrip("_") for member in fsdp.ShardingStrategy}


def test_strategies_are_torchs_in_their_order() -> None:
    assert [*NUMBERS.values()] == [*table.STRATEGIES]
    assert {number: table.strategy_of(number) for number in NUMBERS} == NUMBERS
    for text in ("FULL_SHARD", "full_shard", 1):
        assert table.strategy_of(text) == "FULL_SHARD"
    assert table.strategy_of("_HYBRID_SHARD_ZERO2") == "HYBRID_SHARD_ZERO2"
    for other in ("0", "6", None, "", "FULL"):
        assert table.strategy_of(other) is None
    kept = [each for each in table.STRATEGIES if not table.reshards(each)]
    assert kept == ["SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2"]


def test_options_of_transformers() -> None:
    words = ["auto_wrap", "offload", *(name.lower() for name in table.STRATEGIES)]
    assert sorted(words) == sorted(table.OPTIONS)
    assert table.options_of("full_shard auto_wrap") == table.options_of(["full_shard", "auto_wrap"])
    assert table.options_of("full_shard auto_wrap") == ["full_shard", "auto_wrap"]
    for other in ("full_shard unknown", ["full_shard", 1], [["full_shard"]], {"full_shard": 1}, 1):
        assert table.options_of(other) == []


BEFORE = """\
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_{key}: true
"""


@pytest.mark.parametrize("key", table.REMOVED)
def test_a_setting_that_fsdp2_does_not_have_is_removed(key: str) -> None:
    report, after = analysed(BEFORE.format(key=key), "yaml")
    assert f"fsdp_{key}" not in after
    assert "fsdp_reshard_after_forward: true" in after
    assert any(table.REMOVED[key] in finding.message for finding in report.findings)


def test_a_setting_has_one_meaning() -> None:
    assert not table.KEPT & table.REMOVED.keys()
    assert not table.FOREIGN & (table.KEPT | table.REMOVED.keys())


@pytest.mark.parametrize("key", sorted(table.FOREIGN))
def test_settings_of_another_framework_are_left_alone(key: str) -> None:
    text = f"fsdp_config:\n  {key}: true\n  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_use_orig_params: true\n"
    report, after = analysed(text, "yaml")
    assert after == text
    control = text.replace(key, "fsdp_cpu_offload")
    assert analysed(control, "yaml")[1] != control
    assert not [f for f in report.findings if f.action.value == "rewrite"]
