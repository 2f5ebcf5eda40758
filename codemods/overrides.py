"""A method that the edits of a file leave with a call of the one that it overrides, and nothing else: it is removed."""

import ast
from collections.abc import Iterator
from functools import partial

from fsdp_migrate.codemods.after import After, Candidate, Repeat
from fsdp_migrate.codemods.edit.text import remove_statement
from fsdp_migrate.facts.file import File, parsed

_MESSAGE = "Removed: it only calls the method that it overrides."


def overrides(file: File) -> Iterator[Candidate]:
    """Each method that calls `super()`, in a class that has something else."""
    for call in file.calls.get("super", ()):
        method = file.function(call)
        if isinstance(method, ast.FunctionDef):
            around = file.parents[method]
            if isinstance(around, ast.ClassDef) and len(around.body) > 1:
                yield partial(_without, method=method)


def _without(after: After, *, method: ast.FunctionDef) -> Repeat | None:
    if not after.changes(method) or not after.is_separate(method) or method.decorator_list:
        return None
    if _hands_on(after.before.code([method])) or not _hands_on(after.code([method])):
        return None
    return Repeat(method, _MESSAGE, remove_statement(after.file, method), (method,))


def _hands_on(code: str | None) -> bool:
    """Whether code is a method that returns what `super()` does with its own arguments."""
    try:
        tree = parsed(code or "")
    except (SyntaxError, ValueError):
        return False
    match tree.body:
        case [
            ast.FunctionDef(
                name=name,
                args=taken,
                body=[
                    ast.Return(
                        ast.Call(ast.Attribute(ast.Call(ast.Name("super"), [], []), other)) as call
                    )
                ],
            )
        ]:
            return name == other and _given(call) == _taken(taken)
    return False


def _given(call: ast.Call) -> list[str]:
    """The arguments of a call, as source."""
    named = [ast.unparse(ast.Call(ast.Name(""), [], [each])) for each in call.keywords]
    return [*map(ast.unparse, call.args), *[each[1:-1] for each in named]]


def _taken(arguments: ast.arguments) -> list[str] | None:
    """The arguments that pass on all that a method takes; None if it has defaults, which its base may not have."""
    if arguments.defaults or any(arguments.kw_defaults):
        return None
    own = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
    if arguments.vararg is not None:
        own.append(f"*{arguments.vararg.arg}")
    own += [f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        own.append(f"**{arguments.kwarg.arg}")
    return own
