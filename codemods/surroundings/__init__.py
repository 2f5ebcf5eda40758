"""What stands around a model and means something else, or fails, when the model is FSDP2's: one module a construct.

Each module looks at the parameters that a program takes from its sharded models (`parameters`), at the classes that the models
are made of (`classes`), or at both. Where FSDP1 trained rightly and FSDP2 would train something else without an error, the
model is held back; where FSDP2 fails, the place is marked; where numbers become right that were not, that is said.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft
from fsdp_migrate.codemods.surroundings import (
    collectives,
    copies,
    divergent,
    evaluated_first,
    fused_gradients,
    hooks,
    in_backward,
    local_values,
    mixed_groups,
    optimizer_kinds,
    tied_weights,
    unfreezing,
    unit_inputs,
    unused,
)
from fsdp_migrate.codemods.surroundings.following import parameters_in

MODULES = (
    evaluated_first,
    tied_weights,
    copies,
    hooks,
    local_values,
    mixed_groups,
    unused,
    unfreezing,
    unit_inputs,
    fused_gradients,
    optimizer_kinds,
    divergent,
    in_backward,
    collectives,
)
RULES = tuple(rule for module in MODULES for rule in module.RULES)


def find(context: Context) -> Iterator[Draft]:
    """What the modules say of a file that an FSDP1 model reaches."""
    if not context.models.reached:
        return
    parameters = parameters_in(context)
    for module in MODULES:
        yield from module.find(context, parameters)


Command = command(find, __doc__ or "")
