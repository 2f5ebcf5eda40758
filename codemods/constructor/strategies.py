"""Strategies that are translated where they are made, so that no constructor compares them with FSDP1's enum.

`self.strategy = ShardingStrategy[config.strategy]` in `__init__` is `self.strategy = config.strategy`: the constructor compares
names. As with other objects, that is so only if constructors alone read what carries the value.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.flow import Flow, key_of
from fsdp_migrate.codemods.constructor.reads import read_elsewhere, whole_sets
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.values import Value

ENUM = "ShardingStrategy"


@dataclass(frozen=True)
class Made:
    """What becomes of an expression that makes a strategy.

    Attributes:
        file: where it is.
        source: what takes its place.
        enum: the enum's name in it, which nothing reads any more.
    """

    file: File
    source: str
    enum: ast.expr


class Strategies:
    """The strategies of a run that become names where they are made.

    Attributes:
        ends: the expressions that make them.
        values: the arguments of constructors that take them.
    """

    def __init__(self, program: Program, constructions: Sequence[Construction]) -> None:
        self.ends: dict[ast.expr, Made] = {}
        self.values: set[ast.expr] = set()
        given = [(each, each.value("sharding_strategy")) for each in constructions]
        flows = [(value, each.flow(value)) for each, value in given if value is not None]
        passed = {node for _, flow in flows for node in flow.passed}
        passed |= {value for value, _ in flows}
        kept = [each for each in flows if _is_named(program, *each, passed)]
        for value, flow in whole_sets(flows, kept):
            self.values.add(value)
            for end in flow.ends:
                made = _named(program, end)
                if made is not None:
                    self.ends[end.node] = made


def _is_named(program: Program, value: ast.expr, flow: Flow, passed: set[ast.AST]) -> bool:
    """Whether names make a value: every expression is a member, by its name or by a key, or None, and nothing else reads it."""
    if flow.unknown or flow.is_kept or not flow.carriers:
        return False
    if not any(key_of(program, end.file, end.node) is not None for end in flow.ends):
        return False
    if not all(_named(program, end) is not None or _is_none(end.node) for end in flow.ends):
        return False
    return all(read_elsewhere(program, carrier, passed) == [] for carrier in flow.carriers)


def _named(program: Program, end: Value) -> Made | None:
    """`config.name` for `ShardingStrategy[config.name]`, `"NO_SHARD"` for `ShardingStrategy.NO_SHARD`."""
    file, node = end.file, end.node
    key = key_of(program, file, node)
    if key is not None:
        enum = node.value if isinstance(node, ast.Subscript) else node
        return Made(file, file.source(key), enum)
    match node:
        case ast.Attribute(value=enum, attr=name) if program.fsdp1(enum, file) == ENUM:
            return Made(file, f'"{name}"', node)
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
