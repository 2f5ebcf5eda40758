"""Names of FSDP1 in annotations, in quotes or not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Edit, Edited

_TYPING = frozenset(f"typing.{name}" for name in ("cast", "Optional", "TypeVar", "Union"))
_PLAIN_STRING = re.compile(r"""[uU]?('[^'\\\n]*'|"[^"\\\n]*")""")


def is_annotation(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is a part of an annotation, or of what stands for one: `cast(FSDP, m)`, `Union[FSDP, DDP]`."""
    node: ast.AST = reference
    for parent in context.module.ancestors(reference):
        if isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is node:
            return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is node:
            return True
        of = parent.value if isinstance(parent, ast.Subscript) else None
        if isinstance(parent, ast.Call):
            of = parent.func if node in parent.args[:1] else None
        if isinstance(parent, ast.keyword) and parent.arg == "bound":
            parent = context.module.parents[parent]
            of = parent.func if isinstance(parent, ast.Call) else None
        if of is not None and context.project.dotted(of, context.module) & _TYPING:
            return True
        if not isinstance(parent, ast.expr) or isinstance(parent, ast.Call):
            return False
        node = parent
    return False


def quoted(context: Context, name: str) -> Iterator[tuple[ast.Constant, ast.Name | None]]:
    """The strings that stand for types and say a name of FSDP1's, each with the name as it is written there.

    None instead of it where the string cannot be edited as a whole: it has escapes or several lines, or says `fsdp.NAME`.
    """
    module = context.module
    for string, annotation in module.quoted:
        scope = module.scope_of(string)
        for node in ast.walk(annotation):
            if isinstance(node, ast.Name | ast.Attribute):
                if context.project.fsdp1(node, module, scope) == name:
                    plain = isinstance(node, ast.Name) and _PLAIN_STRING.fullmatch(
                        context.source(string)
                    )
                    yield string, node if plain and isinstance(node, ast.Name) else None
                    break


def renamed_inside(context: Context, string: ast.Constant, old: str, new: str) -> Edit:
    """Another name inside of a string."""
    text = re.sub(rf"(?<![\w.]){old}\b", new, context.source(string))
    return Edit(
        context.syntax.find(string, cst.SimpleString),
        lambda updated: Edited(cst.SimpleString(text)),
    )
