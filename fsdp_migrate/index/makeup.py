"""What a model class is made of, as far as its source can prove it.

Two rewrites depend on it: mixed precision (FSDP1 keeps BatchNorm in full precision) and `buffer_dtype` (without buffers it
does nothing).
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass

from fsdp_migrate.index.module import Parameter
from fsdp_migrate.index.project import Definition, External, Project

_BATCH_NORM = ("BatchNorm", "SyncBatchNorm")
_WITH_BUFFERS = (
    "BatchNorm",
    "SyncBatchNorm",
    "InstanceNorm",
    "spectral_norm",
    "SpectralNorm",
    "LazyBatchNorm",
)


@dataclass(frozen=True)
class Makeup:
    """What is known of a model's parts.

    Attributes:
        no_batch_norm: proven that no part is a BatchNorm.
        no_buffers: proven that no part has a buffer.
    """

    no_batch_norm: bool
    no_buffers: bool


UNKNOWN = Makeup(False, False)


def makeup(project: Project, cls: Definition) -> Makeup:
    """What `cls` is made of: every module that its methods construct is either torch's own or walked likewise."""
    pending, seen = [cls], {cls}
    no_batch_norm = no_buffers = True
    while pending:
        current = pending.pop()
        for call in _calls(current.node):
            for meaning in project.meanings(call.func, current.module) or {None}:
                if isinstance(meaning, Definition):
                    if meaning not in seen:
                        seen.add(meaning)
                        pending.append(meaning)
                elif isinstance(meaning, External):
                    if not _is_known(meaning.dotted):
                        return UNKNOWN
                elif not _harmless(call, current):
                    return UNKNOWN
        for reference in ast.walk(current.node):
            if isinstance(reference, ast.Name | ast.Attribute):
                last = reference.id if isinstance(reference, ast.Name) else reference.attr
                no_batch_norm = no_batch_norm and not any(word in last for word in _BATCH_NORM)
                no_buffers = no_buffers and not any(
                    word in last for word in (*_WITH_BUFFERS, "register_buffer")
                )
                if last == "Buffer":
                    no_buffers = False
        if isinstance(current.node, ast.ClassDef):
            for base in project.bases(current):
                if isinstance(base, Definition) and base not in seen:
                    seen.add(base)
                    pending.append(base)
                elif isinstance(base, External) and not _is_known(base.dotted):
                    return UNKNOWN
    return Makeup(no_batch_norm, no_buffers)


def _calls(node: ast.AST) -> list[ast.Call]:
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _is_known(dotted: str) -> bool:
    """Packages that build no modules of their own, and torch, whose modules are known by name."""
    root = dotted.split(".")[0]
    if root == "torch":
        return not dotted.startswith(("torch.hub", "torch.jit", "torch.load"))
    return root in {
        "math",
        "functools",
        "itertools",
        "copy",
        "typing",
        "dataclasses",
        "collections",
        "os",
        "logging",
    }


def _harmless(call: ast.Call, where: Definition) -> bool:
    """Whether a call of unknown meaning can make no module: builtins, `super()`, and methods of what is at hand.

    A parameter that is called (`norm_layer(dim)`) can make anything.
    """
    function = call.func
    in_init = getattr(where.module.enclosing_function(call), "name", "") == "__init__"
    if isinstance(function, ast.Name):
        found = where.module.lookup(function.id, where.module.scope_of(function))
        if found is None:
            return hasattr(builtins, function.id)
        return not any(isinstance(binding, Parameter) for binding in found[1]) and not in_init
    root: ast.expr = function
    while isinstance(root, ast.Attribute | ast.Subscript | ast.Call):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Name) and root.id in {"self", "super"}:
        return True
    return not in_init
