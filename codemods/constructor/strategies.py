"""Strategies that are translated where they are made, so that no constructor compares them with FSDP1's enum.

`self.strategy = ShardingStrategy[config.strategy]` in `__init__` is `self.strategy = config.strategy`: the constructor compares
names. Other strategies become meshes, or `reshard_after_forward`. As with other objects, that is so only if constructors alone
read what carries the value.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.flow import Flow, key_of
from fsdp_migrate.codemods.constructor.freed import Freed, freed
from fsdp_migrate.codemods.constructor.meshes import Chosen, chosen
from fsdp_migrate.codemods.constructor.reads import is_read, whole_sets
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.nodes import is_none
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Program

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
    """The strategies of a run that become names, meshes or booleans where they are made.

    Attributes:
        ends: the expressions that make those that are names.
        values: the arguments of constructors that take names.
        meshes: the arguments of constructors that take meshes.
        freed: those that take `reshard_after_forward`.
    """

    def __init__(self, program: Program, constructions: Sequence[Construction]) -> None:
        self.ends: dict[ast.expr, Made] = {}
        self.values: set[ast.expr] = set()
        self.meshes: dict[ast.expr, Chosen] = {}
        self.freed: dict[ast.expr, Freed] = {}
        given = {
            value: each
            for each in constructions
            if (value := each.value("sharding_strategy")) is not None
        }
        flows = [(value, each.flow(value)) for value, each in given.items()]
        passed = {node for _, flow in flows for node in flow.passed}
        passed |= {value for value, _ in flows}
        kept = [each for each in flows if _is_named(program, *each, passed)]
        for value, flow in whole_sets(flows, kept):
            self.values.add(value)
            for end in flow.ends:
                made = _named(program, end)
                if made is not None:
                    self.ends[end.node] = made
        found = {value: chosen(given[value], value, flow) for value, flow in flows}
        kept = [each for each in flows if found[each[0]] and not is_read(program, each[1], passed)]
        for value, _ in whole_sets(flows, kept):
            meshes = found[value]
            if meshes is not None:
                self.meshes[value] = meshes
        booleans = {value: freed(given[value], value, flow) for value, flow in flows}
        kept = [
            each for each in flows if booleans[each[0]] and not is_read(program, each[1], passed)
        ]
        for value, _ in whole_sets(flows, kept):
            boolean = booleans[value]
            if boolean is not None and value not in self.values:
                self.freed[value] = boolean


def _is_named(program: Program, value: ast.expr, flow: Flow, passed: set[ast.AST]) -> bool:
    """Whether names make a value: every expression is a member, by its name or by a key, or None, and nothing else reads it."""
    if flow.unknown or flow.is_kept or not flow.carriers:
        return False
    if not any(key_of(program, end.file, end.node) is not None for end in flow.ends):
        return False
    if not all(_named(program, end) is not None or is_none(end.node) for end in flow.ends):
        return False
    return not is_read(program, flow, passed)


def _named(program: Program, end: Value) -> Made | None:
    """`config.name` for `ShardingStrategy[config.name]`, `"NO_SHARD"` for `ShardingStrategy.NO_SHARD`."""
    file = end.file
    node = end.node
    key = key_of(program, file, node)
    if key is not None:
        enum = node
        if isinstance(node, ast.Subscript):
            enum = node.value
        return Made(file, file.source(key), enum)
    match node:
        case ast.Attribute(value=enum, attr=name) if program.fsdp1(enum, file) == ENUM:
            return Made(file, f'"{name}"', node)
    return None
