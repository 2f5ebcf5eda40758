"""Whether other files may have a name from a file, so that it must stay there."""

from __future__ import annotations

import ast

from fsdp_migrate.codemods.context import Context


def is_for_others(context: Context, name: str) -> bool:
    """Whether a file may have a name for other files: `import *` alone does not use it."""
    file = context.file
    exported = any(
        isinstance(c.value, str) and c.value == name and _in_all(context, c)
        for c in file.of(ast.Constant)
    )
    return file.is_package or exported or context.program.is_read(file, name)


def _in_all(context: Context, constant: ast.Constant) -> bool:
    return any(
        isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and "__all__" in ast.dump(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in context.file.ancestors(constant)
    )
