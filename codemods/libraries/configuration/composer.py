"""FSDP1 as Composer and llm-foundry are set to use it: which settings are theirs, and what to write for FSDP2.

Read from Composer 0.28.0 to 0.32.1 (`composer/utils/parallelism.py`, `Trainer._parse_parallelism_config`) and llm-foundry
0.22.0. A dictionary is FSDP1 unless the environment has FSDP_VERSION=2, which 0.31.0 was the first to read. Its `FSDP2Config`
had no `mixed_precision`, `state_dict_type` and `load_monolith_rank0_only` yet: these came with 0.32.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.libraries.configuration import table
from fsdp_migrate.codemods.libraries.configuration.project import Project
from fsdp_migrate.codemods.libraries.configuration.tree import (
    UNKNOWN,
    Entry,
    Mapping,
    Value,
    mappings,
)
from fsdp_migrate.pins import Release

_FIRST: Release = (0, 32)
# What `FSDP2Config` has of `FSDPConfig`, and more.
_KEPT = frozenset(
    """activation_checkpointing activation_cpu_offload device_mesh load_monolith_rank0_only mixed_precision
    reshard_after_forward state_dict_type verbose""".split()  # noqa: SIM905
)
# What FSDP2 passes over, with a warning.
_IGNORED = frozenset(
    """activation_checkpointing_reentrant auto_wrap backward_prefetch backward_prefetch_limit cpu_offload
    data_parallel_replicate_degree data_parallel_shard_degree flatten_parameters forward_prefetch forward_prefetch_limit
    ignored_modules keep_low_precision_grads limit_all_gathers load_planner min_params process_group save_planner
    sharded_ckpt_prefix_dir sharding_strategy sync_module_states te_checkpoint_wrapper te_shard_fp8_weight
    use_orig_params""".split()  # noqa: SIM905
)
# What no other library has in a `fsdp_config`.
_OWN = (_KEPT | _IGNORED) - table.KEPT - table.REMOVED.keys() - {"process_group"}
# What a configuration of llm-foundry has beside `fsdp_config`.
_RECIPE = frozenset(
    "device_eval_batch_size device_train_microbatch_size global_train_batch_size max_duration train_loader".split()  # noqa: SIM905
)


def settings_in(root: Value) -> Iterator[tuple[Entry, Mapping]]:
    """The entries of a tree that hold Composer's settings of FSDP, with the settings."""
    for home in mappings(root):
        parallel = home.key("parallelism_config")
        inner = None
        if parallel:
            inner = parallel.value
        entry = None
        if isinstance(inner, Mapping):
            entry = inner.key("fsdp")
        if entry is None and _is_composers(home):
            entry = home.key("fsdp_config")
        if entry is not None and isinstance(entry.value, Mapping):
            yield entry, entry.value


def _is_composers(home: Mapping) -> bool:
    entry = home.key("fsdp_config")
    settings = None
    if entry:
        settings = entry.value
    if not isinstance(settings, Mapping):
        return False
    keys = {each.key for each in settings.all()}
    around = {each.key for each in home.all()}
    is_named = bool(keys & _OWN) or bool(around & _RECIPE)
    return is_named and bool(keys & (_KEPT | _IGNORED)) and not keys & table.FOREIGN


def said_of(settings: Mapping, project: Project, *, is_python: bool = False) -> str:
    """What to write for settings; "" where they are those of FSDP2 already."""
    names = [each.key for each in settings.all()]
    ignored = sorted({*names} & _IGNORED)
    if "reshard_after_forward" in names and not ignored:
        return ""
    releases = project.takes("mosaicml")
    if releases.all_before(_FIRST):
        return (
            "This selects FSDP1 in Composer. Its FSDP2 takes `mixed_precision` and `state_dict_type` only since release "
            f"0.32, but the project allows {releases.said}. Raise that requirement, then run fsdp-migrate again."
        )
    strategy = table.strategy_of(settings.data("sharding_strategy", "FULL_SHARD"))
    if strategy == "NO_SHARD":
        return (
            "This selects FSDP1 in Composer. Remove these settings: Composer then uses DistributedDataParallel, which "
            "does the same as NO_SHARD."
        )
    how = "launch with `FSDP_VERSION=2`"
    if is_python:
        how = "pass `FSDP2Config(...)` of `composer.utils`"
    said = f"This selects FSDP1 in Composer. With Composer 0.32 or newer {how}, and set {_written(settings, strategy)}"
    gone = [name for name in ignored if name != "sharding_strategy"]
    if gone:
        said += f". Remove {', '.join(f'`{name}`' for name in gone)}, which FSDP2 does not have"
    return f"{said}."


def _written(settings: Mapping, strategy: str | None) -> str:
    """What FSDP2's settings say in place of a strategy and of a default that is another."""
    if strategy is None:
        freed = "`reshard_after_forward` (true for FULL_SHARD, false for SHARD_GRAD_OP)"
    else:
        freed = f"`reshard_after_forward: {str(table.reshards(strategy)).lower()}`"
    parts = [freed]
    kind = settings.data("state_dict_type", "full")
    if kind is not UNKNOWN and settings.get("state_dict_type") is None:
        parts.append("`state_dict_type: full` (the old default; the new one is `sharded`)")
    elif kind == "local":
        parts.append("`state_dict_type: sharded`")
    copies = settings.data("data_parallel_replicate_degree")
    if copies or (strategy and strategy.startswith("HYBRID")):
        parts.append("a `device_mesh` of two dimensions, nodes and devices per node")
    return ", ".join(parts[:-1]) + " and " * bool(parts[:-1]) + parts[-1]
