"""What the runtime says of itself in this process, wherever the program has a copy of it."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from typing import Any

from .imports import Copies


def told(copies: Copies) -> dict[str, list[dict[str, Any]]]:
    """The entries of the record, their places in the copy.

    Returns:
        quirks: one for each `with like_fsdp1(model)` that ran: its place, what it did, and the names of all quirks.
        said: one for each warning of what means something else than under FSDP1: its place, rule and text.
    """
    found: dict[str, list[dict[str, Any]]] = {"quirks": [], "said": []}
    for own in _modules("in_place", "like_fsdp1", "records"):
        signature = inspect.signature(own["like_fsdp1"])
        known = [p.name for p in signature.parameters.values() if isinstance(p.default, bool)]
        found["quirks"] += [
            _placed(record, copies) | {"known": known} for record in own["records"]()
        ]
    for own in _modules("changed", "say", "said"):
        found["said"] += [_placed(warning, copies) for warning in own["said"]()]
    return found


def _modules(name: str, *functions: str) -> Iterator[dict[str, Any]]:
    """The contents of modules of a package that have this name and these functions."""
    for full, module in [*sys.modules.items()]:
        own = vars(module) if full.endswith(f".{name}") and module is not None else {}
        if all(callable(own.get(function)) for function in functions):
            yield own


def _placed(entry: dict[str, Any], copies: Copies) -> dict[str, Any]:
    path, _, line = entry["place"].rpartition(":")
    return entry | {"place": f"{copies.inside(os.path.realpath(path)) or path}:{line}"}
