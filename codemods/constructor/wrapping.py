"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. A policy
that goes by class is a loop over the modules, children before parents. Every other policy looks at the model and is applied
by the runtime, as FSDP1 does.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor.construction import FORMER_NAMES, Argument, Construction
from fsdp_migrate.codemods.constructor.plain import Plain, Said, Stays, spent
from fsdp_migrate.codemods.constructor.translate import unit_condition
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import spliced
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import UNKNOWN, Definition, External
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


def say(construction: Construction, argument: Argument) -> tuple[Rule, Said]:
    """What the bridge does with a policy."""
    if construction.is_none(argument.value):
        return CLASS_POLICY, Said("None: the whole model is one unit")
    try:
        units = _units(construction, argument.value)
    except Stays as stays:
        return RUNTIME_POLICY, Said(f"the runtime applies it as FSDP1 did: {stays}")
    if not units.classes:
        return RUNTIME_POLICY, Said("the runtime tests every module with this condition")
    return CLASS_POLICY, Said("the runtime makes every module of these classes a unit")


def plain(construction: Construction) -> dict[str, Plain]:
    """The units by class or by a condition; nothing where there is no policy.

    Raises:
        Stays: if the policy looks at the model in other ways, or is not known here.
    """
    value = construction.value("auto_wrap_policy")
    if value is None:
        return {"auto_wrap_policy": Plain("None: the whole model is one unit")}
    context, units = construction.context, _units(construction, value)
    shared = list(_arguments(context, value))
    statements = spent(context, units.made, [each for each in shared if each is not value])
    if statements is None:
        raise Stays("auto_wrap_policy is also used elsewhere")
    if value in shared[1:]:
        statements = ()  # the first constructor takes them away
    which = "of these classes" if units.classes else "that meets the condition"
    return {
        "auto_wrap_policy": Plain(
            f"becomes a loop that shards every module {which}, children before parents",
            units=units.condition,
            statements=statements,
            removed=(units.made.node,),
        )
    }


def _arguments(context: Context, policy: ast.expr) -> Iterator[ast.expr]:
    """The constructors' arguments that are the same name: they share a policy, and become plain together."""
    for load in context.file.loads.get(getattr(policy, "id", ""), ()):
        keyword = context.file.parents[load]
        call = context.file.parents[keyword]
        if isinstance(keyword, ast.keyword) and isinstance(call, ast.Call):
            is_policy = FORMER_NAMES.get(keyword.arg or "", keyword.arg) == "auto_wrap_policy"
            if is_policy and context.references.get(call.func) == CLASS:
                yield load


def classes_of(construction: Construction) -> list[ast.expr] | None:
    """The classes that a policy selects units by; None if there is no policy, or it selects by something else."""
    value = construction.value("auto_wrap_policy")
    return None if value is None else _units(construction, value).classes or None


def named_classes(construction: Construction) -> list[ast.expr]:
    """The classes of a policy that have a name at the constructor, whatever that holds; empty for any other policy."""
    value, context = construction.value("auto_wrap_policy"), construction.context
    made = context.value(value) if value is not None else None
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return []
    given = _collection(context, made)
    elements = list(given.elts) if isinstance(given, ast.Set | ast.List | ast.Tuple) else []
    known = all(_same_at(context, cls, construction.call) for cls in elements)
    return elements if known else []


def listed(construction: Construction) -> str:
    """The list of the model's whose modules are units: `layers` of `m in list(model.layers)`; "" for any other policy."""
    value = construction.value("auto_wrap_policy")
    made = construction.context.value(value) if value is not None else None
    function = _lambda(construction.context, made) if made is not None else None
    body = function.body if function is not None else None
    if not isinstance(body, ast.Compare) or construction.module is None:
        return ""
    modules = body.comparators[0]
    if isinstance(modules, ast.Call) and getattr(modules.func, "id", "") == "list":
        modules = modules.args[0]
    text, model = ast.unparse(modules), ast.unparse(construction.module)
    found = re.fullmatch(rf"{re.escape(model)}\.(\w+(\(\))?)", text)
    return found[1] if found else ""


@dataclass(frozen=True)
class _Units:
    """Which modules are units: the condition on `{module}`, the classes if it names them, and what makes the policy."""

    condition: str
    classes: list[ast.expr]
    made: Value


def _units(construction: Construction, value: ast.expr) -> _Units:
    """The units of a policy.

    Raises:
        Stays: if it looks at the model in other ways, or a name means something else at the constructor.
    """
    context = construction.context
    made = context.value(value)
    if made is None or not isinstance(made.node, ast.Call):
        raise Stays("auto_wrap_policy is known only when the program runs")
    condition = _lambda(context, made)
    given = _collection(context, made)
    elements = list(given.elts) if isinstance(given, ast.Set | ast.List | ast.Tuple) else []
    if not elements and condition is None:
        raise Stays("auto_wrap_policy inspects the model")
    if made.file is not context.file or not all(_is_unit(context, cls) for cls in elements):
        raise Stays("the classes of auto_wrap_policy are known only when the program runs")
    if condition is not None:
        names = _names_of(condition.body, condition.args.args[0].arg)
        if not all(_same_at(context, name, construction.call, times=None) for name in names):
            raise Stays("names in auto_wrap_policy mean something else at the constructor")
        return _Units(_of_loop(context, condition), [], made)
    if not all(_same_at(context, cls, construction.call) for cls in elements):
        raise Stays("the classes of auto_wrap_policy have no name at the constructor")
    return _Units(unit_condition([context.source(cls) for cls in elements]), elements, made)


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
    """Whether an expression names a class that can be a unit: of the program, imported or looked up, no container."""
    meanings = context.program.meanings(expression, context.file)
    if isinstance(expression, ast.Name) and set(meanings) == {UNKNOWN}:
        return True  # a class that the program looks up
    if not isinstance(expression, ast.Name | ast.Attribute) or len(meanings) != 1:
        return False
    if expression in context.references:  # FSDP1's own class, which no unit has inside
        return False
    meaning = meanings[0]
    above = [meaning]
    if isinstance(meaning, Definition):
        if not isinstance(meaning.node, ast.ClassDef):
            return False
        above += context.program.classes_above(meaning)
    elif not isinstance(meaning, External):
        return False
    outside = {each.dotted.rpartition(".")[2] for each in above if isinstance(each, External)}
    return not outside & _CONTAINERS and meaning != External("torch.nn.Module")


def _same_at(context: Context, expression: ast.expr, place: ast.AST, times: int | None = 1) -> bool:
    """Whether a name means the same at another place of the file.

    Args:
        times: how often it is bound; None for the names of a function, which are read when the constructor runs.
    """
    root = expression
    while isinstance(root, ast.Attribute):
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    there, here = context.file.variable(root), context.file.variable(root, place)
    if there is None or here is None:
        return times is None and there is here
    return there.scope is here.scope and times in (None, len(here.bindings))
