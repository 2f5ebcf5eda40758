"""`FSDP(...)`: the call that wraps a model.

FSDP1 wraps: the call returns a new module around the old one. FSDP2 shards in place: `fully_shard` is called on every unit,
children before parents, and on the root last, and the model stays the same object. Where everything that decides is in
sight, the call becomes that loop; otherwise it becomes one call of `shard_model`, which has FSDP1's signature.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from fsdp_migrate.codemods import current_device
from fsdp_migrate.codemods.arguments import (
    auto_wrap_policy,
    backward_prefetch,
    container,
    cpu_offload,
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
from fsdp_migrate.codemods.indirect import DYNAMIC
from fsdp_migrate.codemods.plain_form import plain_form
from fsdp_migrate.codemods.plan import Plan, Translation, is_pure
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
}


def plan(context: Context, call: ast.Call) -> Plan:
    """What becomes of one constructor call. What a call of something else makes, `shard_model` reads when it runs."""
    constructor = Constructor(context, call)
    if constructor.maker is not None:
        return Plan(constructor, {})
    translations = {}
    for name in SIGNATURE[1:]:
        translation = _TRANSLATORS[name](constructor)
        if translation is not None:
            translations[name] = _keeping_effects(constructor, name, translation)
    on_device = current_device.translate(constructor)
    if on_device is not None:
        translations["current device"] = on_device
    unit = container.translate(constructor)
    if unit is not None:
        translations["container"] = unit
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
        if name == "module":
            continue
        translation = planned.translations[name]
        action = Action.RUNTIME if plain is None and translation.in_runtime else Action.REWRITE
        message = translation.message
        if plain is None and translation.in_runtime and translation.plain is not None:
            message = "passed on to shard_model, which takes FSDP1's values"
        yield Draft(
            translation.rule, argument.node, action, message, _construct(context, argument), sites
        )
    on_device = planned.translations.get("current device")
    if plain is not None and on_device is not None:
        yield Draft(
            on_device.rule,
            constructor.call,
            Action.REWRITE,
            on_device.message,
            "FSDP(...)",
            sites,
        )
    for name, translation in planned.translations.items():
        if translation.note and name not in constructor.arguments:
            yield Draft(
                translation.rule,
                constructor.call,
                Action.REWRITE,
                translation.message,
                f"{name} left out",
                sites,
            )
    for translation in planned.needs_runtime:
        if not any(planned.translations.get(name) is translation for name in constructor.arguments):
            message = translation.message
            yield Draft(
                translation.rule, constructor.call, Action.RUNTIME, message, "FSDP(...)", sites
            )
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
    source = " ".join(context.source(argument.value).split())
    return f"{argument.name}={source if len(source) <= 40 else source[:37] + '...'}"


Command = command(find, __doc__ or "")
