"""FSDP1 names that stay in the program: options, policies and state-dict types.

A migrated program may go on using FSDP1's vocabulary: `ShardingStrategy` in a configuration, a policy built in another file.
These names then come from the runtime, where they have the same spelling, defaults and comparison, so that the program runs
after torch removes FSDP1.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from itertools import chain

from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import KINDS, Kind, fsdp1_name

OPTION = Rule(
    "FSDP017",
    "fsdp1-option",
    "an FSDP1 option that stays is the runtime's",
    """`ShardingStrategy`, `MixedPrecision`, `CPUOffload`, `BackwardPrefetch`, the policies and the state-dict types exist in
`fsdp_migrate.runtime` with the same members, defaults and comparison, and import nothing from torch's FSDP1. `shard_model`
takes torch's own objects as well.""",
    (
        Example(
            "a configuration",
            """\
from dataclasses import dataclass

from torch.distributed.fsdp import ShardingStrategy


@dataclass
class Config:
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
""",
            """\
from dataclasses import dataclass

from fsdp_migrate.runtime import ShardingStrategy


@dataclass
class Config:
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
""",
        ),
    ),
)
OTHER_USE = Rule(
    "FSDP018",
    "other-use",
    "a use of the FSDP class that is not understood",
    """The class is used as a value: assigned, compared, passed on. What it becomes depends on what is done with it.""",
    (
        Example(
            "the class in a table",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = {"fsdp": FSDP}
""",
            message="by hand",
        ),
        Example(
            "a tuple that does more than test",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = (FSDP,)
if not isinstance(model, WRAPPERS):
    model = WRAPPERS[0](model)
""",
            message="by hand",
        ),
        Example(
            "a name that can be something else",
            """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

FSDP = partial(FSDP, use_orig_params=True)
model = FSDP(model)
""",
            message="something else as well",
        ),
    ),
)
RULES = (OPTION, OTHER_USE)

_CLASS = "FullyShardedDataParallel"
_IN_RUNTIME = {Kind.OPTION, Kind.POLICY, Kind.STATE_DICT}


def moves(name: str) -> bool:
    """Whether the runtime has a name of FSDP1's."""
    return KINDS[name] in _IN_RUNTIME


def find(context: Context, gone: Collection[ast.AST], drafts: Collection[Draft]) -> Iterator[Draft]:
    """References of which no other codemod speaks; those in `gone` go away.

    Of an option its line's finding has said enough. The class counts each time: a use that nobody saw would go wrong
    in silence.
    """
    lines = {getattr(draft.node, "lineno", 0) for draft in drafts}
    spoken_of = set(chain.from_iterable(_heads(draft.node) for draft in drafts))
    references = context.references()
    known = set(references)
    for reference in references:
        if reference in spoken_of or context.module.parents[reference] in known:
            continue
        name = context.fsdp1(reference)
        heard = reference.lineno in lines
        if reference in gone:
            if not heard:
                message = f"{name} goes away with what it was for"
                yield Draft(OPTION, reference, Action.REWRITE, message, context.source(reference))
        elif name is None:
            yield _ambiguous(context, reference)
        elif name == _CLASS or not heard:
            yield _left(context, reference, name)


def _heads(node: ast.AST) -> Iterator[ast.AST]:
    """A construct and what it begins with: for `FSDP.fsdp_modules(m)` the call, the method and the class."""
    while True:
        yield node
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            node = node.value
        else:
            return


def _ambiguous(context: Context, reference: ast.expr) -> Draft:
    paths = context.project.dotted(reference, context.module)
    found = sorted(name for path in paths if (name := fsdp1_name(path)))
    return Draft(
        OTHER_USE,
        reference,
        Action.MANUAL,
        f"can be {found[0]}, and something else as well: give the two different names",
        context.source(reference),
        silent=_CLASS in found,
    )


def _left(context: Context, reference: ast.expr, name: str) -> Draft:
    """What becomes of a name that the program goes on using."""
    construct = context.source(reference)
    if not moves(name):
        message = f"{name} is used as a value: replace it by hand, by what its users need"
        silent = name == _CLASS
        return Draft(OTHER_USE, reference, Action.MANUAL, message, construct, silent=silent)
    if _comes_from_torch(context, reference):
        message = (
            f"stays torch's own {name}, which shard_model takes as well: "
            f"import it by name and it comes from {RUNTIME}"
        )
        return Draft(OPTION, reference, Action.MANUAL, message, construct)
    message = f"{name} stays, and comes from {RUNTIME}"
    return Draft(OPTION, reference, Action.RUNTIME, message, construct)


def _comes_from_torch(context: Context, reference: ast.expr) -> bool:
    """Whether a name is reached through a module of torch's (`fsdp.wrap.NAME`) or a star: no import of it can change."""
    module, project = context.module, context.project
    if isinstance(reference, ast.Attribute):
        return bool(project.dotted(reference.value, module))
    return (
        isinstance(reference, ast.Name)
        and module.lookup(reference.id, module.scope_of(reference)) is None
        and all(project.find(source, module) is None for source, _ in module.stars)
    )
