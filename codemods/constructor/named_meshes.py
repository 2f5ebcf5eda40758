"""Meshes without the names of their dimensions, which `fully_shard` asks for where it replicates."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.meshes import DEVICE_MESH, DIMS
from fsdp_migrate.codemods.context import keyword
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.nodes import has_double_star
from fsdp_migrate.facts.origins import Value


def without_names(construction: Construction, value: ast.expr) -> Value | None:
    """The call that makes the mesh of a constructor without names, with its file."""
    program = construction.context.program
    for made in construction.flow(value).outside:
        call = made.node
        if not isinstance(call, ast.Call):
            continue
        is_mesh = f"{DEVICE_MESH}.init_device_mesh" in program.dotted(call.func, made.file)
        has_stars = has_double_star(call)
        if not is_mesh or has_stars or keyword(call, "mesh_dim_names", 2) is not None:
            continue
        match keyword(call, "mesh_shape", 1):
            case ast.Tuple([_]) | None:
                continue
            case _:
                return made
    return None


def named(constructions: Sequence[Construction]) -> dict[ast.Call, tuple[File, str]]:
    """Those calls, of constructors with a mesh, that show two dimensions, each with its file and the call with names."""
    found: dict[ast.Call, tuple[File, str]] = {}
    for construction in constructions:
        value = construction.value("device_mesh")
        assert value is not None
        made = without_names(construction, value)
        if made is not None and made.node is not value and isinstance(made.node, ast.Call):
            source = made.file.source(made.node)
            is_shown = isinstance(keyword(made.node, "mesh_shape", 1), ast.Tuple)
            # A file without a word of FSDP is not rewritten.
            is_read = construction.context.program.mentions(str(made.file.path))
            if is_shown and is_read and "#" not in source:
                arguments = source.removesuffix(")").rstrip().removesuffix(",")
                found[made.node] = made.file, f"{arguments}, {DIMS})"
    return found
