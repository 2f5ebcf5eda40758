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


def unused_part(construction: Construction) -> str:
    """A part of the model that some forward may not use, as `Net.extra`; "" if this program shows none.

    It has a gradient of zeros under FSDP1, on which weight decay and momentum act, and none under `fully_shard`.
    """
    program = construction.context.program
    modules = [
        each
        for each in _reached(program, model_classes(construction) or [])
        if isinstance(each.node, ast.ClassDef) and _is_module(program, each)
    ]
    used = {name for each in modules for name in _always_read(each)}
    for each in modules:
        for name in _parts(program, each):
            if name not in used:
                return f"{each.node.name}.{name}"
    return ""


def _is_module(program: Program, cls: Definition) -> bool:
    return any(
        isinstance(above, External) and above.dotted.startswith("torch.nn.")
        for above in program.classes_above(cls)
    )


def _parts(program: Program, cls: Definition) -> Iterator[str]:
    """The attributes that a class gives itself by calls of torch.nn or of the program's classes."""
    for node in ast.walk(cls.node):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            target = node.targets[0]
            own = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
            made = program.meanings(node.value.func, cls.file)
            if own and any(
                (isinstance(meaning, Definition) and isinstance(meaning.node, ast.ClassDef))
                or (isinstance(meaning, External) and meaning.dotted.startswith("torch.nn."))
                for meaning in made
            ):
                assert isinstance(target, ast.Attribute)
                yield target.attr


def _always_read(cls: Definition) -> Iterator[str]:
    """The attributes that the methods of a class read in no branch, the one that builds it aside."""
    assert isinstance(cls.node, ast.ClassDef)
    for method in cls.node.body:
        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
            for node in ast.walk(method):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    if _always_runs(cls.file, node):
                        yield node.attr


def _always_runs(file: File, node: ast.AST) -> bool:
    """Whether a node is in no branch of its function."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.FunctionDef):
            return True
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            return False
        child = parent
    return True


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
