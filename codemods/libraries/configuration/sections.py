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
    settings = None
    if entry and isinstance(entry.value, Mapping):
        settings = entry.value
    version = home.key("fsdp_version")
    if not (version is None or _is_first(version.data)) or (settings and not is_first(settings)):
        return None
    kind = home.data("distributed_type")
    if kind is None:
        rule = _rule_of(home, settings)
    elif str(kind) == "FSDP":
        rule = rules.ACCELERATE
    else:
        rule = None
    if rule is None:
        return None
    return Section(rule, home, entry, settings)


def _rule_of(home: Mapping, settings: Mapping | None) -> Rule | None:
    """The rule of a mapping that does not name Accelerate's `distributed_type`, by what else is in it."""
    own: list[Entry] = []
    if settings is not None:
        own += settings.all()
    names = {each.name for each in own}
    words = _options(home)
    if not words and (home.data("fsdp") or not names & (table.KEPT | table.REMOVED.keys())):
        return None
    if home.get("base_model") or home.key("fsdp_version"):
        return rules.AXOLOTL
    if words:
        return rules.TRANSFORMERS
    if home.get("fsdp") or not any(each.key.startswith("fsdp_") for each in own):
        return None  # it is off, or another's, as Composer's
    if names & {"sharding_strategy", "offload_params"}:
        return rules.ACCELERATE
    return rules.TRANSFORMERS


def _options(home: Mapping) -> list[str]:
    """The options in `fsdp: full_shard auto_wrap`; none where `{"fsdp": "full_shard"}` may be any table."""
    words = table.options_of(home.data("fsdp"))
    if home.get("fsdp_config") or home.style == "call" or {"auto_wrap", "offload"} & {*words}:
        return words
    if _has(home, table.RECIPE):
        return words
    return []


def _has(home: Mapping, keys: frozenset[str]) -> bool:
    return not keys.isdisjoint([entry.key for entry in home.all()])


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
