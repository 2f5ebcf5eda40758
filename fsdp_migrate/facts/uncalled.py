"""Which functions and classes no program that shards a model uses: those of a shared module that are for other programs.

A scaler in `utils/native_scaler.py` is imported by all programs, and named by those alone that do not shard.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.program import Program

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORT = re.compile(r"from[ \t]+[.\w]+[ \t]+import[ \t]*(?:\([^)]*\)|[^\n]*)")
# What may use a function without its name, or shard a model without FSDP1's constructor.
_UNSEEN = rb"import_module\(|__import__\(|globals\(\)|[Aa]ccelerator\b|lightning|\bTrainer\("


def why_uncalled(program: Program, file: File, node: ast.AST) -> str:
    """Why sharded models do not get to a place: each program that makes one shows all that it runs; "" where they may."""
    around = [each for each in (node, *file.ancestors(node)) if each in file.tree.body]
    match around:
        case [
            ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name)
        ]:
            called = program.once(_called, file)
        case _:
            return ""
    if called is None or name in called:
        return ""
    return f"Needs nothing now: no program here that shards a model uses `{name}`."


def _called(program: Program, file: File) -> set[str] | None:
    """The functions and classes of a file that programs with sharded models can use; None if the files do not show it."""
    reach, path = program.reach, str(file.path)
    models = models_of(program)
    sharding = [each for each in program.files if any(models.constructors(each))]
    starts = all(reach.is_start(str(each.path)) for each in sharding)
    if not sharding or file in sharding or not starts:
        return None
    run = {other for each in sharding for other in reach.of(each.path)}
    if path not in run or not program.tree.having(_UNSEEN).isdisjoint({*run, *reach.of(file.path)}):
        return None
    others = [_without_imports(reach.text(other)) for other in run if other != path]
    defined = {each.name: each for each in file.tree.body if isinstance(each, _DEFINITIONS)}
    rest = [each for each in file.tree.body if not isinstance(each, _DEFINITIONS)]
    pending = [name for name, each in defined.items() if each.decorator_list]
    pending += [name for name in defined if any(re.search(rf"\b{name}\b", text) for text in others)]
    pending += _names(rest)
    called: set[str] = set()
    while pending:
        name = pending.pop()
        if name in defined and name not in called:
            called.add(name)
            pending += _names([defined[name]])
    return called


def _without_imports(text: str) -> str:
    """The text of a file without its imports of names, but for those that bind another name."""
    return _IMPORT.sub(lambda found: found[0] if " as " in found[0] else "", text)


def _names(statements: list[ast.stmt]) -> Iterator[str]:
    """What some code reads by a name, or names in a string."""
    for statement in statements:
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name) | ast.Constant(value=str() as name):
                    yield name
