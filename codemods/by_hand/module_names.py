"""The classes of a model's modules, listed: a model that is sharded in place has no wrappers among them."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.nodes import loops_of, receiver
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP523", "names-of-modules", Severity.PRINTS)
_WALKS = ("modules", "named_modules")


@codemod(words=("__name__",))
def find(context: Context) -> Iterator[Found]:
    """`type(module).__name__` in a loop over the modules of a model, and in what its `apply` calls."""
    if context.form == "bridge":
        return
    for attribute in context.file.attributes.get("__name__", ()):
        compared = isinstance(context.file.parents[attribute], ast.Compare)
        if compared:
            subject = None
        else:
            subject = subject_of(attribute.value)
        if subject is not None and is_any_module(context, subject):
            message = (
                "This no longer finds FSDP1's wrappers, which were modules of their own. If their number or names "
                "matter, count the instances of `FSDPModule`."
            )
            yield Found(RULE, attribute, Action.MANUAL, message)


def subject_of(cls: ast.expr) -> ast.expr | None:
    """`module` of `type(module)` and of `module.__class__`."""
    match cls:
        case ast.Call(func=ast.Name(id="type"), args=[subject, *_]):
            return subject
        case ast.Attribute(value=subject, attr="__class__"):
            return subject
    return None


def is_any_module(context: Context, name: ast.expr) -> bool:
    """Whether a name goes over all modules of what can be a model."""
    file = context.file
    for around in file.ancestors(name):
        for loop in loops_of(around):
            bound = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
            if isinstance(name, ast.Name) and name.id in bound and isinstance(loop.iter, ast.Call):
                if last_name(loop.iter.func) in _WALKS:
                    return context.can_be_model(receiver(loop.iter) or loop.iter)
        if isinstance(around, ast.Lambda | ast.FunctionDef):
            return _is_applied(context, around)
    return False


def _is_applied(context: Context, function: ast.Lambda | ast.FunctionDef) -> bool:
    """Whether `model.apply(function)` calls it on each module."""
    uses: list[ast.AST] = [function]
    if isinstance(function, ast.FunctionDef):
        uses = [*context.file.loads.get(function.name, ())]
    calls = [context.file.parents.get(use) for use in uses]
    for call in calls:
        match call:
            case ast.Call(func=ast.Attribute(value=owner, attr="apply")):
                if context.can_be_model(owner):
                    return True
    return False
