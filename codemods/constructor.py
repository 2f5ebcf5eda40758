"""`FSDP(...)`: the call that wraps a model.

FSDP1 wraps: the call returns a new module around the old one. FSDP2 shards in place: `fully_shard` is called on every unit,
children before parents, and on the root last, and the model stays the same object. Where everything that decides is in
sight, the call becomes that loop; otherwise it becomes one call of `shard_model`, which has FSDP1's signature.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from fsdp_migrate.codemods.arguments import (
    auto_wrap_policy,
    backward_prefetch,
    container,
    cpu_offload,
    current_device,
    device_id,
    device_mesh,
    forward_prefetch,
    ignored,
    limit_all_gathers,
    mixed_precision,
    param_init_fn,
    sharding_strategy,
    sync_module_states,
    use_orig_params,
)
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.constructor_call import SIGNATURE, Argument, Constructor
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.indirect import DYNAMIC
from fsdp_migrate.codemods.plain_form import plain_form
from fsdp_migrate.codemods.plan import Form, Plan, Translation, is_pure
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.codemods.runtime_form import runtime_form
from fsdp_migrate.findings import Action

CONSTRUCTOR = Rule(
    "FSDP002",
    "fsdp1-constructor",
    "FSDP(model, ...) becomes fully_shard(model, ...), or shard_model where a value is known only at run time",
    """`fully_shard` shards a module in place and returns the same module, so `model = FSDP(model)` becomes a statement
`fully_shard(model)`. Positional arguments are bound to FSDP1's signature first (the same from torch 2.2 to 2.13). Each
argument has a rule of its own, which says what becomes of it.""",
    (
        Example(
            "the simplest call",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "another name, and a model built in place",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

wrapped = FSDP(Net().cuda())
""",
            """\
from torch.distributed.fsdp import fully_shard

wrapped = fully_shard(Net().cuda())
""",
        ),
        Example(
            "arguments by position, comments at arguments",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model,
    None,  # all ranks
    ShardingStrategy.SHARD_GRAD_OP,  # memory is plenty
)
""",
            """\
from torch.distributed.fsdp import fully_shard

# all ranks
# memory is plenty
fully_shard(model, reshard_after_forward=False)
""",
        ),
    ),
)
UNKNOWN = Rule(
    "FSDP019",
    "unknown-argument",
    "an argument that FSDP1 does not have",
    """The call would fail under FSDP1 as well, or the class is not torch's. Nothing is changed.""",
    (
        Example(
            "an argument of another library",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, mesh=mesh)
""",
            message="no argument of FSDP1",
        ),
    ),
)
RULES = (CONSTRUCTOR, UNKNOWN)

_TRANSLATORS: dict[str, Callable[[Constructor], Translation | None]] = {
    "process_group": device_mesh.translate_group,
    "sharding_strategy": sharding_strategy.translate,
    "cpu_offload": cpu_offload.translate,
    "auto_wrap_policy": auto_wrap_policy.translate,
    "backward_prefetch": backward_prefetch.translate,
    "mixed_precision": mixed_precision.translate,
    "ignored_modules": partial(ignored.translate, name="ignored_modules"),
    "param_init_fn": param_init_fn.translate,
    "device_id": device_id.translate,
    "sync_module_states": sync_module_states.translate,
    "forward_prefetch": forward_prefetch.translate,
    "limit_all_gathers": limit_all_gathers.translate,
    "use_orig_params": use_orig_params.translate,
    "ignored_states": partial(ignored.translate, name="ignored_states"),
    "device_mesh": device_mesh.translate_mesh,
    # of the model itself
    "current device": current_device.translate,
    "container": container.translate,
}


def plan(context: Context, call: ast.Call) -> Plan:
    """What becomes of one constructor call. What a call of something else makes, `shard_model` reads when it runs."""
    constructor = Constructor(context, call)
    if constructor.maker is not None:
        return Plan(constructor, {})
    translations = {}
    for name, translate in _TRANSLATORS.items():
        translation = translate(constructor)
        if translation is not None:
            translations[name] = _keeping_effects(constructor, name, translation)
    return Plan(constructor, translations)


def _keeping_effects(constructor: Constructor, name: str, translation: Translation) -> Translation:
    """The translation, or the runtime's if the argument's expression does more than give a value and would go away."""
    value = constructor.value(name)
    goes = name != "device_mesh" or constructor.is_none(name)
    if value is None or translation.plain is None or not goes:
        return translation
    if is_pure(constructor.context, value):
        return translation
    message = f"{translation.message}; its expression may do more than give a value, so it stays"
    return Translation(translation.rule, message)


def find(context: Context) -> Iterator[Draft]:
    """The constructor calls of a file, and their arguments."""
    for module, call in context.models.constructors:
        if module is context.module and context.models.maker(call) is None:
            yield from _of_call(context, context.plans[call])


def _of_call(context: Context, planned: Plan) -> Iterator[Draft]:
    constructor = planned.constructor
    sites = frozenset({planned.site})
    unknown = constructor.unknown
    no_model = constructor.model is None and not constructor.splat
    if unknown or no_model or constructor.wrapped_before or planned.refused:
        yield from _refused(context, planned)
        return
    plain = plain_form(context, planned) if planned.plain else None
    form = plain or runtime_form(context, planned)
    yield Draft(
        CONSTRUCTOR,
        constructor.call,
        Action.RUNTIME if plain is None else Action.REWRITE,
        _why_runtime(planned) if plain is None else _how_plain(planned),
        "FSDP(...)",
        sites,
        edits=form.edits,
        needs=form.needs,
        gone=form.gone,
    )
    for name, argument in constructor.arguments.items():
        if name != "module":
            translation = planned.translations[name]
            yield _of_argument(context, planned, argument, translation, plain)
    for name, translation in planned.translations.items():
        if name not in constructor.arguments:
            yield from _of_rest(planned, name, translation, plain)
    for keyword in constructor.call.keywords:
        if keyword.arg is None:
            message = "shard_model binds these arguments to FSDP1's signature when the program runs"
            yield Draft(
                DYNAMIC,
                keyword.value,
                Action.RUNTIME,
                message,
                f"**{context.source(keyword.value)}",
                sites,
            )


def _of_argument(
    context: Context,
    planned: Plan,
    argument: Argument,
    translation: Translation,
    plain: Form | None,
) -> Draft:
    """What becomes of an argument that is given."""
    passed_on = plain is None and translation.in_runtime
    message = translation.message
    if passed_on and translation.plain is not None:
        message = "passed on to shard_model, which takes FSDP1's values"
    action = Action.RUNTIME if passed_on else Action.REWRITE
    construct, sites = _construct(context, argument), frozenset({planned.site})
    return Draft(translation.rule, argument.node, action, message, construct, sites)


def _of_rest(
    planned: Plan, name: str, translation: Translation, plain: Form | None
) -> Iterator[Draft]:
    """What becomes of an argument that is left out, or of the model: said where it changes something."""
    action, construct = Action.REWRITE, "FSDP(...)"
    if translation.plain is None:
        action = Action.RUNTIME
    elif not translation.note or (plain is None and translation.in_runtime):
        return
    elif name in SIGNATURE:
        construct = f"{name} left out"
    call, sites = planned.constructor.call, frozenset({planned.site})
    yield Draft(translation.rule, call, action, translation.message, construct, sites)


def _why_runtime(planned: Plan) -> str:
    reasons = [f"{t.rule.name}: {t.message}" for t in planned.needs_runtime]
    if planned.constructor.splat:
        reasons.append("arguments are unpacked from a value")
    why = "; ".join(reasons) or "the call stands inside an expression, where no loop can stand"
    return f"becomes shard_model(...): {why}"


def _how_plain(planned: Plan) -> str:
    if planned.merged().units is not None:
        return (
            "becomes fully_shard(...) on every unit, children before parents, and on the model last"
        )
    return "becomes fully_shard(...): the model is sharded in place and stays the same object"


def _refused(context: Context, planned: Plan) -> Iterator[Draft]:
    constructor = planned.constructor
    sites = frozenset({planned.site}) | constructor.wrapped_before
    reasons = [f"`{keyword.arg}` is no argument of FSDP1" for keyword in constructor.unknown]
    reasons += [translation.message for translation in planned.refused]
    if constructor.model is None:
        reasons.append("no module is given")
    if constructor.wrapped_before:
        reasons.append(
            "the model is FSDP1's already, and fully_shard takes no module twice: wrap it once"
        )
    message = f"left as it is: {'; '.join(reasons)}"
    yield Draft(
        CONSTRUCTOR, constructor.call, Action.MANUAL, message, "FSDP(...)", sites, silent=True
    )
    for keyword in constructor.unknown:
        text = f"`{keyword.arg}` is no argument of FSDP1"
        yield Draft(UNKNOWN, keyword, Action.MANUAL, text, f"{keyword.arg}=", sites, silent=True)
    for name, argument in constructor.arguments.items():
        if name != "module":
            translation = planned.translations[name]
            text = (
                translation.message
                if translation.refused
                else "left as it is, with the rest of its call"
            )
            yield Draft(
                translation.rule,
                argument.node,
                Action.MANUAL,
                text,
                _construct(context, argument),
                sites,
            )


def _construct(context: Context, argument: Argument) -> str:
    return f"{argument.name}={shortened(context.source(argument.value))}"


Command = command(find, __doc__ or "")
