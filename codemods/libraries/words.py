"""Words of transformers' `fsdp`, such as `full_shard auto_wrap`, outside of a call or a dictionary with its settings."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import keyword
from fsdp_migrate.codemods.libraries.configuration import table
from fsdp_migrate.facts.file import File


def given(file: File) -> Iterator[tuple[ast.AST, ast.expr]]:
    """What is called `fsdp`, with its value: fields of a class, attributes, entries, options of a program, parameters."""
    for field in file.of(ast.AnnAssign):  # of a dataclass that extends TrainingArguments
        if isinstance(field.target, ast.Name) and field.target.id == "fsdp":
            value = field.value
            default = value
            if isinstance(value, ast.Call):
                default = keyword(value, "default")
            if default is not None:
                yield field, default
    for assignment in file.of(ast.Assign):
        if any(map(_is_fsdp, assignment.targets)):
            yield assignment, assignment.value
    for call in file.calls.get("add_argument", ()):
        default = keyword(call, "default")
        if default is not None and call.args and _text(call.args[0]) == "--fsdp":
            yield call, default
    for function in file.of(ast.FunctionDef):
        yield from _parameters(function.args)


def _parameters(arguments: ast.arguments) -> Iterator[tuple[ast.AST, ast.expr]]:
    names = [*arguments.posonlyargs, *arguments.args]
    last = names[len(names) - len(arguments.defaults) :]
    defaults: list[ast.expr | None] = [*arguments.defaults, *arguments.kw_defaults]
    for name, default in zip([*last, *arguments.kwonlyargs], defaults, strict=True):
        if name.arg == "fsdp" and default is not None:
            yield name, default


def _is_fsdp(target: ast.expr) -> bool:
    """`arguments.fsdp`, `config["fsdp"]`."""
    if isinstance(target, ast.Subscript):
        return _text(target.slice) == "fsdp"
    return isinstance(target, ast.Attribute) and target.attr == "fsdp"


def is_computed(value: ast.expr) -> bool:
    """Whether an expression has such words, and which ones only a run knows."""
    return isinstance(value, ast.IfExp | ast.JoinedStr) and has_words(value)


def has_words(value: ast.expr) -> bool:
    """Whether an expression has such words: as a text or a list, in a branch, in a part of a text."""
    if isinstance(value, ast.JoinedStr):
        return any(table.options_of(_text(part)) for part in value.values)
    if isinstance(value, ast.List | ast.Tuple):
        return bool(table.options_of([_text(element) for element in value.elts]))
    if isinstance(value, ast.IfExp):
        return has_words(value.body) or has_words(value.orelse)
    return bool(table.options_of(_text(value)))


def _text(node: ast.expr) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    return None
