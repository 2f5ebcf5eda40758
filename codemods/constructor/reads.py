"""What else reads a value on its way to a constructor: it can be rewritten where it is made only if nothing does."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.codemods.constructor.flow import Flow
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Inner, Program
from fsdp_migrate.facts.scopes import Imported


def whole_sets(
    flows: Sequence[tuple[ast.expr, Flow]], kept: Sequence[tuple[ast.expr, Flow]]
) -> Sequence[tuple[ast.expr, Flow]]:
    """Of the values that may be rewritten those that share no expression with one that may not."""
    while True:
        own = {value for value, _ in kept}
        stays = {end.node for value, flow in flows if value not in own for end in flow.ends}
        left = [each for each in kept if stays.isdisjoint([end.node for end in each[1].ends])]
        if len(left) == len(kept):
            return left
        kept = left


def read_elsewhere(
    program: Program, carrier: Value, passed: set[ast.AST]
) -> list[tuple[File, ast.expr]] | None:
    """Where what carries a value, such as a variable, is read but in the places passed; None if the files do not show that."""
    file = carrier.file
    node = carrier.node
    uses: list[tuple[File, ast.expr]]
    match node:
        case ast.Name():
            uses = [(file, read) for read in file.reads(node)]
            variable = file.variable(node)
            if variable is None:  # `from module import *` gives it
                uses += _named(program, node.id, file)
            elif variable.scope is file.scope:
                if any_is(variable.bindings, Imported):
                    uses += _uses_of_imported(program, file, node)
                elif program.reach.is_read(file, node.id):
                    uses += _named(program, node.id, file)
        case ast.Attribute():
            uses = [
                (other, use)
                for other in program.files
                for use in other.attributes.get(node.attr, ())
                if isinstance(use.ctx, ast.Load)
            ]
            if any_is(program.meanings(node.value, file), Inner):
                uses += _named(program, node.attr)
        case ast.Call():
            uses = list(program.calls(last_name(node.func)))
        case _:
            return None
    return [(home, use) for home, use in uses if use not in passed]


def is_read(program: Program, flow: Flow, passed: set[ast.AST]) -> bool:
    """Whether something else than a constructor reads what carries a value."""
    return any(
        read_elsewhere(program, carrier, passed) != [] or not _is_only_called(program, carrier)
        for carrier in flow.carriers
    )


def _is_only_called(program: Program, carrier: Value) -> bool:
    """Whether a function that hands a value on is called wherever it is named, in files that are read."""
    if not isinstance(carrier.node, ast.Call):
        return True
    name = last_name(carrier.node.func)
    known = {str(file.path) for file in program.files}
    if not program.tree.having(rb"\b%s\b" % name.encode()) <= known:
        return False
    named = [
        file.parents[each]
        for file in program.files
        for each in (*file.loads.get(name, ()), *file.attributes.get(name, ()))
    ]
    return all(isinstance(each, ast.Call) and last_name(each.func) == name for each in named)


def _uses_of_imported(program: Program, file: File, node: ast.Name) -> list[tuple[File, ast.expr]]:
    uses: list[tuple[File, ast.expr]] = []
    for binding in file.bindings(node):
        home = None
        if isinstance(binding, Imported):
            home = program.find(binding.module, file)
        if home is not None and isinstance(binding, Imported) and binding.member:
            uses += [(home, read) for read in home.loads.get(binding.member, ())]
            uses += _named(program, binding.member, home)
    return uses


def _named(program: Program, name: str, but: File | None = None) -> list[tuple[File, ast.expr]]:
    """The reads of a name in the other files, whatever it means there."""
    return [
        (file, read)
        for file in program.files
        if file is not but
        for read in file.loads.get(name, ())
    ]
