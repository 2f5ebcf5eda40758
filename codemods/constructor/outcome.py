"""What a constructor becomes, and what its new code needs where it stands."""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor.construction import ENABLE_WRAP, Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.facts.file import root_of, values_given
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH

_BUILTINS = ("reversed", "list", "isinstance")


@dataclass(frozen=True, eq=False)
class Form:
    """A constructor on FSDP2.

    Attributes:
        message: what becomes of the call.
        edits: makes the edits.
        imports: the names that they use.
        removed: code that they take away.
        said: what its arguments become, by name, in torch's words; empty where the runtime reads them.
        names: the names that the new code reads.
        text: all that the new code reads, as source.
        in_words: whether it is in torch's words.
        gathered: why the root is told to free its parameters after forward; "" where it is not.
    """

    message: str
    edits: Callable[[], Sequence[Edit]]
    imports: tuple[Import, ...]
    removed: tuple[ast.AST, ...]
    said: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    text: str = ""
    in_words: bool = False
    gathered: str = ""


def has_another(context: Context, call: ast.Call) -> bool:
    """Whether FSDP1's class is named inside of a call, too: as in `FSDP(Net(FSDP(part)))`."""
    inside = [node for node in ast.walk(call) if node is not call.func]
    return any(isinstance(n, ast.expr) and context.references.get(n) == CLASS for n in inside)


def imports_of(construction: Construction) -> tuple[Import, ...]:
    needs = (Import(TORCH, "fully_shard", construction.call.func),)
    if construction.like_fsdp1:
        return (*needs, of_runtime("like_fsdp1", construction))
    return needs


def of_runtime(name: str, construction: Construction) -> Import:
    return Import(RUNTIME, name, construction.call.func)


def still_read(construction: Construction, text: str) -> list[ast.expr]:
    """FSDP1's names among the arguments of a call that its new code goes on reading."""
    context = construction.context
    kept = []
    for argument in values_given(construction.call):
        if argument is construction.module:
            continue
        for node in ast.walk(argument):
            if isinstance(node, ast.expr) and node in context.references:
                if re.search(rf"(?<![\w.]){re.escape(context.source(node))}(?!\w)", text):
                    kept.append(node)
    return kept


def taken_away(
    construction: Construction, kept: Collection[ast.expr], names: Collection[str]
) -> list[ast.AST]:
    """The code of a call that goes with it: all but the model, and the names that stay.

    Args:
        kept: the FSDP1 names that the new code reads.
        names: all names that it reads, such as `functools` of a policy that is asked.
    """
    of_fsdp1 = {root_of(reference) for reference in construction.context.references}
    regions: list[ast.AST] = [
        each for each in values_given(construction.call) if each is not construction.module
    ]
    if construction.kind != ENABLE_WRAP:  # whose call itself stays
        regions.insert(0, construction.call.func)
    stays = {part for node in kept for part in ast.walk(node)}
    for region in regions:
        for node in ast.walk(region):
            if isinstance(node, ast.Name) and node.id in names and node not in of_fsdp1:
                stays.add(node)
    gone: list[ast.AST] = []
    for region in regions:
        inside = [*ast.walk(region)]
        if stays.isdisjoint(inside):
            gone.append(region)
        else:
            gone += [n for n in inside if isinstance(n, ast.Name) and n not in stays]
            # A path such as `torch.distributed.fsdp.MixedPrecision`, whose first name may well stay.
            gone += [n for n in inside if n in construction.context.references and n not in kept]
    return gone


def are_free(context: Context, at: ast.AST) -> bool:
    """Whether the names of the code mean at a place what they mean to it."""
    scope = context.file.scope_of(at)
    needs = (Import(TORCH, "fully_shard"), Import(RUNTIME, "like_fsdp1"))
    are_free = all(is_free(context, at, need) for need in needs)
    return are_free and not any(map(scope.lookup, _BUILTINS))


def is_free(context: Context, at: ast.AST, need: Import) -> bool:
    return context.means(need.name, at, f"{need.module}.{need.name}")
