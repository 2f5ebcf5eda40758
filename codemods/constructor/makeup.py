"""What a model may be made of: the source of every class and function of the program that can take part in building it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.origin import model_classes
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.program import Definition, External, Program

# Words without which a model of this program has no such part.
BATCH_NORM = ("BatchNorm",)
BUFFERS = (*BATCH_NORM, "register_buffer", "Buffer(", "InstanceNorm", "FakeQuant")
# Packages whose functions build no modules of their own.
_PLAIN = {"torch", "math", "functools", "typing", "dataclasses", "einops", "numpy", "collections"}


def may_hold(construction: Construction, words: Iterable[str]) -> bool:
    """Whether a part that is named by one of some words can be in the model.

    It can where the model's class is not of this program, or another package may build a part of it.
    """
    classes = model_classes(construction)
    if classes is None:
        return True
    context = construction.context
    around = context.file.function(construction.call) or context.file.tree
    texts = [_own_text(context.file, around)]
    for definition in _reached(context.program, classes):
        if _uses_another_package(context.program, definition):
            return True
        texts.append(definition.file.source(definition.node))
    return any(word in text for word in words for text in texts)


def _own_text(file: File, around: ast.AST) -> str:
    """The source of the statements around a constructor; of a module, those that define nothing."""
    body = getattr(around, "body", [])
    own = [s for s in body if not isinstance(s, ast.FunctionDef | ast.ClassDef)]
    return "\n".join(file.source(statement) for statement in own)


def _reached(program: Program, classes: list[Definition]) -> Iterator[Definition]:
    """The classes and functions that some classes name, directly or through others."""
    pending, seen = list(classes), {each.node for each in classes}
    while pending:
        definition = pending.pop()
        yield definition
        for node in ast.walk(definition.node):
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                for meaning in program.meanings(node, definition.file):
                    if isinstance(meaning, Definition) and meaning.node not in seen:
                        seen.add(meaning.node)
                        pending.append(meaning)


def _uses_another_package(program: Program, definition: Definition) -> bool:
    """Whether something is called that another package than torch has, which may make modules."""
    for call in ast.walk(definition.node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute):
            for meaning in program.meanings(call.func, definition.file):
                if isinstance(meaning, External) and meaning.dotted.split(".")[0] not in _PLAIN:
                    return True
    if not isinstance(definition.node, ast.ClassDef):
        return False
    return any(
        isinstance(above, External) and above.dotted.split(".")[0] not in _PLAIN
        for above in program.classes_above(definition)
    )
