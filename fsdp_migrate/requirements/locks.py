"""Lock files: which torch they hold. They are never written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.requirements.declared import Read, of_lock
from fsdp_migrate.requirements.toml import parsed

_LOCKED = re.compile(r"name = \"torch\"|\"torch\": *\{")


def read_lock(text: str) -> Read:
    """Each torch that a lock file of poetry, uv, pdm or Pipenv holds, or one in PEP 751's format."""
    if text.lstrip().startswith("{"):
        data = json.loads(text)
    else:
        data = parsed(text)
    places = _LOCKED.finditer(text)
    found = []
    for version in _versions(data):
        place = next(places, None)
        start = 0
        if place is not None:
            start = place.start()
        declared = of_lock(version, start)
        if declared:
            found += [declared]
    return Read(tuple(found))


def _versions(data: dict[str, Any]) -> Iterator[str]:
    for package in [*data.get("package", []), *data.get("packages", [])]:
        if package.get("name") == "torch" and "version" in package:
            yield package["version"]
    for section in ("default", "develop"):
        if "torch" in data.get(section, {}):
            yield data[section]["torch"].get("version", "").removeprefix("==")
