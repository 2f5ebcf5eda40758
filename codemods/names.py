"""FSDP1 names that stay in the program: options, policies and state-dict types.

A migrated program may go on using FSDP1's vocabulary: `ShardingStrategy` in a configuration, a policy built in another file.
These names then come from the runtime, where they have the same spelling, defaults and comparison, so that the program runs
after torch removes FSDP1.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import KINDS, Kind

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
    ),
)
RULES = (OPTION, OTHER_USE)

_IN_RUNTIME = {Kind.OPTION, Kind.POLICY, Kind.STATE_DICT}
_NOT_IN_RUNTIME = {"OptimStateKeyType", "default_auto_wrap_policy", "_module_wrap_policy"}


def moves(name: str) -> bool:
    """Whether the runtime has a name of FSDP1's."""
    return KINDS[name] in _IN_RUNTIME and name not in _NOT_IN_RUNTIME


def find(context: Context, gone: Collection[ast.AST], lines: Collection[int]) -> Iterator[Draft]:
    """References on lines of which no other codemod speaks; those in `gone` go away."""
    for reference in context.references():
        name = context.fsdp1(reference)
        if name is None or reference.lineno in lines or _is_base(context, reference):
            continue
        if reference in gone:
            message = f"{name} goes away with what it was for"
            yield Draft(OPTION, reference, Action.REWRITE, message, context.source(reference))
        elif moves(name):
            yield Draft(
                OPTION,
                reference,
                Action.RUNTIME,
                f"{name} stays, and comes from fsdp_migrate.runtime",
                context.source(reference),
            )
        else:
            yield Draft(
                OTHER_USE,
                reference,
                Action.MANUAL,
                f"{name} is used as a value: replace it by hand, by what its users need",
                context.source(reference),
                silent=name == "FullyShardedDataParallel",
            )


def _is_base(context: Context, reference: ast.expr) -> bool:
    """Whether a dotted reference goes on (`fsdp` of `fsdp.ShardingStrategy`), so that the longer one counts."""
    parent = context.module.parents[reference]
    return isinstance(parent, ast.Attribute) and context.fsdp1(parent) is not None
