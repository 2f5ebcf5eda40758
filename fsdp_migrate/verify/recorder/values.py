"""The values of parameters and buffers: each process writes what it holds, the reader adds up.

They are written at the end, and when the program's model is called for the first time; it may then take over the other
program's.
"""

import os
from typing import Any

import torch
from torch import nn

from .census import Census, roots
from .layouts import Part, dtype_of, is_sharded, precisions
from .ranks import identity
from .settings import SETTINGS

LIMIT = 1 << 30
"""Bytes a process writes at most; a larger model is compared without its values."""


def write(census: Census, path: str, **more: Any) -> str:
    """Write the present values, and `more`, to `path`; returns why that is not possible, or nothing."""
    if not census.complete:
        return "not every parameter's name or place is known"
    parts = [*census.first.values(), *census.untrained_parts()]
    buffers = census.buffers()
    values = [*[part.read() for part in parts], *buffers.values()]
    if sum(value.numel() * value.element_size() for value in values) > LIMIT:
        return f"the parameters of one rank are larger than {LIMIT >> 20} MiB"
    told = {
        "parameters": [*map(_told, parts)],
        "buffers": {name: _copy(buffer) for name, buffer in buffers.items()},
    }
    # A run that is ended while it writes leaves no file.
    torch.save({**told, **more}, f"{path}.part")
    os.replace(f"{path}.part", path)
    return ""


def _told(part: Part) -> dict[str, Any]:
    place = {"name": part.name, "shape": list(part.shape), "offsets": list(part.offsets)}
    return {**place, "flat": part.flat, "value": _copy(part.read())}


class Start:
    """Waits for the first call of a sharded model; `problem` is why its values are not known, `aligned` what it took
    over.
    """

    def __init__(self, folder: str) -> None:
        self.aligned: list[str] = []
        self.problem = "no sharded model was called"
        self.dtype = ""
        self.precisions: dict[str, list[str]] = {}
        self._folder = folder
        self._hook = nn.modules.module.register_module_forward_pre_hook(self._called)

    def _called(self, module: nn.Module, _: Any) -> None:
        if not is_sharded(module):
            return
        self._hook.remove()
        # What the recorder does not understand must not end the program: it is said in the record.
        try:
            self.dtype = str(dtype_of(module))
            self.precisions = precisions(module)
            with torch.no_grad():
                self._look(*identity())
        except Exception as error:
            self.problem = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Wait no longer."""
        self._hook.remove()

    def _look(self, rank: int, processes: int) -> None:
        census = Census()
        models = [root for root in roots() if any(map(is_sharded, root.modules()))]
        if len(models) > 1:  # those that were not called yet cannot be told apart
            self.problem = f"there are {len(models)} sharded models"
            return
        census.look([p for model in models for p in model.parameters()], rank, processes)
        self.problem = write(
            census,
            os.path.join(self._folder, f"process-{os.getpid()}.start.pt"),
            random=torch.get_rng_state(),
            # Processes that should hold the same are compared by this.
            sums=[(*place, _sums(part.read())) for place, part in census.parts.items()],
        )
        if SETTINGS["start"] and not self.problem:
            values = torch.load(SETTINGS["start"], weights_only=True, mmap=True)
            self._take_over(census, values, rank)

    def _take_over(self, census: Census, values: dict[str, Any], rank: int) -> None:
        for part in census.parts.values():
            local = part.read()
            whole = values["parameters"].get(part.name)
            if whole is not None and tuple(whole.shape) == part.shape:
                self._replace(part.name, local, _slice(whole, part, local))
        if rank < len(values["buffers"]):
            buffers = values["buffers"][rank]
        else:
            buffers = {}
        for name, buffer in census.buffers().items():
            value = buffers.get(name)
            if value is not None and value.shape == buffer.shape:
                self._replace(name, buffer.detach(), value)
        if rank < len(values["random"]):
            # Drawing for shards leaves the generator elsewhere, and dropout would differ.
            torch.set_rng_state(values["random"][rank])

    def _replace(self, name: str, target: torch.Tensor, value: torch.Tensor) -> None:
        if not torch.equal(target, value.to(target)):
            target.copy_(value)
            self.aligned.append(name)


def _slice(whole: torch.Tensor, part: Part, local: torch.Tensor) -> torch.Tensor:
    if part.flat:
        return whole.reshape(-1)[part.offsets[0] :][: local.numel()]
    for dimension, (start, length) in enumerate(zip(part.offsets, local.shape, strict=True)):
        whole = whole.narrow(dimension, start, length)
    return whole


def _sums(value: torch.Tensor) -> list[float]:
    wide = value.detach().double()
    return [float(wide.sum()), float(wide.square().sum())]


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().clone()
