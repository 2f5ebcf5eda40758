"""What is around settings: the releases of their library that the project takes, and the files that they name."""

from __future__ import annotations

import json
from pathlib import Path

from fsdp_migrate.codemods.libraries import rules
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.pins import Pins, Release, Releases

# Since which release a library reads what is written for FSDP2, found by running the releases around it.
# `fsdp_version`: Accelerate 1.5.2 passes over it in a file, and its plugin has no such argument.
ACCELERATE_VERSION: Release = (1, 6)
# `parallelism_config`: 1.9.0 refuses a file with it.
ACCELERATE_MESH: Release = (1, 10)
# `version` in `fsdp_config`: transformers 4.57.6 takes it from FSDP_VERSION in the environment, and from nowhere else.
TRANSFORMERS_VERSION: Release = (5,)
# transformers' Trainer gives a model and its optimizer to one call of `prepare`, as FSDP2 needs it.
TRANSFORMERS_TRAINER: Release = (4, 51)
# `fsdp` is True, and `fsdp_config` has the rest: 5.9.0 takes True for full_shard without auto_wrap.
TRANSFORMERS_FLAG: Release = (5, 10)
# `fsdp_version` in `fsdp_config`, beside the list `fsdp`.
AXOLOTL_VERSION: Release = (0, 8)
# `fsdp_version` beside `fsdp_config`, and no list.
AXOLOTL_TOP: Release = (0, 12)

_FIRST = {
    rules.ACCELERATE: ("accelerate", "Accelerate", ACCELERATE_VERSION),
    rules.PLUGIN: ("accelerate", "Accelerate", ACCELERATE_VERSION),
    rules.FLAGS: ("accelerate", "Accelerate", ACCELERATE_VERSION),
    rules.TRANSFORMERS: ("transformers", "transformers", TRANSFORMERS_VERSION),
    rules.AXOLOTL: ("axolotl", "axolotl", AXOLOTL_VERSION),
}


class Project:
    """The project that a file with settings is part of; of text without a file nothing is known."""

    def __init__(self, file: Path | None = None, pins: Pins | None = None) -> None:
        self._file = file
        self._pins = pins or Pins()

    def takes(self, library: str) -> Releases:
        """The releases of a library that the project takes."""
        if self._file:
            return self._pins.releases(self._file, library)
        return Releases()

    @property
    def has_flag(self) -> bool:
        """Whether transformers has all but a flag in `fsdp_config`. What older ones need, newer ones take with a warning."""
        return self.takes("transformers").all_since(TRANSFORMERS_FLAG)

    @property
    def has_list(self) -> bool:
        """Whether axolotl shards only where it has the list `fsdp`, and reads the version in `fsdp_config`."""
        return self.takes("axolotl").all_before(AXOLOTL_TOP)

    @property
    def has_settings(self) -> bool:
        """Whether axolotl takes all from `fsdp_config`, and needs no list."""
        return self.takes("axolotl").all_since(AXOLOTL_TOP)

    def too_old(self, rule: Rule) -> str:
        """Why no release that the project takes reads version 2, and what to do; "" where one does."""
        library, title, first = _FIRST[rule]
        releases = self.takes(library)
        if not releases.all_before(first):
            return ""
        known = (
            f"FSDP2 needs {title} {_shown(first)} or newer, but the project allows {releases.said}"
        )
        return f"Still selects FSDP1, because {known}. Raise that requirement, then run fsdp-migrate again."

    def no_mesh(self) -> str:
        """Why no release of Accelerate that the project takes has a mesh, and what to do; "" where one has."""
        releases = self.takes("accelerate")
        if not releases.all_before(ACCELERATE_MESH):
            return ""
        first = _shown(ACCELERATE_MESH)
        known = f"Accelerate has `parallelism_config` only since {first}, but the project allows {releases.said}"
        return f"FSDP2 needs a mesh for HYBRID_SHARD. {known}: raise that requirement, then run fsdp-migrate again."

    def too_old_for_trainer(self, freed: str) -> str:
        """As `too_old` for transformers, with what its Trainer reads from the environment where it reads no other version."""
        said = self.too_old(rules.TRANSFORMERS)
        is_old = self.takes("transformers").all_before(TRANSFORMERS_TRAINER)
        if not said or is_old or self.takes("accelerate").all_before(ACCELERATE_VERSION):
            return said
        return (
            f"{said} Or launch it with `FSDP_VERSION=2`, `FSDP_RESHARD_AFTER_FORWARD={freed}` "
            "and `FSDP_STATE_DICT_TYPE=FULL_STATE_DICT`."
        )

    def is_second(self, name: str) -> bool:
        """Whether a JSON file that settings name is there and is version 2."""
        if self._file:
            folders = [self._file.parent, *self._file.parents]
        else:
            folders = []
        for folder in folders[:6]:
            try:
                settings = json.loads((folder / name).read_text("utf-8"))
            except (OSError, ValueError):
                continue
            if isinstance(settings, dict):
                given = settings
            else:
                given = {}
            return str(given.get("version", given.get("fsdp_version"))) == "2"
        return False


def _shown(release: Release) -> str:
    if len(release) == 1:
        release = (*release, 0)
    return ".".join(map(str, release))
