"""Whether other files may have a name from a file, so that it must stay there."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.codemods.context import Context


def is_for_others(context: Context, name: str) -> bool:
    """Whether a file may have a name for other files: `import *` alone does not use it."""
    file, program = context.file, context.program
    exported = any(
        isinstance(c.value, str) and c.value == name and _in_all(context, c)
        for c in file.of(ast.Constant)
    )
    if file.is_package or exported:
        return True
    module, word = file.name.rpartition(".")[2].encode(), name.encode()
    member = re.compile(rb"\.%b\b" % re.escape(word))
    others = (program.data(path) for path in program.paths if path != str(file.path))
    reading = [data for data in others if word in data]
    return any(module in data and member.search(data) for data in reading) or (
        bool(reading) and program.is_imported(file, name)
    )


def _in_all(context: Context, constant: ast.Constant) -> bool:
    return any(
        isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign)
        and "__all__" in ast.dump(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        for node in context.file.ancestors(constant)
    )
