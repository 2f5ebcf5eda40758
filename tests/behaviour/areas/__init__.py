"""The areas; importing them registers their behaviours."""

from . import (
    accumulation,
    clipping,
    grad_scaler,
    ignored,
    initialization,
    optimizers,
    precision,
    refusals,
    state_dicts,
    training,
    traversal,
    whole_parameters,
    wrapping,
    writeback,
)

__all__ = [
    "accumulation",
    "clipping",
    "grad_scaler",
    "ignored",
    "initialization",
    "optimizers",
    "precision",
    "refusals",
    "state_dicts",
    "training",
    "traversal",
    "whole_parameters",
    "wrapping",
    "writeback",
]
