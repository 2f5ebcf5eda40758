"""Parts of a model that are sharded before it, by constructors of their own: `model.blocks[i] = FSDP(model.blocks[i])`."""

import ast
import re

from fsdp_migrate.codemods.constructor.construction import Construction, constructions
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.scopes import Assigned, Parameter

# A part by its path; the only attribute of `self` may be the model.
_PART = re.compile(r"(?!self\.\w+$)\w+[.\[]")


def has_sharded_parts(construction: Construction) -> bool:
    """Return whether the file shards a part of the model by a constructor of its own: `model.blocks[i] = FSDP(block)`.

    A model that the call does not show, or that is given to a function, may be any.
    """
    context = construction.context
    module = construction.module
    path = _PART
    if module is not None and not _may_be_any(context, module):
        path = re.compile(rf"{re.escape(context.source(module))}[.\[]")
    for other in constructions(context):
        if other.call is construction.call or other.module is None:
            continue
        names = [context.source(other.module)]
        statement = context.file.statement(other.call)
        if isinstance(statement, ast.Assign):
            names += [context.source(target) for target in statement.targets]
        if any(map(path.match, names)):
            return True
    return False


def _may_be_any(context: Context, module: ast.expr) -> bool:
    """Whether a module is a function's parameter, or has another name of the file's."""
    if not isinstance(module, ast.Name):
        return False
    for binding in context.file.bindings(module):
        if isinstance(binding, Parameter):
            return True
        if isinstance(binding, Assigned) and isinstance(binding.value, ast.Name | ast.Attribute):
            return True
    return False
