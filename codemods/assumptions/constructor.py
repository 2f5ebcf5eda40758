"""What `--form torch` relies on: FSDP1 did more than `fully_shard` does, and without `like_fsdp1` nothing makes up for it."""

import ast
from collections.abc import Collection, Iterator, Sequence

from fsdp_migrate.codemods.assumptions.elsewhere import check, places
from fsdp_migrate.codemods.assumptions.table import ASSUMPTIONS, OUTERMOST
from fsdp_migrate.codemods.assumptions.words import WORDS
from fsdp_migrate.codemods.constructor.construction import ASSUMPTION, Construction
from fsdp_migrate.codemods.constructor.silent import Hit
from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

SILENT = Rule("FSDP005", "silent-dependence")


def of(
    construction: Construction, written: Collection[str], hits: Sequence[Hit], *, gathered: str
) -> Iterator[Found]:
    """The assumptions of one constructor, the silent ones first, and the places that rely on the wrapper.

    Args:
        written: the arguments that are in torch's words.
        gathered: which units keep whole parameters after a forward without gradients; "" if none does.
    """
    context = construction.context
    call = construction.call
    is_whole = {"mixed_precision", "auto_wrap_policy"} <= {*written}
    lacks_attributes = construction.keeps_attributes == "False"
    yield from of_model(
        context,
        call,
        norms=is_whole,
        lacks_attributes=lacks_attributes,
        two_types=any(map(has_two_types, policies_of(construction))),
        gathered=gathered,
    )
    for hit in hits:
        if hit.file is context.file:
            message = f"This {hit.what}. FSDP2 has no wrapper, so the result silently changes: {hit.edit}."
            construct = shortened(context.source(hit.node))
            yield Found(SILENT, hit.node, Action.MANUAL, message, construct)
        else:
            message = f"FSDP2 has no wrapper, which silently changes code elsewhere: {hit}."
            yield Found(SILENT, call, Action.MANUAL, message, "fully_shard")


def of_model(
    context: Context,
    node: ast.AST,
    *,
    norms: bool,
    lacks_attributes: bool,
    two_types: bool,
    gathered: str,
) -> Iterator[Found]:
    """What is assumed of every model that is sharded at a node.

    Args:
        norms: whether a BatchNorm may be in low precision.
        lacks_attributes: whether FSDP1's parameters had lost their attributes, too.
        two_types: whether gradients may be reduced in another type than they are computed in.
        gathered: which units keep whole parameters after a forward without gradients; "" if none does.
    """
    for assumption in ASSUMPTIONS:
        name = assumption.name
        match name:
            case "batch_norm" | "root_inputs":
                matters = norms
            case "dataclasses":
                matters = context.target < (2, 13)
            case "parameter_attributes":
                matters = not lacks_attributes
            case "summed_dtype":
                matters = two_types
            case "sharded_after_forward":
                matters = bool(gathered)
            case _:
                matters = True
        if not matters:
            continue
        found = places(context, name, node)
        if found or name not in WORDS:
            message = assumption.message(check(found))
            if name == "sharded_after_forward":
                message = message.replace(OUTERMOST, gathered)
            yield Found(ASSUMPTION, node, Action.REWRITE, message, "fully_shard")


def policies_of(construction: Construction) -> list[ast.expr]:
    """What can make the policy of precision of a constructor."""
    policy = construction.value("mixed_precision")
    if policy is None:
        return []
    return [end.node for end in construction.flow(policy).ends]


def has_two_types(policy: ast.expr) -> bool:
    """Whether a policy may name another type for reductions than for parameters."""
    match policy:
        case ast.Constant():
            return False
        case ast.Call():
            computed = keyword(policy, "param_dtype", 0)
            reduced = keyword(policy, "reduce_dtype", 1)
            if reduced is None:
                return False
            return computed is None or ast.dump(computed) != ast.dump(reduced)
    return True
