"""FSDP1 names that a file writes out in full, as `torch.distributed.fsdp.MixedPrecision`."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.facts.file import root_of
from fsdp_migrate.facts.names import FSDP2_NAMES, NAMES, TORCH, in_runtime, is_module
from fsdp_migrate.facts.scopes import Assigned, Binding, Imported


def written_out(context: Context) -> Iterator[tuple[ast.expr, str]]:
    """FSDP1 names that are written out (`torch.distributed.fsdp.X`), with the runtime's module that has each.

    Of `F = torch.distributed.fsdp`, through which such a name is reached, the path is that expression.
    """
    paths = _in_strings(context)
    for node in (*context.references, *looked_into(context)):
        if not isinstance(node, ast.Attribute):
            continue
        root = root_of(node)
        bindings: list[Binding] = []
        if root is not None:
            bindings = context.file.bindings(root)
        path: ast.expr = node
        if len(bindings) == 1 and isinstance(bindings[0], Assigned):
            if _module_of(context, bindings[0].value):  # else it is a package around FSDP1's
                path = bindings[0].value
        elif not bindings or not all(map(_is_other_package, bindings)):
            continue
        is_name = path is node and node in context.references
        owner = path
        if is_name:
            owner = node.value
        module = _module_of(context, owner)
        if module and isinstance(path, ast.Attribute):
            paths[path] = in_runtime(module)
    yield from paths.items()


def looked_into(context: Context) -> list[ast.expr]:
    """FSDP1's modules where one of its names may be asked for: `getattr(fsdp, name)`, `vars(fsdp)`.

    In a file that names nothing but FSDP2's, that is what it asks for.
    """
    of_fsdp2 = FSDP2_NAMES & (context.file.loads.keys() | context.file.attributes.keys())
    if of_fsdp2 and not context.references:
        return []
    return [
        call.args[0]
        for function in ("getattr", "vars")
        for call in context.file.calls.get(function, ())
        if call.args
        if not isinstance(name := keyword(call, "", 1), ast.Constant) or name.value in NAMES
        if _module_of(context, call.args[0])
    ]


def _in_strings(context: Context) -> dict[ast.expr, str]:
    """Such names in strings."""
    paths: dict[ast.expr, str] = {}
    for quoted in context.quoted:
        text = str(quoted.value)
        if text.startswith(f"{TORCH}.") and text in context.source(quoted):
            paths[quoted] = in_runtime(text.rpartition(".")[0])
    return paths


def _module_of(context: Context, expression: ast.expr) -> str:
    """The path of the module of FSDP1 that an expression means."""
    return next(filter(is_module, context.dotted(expression)), "")


def _is_other_package(binding: Binding) -> bool:
    """Whether an import binds a package around FSDP1's, such as torch: it stays."""
    if not isinstance(binding, Imported):
        return False
    if binding.member:
        member = f".{binding.member}"
    else:
        member = ""
    return TORCH.startswith(f"{binding.module}{member}.")
