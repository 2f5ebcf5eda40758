"""The plain form of one constructor: what each argument adds to it, and what the rewrites of a file take care of together."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from fsdp_migrate.codemods.constructor import (
    arguments,
    precision,
    recorded,
    recorded_units,
    sharding,
    wrapping,
)
from fsdp_migrate.codemods.constructor.construction import (
    CHOSEN,
    CONSTRUCTOR,
    DIRECT,
    PARTIAL,
    SIGNATURE,
    Construction,
)
from fsdp_migrate.codemods.constructor.dependence import GATHERED
from fsdp_migrate.codemods.constructor.layout import Shape, edits
from fsdp_migrate.codemods.constructor.plain import NOTHING, Plain, Stays
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import Refused, overlap
from fsdp_migrate.codemods.rule import Edit, Found, Import
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH

if TYPE_CHECKING:
    from fsdp_migrate.codemods.constructor.options import Fixed

# What goes where FSDP1's class was imported.
_OF_FSDP = (TORCH, RUNTIME, "torch.distributed.device_mesh")


@dataclass(frozen=True, eq=False)
class PlainForm:
    """A constructor in plain PyTorch: its parts by argument, together, and how it is written."""

    construction: Construction
    parts: dict[str, Plain]
    whole: Plain
    shape: Shape
    skip_root: bool

    def edits(self) -> list[Edit]:
        """The edits that make it plain."""
        return edits(self.construction, self.whole, self.shape, skip_root=self.skip_root)

    def freeing(self) -> PlainForm:
        """The form whose root frees its parameters after forward.

        Raises:
            Stays: if the strategy keeps them.
        """
        if "reshard_after_forward" in self.whole.shared:
            raise Stays(f"its strategy keeps them, and the program {GATHERED}")
        root = {**self.whole.root, "reshard_after_forward": "True"}
        return replace(self, whole=replace(self.whole, root=root))

    @property
    def imports(self) -> tuple[Import, ...]:
        """The names that it uses."""
        at = self.construction.call.func
        needs = (Import(TORCH, "fully_shard"), *self.whole.imports)
        return tuple(need._replace(at=at) if need.module in _OF_FSDP else need for need in needs)

    @property
    def removed(self) -> tuple[ast.AST, ...]:
        """The code that it takes away: of the call, all but the model and what its arguments keep."""
        call, maker = self.construction.call, self.construction.maker
        if maker is not None and maker.kind == PARTIAL:
            return tuple(values_given(maker.call))
        given = values_given(call)
        kept = [self.construction.module, *self.whole.kept]
        by_maker = () if maker is None else (maker.call,)
        return (
            *by_maker,
            call.func,
            *(value for value in given if value not in kept),
            *self.whole.removed,
        )


def handled_by(
    context: Context, forms: Sequence[PlainForm], own: Sequence[PlainForm]
) -> set[ast.AST]:
    """The nodes of a file that its rewrites take care of.

    Raises:
        Stays: if two of them change the same code.
    """
    from fsdp_migrate.codemods.registry import asked

    found: list[Found] = []
    for codemod in asked(context, but=["constructor.findings"]):
        plain = getattr(codemod, "plain", None)
        found += codemod.find(context) if plain is None else plain(context, forms)
    edited = [each for each in found if each.edits is not None]
    try:
        every = {edit for form in own for edit in form.edits()}
        every |= {edit for each in edited if each.edits for edit in each.edits()}
    except Refused as refusal:
        raise Stays(str(refusal)) from None
    if overlap(every):
        raise Stays("two rewrites change the same code")
    regions = [node for form in own for node in form.removed]
    regions += [node for each in edited for node in each.removed]
    handled = {node for region in regions for node in ast.walk(region)}
    for each in edited:
        handled.add(each.node)
        if isinstance(each.node, ast.Call):
            handled.add(each.node.func)
    return handled


# What translates which arguments by what the files show.
_TRANSLATED: tuple[tuple[Callable[[Construction], dict[str, Plain]], tuple[str, ...]], ...] = (
    (sharding.plain, ("process_group", "sharding_strategy", "device_mesh")),
    (wrapping.plain, ("auto_wrap_policy",)),
    *((partial(arguments.plain, name=name), (name,)) for name in arguments.ARGUMENTS),
    (precision.plain, ("mixed_precision",)),
)


def parts_of(construction: Construction) -> dict[str, Plain]:
    """What each argument adds to the plain form.

    Raises:
        Stays: if an argument needs the runtime, or is not known here.
    """
    parts = _parts(construction)
    if construction.kind == CHOSEN:
        parts["cls"] = recorded.chosen_class(construction)
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
    if construction.kind not in (DIRECT, CHOSEN) and construction.maker is None:
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
    if construction.fixed:
        spare = tuple(s for each in construction.fixed for s in _spare(construction, each))
        parts["**"] = Plain(statements=spare)
    # The device is current before a mesh is made.
    return {"device_id": parts["device_id"], **parts}


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
