"""Units with both frozen and trainable parameters: FSDP1's check of what a policy selects."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from torch import nn

from .materialize import own_modules
from .plan import Unit


def check_frozen(
    root: nn.Module, units: list[Unit], ignored: Collection[nn.Parameter], use_orig_params: bool
) -> None:
    """Raises ValueError, or with ``use_orig_params`` warns, for the units that a policy selects in ``root``.

    With FSDP1's texts (``_wrap_utils.py``, ``_validate_frozen_params``). The memory for gradients that they speak of
    is that of FSDP1; the refusal keeps a program from depending on which of the two runs it.
    """
    names = {module: name for name, module in root.named_modules()}
    boundaries = {unit.module for unit in units}
    for unit in units:
        parameters = {
            parameter: f"{names[module]}.{name}".lstrip(".")
            for module in own_modules(unit.module, boundaries)
            for name, parameter in module.named_parameters(recurse=False)
            if parameter not in ignored
        }
        trained = [name for p, name in parameters.items() if p.requires_grad]
        frozen = [name for p, name in parameters.items() if not p.requires_grad]
        if not trained or not frozen:
            continue
        message = f"{unit.name} has both parameters with requires_grad=True and False."
        if use_orig_params:
            numel = sum(p.numel() for p in parameters)
            message += (
                " We do not recommend wrapping such modules since the gradient memory usage will be "
                f"higher than expected ({numel} numel instead of "
                f"{sum(p.numel() for p in parameters if p.requires_grad)} numel before sharding via "
                "reduce-scatter). "
            )
        else:
            message += " FSDP does not support wrapping such modules when use_orig_params=False. "
        message += (
            "If possible, wrap the frozen parameters with FSDP separately.\n"
            f"The following parameters have requires_grad=True:\n{trained}\n"
            f"The following parameters have requires_grad=False:\n{frozen}"
        )
        if not use_orig_params:
            raise ValueError(message)
        warnings.warn(message, stacklevel=5)
