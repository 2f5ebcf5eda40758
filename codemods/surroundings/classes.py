"""The classes that a model is made of: its own, those that it builds, and those that its policy makes units of."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import shortened
from fsdp_migrate.codemods.plan import Plan
from fsdp_migrate.codemods.rule import Draft, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Module
from fsdp_migrate.index.project import Definition
from fsdp_migrate.index.values import origins

_DEPTH = 4


def unit_classes(context: Context, plan: Plan) -> tuple[list[Definition], frozenset[str]]:
    """The classes that a policy names: those of the project, and the dotted names of others."""
    constructor, project = plan.constructor, context.project
    value = constructor.value("auto_wrap_policy")
    if value is None:
        return [], frozenset()
    found: dict[Definition, None] = {}
    others: set[str] = set()
    for made in origins(project, value, constructor.context.module):
        node: ast.AST | None = made.node
        where = made.module
        if isinstance(node, ast.Call):
            function = project.definition(node.func, where)
            if function is not None and isinstance(function.node, ast.FunctionDef):
                node, where = function.node, function.module  # what builds the policy
        for inner in ast.walk(node) if node is not None else ():
            if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load):
                cls = project.definition(inner, where)
                if cls is not None and isinstance(cls.node, ast.ClassDef):
                    found[cls] = None
                others |= {p for p in project.dotted(inner, where) if p.startswith("torch.nn.")}
    return list(found), frozenset(others)


def model_classes(context: Context, plan: Plan) -> list[Definition]:
    """The classes of the wrapped model and of the modules that it builds, and those of the policy."""
    start = [cls for cls in plan.constructor.classes if cls is not None]
    found = dict.fromkeys([*start, *unit_classes(context, plan)[0]])
    edge = list(found)
    for _ in range(_DEPTH):
        edge = [
            built
            for cls in edge
            for built in _built_by(context, cls)
            if built not in found and found.setdefault(built, None) is None
        ]
    return list(found)


def _built_by(context: Context, cls: Definition) -> Iterator[Definition]:
    for node in ast.walk(cls.node):
        if isinstance(node, ast.Call):
            made = context.project.definition(node.func, cls.module)
            if made is not None and isinstance(made.node, ast.ClassDef):
                yield made


def forwards(classes: list[Definition]) -> Iterator[tuple[Module, ast.ClassDef, ast.FunctionDef]]:
    """The `forward` methods that classes have of their own."""
    for cls in classes:
        assert isinstance(cls.node, ast.ClassDef)
        for statement in cls.node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "forward":
                yield cls.module, cls.node, statement


def in_class(
    rule: Rule,
    context: Context,
    plan: Plan,
    where: Module,
    node: ast.stmt,
    message: str,
    inside: str = "",
) -> Draft:
    """A finding on a model's class: there, or at the constructor where another file has the class.

    Args:
        node: what the finding is about; or, of an `if`, its test.
        inside: the method that it stands in.
    """
    here = where is context.module
    place = ", ".join(filter(None, [inside, f"{where.path.name}:{node.lineno}"]))
    shown = node.test if isinstance(node, ast.If) else node
    return Draft(
        rule,
        node if here else plan.constructor.call,
        Action.MANUAL,
        message if here else f"{message} ({place})",
        shortened(where.source(shown)),
        frozenset({plan.site}),
        mark=here,
    )


def own_plans(context: Context) -> Iterator[Plan]:
    """The plans of the constructors that a file has itself."""
    for plan in context.plans.values():
        if plan.constructor.context.module is context.module:
            yield plan
