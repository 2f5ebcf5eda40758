"""FSDP1 names that the program goes on using: they are the runtime's, and say so once a line."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Example, Found, Rule, bridged
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.findings import Action

OPTION = Rule(
    "FSDP017",
    "fsdp1-option",
    "an FSDP1 option that stays refers to the runtime's class",
    """`ShardingStrategy`, `MixedPrecision`, `CPUOffload`, `BackwardPrefetch`, the policies and the state-dict types exist in
`fsdp_migrate.runtime` with the same members, defaults and comparison, and import nothing from torch's FSDP1. The runtime takes
torch's own objects as well.""",
    (
        bridged(
            "a configuration",
            """\
from dataclasses import dataclass

from torch.distributed.fsdp import ShardingStrategy


@dataclass
class Config:
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD
""",
        ),
    ),
)
CLASS_USE = Rule(
    "FSDP018",
    "class-as-value",
    "the FSDP class in a table, an alias, a test or an annotation refers to the runtime's",
    """The runtime's `FullyShardedDataParallel` is a class like FSDP1's: it can be assigned, passed on, put into a table or a
tuple of classes, subclassed and named in an annotation. `isinstance(m, FSDP)` is true for its units, and for models of FSDP1
that another library wrapped; it is false for modules of `fully_shard`, so that code for both versions goes on to tell them
apart.""",
    (
        bridged(
            "the class in a table",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = {"fsdp": FSDP}
options = ()
options += (FSDP,)
""",
        ),
        Example(
            "an annotation in quotes, and text that is none",
            """\
from typing import Literal

import torch


def log(model: "torch.distributed.fsdp.FullyShardedDataParallel", kind: Literal["FSDP"]):
    print("FSDP", kind)
""",
            """\
from typing import Literal

import fsdp_migrate.runtime
import torch


def log(model: "fsdp_migrate.runtime.FullyShardedDataParallel", kind: Literal["FSDP"]):
    print("FSDP", kind)
""",
        ),
    ),
)
RULES = (OPTION, CLASS_USE)


def find(context: Context, found: Iterable[Found], removed: Collection[ast.AST]) -> Iterator[Found]:
    """The references that no other rule speaks of, one finding a line."""
    gone = {node for region in removed for node in ast.walk(region)}
    spoken = {line for each in found for line in _lines(each.node)}
    for reference, name in chain(context.references.items(), context.quoted.items()):
        line = reference.lineno
        if reference in gone or line in spoken:
            continue
        spoken.add(line)
        rule = CLASS_USE if name == CLASS else OPTION
        yield Found(rule, reference, Action.RUNTIME, f"refers to the runtime's {name}")


def _lines(node: ast.AST) -> range:
    """The lines that a finding speaks of: of a statement with a body, its first lines only."""
    first = getattr(node, "lineno", 0)
    if isinstance(node, ast.With | ast.AsyncWith):
        return range(first, node.body[0].lineno)
    return range(first, (getattr(node, "end_lineno", None) or first) + 1)
