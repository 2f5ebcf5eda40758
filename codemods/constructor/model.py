"""The class of the module that a constructor wraps, where the program shows what makes it."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.program import Definition


def classes_of_model(construction: Construction) -> Iterator[Definition]:
    """The class of the program that makes the wrapped module, and those above it."""
    context, module = construction.context, construction.module
    variable = None if module is None else context.file.variable(module)
    made = [module] if variable is None else [each.value for each in variable.assigned]
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
