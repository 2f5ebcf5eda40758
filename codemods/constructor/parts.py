"""What each argument of a constructor adds to its plain form: by what the files show, else by what a run recorded."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from fsdp_migrate.codemods.constructor import (
    precision,
    recorded,
    recorded_units,
    sharding,
    training,
    wrapping,
)
from fsdp_migrate.codemods.constructor.construction import DIRECT, SIGNATURE, Construction
from fsdp_migrate.codemods.constructor.options import Fixed
from fsdp_migrate.codemods.constructor.plain import NOTHING, Plain, Stays
from fsdp_migrate.codemods.constructor.rules import CONSTRUCTOR
from fsdp_migrate.facts.names import CLASS

# What translates which arguments by what the files show.
_TRANSLATED: tuple[tuple[Callable[[Construction], dict[str, Plain]], tuple[str, ...]], ...] = (
    (sharding.plain, ("process_group", "sharding_strategy", "device_mesh")),
    (wrapping.plain, ("auto_wrap_policy",)),
    *((partial(training.plain, name=name), (name,)) for name in training.ARGUMENTS),
    (precision.plain, ("mixed_precision",)),
)


def parts_of(construction: Construction) -> dict[str, Plain]:
    """What each argument adds to the plain form.

    Raises:
        Stays: if an argument needs the runtime, or is not known here.
    """
    parts = _parts(construction)
    if parts and parts["param_init_fn"].each:  # then each unit is broadcast by itself, too
        parts["mixed_precision"] = precision.cast_behind(parts["mixed_precision"])
        sync = parts["sync_module_states"]
        each = (line.replace("{model}", "{module}") for line in sync.above)
        parts["sync_module_states"] = replace(sync, above=(), each=tuple(each))
        parts = {"param_init_fn": parts.pop("param_init_fn"), **parts}
    return parts


def _parts(construction: Construction) -> dict[str, Plain]:
    if construction.users:
        return {}
    if construction.kind != DIRECT and construction.maker is None:
        raise Stays(f"{construction.kind} makes the units when the program runs")
    if construction.unknown:
        raise Stays(f"`{construction.unknown[0].arg}` is not an argument of FSDP1")
    if construction.is_partly_known or not construction.is_sure:
        unknown = "some arguments come from an unpacked dictionary"
        unsure = "wrap makes a unit where enable_wrap is around its call"
        why = Stays(unknown if construction.is_sure else unsure)
        return recorded.parts(construction, SIGNATURE[1:], why)
    parts: dict[str, Plain] = {}
    given = {argument.name for argument in construction.arguments}
    for plain, names in _TRANSLATED:
        if given.isdisjoint(names):  # the defaults are FSDP2's, too
            parts.update(dict.fromkeys(names, NOTHING))
            continue
        try:
            parts.update(plain(construction))
        except Stays as stays:
            parts.update(recorded.parts(construction, names, stays))
    # On meta, FSDP1 gave it memory also without `param_init_fn`.
    if construction.ran is not None and recorded_units.was_on_meta(construction.ran):
        parts |= recorded.parts(construction, ["param_init_fn"], Stays("its model was on meta"))
    spare = tuple(s for each in construction.fixed for s in _spare(construction, each))
    # The device is current before a mesh is made.
    return {
        "device_id": parts["device_id"],
        **parts,
        "**": Plain(statements=spare) if spare else NOTHING,
    }


def _spare(construction: Construction, known: Fixed) -> Iterator[ast.stmt]:
    """The assignment of a dictionary that only constructors of this decision unpack."""
    context = construction.context
    calls = [use for use in known.uses if isinstance(use, ast.Call)]
    if all(context.fsdp1(call.func) == CLASS for call in calls):
        if not any(context.silenced(CONSTRUCTOR, call) for call in calls):
            yield known.statement


def why_not(construction: Construction) -> str:
    """Why a constructor's own arguments keep it on the bridge; "" if they do not."""
    try:
        parts_of(construction)
    except Stays as stays:
        return str(stays)
    return ""
