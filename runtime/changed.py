"""What only the run shows to mean something else than under FSDP1: a warning, once a place, with the rule that explains it."""

import sys
import warnings
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from . import tensor_parallel
from .refusals import UnsupportedInFSDP2

_SAID: dict[tuple[str, str], str] = {}


class ChangedFromFSDP1(UserWarning):
    """The one switch: ``warnings.simplefilter("ignore", ChangedFromFSDP1)`` silences what is said here."""


def said() -> list[dict[str, str]]:
    """What was said in this process: ``{"code": "FSDP302", "place": "train.py:31", "message": "..."}``."""
    return [{"code": code, "place": at, "message": text} for (code, at), text in _SAID.items()]


def say(code: str, text: str) -> None:
    """Warns at the program's own line, the first time that it comes by there."""
    path, line = place()
    key = code, f"{path}:{line}"
    if key not in _SAID:
        _SAID[key] = text
        text = f"{text} (fsdp-migrate explain {code})"
        warnings.warn_explicit(text, ChangedFromFSDP1, path, line)


def place() -> tuple[str, int]:
    """The file and line of the program that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_ours(module: str) -> bool:
    return module.split(".")[0] in _PASSED or module.startswith(_PACKAGE)


# Under `verify` its recorder stands between the program and torch.
_PASSED = ("torch", "contextlib", "_fsdp_migrate_record")
_PACKAGE = __name__.rpartition(".")[0]


def of_norm(gradients: Any) -> None:
    """Before torch's ``clip_grad_norm_`` takes the norm of a sharded model's gradients."""
    if any(isinstance(each, DTensor) for each in gradients):
        say(
            "FSDP302",
            "torch.nn.utils.clip_grad_norm_ now clips by the global norm. Under FSDP1 it clipped each rank by its "
            "local norm, which is smaller: check max_norm",
        )


def of_parallel_norm(parameters: Any) -> None:
    """Before the runtime's ``clip_grad_norm_`` takes the norm of gradients."""
    if any(isinstance(p, DTensor) and tensor_parallel.is_parallel(p) for p in parameters):
        say(
            "FSDP302",
            "clip_grad_norm_ now clips by the norm over all ranks. Under FSDP1 each tensor-parallel rank clipped by the "
            "norm of its own part of the model, which is smaller: check max_norm",
        )


def of_load(optimizer: Any, given: dict[str, Any]) -> None:
    """Before an optimizer loads states that are no DTensors where its parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    keys = [key for group in given.get("param_groups", ()) for key in group["params"]]
    plain = sum(
        isinstance(p, DTensor) and any(map(_is_plain, given["state"].get(key, {}).values()))
        for key, p in zip(keys, parameters, strict=False)
    )
    if plain:
        say(
            "FSDP335",
            f"the loaded states of {plain} parameters are plain tensors, as in FSDP1's per-rank files, but the parameters "
            "are DTensors, so the next optimizer.step() raises. Convert the files with `fsdp-migrate checkpoint convert`, and "
            "load the result with optim_state_dict_to_load of fsdp_migrate.runtime",
        )


def _is_plain(value: object) -> bool:
    return type(value) is torch.Tensor and value.dim() > 0


def of_collective(operator: Any, args: Any, kwargs: Any) -> None:
    """Raises what says what to write, where c10d is given a DTensor: FSDP1's parameters and gradients were plain."""
    raise UnsupportedInFSDP2(
        "FSDP508",
        f"{operator.name()} does not support DTensors, and parameters, gradients and norms of a sharded model are DTensors",
        "pass this rank's shard, p.to_local() or local_shard(p) of fsdp_migrate.runtime",
    )
