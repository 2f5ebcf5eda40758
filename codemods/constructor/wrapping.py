"""`auto_wrap_policy`: which modules are units of their own.

The units decide memory, the number of collectives and the last bits of a reduction, so they stay exactly the same. Each policy
is a loop over the modules, children before parents: by the classes or the condition that it names, or by asking the policy
itself, as `torch.distributed.fsdp.wrap` documents its signature.
"""

import ast

from fsdp_migrate.codemods.constructor import policies
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.conditions import Condition, chosen, grouped
from fsdp_migrate.codemods.constructor.construction import AtRunTime, Construction
from fsdp_migrate.codemods.constructor.devices import of_parameter
from fsdp_migrate.codemods.constructor.options import Rewritten
from fsdp_migrate.codemods.constructor.unit_modules import (
    Units,
    always,
    by_class,
    is_collection,
    named_classes,
    of_classes,
    use_nn,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.rule import Import, Rule
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Defined

CLASS_POLICY = Rule("FSDP151", "class-policy")
RUNTIME_POLICY = Rule("FSDP152", "runtime-policy")

_DEFAULT_SIZE = "100_000_000"  # FSDP1's
_WRAP = "torch.distributed.fsdp.wrap"
_DTENSOR = "torch.distributed.tensor"


def say(construction: Construction, argument: Argument) -> tuple[Rule, str]:
    """What the runtime does with a policy."""
    if construction.is_none(argument.value):
        return CLASS_POLICY, "Has no effect: the whole model is one unit, which is the default."
    rule = RUNTIME_POLICY
    if named_classes(construction):
        rule = CLASS_POLICY
    return (
        rule,
        "Still works: `fsdp_migrate.runtime` applies this policy and shards the modules that FSDP1 would have wrapped.",
    )


# What FSDP1's flat parameters needed: each is trained as a whole, or frozen as a whole.
_SPLIT = (
    " If the policy splits units by `requires_grad`, it no longer has to: under FSDP2 one unit may have frozen and trained "
    "parameters."
)


def policy(construction: Construction, value: ast.expr, code: Code) -> str:
    """The units as a loop, and whether they are smaller than FSDP2 needs them."""
    said = _loop(construction, value, code)
    if _splits_frozen(construction, value):
        return f"{said}{_SPLIT}"
    return said


def _splits_frozen(construction: Construction, value: ast.expr) -> bool:
    """Whether a policy asks which parameters are trained: by itself, or in the function that makes it."""
    own = construction.context.file.function(construction.call)
    for end in construction.flow(value).ends:
        maker = end.file.function(end.node)
        made: list[ast.AST] = [end.node]
        if maker is not None and maker is not own:
            made = [maker]
        for name in ast.walk(end.node):
            if isinstance(name, ast.Name):
                bindings = end.file.bindings(name)
                made += [binding.node for binding in bindings if isinstance(binding, Defined)]
        if "requires_grad" in " ".join([end.file.source(node) for node in made]):
            return True
    return False


def _loop(construction: Construction, value: ast.expr, code: Code) -> str:
    """The units as a loop, children before parents."""
    context = construction.context
    call = construction.call
    code.unit = context.local("module", call)
    units = _units(construction, value, code)
    if units is None:
        units = _asked(construction, value, code)
    if units.condition == "False":
        return "Removed: it selects no module that can be sharded."
    ignored = ""
    if code.ignored:
        ignored = f"{code.unit} not in {code.ignored}"
    if units.each:
        block = context.local("block", call)
        code.unit = block
        code.loop = [f"for {block} in {units.each}:"]
        if ignored:
            code.loop.append(f"    if {block} not in {code.ignored}:")
        return "Replaced by a loop that calls `fully_shard` on these modules."
    code.loop = _over_all(code, units, ignored)
    if units.counts:
        code.imports.append(Import(_DTENSOR, "DTensor"))
    if units.classes:
        return "Replaced by a loop that shards every module of these classes, children first."
    message = "Replaced by a loop that shards every module selected by the policy, children first."
    return f"{message} {units.remark}".rstrip()


def _over_all(code: Code, units: Units, ignored: str) -> list[str]:
    """The head of a loop over all modules, the last ones first."""
    modules = f"list({code.model}.modules())"
    # The model itself comes last.
    if not units.classes:
        modules = f"{modules}[1:]"
    loop = [f"for {code.unit} in reversed({modules}):"]
    if units.counts:
        loop.append(
            f"    numel = sum(p.numel() for p in {code.unit}.parameters() if not isinstance(p, DTensor))"
        )
    condition = _both(ignored, units.condition)
    if condition:
        loop.append(f"    if {condition}:")
    if units.test:
        return [f"if {units.test}:", *[f"    {line}" for line in (*units.first, *loop)]]
    code.above += units.first
    return loop


def _both(one: str, other: str) -> str:
    """The condition that two hold; either may be empty."""
    if one and other:
        return f"{one} and {grouped(other)}"
    return one or other


def _units(construction: Construction, value: ast.expr, code: Code) -> Units | None:
    """What a policy chooses, in torch's words; None where the policy itself is to be asked.

    Raises:
        AtRunTime: if it cannot be asked, either.
    """
    context = construction.context
    classes = by_class(construction, value, code)
    if classes is not None:
        return classes
    match construction.shown_or_none(value):
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yes = _units(construction, body, code)
            no = _units(construction, orelse, code)
            if yes is None or no is None or yes.each or no.each or yes.counts or no.counts:
                return None
            condition = chosen(construction.text(test), _condition(yes), _condition(no))
            return Units(str(condition), classes=yes.classes and no.classes)
        case ast.Constant(value=None):
            return Units("False", classes=True)
        case ast.Call() as made if "functools.partial" in context.dotted(made.func) and made.args:
            keywords = {keyword.arg: keyword.value for keyword in made.keywords}
            return _partial(construction, context.fsdp1(made.args[0]) or "", keywords, code)
        case ast.Name() | ast.Attribute() as name:
            return _bare(construction, context.fsdp1(name) or "", code)
    return None


def _condition(units: Units) -> Condition:
    if units.condition == "False":
        return False
    return units.condition


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
        if least is None:
            return _by_size(construction, _DEFAULT_SIZE, code)
        return _by_size(construction, construction.text(least), code)
    if name == "_module_wrap_policy" and keywords.keys() == {"module_classes"}:
        return of_classes(construction, keywords["module_classes"], code)
    if name == "always_wrap_policy":
        return always(construction, code)
    return None


def _bare(construction: Construction, name: str, code: Code) -> Units | None:
    if name in ("size_based_auto_wrap_policy", "default_auto_wrap_policy"):
        return _by_size(construction, _DEFAULT_SIZE, code)
    if name == "always_wrap_policy":
        return always(construction, code)
    return None


def _by_size(construction: Construction, least: str, code: Code) -> Units:
    """FSDP1's size_based_auto_wrap_policy: no container, and no attention, in which it looked for no units."""
    context = construction.context
    call = construction.call
    use_nn(construction, code)
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
    parameter = shown.args.args[0].arg
    body = shown.body
    match body:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.In()], comparators=[among]) if (
            name == parameter
        ):
            if is_collection(among) and len(among.args) == 1:
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


def is_asked(construction: Construction) -> bool:
    """Whether the loop asks the policy itself, because the file of the constructor does not show what it chooses."""
    value = construction.value("auto_wrap_policy")
    if value is None:
        return False
    program = construction.context.program
    try:
        return _units(construction, value, Code("model", Rewritten(program, []))) is None
    except AtRunTime:
        return False


def _asked(construction: Construction, value: ast.expr, code: Code) -> Units:
    """The policy itself is asked for each module."""
    context = construction.context
    call = construction.call
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
    can_be_none = construction.can_be_none(value)
    predicates = code.rewritten.predicates
    if predicates is not None and value in predicates.values:
        condition = f"{source}({code.unit})"
        if can_be_none:
            condition = f"{source} is not None and {condition}"
        return Units(condition)
    test = ""
    if can_be_none:
        test = f"{source} is not None"
    if not (_sizes(context) and policies.can_count(context.program, flow)):
        asked = f"{source}(module={code.unit}, recurse=False, nonwrapped_numel=0)"
        if not policies.can_mark(context.program, flow):
            return Units(_both(test, asked))
        marking = (
            "# The policy marks modules: as under FSDP1, it is asked about parents first",
            f"for {code.unit} in {code.model}.modules():",
            f"    {source}(module={code.unit}, recurse=True, nonwrapped_numel=0)",
        )
        return Units(asked, first=marking, test=test)
    # One that goes by size closes modules such as attention, into which FSDP1 did not look.
    closed = context.local("closed", call)
    count = "sum(p.numel() for p in m.parameters())"
    first = (
        f"{closed} = {{part for m in {code.model}.modules() "
        f"if not {source}(module=m, recurse=True, nonwrapped_numel={count}) for part in m.modules()}}"
    )
    asked = f"{source}(module={code.unit}, recurse=False, nonwrapped_numel=numel)"
    condition = f"{code.unit} not in {closed} and {asked}"
    return Units(condition, counts=True, first=(first,), test=test)


def _is_custom(program: Program, end: Value) -> bool:
    """Whether a policy is a `CustomPolicy`, which gives units arguments of their own."""
    call = end.node
    return isinstance(call, ast.Call) and program.fsdp1(call.func, end.file) == "CustomPolicy"


def _sizes(context: Context) -> bool:
    """Whether a policy that goes by size is named, or made, in the program at all."""
    return context.program.has(r"size_based|nonwrapped_numel|min_num_params")
