"""Hooks: on the communication of a model, and on its parameters."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.constructor.precision import POLICY
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.nodes import receiver
from fsdp_migrate.findings import Action, Severity

COMMUNICATION = Rule("FSDP361", "comm-hook", Severity.RAISES)
PARAMETER = Rule("FSDP506", "parameter-hook")
OPTIMIZER = Rule("FSDP520", "optimizer-in-backward")

_RAISES = (
    "This call raises under FSDP2, which has no communication hooks. To compress gradients, set `reduce_dtype` of the "
    "mixed precision policy."
)
_ON_PARAMETERS = {
    "register_hook": (
        "This hook never runs on parameters of an FSDP2 model. Use `register_post_accumulate_grad_hook`, which gets the "
        "shard of the reduced gradient."
    ),
    "register_post_accumulate_grad_hook": (
        "This hook now runs once for each parameter, and the reduced gradient is a DTensor. Under FSDP1 it ran once per "
        "unit or, with `use_orig_params=True`, never. Make it accept DTensors, or remove it if it must not run."
    ),
}
_CAST = (
    "This hook now sees inputs that `fully_shard` has already cast to low precision; under FSDP1 it saw them before "
    "that. Do its work in the model's own forward, or before the call."
)
_IN_BACKWARD = "_apply_optimizer_in_backward"
_STEPS = (
    "Still works: `fsdp_migrate.runtime` lets these optimizers step when a gradient is reduced, as FSDP1 did with "
    "`use_orig_params=True`."
)
_NEVER = (
    "These optimizers silently never step under FSDP2. Step in `register_post_accumulate_grad_hook`, or after the "
    "backward pass."
)


@codemod(words=("register_", "_apply_optimizer_in_backward"))
def find(context: Context) -> Iterator[Found]:
    """Hooks of FSDP1 models and of their parameters."""
    for attribute in _of_models(context, "register_comm_hook"):
        yield Found(COMMUNICATION, attribute, Action.MANUAL, _RAISES)
    if context.in_place and context.program.has("MixedPrecision"):
        for attribute in _of_models(context, "register_forward_pre_hook"):
            yield Found(POLICY, attribute, Action.MANUAL, _CAST)
    for name, message in _ON_PARAMETERS.items():
        for attribute in context.file.attributes.get(name, ()):
            owner = attribute.value
            sharded = taken(context).is_parameter(owner, context.file)
            if sharded and not is_known_as_whole(context, owner):
                yield Found(PARAMETER, attribute, Action.MANUAL, message)
    yield from _in_backward(context)


def _of_models(context: Context, name: str) -> Iterator[ast.Attribute]:
    """The calls of a method on FSDP1 models."""
    for attribute in context.file.attributes.get(name, ()):
        if context.call_of(attribute) is not None and context.can_be_model(attribute.value):
            yield attribute


def _in_backward(context: Context) -> Iterator[Found]:
    """Optimizers that step in the backward pass."""
    for load in context.file.loads.get(_IN_BACKWARD, ()):
        call = context.file.parents[load]
        given = None
        if isinstance(call, ast.Call):
            given = keyword(call, "params", 1)
        if given is not None and _is_sharded_ever(context, given):
            construct = f"{_IN_BACKWARD}(...)"
            if context.form == "torch":
                yield Found(OPTIMIZER, call, Action.MANUAL, _NEVER, construct)
            else:
                yield Found(OPTIMIZER, call, Action.RUNTIME, _STEPS, construct)


def _is_sharded_ever(context: Context, parameters: ast.expr) -> bool:
    """Whether parameters are a sharded model's, or of a model that is sharded later."""
    if taken(context).are_parameters(parameters, context.file):
        return True
    model = receiver(parameters)
    if model is None:
        return False
    sharded = [call.args[0] for call in context.models.constructors(context.file) if call.args]
    return ast.unparse(model) in map(ast.unparse, sharded)
