"""What `--form torch` relies on: FSDP1 did more than `fully_shard` does, and without `like_fsdp1` nothing makes up for it."""

from collections.abc import Collection, Iterator, Sequence

from fsdp_migrate.codemods.constructor.construction import ASSUMPTION, Construction
from fsdp_migrate.codemods.constructor.silent import Hit
from fsdp_migrate.codemods.context import shortened
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

SILENT = Rule("FSDP005", "silent-dependence")
RULES = (ASSUMPTION, SILENT)

_NORMS = "changes in silence unless no BatchNorm is in a unit of low precision: FSDP1 kept them in float32"
_DATACLASSES = (
    "changes in silence unless no forward returns a dataclass: FSDP2 reduces no gradients of its "
    "tensors before torch 2.13"
)


def of(
    construction: Construction, written: Collection[str], hits: Sequence[Hit]
) -> Iterator[Found]:
    """The assumptions of one constructor, the silent ones first, and the places that rely on the wrapper.

    Args:
        written: the arguments that are in torch's words.
    """
    context = construction.context
    from fsdp_migrate.codemods.uses.assumed import WORDS, is_elsewhere  # for this form alone

    assumed = []
    for name, what in ASSUMPTION.table.items():
        if name == "parameter_attributes" and construction.keeps_attributes == "False":
            continue  # FSDP1's flat parameters lacked them, too
        if " unless " in what and (name not in WORDS or is_elsewhere(context, name)):
            switch = "class_names" if name == "printing" else name
            assumed.append(f"{what} (like_fsdp1: {switch})")
    if {"mixed_precision", "auto_wrap_policy"} <= {*written}:
        assumed.insert(1, _NORMS)
    if context.target < (2, 13) and context.program.has("@dataclass"):
        assumed.insert(1, _DATACLASSES)
    for what in assumed:
        yield Found(ASSUMPTION, construction.call, Action.REWRITE, what, "fully_shard")
    for hit in hits:
        if hit.file is context.file:
            message = f"{hit.what}, which changes in silence without FSDP1's wrapper: {hit.edit}"
            construct = shortened(context.source(hit.node))
            yield Found(SILENT, hit.node, Action.MANUAL, message, construct)
        else:
            message = f"code changes in silence without FSDP1's wrapper: {hit}"
            yield Found(SILENT, construction.call, Action.MANUAL, message, "fully_shard")
