"""Which modules are units, as source: by the classes that a policy names."""

import ast
from dataclasses import dataclass
from typing import TypeGuard

from fsdp_migrate.codemods.constructor import root_class
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Import
from fsdp_migrate.facts.nodes import all_are, any_below, any_is
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Definition, External

# fully_shard refuses containers without a forward; FSDP1 wrapped them, to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
_ALSO_CONTAINERS = (
    "FSDP1 also wrapped each `ModuleList` and `ModuleDict`, to no effect. `fully_shard` does not take them, so there are fewer "
    "units to count."
)


@dataclass(frozen=True)
class Units:
    """Which modules are units of their own.

    Attributes:
        condition: by which `module` is one, as source; a loop over `each` alone has none.
        each: the modules themselves, as source.
        classes: whether only named classes of the program's own are asked for: then the model itself is none of them.
        counts: whether the condition reads `numel`, the parameters that no unit below has.
        first: lines in front of the loop.
        test: under which there are units at all; empty where there always are.
        remark: what the finding says of them besides.
    """

    condition: str = ""
    each: str = ""
    classes: bool = False
    counts: bool = False
    first: tuple[str, ...] = ()
    test: str = ""
    remark: str = ""


def always(construction: Construction, code: Code) -> Units:
    use_nn(construction, code)
    condition = f"not isinstance({code.unit}, (nn.ModuleList, nn.ModuleDict))"
    return Units(condition, remark=_ALSO_CONTAINERS)


def use_nn(construction: Construction, code: Code) -> None:
    code.imports.append(Import("torch", "nn"))


def by_class(construction: Construction, value: ast.expr, code: Code) -> Units | None:
    """The units by class, of `ModuleWrapPolicy({Block})` and of `partial(transformer_auto_wrap_policy, ...)`."""
    context = construction.context
    made = None
    if value in context.file.parents:
        made = context.value(value)
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return None
    given = _collection(context, made)
    if given is None:
        return None
    if construction.shown_or_none(value) is None:
        if construction.has_attributes_read(value) or not construction.is_unchanged(given):
            return None
    return of_classes(construction, given, code)


def of_classes(construction: Construction, given: ast.expr, code: Code) -> Units | None:
    context = construction.context
    unit = code.unit
    if is_collection(given) and len(given.args) == 1:
        given = given.args[0]
    shown = construction.shown_or_none(given)
    if not isinstance(shown, ast.Set | ast.List | ast.Tuple):
        return _of_computed(construction, given, code)
    if not construction.is_same(shown):
        return None
    classes = [each for each in shown.elts if not _is_container(context, each)]
    if not classes or any_is(classes, ast.Starred):
        if shown.elts and not classes:
            return Units("False", classes=True)
        return None
    if any("torch.nn.Module" in context.dotted(each) for each in classes):
        return always(construction, code)
    if not all_are(classes, ast.Name | ast.Attribute):
        name = context.local("classes", construction.call)
        written = ", ".join(construction.text(each) for each in classes)
        code.above.append(f"{name} = ({written},)")
        return Units(f"isinstance({unit}, {name})")
    names = [context.source(each) for each in classes]
    named = f"({', '.join(names)})"
    if len(names) == 1:
        named = names[0]
    # The model itself may be of a class of torch's, such as Sequential, or of one that is named.
    paths = frozenset[str]().union(*map(context.dotted, classes))
    of_torch = any_below(paths, "torch.nn.")
    is_root = of_torch or root_class.may_be_of(construction, classes)
    return Units(f"isinstance({unit}, {named})", classes=not is_root)


def _of_computed(construction: Construction, given: ast.expr, code: Code) -> Units | None:
    """The units of classes that an expression gives when the program runs."""
    if not construction.is_same(given) and not construction.is_unchanged(given):
        return None
    if isinstance(given, ast.Name):
        return Units(f"isinstance({code.unit}, tuple({given.id}))")
    name = construction.context.local("classes", construction.call)
    code.above.append(f"{name} = tuple({construction.text(given)})")
    return Units(f"isinstance({code.unit}, {name})")


def is_collection(expression: ast.AST | None) -> TypeGuard[ast.Call]:
    """Whether an expression is `set(...)`, `tuple(...)` or `list(...)`."""
    match expression:
        case ast.Call(func=ast.Name(id="list" | "set" | "tuple")):
            return True
    return False


def named_classes(construction: Construction) -> list[ast.expr]:
    """The classes of a policy that have a name at the constructor, whatever that holds; empty for any other policy."""
    value = construction.value("auto_wrap_policy")
    context = construction.context
    made = None
    if value is not None and value in context.file.parents:
        made = context.value(value)
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return []
    given = _collection(context, made)
    if is_collection(given) and len(given.args) == 1:
        given = given.args[0]
    if not isinstance(given, ast.Set | ast.List | ast.Tuple):
        return []
    if all(map(construction.is_same, given.elts)):
        return list(given.elts)
    return []


def _collection(context: Context, made: Value) -> ast.expr | None:
    """The classes that a policy is given."""
    call = made.node
    assert isinstance(call, ast.Call)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if context.program.fsdp1(call.func, made.file) == "ModuleWrapPolicy":
        if call.args:
            return call.args[0]
        return keywords.get("module_classes")
    if "functools.partial" in context.program.dotted(call.func, made.file) and call.args:
        policy = None
        if len(call.args) == 1:
            policy = context.program.fsdp1(call.args[0], made.file)
        if policy == "transformer_auto_wrap_policy" and len(keywords) == 1:
            return keywords.get("transformer_layer_cls")
    return None


def _is_container(context: Context, expression: ast.expr) -> bool:
    """Whether an expression names a class that `fully_shard` refuses, as nothing calls it."""
    if not isinstance(expression, ast.Name | ast.Attribute):
        return False
    for meaning in context.program.meanings(expression, context.file):
        above = [meaning]
        if isinstance(meaning, Definition):
            if not isinstance(meaning.node, ast.ClassDef):
                return False
            above += context.program.classes_above(meaning)
        outside = [each.dotted for each in above if isinstance(each, External)]
        if {dotted.rpartition(".")[2] for dotted in outside} & _CONTAINERS:
            return True
    return False
