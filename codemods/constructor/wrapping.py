"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. Each policy
is a loop over the modules, children before parents: by the classes or the condition that it names, or by asking the policy
itself, as `torch.distributed.fsdp.wrap` documents its signature.
"""

import ast
from dataclasses import dataclass

from fsdp_migrate.codemods.constructor import policies, root_class
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.conditions import chosen, grouped
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.devices import of_parameter
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Definition, External, Program
from fsdp_migrate.facts.scopes import Defined

CLASS_POLICY = Rule("FSDP151", "class-policy")
RUNTIME_POLICY = Rule("FSDP152", "runtime-policy")

# fully_shard refuses containers without a forward; FSDP1 wrapped them, to no effect.
_CONTAINERS = {"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
_ALSO_CONTAINERS = (
    "FSDP1 also wrapped each `ModuleList` and `ModuleDict`, to no effect. `fully_shard` does not take them, so there are fewer "
    "units to count."
)
_WRAP = "torch.distributed.fsdp.wrap"
_DTENSOR = "torch.distributed.tensor"


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a policy."""
    if construction.is_none(argument.value):
        return CLASS_POLICY, "Has no effect: the whole model is one unit, which is the default."
    rule = CLASS_POLICY if named_classes(construction) else RUNTIME_POLICY
    return (
        rule,
        "`fsdp_migrate.runtime` applies it and shards the modules that FSDP1 would have wrapped.",
    )


@dataclass(frozen=True)
class Units:
    """Which modules are units of their own.

    Attributes:
        condition: by which `module` is one, as source; a loop over `each` alone has none.
        each: the modules themselves, as source.
        classes: whether only named classes of the program's own are asked for: then the model itself is none of them.
        counts: whether the condition reads `numel`, the parameters that no unit below has.
        remark: what the finding says of them besides.
    """

    condition: str = ""
    each: str = ""
    classes: bool = False
    counts: bool = False
    remark: str = ""


# What FSDP1's flat parameters needed: each is trained as a whole, or frozen as a whole.
_SPLIT = " The condition on `requires_grad` can go: FSDP2 takes frozen and trained parameters in one unit."


def policy(construction: Construction, value: ast.expr, code: Code) -> str:
    """The units as a loop, and whether they are smaller than FSDP2 needs them."""
    said = _loop(construction, value, code)
    return f"{said}{_SPLIT}" if _splits_frozen(construction, value) else said


def _splits_frozen(construction: Construction, value: ast.expr) -> bool:
    """Whether a policy asks which parameters are trained: by itself, or in the function that makes it."""
    own = construction.context.file.function(construction.call)
    for end in construction.flow(value).ends:
        maker = end.file.function(end.node)
        made: list[ast.AST] = [end.node] if maker is None or maker is own else [maker]
        names = (node for node in ast.walk(end.node) if isinstance(node, ast.Name))
        bindings = (binding for name in names for binding in end.file.bindings(name))
        made += [binding.node for binding in bindings if isinstance(binding, Defined)]
        if any("requires_grad" in end.file.source(node) for node in made):
            return True
    return False


def _loop(construction: Construction, value: ast.expr, code: Code) -> str:
    """The units as a loop, children before parents."""
    context, call = construction.context, construction.call
    code.unit = context.local("module", call)
    units = _units(construction, value, code)
    if units is None:
        units = _asked(construction, value, code)
    if units.condition == "False":
        return "Removed: it selects no module that can be sharded."
    ignored = f"{code.unit} not in {code.ignored}" if code.ignored else ""
    if units.each:
        block = context.local("block", call)
        code.unit = block
        code.loop = [f"for {block} in {units.each}:"]
        if ignored:
            code.loop.append(f"    if {block} not in {code.ignored}:")
        return "Replaced by a loop that shards these modules."
    modules = f"list({code.model}.modules())"
    # The model itself comes last.
    modules = modules if units.classes else f"{modules}[1:]"
    code.loop = [f"for {code.unit} in reversed({modules}):"]
    condition = units.condition
    if units.counts:
        code.imports.append(Import(_DTENSOR, "DTensor"))
        code.loop.append(
            f"    numel = sum(p.numel() for p in {code.unit}.parameters() if not isinstance(p, DTensor))"
        )
    if ignored:
        condition = f"{ignored} and {grouped(condition)}" if condition else ignored
    if condition:
        code.loop.append(f"    if {condition}:")
    if units.classes:
        return "Replaced by a loop that shards every module of these classes, children first."
    message = "Replaced by a loop that shards every module selected by the policy, children first."
    return f"{message} {units.remark}".rstrip()


def _units(construction: Construction, value: ast.expr, code: Code) -> Units | None:
    """What a policy chooses, in torch's words; None where the policy itself is to be asked.

    Raises:
        AtRunTime: if it cannot be asked, either.
    """
    context = construction.context
    classes = _classes(construction, value, code)
    if classes is not None:
        return classes
    match construction.shown_or_none(value):
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yes, no = _units(construction, body, code), _units(construction, orelse, code)
            if yes is None or no is None or yes.each or no.each or yes.counts or no.counts:
                return None
            parts = [False if each.condition == "False" else each.condition for each in (yes, no)]
            condition = chosen(construction.text(test), *parts)
            return Units(str(condition), classes=yes.classes and no.classes)
        case ast.Constant(value=None):
            return Units("False", classes=True)
        case ast.Call() as made if "functools.partial" in context.dotted(made.func) and made.args:
            keywords = {keyword.arg: keyword.value for keyword in made.keywords}
            return _partial(construction, context.fsdp1(made.args[0]) or "", keywords, code)
        case ast.Name() | ast.Attribute() as name:
            return _bare(construction, context.fsdp1(name) or "", code)
    return None


def _partial(
    construction: Construction, name: str, keywords: dict[str | None, ast.expr], code: Code
) -> Units | None:
    if name == "lambda_auto_wrap_policy" and keywords.keys() == {"lambda_fn"}:
        return _lambda(construction, keywords["lambda_fn"], code)
    if name == "_or_policy" and isinstance(every := keywords.get("policies"), ast.List | ast.Tuple):
        found = [_units(construction, each, code) for each in every.elts]
        parts = [each for each in found if each is not None]
        if len(parts) == len(found) and all(p.condition and not p.counts for p in parts):
            conditions = [grouped(part.condition) for part in parts]
            return Units(" or ".join(conditions), classes=all(part.classes for part in parts))
    if name == "size_based_auto_wrap_policy" and keywords.keys() <= {"min_num_params"}:
        least = keywords.get("min_num_params")
        return _by_size(
            construction, "100_000_000" if least is None else construction.text(least), code
        )
    if name == "_module_wrap_policy" and keywords.keys() == {"module_classes"}:
        return _of_classes(construction, keywords["module_classes"], code)
    if name == "always_wrap_policy":
        return _always(construction, code)
    return None


def _bare(construction: Construction, name: str, code: Code) -> Units | None:
    if name in ("size_based_auto_wrap_policy", "default_auto_wrap_policy"):
        return _by_size(construction, "100_000_000", code)
    if name == "always_wrap_policy":
        return _always(construction, code)
    return None


def _always(construction: Construction, code: Code) -> Units:
    _use_nn(construction, code)
    condition = f"not isinstance({code.unit}, (nn.ModuleList, nn.ModuleDict))"
    return Units(condition, remark=_ALSO_CONTAINERS)


def _use_nn(construction: Construction, code: Code) -> None:
    code.imports.append(Import("torch", "nn"))


def _by_size(construction: Construction, least: str, code: Code) -> Units:
    """FSDP1's size_based_auto_wrap_policy: no container, and no attention, in which it looked for no units."""
    context, call = construction.context, construction.call
    _use_nn(construction, code)
    attention = context.local("attention", call)
    code.above.append(
        f"{attention} = {{m for a in {code.model}.modules() if isinstance(a, nn.MultiheadAttention) for m in a.modules()}}"
    )
    condition = (
        f"numel >= {least} and {code.unit} not in {attention} "
        f"and not isinstance({code.unit}, (nn.ModuleList, nn.ModuleDict))"
    )
    return Units(condition, counts=True)


def _lambda(construction: Construction, function: ast.expr, code: Code) -> Units | None:
    """The condition of a function that is given a module, or the modules that it is looked for among."""
    context = construction.context
    shown = construction.shown_or_none(function)
    if not isinstance(shown, ast.Lambda) or len(shown.args.args) != 1:
        if isinstance(function, ast.Name) and not isinstance(shown, ast.Lambda):
            return Units(f"{context.source(function)}({code.unit})")
        return None
    if not construction.is_same(_without(shown)):
        return None
    parameter, body = shown.args.args[0].arg, shown.body
    match body:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.In()], comparators=[among]) if (
            name == parameter
        ):
            if isinstance(among, ast.Call) and getattr(among.func, "id", "") in (
                "list",
                "set",
                "tuple",
            ):
                if len(among.args) == 1:
                    among = among.args[0]
            if _is_sequence(context, among):
                return Units(each=construction.text(among))
    return Units(of_parameter(construction, shown, body, code.unit))


def _is_sequence(context: Context, among: ast.expr) -> bool:
    """Whether modules may be taken in any order: a container of the model, not a list of parents and their parts."""
    if isinstance(among, ast.Name):
        made = context.value(among)
        if made is not None:
            among = made.node
    match among:
        case ast.Call(func=ast.Name(id="list" | "set" | "tuple" | "filter")):
            return False
        case ast.Call(func=ast.Attribute(attr="modules")):
            return False
        case ast.Attribute() | ast.Name() | ast.Call():
            return True
    return False


def _without(function: ast.Lambda) -> ast.expr:
    """A lambda's body without its own parameters, for questions about its other names."""
    own = {argument.arg for argument in function.args.args}
    names = [n for n in ast.walk(function.body) if isinstance(n, ast.Name) and n.id not in own]
    return ast.Tuple(list(names), ast.Load())


def _asked(construction: Construction, value: ast.expr, code: Code) -> Units:
    """The policy itself is asked for each module."""
    context, call = construction.context, construction.call
    if value not in context.file.parents and value not in construction.candidates:
        raise AtRunTime
    flow = construction.flow(value)
    if any(_is_custom(context.program, end) for end in flow.ends):
        raise AtRunTime
    source = construction.text(value)
    if not all(part.isidentifier() for part in source.split(".")):
        name = context.local("auto_wrap_policy", call)
        code.above.append(f"{name} = {source}")
        source = name
    counts = _sizes(context) and policies.can_count(context.program, flow)
    counted = "numel" if counts else "0"
    asked = f"{source}(module={code.unit}, recurse=False, nonwrapped_numel={counted})"
    can_be_none = construction.can_be_none(value)
    condition = f"{source} is not None and {asked}" if can_be_none else asked
    return Units(condition, counts=counts)


def _is_custom(program: Program, end: Value) -> bool:
    """Whether a policy is a `CustomPolicy`, which gives units arguments of their own."""
    call = end.node
    return isinstance(call, ast.Call) and program.fsdp1(call.func, end.file) == "CustomPolicy"


def _sizes(context: Context) -> bool:
    """Whether a policy that goes by size is named, or made, in the program at all."""
    return context.program.has(r"size_based|nonwrapped_numel|min_num_params")


def _classes(construction: Construction, value: ast.expr, code: Code) -> Units | None:
    """The units by class, of `ModuleWrapPolicy({Block})` and of `partial(transformer_auto_wrap_policy, ...)`."""
    context = construction.context
    made = context.value(value) if value in context.file.parents else None
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return None
    given = _collection(context, made)
    if given is None:
        return None
    if construction.shown_or_none(value) is None:
        if construction.has_attributes_read(value) or not construction.is_unchanged(given):
            return None
    return _of_classes(construction, given, code)


def _of_classes(construction: Construction, given: ast.expr, code: Code) -> Units | None:
    context, unit = construction.context, code.unit
    if isinstance(given, ast.Call) and getattr(given.func, "id", "") in {"set", "tuple", "list"}:
        given = given.args[0] if len(given.args) == 1 else given
    shown = construction.shown_or_none(given)
    if not isinstance(shown, ast.Set | ast.List | ast.Tuple):
        if not construction.is_same(given) and not construction.is_unchanged(given):
            return None
        if isinstance(given, ast.Name):
            return Units(f"isinstance({unit}, tuple({given.id}))")
        name = context.local("classes", construction.call)
        code.above.append(f"{name} = tuple({construction.text(given)})")
        return Units(f"isinstance({unit}, {name})")
    if not construction.is_same(shown):
        return None
    classes = [each for each in shown.elts if not _is_container(context, each)]
    if not classes or any(isinstance(each, ast.Starred) for each in classes):
        return Units("False", classes=True) if shown.elts and not classes else None
    if any("torch.nn.Module" in context.dotted(each) for each in classes):
        return _always(construction, code)
    if not all(isinstance(each, ast.Name | ast.Attribute) for each in classes):
        name = context.local("classes", construction.call)
        written = ", ".join(construction.text(each) for each in classes)
        code.above.append(f"{name} = ({written},)")
        return Units(f"isinstance({unit}, {name})")
    names = [context.source(each) for each in classes]
    named = names[0] if len(names) == 1 else f"({', '.join(names)})"
    # The model itself may be of a class of torch's, such as Sequential, or of one that is named.
    of_torch = any(d.startswith("torch.nn.") for each in classes for d in context.dotted(each))
    is_root = of_torch or root_class.may_be_of(construction, classes)
    return Units(f"isinstance({unit}, {named})", classes=not is_root)


def named_classes(construction: Construction) -> list[ast.expr]:
    """The classes of a policy that have a name at the constructor, whatever that holds; empty for any other policy."""
    value, context = construction.value("auto_wrap_policy"), construction.context
    made = context.value(value) if value is not None and value in context.file.parents else None
    if made is None or made.file is not context.file or not isinstance(made.node, ast.Call):
        return []
    given = _collection(context, made)
    if isinstance(given, ast.Call) and getattr(given.func, "id", "") in {"set", "tuple", "list"}:
        given = given.args[0] if len(given.args) == 1 else None
    elements = list(given.elts) if isinstance(given, ast.Set | ast.List | ast.Tuple) else []
    return elements if all(map(construction.is_same, elements)) else []


def _collection(context: Context, made: Value) -> ast.expr | None:
    """The classes that a policy is given."""
    call = made.node
    assert isinstance(call, ast.Call)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if context.program.fsdp1(call.func, made.file) == "ModuleWrapPolicy":
        return call.args[0] if call.args else keywords.get("module_classes")
    if "functools.partial" in context.program.dotted(call.func, made.file) and call.args:
        policy = context.program.fsdp1(call.args[0], made.file) if len(call.args) == 1 else None
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
