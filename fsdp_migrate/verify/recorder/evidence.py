"""What the record tells of the program itself: its files, the wrappers that it built, and what the runtime did."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

from . import imports
from .imports import Copies
from .patch import around

_TORCH = os.path.dirname(torch.__file__)
_RECORDER = os.path.dirname(__file__)


class Evidence:
    """Watches for units of FSDP1 and FSDP2: whether any was built, and where torch's FSDP1 first was, as `file:line`."""

    def __init__(self, copies: Copies) -> None:
        self.fsdp1 = ""
        self.sharded = False
        self._copies = copies
        self._ran: set[str] = set()
        path = "torch.distributed.fsdp"
        imports.after(
            f"{path}.fully_sharded_data_parallel", self._watch("FullyShardedDataParallel")
        )
        imports.after(f"{path}._fully_shard._fsdp_state", self._watch("FSDPState"))

    def told(self) -> dict[str, Any]:
        """What the record says: also the files of the copy that this process has run."""
        loaded = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
        # torch has some 1,500 of them.
        others = [path for path in loaded if path and not path.startswith(_TORCH)]
        inside = {self._copies.inside(os.path.realpath(path)) for path in others}
        files = sorted((inside | self._ran) - {""})
        return {"files": files, "fsdp1": self.fsdp1, "sharded": self.sharded}

    def _watch(self, name: str) -> Callable[[Any], None]:
        fsdp1 = name == "FullyShardedDataParallel"

        def init(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            if not self.sharded or (fsdp1 and not self.fsdp1):
                self._note(fsdp1)
            original(*args, **kwargs)

        return lambda module: around(getattr(module, name, None), "__init__", init)

    def _note(self, fsdp1: bool) -> None:
        self.sharded = True
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith((_TORCH, _RECORDER)):
                if fsdp1 and not self.fsdp1:
                    self.fsdp1 = f"{self._copies.inside(path) or path}:{frame.f_lineno}"
                # A file that is run by `exec` is no module.
                self._ran.add(self._copies.inside(os.path.realpath(path)))
            frame = frame.f_back


def told_by_runtime(copies: Copies) -> dict[str, list[dict[str, Any]]]:
    """The entries of the record that the runtime has, wherever the program has a copy of it; their places are in ours.

    Returns:
        quirks: one for each `with like_fsdp1(model)` that ran: its place, what it did, and the names of all quirks.
        said: one for each warning of what means something else than under FSDP1: its place, rule and text.
    """
    quirks = []
    said = []
    for own in _modules("in_place", "like_fsdp1", "records"):
        parameters = inspect.signature(own["like_fsdp1"]).parameters.values()
        known = [p.name for p in parameters if isinstance(p.default, bool)]
        quirks += [_placed(record, copies) | {"known": known} for record in own["records"]()]
    for own in _modules("changed", "say", "said"):
        said += [_placed(warning, copies) for warning in own["said"]()]
    return {"quirks": quirks, "said": said}


def _modules(name: str, *functions: str) -> Iterator[dict[str, Any]]:
    """The contents of modules of a package that have this name and these functions."""
    for full, module in [*sys.modules.items()]:
        if full.endswith(f".{name}") and module is not None:
            own = vars(module)
        else:
            own = {}
        if all(callable(own.get(function)) for function in functions):
            yield own


def _placed(entry: dict[str, Any], copies: Copies) -> dict[str, Any]:
    path, _, line = entry["place"].rpartition(":")
    return entry | {"place": f"{copies.inside(os.path.realpath(path)) or path}:{line}"}
