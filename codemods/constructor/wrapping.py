"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. A policy
that goes by class is a loop over the modules, children before parents. Every other policy is applied by the runtime, as
FSDP1 does.
"""

import ast

from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.layout import Code
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.program import Definition, External
from fsdp_migrate.facts.values import Value

CLASS_POLICY = Rule("FSDP151", "class-policy")
RUNTIME_POLICY = Rule("FSDP152", "runtime-policy")
RULES = (CLASS_POLICY, RUNTIME_POLICY)

# fully_shard refuses containers without a forward; FSDP1 wrapped them, to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a policy."""
    if construction.is_none(argument.value):
        return CLASS_POLICY, "None: the whole model is one unit"
    rule = CLASS_POLICY if named_classes(construction) else RUNTIME_POLICY
    return rule, "the runtime applies it and gives the modules that FSDP1 would wrap"


def policy(construction: Construction, value: ast.expr, code: Code) -> str:
    """The units by class."""
    context = construction.context
    construction.shown(value)
    classes = named_classes(construction)
    if not classes or not all(_is_unit(context, cls) for cls in classes):
        raise AtRunTime
    names = [context.source(cls) for cls in classes]
    named = names[0] if len(names) == 1 else f"({', '.join(names)})"
    # The model itself may be of a class of torch's, such as Sequential.
    of_torch = any(d.startswith("torch.nn.") for cls in classes for d in context.dotted(cls))
    below = "{module} is not {model} and " if of_torch else ""
    code.units = f"{below}isinstance({{module}}, {named})"
    return "becomes a loop that shards every module of these classes, children before parents"


def named_classes(construction: Construction) -> list[ast.expr]:
    """The classes of a policy that have a name at the constructor, whatever that holds; empty for any other policy."""
    value, context = construction.value("auto_wrap_policy"), construction.context
    made = context.value(value) if value is not None else None
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return []
    given = _collection(context, made)
    elements = list(given.elts) if isinstance(given, ast.Set | ast.List | ast.Tuple) else []
    return elements if all(map(construction.is_same, elements)) else []


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
