"""Translates a section of FSDP1 settings: all of it changes, or nothing does and a message says why."""

from dataclasses import dataclass
from typing import Any

from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.libraries.configuration import table, tree
from fsdp_migrate.codemods.libraries.configuration.project import TRANSFORMERS_VERSION, Project
from fsdp_migrate.codemods.libraries.configuration.sections import Section
from fsdp_migrate.findings import Severity

_MOVED = tuple(f"fsdp_{name}" for name in table.MOVED)


@dataclass(frozen=True)
class Said:
    """A message about one place: how it changes, or what the user has to do, with its severity if the rule's is another."""

    place: tree.Entry | tree.Mapping
    message: str
    change: tree.Change | None = None
    severity: Severity | None = None


class Stays(Exception):
    """A setting that no FSDP2 configuration has; the message says what to do."""

    def __init__(self, place: tree.Entry | None, message: str) -> None:
        super().__init__(message)
        self.place = place


def translate(section: Section, project: Project) -> list[Said]:
    """Translates a section, for the releases of its library that the project takes."""
    try:
        return _Translation(section, project).run()
    except Stays as stays:
        why = Said(stays.place or section.place, str(stays))
        whole = Said(
            section.place,
            "Still selects FSDP1, because one of its settings has to be changed first: there is a finding for it. Change "
            "that setting, then run fsdp-migrate again.",
        )
        if why.place is section.place:
            return [why]
        return [whole, why]


class _Translation:
    def __init__(self, section: Section, project: Project) -> None:
        self.section = section
        self.rule = section.rule
        self.home = section.home
        self.project = project
        self.has_list = self.rule == rules.AXOLOTL and project.has_list
        if self.rule == rules.AXOLOTL:
            is_new = project.has_settings
        else:
            is_new = project.has_flag
        self.has_words = self.rule in (rules.AXOLOTL, rules.TRANSFORMERS) and not is_new
        self.settings = section.settings or tree.Mapping("flow", (0, 0))
        self.words = table.options_of(self.home.data("fsdp"))
        self.has_mesh = self.home.get("parallelism_config") is not None
        self.said: list[Said] = []
        self.added: dict[str, tree.Data] = {}
        keys = [entry.key for entry in self.settings.all() if entry.name != "version"]
        prefixed = any(key.startswith("fsdp_") for key in keys) or not (keys or self.words)
        prefixed |= self.has_list  # those releases read no other spelling
        if prefixed and self.rule != rules.PLUGIN:
            self.prefix = "fsdp_"
        else:
            self.prefix = ""

    def run(self) -> list[Said]:
        if self.settings.is_open:
            raise Stays(
                None,
                f"The unpacked `**` arguments may set more. Instead of FSDP1's settings, {table.STRATEGY}.",
            )
        strategy = self.strategy()
        if strategy == "NO_SHARD":
            self.unsharded()
            return self.said
        self.release(strategy)
        self.version()
        if strategy and strategy.startswith("HYBRID"):
            self.mesh()
        self.state_dicts()
        for entry in self.settings.all():
            if entry.name in table.REMOVED:
                self.say(tree.Remove(entry), f"Removed: {table.REMOVED[entry.name]}.")
        self.reshard(strategy)
        if self.rule == rules.PLUGIN:
            self.objects()
        if self.section.settings is not self.home:
            self.switch()
        optimizer = self.home.key("optimizer") or self.home.key("optim")
        if optimizer is not None and table.OF_BITSANDBYTES.fullmatch(str(optimizer.data)):
            self.said.append(Said(optimizer, table.PLAIN_ONLY, severity=Severity.RAISES))
        self.add()
        return self.said

    def say(self, change: tree.Change, message: str) -> None:
        if isinstance(change, tree.Add):
            place = self.section.place
        else:
            place = change.entry
        self.said.append(Said(place, message, change))

    @property
    def strategy_entry(self) -> tree.Entry | None:
        return self.settings.get("sharding_strategy", "reshard_after_forward")

    def strategy(self) -> str | None:
        """The strategy that is set, by name; None if none is."""
        entry = self.strategy_entry
        data = None
        found = {name for word in self.words if (name := table.strategy_of(word))}
        if entry is not None and str(data := entry.data).lower() not in ("true", "false"):
            name = table.strategy_of(data)
            if name is None:
                raise Stays(
                    entry, f"The strategy is computed at run time. Instead, {table.STRATEGY}."
                )
            found.add(name)
        if len(found) > 1:
            raise Stays(
                entry, f"`fsdp` and the strategy contradict each other. Instead, {table.STRATEGY}."
            )
        return next(iter(found), None)

    def release(self, strategy: str | None) -> None:
        """That a release which the project takes reads a version at all."""
        freed = _shown(table.reshards(strategy or "FULL_SHARD"))
        is_trainers = self.rule == rules.TRANSFORMERS
        project = self.project
        if is_trainers:
            old = project.too_old_for_trainer(freed)
        else:
            old = project.too_old(self.rule)
        if old:
            raise Stays(None, old)

    def version(self) -> None:
        entry = self.settings.get("version") or self.home.key("fsdp_version")
        if entry is not None and not (self.has_list and entry.owner is self.home):
            self.say(tree.Replace(entry, entry.key, 2), "Changed to 2, which selects FSDP2.")
        elif self.rule == rules.AXOLOTL and not self.has_list:
            before = self.section.entry or self.home.get("fsdp")
            self.say(
                tree.Add(self.home, {"fsdp_version": 2}, before),
                f"`fsdp_version: 2`, which selects FSDP2, is added next to it. {table.SINCE[self.rule]}",
            )
        elif self.rule == rules.PLUGIN:
            self.added["fsdp_version"] = 2
        else:
            self.added[f"{self.prefix}version"] = 2

    def mesh(self) -> None:
        """HYBRID_SHARD: a mesh of nodes and the devices of a node; one node has no other to replicate on."""
        machines: Any = self.home.data("num_machines")
        processes: Any = self.home.data("num_processes")
        if old := self.project.no_mesh():
            raise Stays(self.strategy_entry or self.home.get("fsdp"), old)
        is_free = self.rule == rules.ACCELERATE and not self.home.get("parallelism_config")
        known = isinstance(machines, int) and isinstance(processes, int)
        if not is_free or not known or machines < 1 or processes % machines:
            raise Stays(self.strategy_entry or self.home.get("fsdp"), table.MESHES[self.rule])
        if machines > 1:
            sizes = {"dp_replicate_size": machines, "dp_shard_size": processes // machines}
            mesh = {f"parallelism_config_{name}": size for name, size in sizes.items()}
            change = tree.Add(self.home, {"parallelism_config": mesh}, self.section.entry)
            self.say(change, f"Replaced by a `parallelism_config` for HYBRID_SHARD: {table.SIZES}.")
            self.has_mesh = True

    def state_dicts(self) -> None:
        entry = self.settings.get("state_dict_type")
        if entry is None and self.rule != rules.TRANSFORMERS:
            self.added[f"{self.prefix}state_dict_type"] = "FULL_STATE_DICT"
        elif entry is not None and str(entry.data).upper() in ("LOCAL_STATE_DICT", "2"):
            raise Stays(entry, table.LOCAL)

    def reshard(self, strategy: str | None) -> None:
        """The other half of a strategy: whether parameters are freed after the forward."""
        key = f"{self.prefix}reshard_after_forward"
        entry = self.strategy_entry
        other = self.settings.get("reshard_after_forward")
        if entry is None:
            if self.words:
                self.added[key] = table.reshards(strategy or "FULL_SHARD")
        elif strategy is not None:
            value = table.reshards(strategy)
            said = f"Replaced by `{key}: {_shown(value)}`."
            if strategy.startswith("HYBRID") and self.home.data("num_machines") == 1:
                said += " On several nodes it shards over all of them, unless you add a `parallelism_config`."
            self.say(tree.Replace(entry, key, value), said)
            if other is not None and other is not entry:
                self.say(
                    tree.Remove(other),
                    "Removed: Accelerate ignored it and used the sharding strategy.",
                )

    def objects(self) -> None:
        """What only Python can give: objects of torch's FSDP1."""
        policy = self.settings.get("auto_wrap_policy")
        precision = self.settings.get("mixed_precision_policy")
        if policy is not None and not isinstance(policy.data, str | None):
            raise Stays(policy, table.POLICY)
        if precision is not None and isinstance(precision.data, tree.Code):
            self.say(tree.Replace(precision, precision.key, precision.data), table.PRECISE)
        elif precision is not None and not isinstance(precision.data, str | None):
            raise Stays(precision, table.PRECISION)
        entry = self.settings.get("cpu_offload")
        if entry is not None and isinstance(entry.data, table.CPUOffload):
            self.say(
                tree.Replace(entry, entry.key, entry.data.offload_params),
                "Replaced by a boolean, as FSDP2 expects.",
            )

    def switch(self) -> None:
        """transformers' `fsdp` says whether FSDP is used at all; all else is in `fsdp_config`."""
        entry = self.home.get("fsdp")
        path = self.home.data("fsdp_config")
        is_path = isinstance(path, str) and bool(path)
        if self.rule == rules.TRANSFORMERS:
            self.moved(is_path)
        if is_path:
            self.path(entry, str(path))
        if entry is None or not self.words:
            return
        if self.has_words:
            self.units()
            return
        if "offload" in self.words and not self.settings.get("cpu_offload", "offload_params"):
            name = "cpu_offload"
            if self.rule == rules.AXOLOTL:
                name = "offload_params"
            self.added[f"{self.prefix}{name}"] = True
        if self.rule == rules.AXOLOTL:
            self.units()
            self.say(tree.Remove(entry), "Removed: axolotl reads all of it from `fsdp_config`.")
        else:
            message = "Replaced by `True`: `fsdp` now only turns FSDP on, and `fsdp_config` has the settings."
            self.say(tree.Replace(entry, "fsdp", True), message)

    def path(self, entry: tree.Entry | None, path: str) -> None:
        """`fsdp_config` is the path of a file, which has the version."""
        self.added.clear()
        into = f"This selects FSDP1. Write version 2 into `{path}`"
        if self.has_words and not self.project.is_second(path):
            freed = _shown(table.reshards(self.strategy() or "FULL_SHARD"))
            raise Stays(entry, f"{into}, and `reshard_after_forward: {freed}`.")
        if not self.has_words and {"offload", "shard_grad_op"} & {*self.words}:
            raise Stays(
                entry,
                f"{into}, with `reshard_after_forward` and `cpu_offload`. Write `fsdp: True` here.",
            )

    def moved(self, is_path: bool) -> None:
        """Arguments of `TrainingArguments` that moved into `fsdp_config`."""
        for name in _MOVED:
            moved = self.home.key(name)
            if moved is not None:
                if moved.data is tree.UNKNOWN or is_path:
                    raise Stays(
                        moved,
                        "TrainingArguments no longer has this setting. Move it into `fsdp_config`, without its prefix.",
                    )
                self.say(tree.Remove(moved), f"Moved into `fsdp_config` as `{moved.name}`.")
                if moved.data and not self.settings.get(moved.name):
                    self.added[f"{self.prefix}{moved.name}"] = moved.data

    def units(self) -> None:
        """What `auto_wrap` says: units by size where a size is set, else by the layers of a transformer."""
        if "auto_wrap" not in self.words or self.settings.get("auto_wrap_policy"):
            return
        key = f"{self.prefix}min_num_params"
        size: Any = self.added.get(key, self.settings.data("min_num_params"))
        if isinstance(size, int) and size > 0:
            self.added[f"{self.prefix}auto_wrap_policy"] = "SIZE_BASED_WRAP"
        elif self.rule == rules.AXOLOTL and not self.has_words:
            self.added[f"{self.prefix}auto_wrap_policy"] = "TRANSFORMER_BASED_WRAP"

    def since(self) -> str:
        """What a version needs, where a release that the project takes may not have it."""
        if self.has_mesh and self.rule == rules.ACCELERATE:
            return f" {table.SINCE_MESH}"
        if self.rule != rules.TRANSFORMERS:
            return f" {table.SINCE[self.rule]}"
        if not self.has_words:
            return ""
        is_fifth = self.project.takes("transformers").all_since(TRANSFORMERS_VERSION)
        if is_fifth:
            said = ""
        else:
            said = f" {table.SINCE[self.rule]}"
        return f"{said} {table.SAVES}"

    def unsharded(self) -> None:
        """NO_SHARD: DistributedDataParallel, which Accelerate and transformers use where FSDP is off."""
        extra = [
            self.settings.get(name)
            for name in ("offload_params", "cpu_offload", "activation_checkpointing")
        ]
        on = next((entry for entry in extra if entry and table.is_on(entry.data)), None)
        # Of a plugin or a file of its own nothing would be left, and FSDP is switched on elsewhere.
        is_all = self.section.settings is self.home
        if on or is_all or "offload" in self.words:
            raise Stays(on or self.strategy_entry, table.UNSHARDED)
        entries = [self.section.entry, *map(self.home.key, ("fsdp", "fsdp_version", *_MOVED))]
        for entry in entries:
            if entry is not None:
                self.say(
                    tree.Remove(entry), "Removed: NO_SHARD does what DistributedDataParallel does."
                )
        kind = self.home.get("distributed_type")
        if kind is not None:
            self.say(
                tree.Replace(kind, kind.key, "MULTI_GPU"),
                "Replaced by `MULTI_GPU`: NO_SHARD does what DistributedDataParallel does.",
            )

    def add(self) -> None:
        """The new settings, in their section or in one that is made for them."""
        gone = {each.change.entry for each in self.said if isinstance(each.change, tree.Remove)}
        if self.settings.entries and gone.issuperset(self.settings.entries) and not self.added:
            self.added[f"{self.prefix}reshard_after_forward"] = True  # the default: none is empty
        if not self.added:
            return
        new = ", ".join(f"`{key}: {_shown(value)}`" for key, value in self.added.items())
        message = f"Added: {new}."
        if self.added.get(f"{self.prefix}reshard_after_forward") is True:
            message = f"Added: {new}, as FSDP1's default FULL_SHARD."
        if any(key.endswith("version") for key in self.added):
            message += self.since()
        change: tree.Change = tree.Add(self.settings, self.added)
        if not self.settings.entries and self.section.entry is not None:
            change = tree.Replace(self.section.entry, "fsdp_config", self.added)
        elif not self.settings.entries:
            before = self.home.get("fsdp", "distributed_type")
            change = tree.Add(self.home, {"fsdp_config": self.added}, before)
        self.said.insert(0, Said(self.section.place, message, change))


def _shown(value: tree.Data) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
