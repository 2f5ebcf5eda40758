"""The calls that clip gradients: FSDP1's method, torch's functions and the runtime's, with their limits.

A call that changed no gradient leaves no trace in what is trained, and so would one that is missing. Whether a call
changed any is seen by the gradients that this process holds, before and after it.
"""

import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from . import imports
from .patch import Method, around
from .steps import norms_of

Record = Callable[[str, bool], None]
"""Is given a limit, and whether the call changed a gradient."""

Noting = Callable[[str], AbstractContextManager[None]]
"""A context that notes an error of the recorder, which must not end the program."""

_BY_NORM = "clip_grad_norm_ clip_grad_norm clip_grads_with_norm_"
_BY_VALUE = "clip_grad_value_"


def install(record: Record, noting: Noting) -> None:
    """Call `record` for each clip call of the program; one that calls another counts once."""
    inside = threading.local()

    def clip(original: Method, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or getattr(inside, "call", False):
            return original(*args, **kwargs)
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        parameters = _parameters(bound.arguments)
        before = None
        with noting("a clip call"):
            before = _norms(parameters)
        inside.call = True
        try:
            result = original(*bound.args, **bound.kwargs)
        finally:
            inside.call = False
        with noting("a clip call"):
            if before is not None:
                record(_limit(bound.arguments), not torch.equal(before, _norms(parameters)))
        return result

    for module in (nn.utils, nn.utils.clip_grad):
        around(module, f"{_BY_NORM} {_BY_VALUE}", clip)
    method = functools.partial(around, names="clip_grad_norm_", function=clip)
    fsdp1 = "torch.distributed.fsdp.fully_sharded_data_parallel"
    imports.after(fsdp1, lambda module: method(module.FullyShardedDataParallel))

    def of_runtime(module: Any) -> None:
        if _is_runtimes(module):
            method(module)

    # The runtime's module has another name in a repository that it was copied into.
    imports.after("*.clip", of_runtime)


def _is_runtimes(module: Any) -> bool:
    return hasattr(module, "clip_grad_norm_") and hasattr(module, "_local_norm")


def _parameters(arguments: dict[str, Any]) -> list[torch.Tensor]:
    """What a call clips: a model's parameters, one, or several, which may come from a generator that can be read once."""
    name, given = next(iter(arguments.items()))
    if isinstance(given, torch.Tensor):
        return [given]
    if hasattr(given, "parameters"):
        return [*given.parameters()]
    arguments[name] = listed = [*given]
    return listed


def _norms(parameters: list[torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return norms_of([p.grad for p in parameters if p.grad is not None])


def _limit(arguments: dict[str, Any]) -> str:
    """The limit in words: a norm's, of which all but the second say their order, or a value's."""
    if "clip_value" in arguments:
        return f"{float(arguments['clip_value']):.6g} of each value"
    order = float(arguments.get("norm_type", 2.0))
    text = f"{float(arguments['max_norm']):.6g}"
    if order == 2:
        return text
    return f"{text} of the norm of order {order:g}"
