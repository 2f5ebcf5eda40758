"""`FSDP = None` where an import is guarded: an assignment to one name becomes one to the names that take its place."""

from __future__ import annotations

import ast

import libcst as cst

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Edited
from fsdp_migrate.codemods.syntax import Refused


def retargeted(context: Context, target: ast.Name, names: list[str]) -> Edit:
    """An assignment to one name becomes one to others.

    Raises:
        Refused: if it is no plain assignment, and there are several.
    """
    name = context.syntax.find(target, cst.Name)
    place = context.syntax.parents[name]
    if len(names) == 1:
        return Edit(name, lambda updated: Edited(cst.Name(names[0])))
    if not isinstance(place, cst.AssignTarget):
        raise Refused(f"the fallback of {target.id} on line {target.lineno} is for several names")
    return Edit(
        context.syntax.parents[place], lambda updated: Edited(_several(updated, names, target.id))
    )


def _several(assignment: cst.CSTNode, names: list[str], old: str) -> cst.Assign:
    assert isinstance(assignment, cst.Assign)
    targets: list[cst.AssignTarget] = []
    for place in assignment.targets:
        is_old = isinstance(place.target, cst.Name) and place.target.value == old
        new = [place.with_changes(target=cst.Name(name)) for name in names]
        targets += new if is_old else [place]
    return assignment.with_changes(targets=targets)
