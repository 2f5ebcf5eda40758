"""What `--form torch` relies on: FSDP1 did more than `fully_shard` does, and without `like_fsdp1` nothing makes up for it."""

import ast
from collections.abc import Collection, Iterator, Sequence

from fsdp_migrate.codemods.constructor.construction import ASSUMPTION, Construction
from fsdp_migrate.codemods.constructor.silent import Hit
from fsdp_migrate.codemods.context import Context, shortened
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
    context, call = construction.context, construction.call
    is_whole = {"mixed_precision", "auto_wrap_policy"} <= {*written}
    lacks_attributes = construction.keeps_attributes == "False"
    yield from of_model(context, call, norms=is_whole, lacks_attributes=lacks_attributes)
    for hit in hits:
        if hit.file is context.file:
            message = f"{hit.what}, which changes in silence without FSDP1's wrapper: {hit.edit}"
            construct = shortened(context.source(hit.node))
            yield Found(SILENT, hit.node, Action.MANUAL, message, construct)
        else:
            message = f"code changes in silence without FSDP1's wrapper: {hit}"
            yield Found(SILENT, call, Action.MANUAL, message, "fully_shard")


def of_model(
    context: Context, node: ast.AST, *, norms: bool, lacks_attributes: bool
) -> Iterator[Found]:
    """What is assumed of every model that is sharded at a node.

    Args:
        norms: whether a BatchNorm may be in low precision.
        lacks_attributes: whether FSDP1's parameters had lost their attributes, too.
    """
    from fsdp_migrate.codemods.uses.assumed import WORDS, is_elsewhere  # for this form alone

    assumed = []
    for name, what in ASSUMPTION.table.items():
        if name == "parameter_attributes" and lacks_attributes:
            continue
        if name == "root_inputs" and not norms:  # of low precision alone
            continue
        if " unless " in what and (name not in WORDS or is_elsewhere(context, name)):
            switch = "class_names" if name == "printing" else name
            assumed.append(f"{what} (like_fsdp1: {switch})")
    if norms:
        assumed.insert(1, _NORMS)
    if context.target < (2, 13) and context.program.has("@dataclass"):
        assumed.insert(1, _DATACLASSES)
    for what in assumed:
        yield Found(ASSUMPTION, node, Action.REWRITE, what, "fully_shard")
