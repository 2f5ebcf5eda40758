"""The areas; importing them registers their behaviours."""

from . import (  # noqa: F401
    accumulation,
    clipping,
    grad_scaler,
    ignored,
    initialization,
    optimizers,
    precision,
    programs,
    refusals,
    state_dicts,
    training,
    traversal,
    whole_parameters,
    wrapping,
    writeback,
)
