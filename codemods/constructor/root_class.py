"""Whether the model itself may be of a class that a policy names: `fully_shard` refuses a second call for one module."""

import ast

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.model_classes import classes_of_model
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.nodes import any_below
from fsdp_migrate.facts.program import Definition, Program, is_module


def may_be_of(construction: Construction, classes: list[ast.expr]) -> bool:
    """Whether one of some classes, or one below it, is that of the model, or is made where it is no part of a module."""
    context = construction.context
    named: list[Definition] = []
    for cls in classes:
        meanings = context.program.meanings(cls, context.file)
        named += [each for each in meanings if isinstance(each, Definition)]
    nodes = {each.node for each in named}
    if nodes & {each.node for each in classes_of_model(construction)}:
        return True
    names = set(map(last_name, classes))
    names |= {name for each in named for name in _below(context.program, each)}
    return any(_is_made(context.program, name) for name in names)


def _below(program: Program, cls: Definition) -> set[str]:
    """The names of the classes that derive from one."""
    return {
        other.name
        for file in program.files
        for other in file.of(ast.ClassDef)
        if other.bases and cls in program.classes_above(Definition(file, other))
    }


def _is_made(program: Program, name: str) -> bool:
    """Whether `Net(...)` or `Net.from_pretrained(...)` is somewhere else than in a module, or among the parts of one."""
    for file in program.files:
        for load in file.loads.get(name, ()):
            call = file.parents[load]
            if isinstance(call, ast.Attribute):
                call = file.parents[call]
            is_called = isinstance(call, ast.Call) and load in ast.walk(call.func)
            if is_called and isinstance(call, ast.Call) and not _is_part(program, file, call):
                return True
    return False


def _is_part(program: Program, file: File, call: ast.Call) -> bool:
    """Whether what a call makes becomes a part of a module, or one of several."""
    cls = file.enclosing_class(call)
    if cls is not None and is_module(program, Definition(file, cls)):
        return True
    around = file.parents[call]
    if isinstance(around, ast.Call) and call in around.args:
        paths = program.dotted(around.func, file)
        return any_below(paths, "torch.nn.")
    return isinstance(around, ast.List | ast.ListComp | ast.GeneratorExp | ast.Starred)
