"""In the torch form: names that an earlier run imported from the runtime come from torch again."""

import ast

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.import_statement import ImportChange
from fsdp_migrate.facts.names import NAMES, POLICIES, RUNTIME, TORCH, WRAPPING


def in_torch(node: ast.Import | ast.ImportFrom, name: str) -> tuple[str, str] | None:
    """Where torch has a name that an earlier run imported from the runtime; None for what is torch's already."""
    module = ""
    if isinstance(node, ast.ImportFrom):
        module = node.module or ""
    if not module.startswith(RUNTIME) or name not in NAMES:
        return None
    if name in POLICIES | WRAPPING:
        return f"{TORCH}.wrap", name
    if name == "ShardedGradScaler":
        return f"{TORCH}.sharded_grad_scaler", name
    return TORCH, name


def join(context: Context, statements: list[ImportChange]) -> None:
    """Lets names that come back from the runtime join a statement that imports from the same module of torch's."""
    for statement in statements:
        for alias in statement.node.names:
            local = alias.asname or alias.name
            module, name = statement.move.get(local, ("", ""))
            home = None
            if module:
                home = _import_from(context, module, statement)
            if home is None:
                continue
            change = next((each for each in statements if each.node is home), None)
            if change is None:
                change = ImportChange(home)
                statements.append(change)
            if local != name:
                name = f"{name} as {local}"
            change.add.append((module, name))
            del statement.move[local]
            statement.drop.add(local)


def _import_from(context: Context, module: str, statement: ImportChange) -> ast.ImportFrom | None:
    block = context.file.block(statement.node)
    for node in context.file.of(ast.ImportFrom):
        is_same = node.module == module and not node.level and node is not statement.node
        if is_same and node in block and node.names[0].name != "*":
            return node
    return None
