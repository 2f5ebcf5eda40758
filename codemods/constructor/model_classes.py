"""The classes of the program that the model of a constructor is made by."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.program import Definition


def classes_of_model(construction: Construction) -> Iterator[Definition]:
    """The class of the program that makes the wrapped module, where it shows that, and those above it."""
    context = construction.context
    module = construction.module
    if module is None:
        return
    made = [module]
    variable = context.file.variable(module)
    if variable is not None:
        made = [each.value for each in variable.assigned]
    for value in made:
        if isinstance(value, ast.Call):
            yield from classes(context, value.func)


def classes(context: Context, name: ast.expr) -> Iterator[Definition]:
    """The class of the program that a name means, and those above it."""
    for meaning in context.program.meanings(name, context.file):
        if isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef):
            yield meaning
            for above in context.program.classes_above(meaning):
                if isinstance(above, Definition):
                    yield above
