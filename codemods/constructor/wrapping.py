"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. A policy
that goes by class is a loop over the modules, children before parents. Every other policy looks at the model and is applied
by the runtime, as FSDP1 does.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.codemods.constructor.construction import Argument, Construction
from fsdp_migrate.codemods.constructor.part import AtRunTime, Part, is_same
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import spliced
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.program import Definition, External
from fsdp_migrate.facts.values import Value

CLASS_POLICY = Rule(
    "FSDP151", "class-policy", "a policy that goes by class becomes a loop over the modules"
)
RUNTIME_POLICY = Rule(
    "FSDP152", "runtime-policy", "the runtime applies a policy that inspects the model"
)
RULES = (CLASS_POLICY, RUNTIME_POLICY)

# fully_shard refuses containers without a forward; FSDP1 wrapped them, to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a policy."""
    if construction.is_none(argument.value):
        return CLASS_POLICY, "None: the whole model is one unit"
    rule = CLASS_POLICY if named_classes(construction) else RUNTIME_POLICY
    return rule, "the runtime applies it and gives the modules that FSDP1 would wrap"


def policy(construction: Construction, value: ast.expr) -> Part:
    """The units by class, by a condition or as the list that the policy looks into."""
    context = construction.context
    made = context.value(value)
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        raise AtRunTime
    condition = _lambda(context, made)
    if condition is not None:
        names = _names_of(condition.body, condition.args.args[0].arg)
        if not all(is_same(context, name, construction.call) for name in names):
            raise AtRunTime
        classes: list[ast.expr] = [
            node for node in ast.walk(condition.body) if isinstance(node, ast.Attribute | ast.Name)
        ]
        units, which = _of_loop(context, condition), "that meets the condition"
    else:
        classes = named_classes(construction)
        if not classes or not all(_is_unit(context, cls) for cls in classes):
            raise AtRunTime
        units, which = unit_condition([context.source(c) for c in classes]), "of these classes"
    if any(_is_torchs(context, cls) for cls in classes):
        several = isinstance(condition and condition.body, ast.BoolOp)
        units = f"{{module}} is not {{model}} and {f'({units})' if several else units}"
    return Part(
        f"becomes a loop that shards every module {which}, children before parents", units=units
    )


def _is_torchs(context: Context, expression: ast.expr) -> bool:
    """Whether an expression names a class of modules of torch's, such as Sequential, that the model itself may be of."""
    return any(dotted.startswith("torch.nn.") for dotted in context.dotted(expression))


def unit_condition(classes: Sequence[str]) -> str:
    """The condition by which `{module}` is a unit."""
    named = classes[0] if len(classes) == 1 else f"({', '.join(classes)})"
    return f"isinstance({{module}}, {named})"


def named_classes(construction: Construction) -> list[ast.expr]:
    """The classes of a policy that have a name at the constructor, whatever that holds; empty for any other policy."""
    value, context = construction.value("auto_wrap_policy"), construction.context
    made = context.value(value) if value is not None else None
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return []
    given = _collection(context, made)
    elements = list(given.elts) if isinstance(given, ast.Set | ast.List | ast.Tuple) else []
    return elements if all(is_same(context, cls, construction.call) for cls in elements) else []


def _lambda(context: Context, made: Value) -> ast.Lambda | None:
    """The function of `partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.blocks)`, if it is a condition as
    this: which modules fulfil it does not change while others are sharded."""
    call = made.node
    if not isinstance(call, ast.Call) or len(call.args) != 1:
        return None
    policy = context.program.fsdp1(call.args[0], made.file)
    if policy != "lambda_auto_wrap_policy" or len(call.keywords) != 1:
        return None
    if "functools.partial" not in context.program.dotted(call.func, made.file):
        return None
    function = call.keywords[0].value
    if not isinstance(function, ast.Lambda) or len(function.args.args) != 1:
        return None
    return function if _is_membership(function.body, function.args.args[0].arg) else None


def _is_membership(body: ast.expr, module: str) -> bool:
    """Whether a condition is `m in modules` or `isinstance(m, classes)`, or several of them."""
    if isinstance(body, ast.BoolOp):
        return all(_is_membership(each, module) for each in body.values)
    if isinstance(body, ast.Call) and getattr(body.func, "id", "") == "isinstance":
        subject, others = body.args[0], body.args[1:]
    elif isinstance(body, ast.Compare) and isinstance(body.ops[0], ast.In):
        subject, others = body.left, body.comparators
    else:
        return False
    about = getattr(subject, "id", "") == module
    return about and len(others) == 1 and module not in {n.id for n in _names_of(others[0], "")}


def _names_of(body: ast.expr, parameter: str) -> list[ast.Name]:
    """The names that a condition reads, its parameter and Python's own aside."""
    names = [node for node in ast.walk(body) if isinstance(node, ast.Name)]
    return [n for n in names if n.id not in {parameter, "isinstance", "list", "set", "tuple"}]


def _of_loop(context: Context, function: ast.Lambda) -> str:
    """The body of a condition, with `{module}` for its parameter."""
    body, parameter = function.body, function.args.args[0].arg
    uses = [n for n in ast.walk(body) if isinstance(n, ast.Name) and n.id == parameter]
    edits = [context.replace(use, "\0") for use in uses]
    text = spliced(context.file.text, edits, *context.file.span(body))
    return text.replace("{", "{{").replace("}", "}}").replace("\0", "{module}")


def _collection(context: Context, made: Value) -> ast.expr | None:
    """The classes of `ModuleWrapPolicy({Block})` and of `partial(transformer_auto_wrap_policy, ...)`."""
    call = made.node
    assert isinstance(call, ast.Call)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    given: ast.expr | None = None
    if context.program.fsdp1(call.func, made.file) == "ModuleWrapPolicy":
        given = call.args[0] if call.args else keywords.get("module_classes")
    elif "functools.partial" in context.program.dotted(call.func, made.file):
        policy = context.program.fsdp1(call.args[0], made.file) if len(call.args) == 1 else None
        if policy == "transformer_auto_wrap_policy" and len(keywords) == 1:
            given = keywords.get("transformer_layer_cls")
    if isinstance(given, ast.Call) and getattr(given.func, "id", "") in {"set", "tuple", "list"}:
        return given.args[0] if len(given.args) == 1 else None
    return given


def _is_unit(context: Context, expression: ast.expr) -> bool:
    """Whether an expression can name a class of units: no container, which `fully_shard` refuses, and not every module."""
    if not isinstance(expression, ast.Name | ast.Attribute) or expression in context.references:
        return False
    for meaning in context.program.meanings(expression, context.file):
        above = [meaning]
        if isinstance(meaning, Definition):
            if not isinstance(meaning.node, ast.ClassDef):
                return False
            above += context.program.classes_above(meaning)
        outside = [each.dotted for each in above if isinstance(each, External)]
        if {dotted.rpartition(".")[2] for dotted in outside} & _CONTAINERS:
            return False
        if meaning == External("torch.nn.Module"):
            return False
    return True
