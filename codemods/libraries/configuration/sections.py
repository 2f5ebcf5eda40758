"""Where a configuration sets FSDP1, and for which framework."""

from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration import table
from fsdp_migrate.codemods.libraries.configuration.tree import Data, Entry, Mapping, Value, mappings
from fsdp_migrate.codemods.rule import Rule


@dataclass(eq=False)
class Section:
    """FSDP1 as one mapping sets it, for the framework that has the rule.

    `home` is the mapping with `fsdp`, `fsdp_config` or `distributed_type`, `entry` its `fsdp_config`, and `settings`
    the value of that, or `home` itself where the settings are in no other mapping.
    """

    rule: Rule
    home: Mapping
    entry: Entry | None = None
    settings: Mapping | None = None

    @property
    def place(self) -> Entry | Mapping:
        """What speaks for the whole."""
        return self.entry or self.home.get("fsdp", "distributed_type") or self.home


def sections(root: Value) -> Iterator[Section]:
    """The sections of a tree."""
    for mapping in mappings(root):
        section = section_of(mapping)
        if section is not None:
            yield section


def sets_fsdp(root: Value) -> bool:
    """Whether a tree makes Accelerate, or transformers or axolotl by it, shard: as a section does, or by version 2."""
    is_second = any(
        each.data("distributed_type") == "FSDP"
        or each.data("fsdp") is True
        or each.key("fsdp_version")
        for each in mappings(root)
    )
    return is_second or next(sections(root), None) is not None


def section_of(home: Mapping) -> Section | None:
    """The section that a mapping is, if it sets FSDP1: not version 2, and not another framework's `fsdp_config`."""
    entry = home.get("fsdp_config")
    settings = entry.value if entry and isinstance(entry.value, Mapping) else None
    version = home.key("fsdp_version")
    if not (version is None or _is_first(version.data)) or (settings and not is_first(settings)):
        return None
    names = {each.name for each in settings.all()} if settings else set()
    kind, fsdp = home.data("distributed_type"), home.data("fsdp")
    if kind is not None:
        return Section(rules.ACCELERATE, home, entry, settings) if str(kind) == "FSDP" else None
    words = table.options_of(fsdp)
    if not (entry or home.style == "call" or {"auto_wrap", "offload"} & {*words}):
        # `{"fsdp": "full_shard"}` may be any table.
        words = words if _has(home, table.RECIPE) else []
    if not words and (fsdp or not names & (table.KEPT | table.REMOVED.keys())):
        return None
    if home.get("base_model") or version:
        return Section(rules.AXOLOTL, home, entry, settings)
    if words:
        return Section(rules.TRANSFORMERS, home, entry, settings)
    keys = [entry.key for entry in settings.all()] if settings else []
    if home.get("fsdp") or not any(key.startswith("fsdp_") for key in keys):
        return None  # it is off, or another's, as Composer's
    is_accelerates = names & {"sharding_strategy", "offload_params"}
    rule = rules.ACCELERATE if is_accelerates else rules.TRANSFORMERS
    return Section(rule, home, entry, settings)


def _has(home: Mapping, keys: frozenset[str]) -> bool:
    return any(entry.key in keys for entry in home.all())


def flat_section(settings: Mapping) -> Section | None:
    """A mapping that is an `fsdp_config` by itself, such as the JSON file that transformers reads."""
    names = {entry.name for entry in settings.entries}
    own = {"transformer_layer_cls_to_wrap", "min_num_params", "sharding_strategy"} & names
    strategy = settings.get("sharding_strategy")
    is_one = own and names <= table.KEPT | table.REMOVED.keys() and is_first(settings)
    is_one = is_one and (strategy is None or table.strategy_of(strategy.data) is not None)
    if is_one:
        return Section(rules.TRANSFORMERS, settings, None, settings)
    return None


def is_first(settings: Mapping) -> bool:
    """Whether settings can be those of FSDP1: not version 2, nor what a run decides, nor another framework's."""
    if table.is_on(settings.data("xla")) or table.is_on(settings.data("xla_fsdp_v2")):
        return False
    return _is_first(settings.data("version")) and not _has(settings, table.FOREIGN)


def _is_first(version: Data) -> bool:
    return version in (None, 1, "1")
