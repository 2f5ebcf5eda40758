"""What a function takes from a sharded model and lets flow into something that may mean another thing under FSDP2."""

import ast
import itertools
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand import containers_used, modules_used, names_used, parameters_used
from fsdp_migrate.codemods.by_hand import means_the_same as words
from fsdp_migrate.codemods.by_hand.flows import Flow
from fsdp_migrate.codemods.by_hand.kinds import GIVES, Kind, Leak
from fsdp_migrate.codemods.by_hand.means_the_same import DRAWS_MODULE
from fsdp_migrate.codemods.by_hand.norms_over_ranks import added_up
from fsdp_migrate.codemods.by_hand.owners import is_of_model, is_sharded_later
from fsdp_migrate.codemods.by_hand.private_modules import is_copy
from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole
from fsdp_migrate.codemods.by_hand.taken import taken as parameters_of
from fsdp_migrate.codemods.constructor.wrappers import keeps_wrappers
from fsdp_migrate.codemods.context import Context, also
from fsdp_migrate.codemods.models_by_argument import where_flat, where_original
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name, values_given
from fsdp_migrate.facts.models import INNER
from fsdp_migrate.facts.nodes import any_is, calls_around, text_of
from fsdp_migrate.facts.program import Definition, is_module
from fsdp_migrate.findings import Action

RULE = Rule("FSDP529", "taken-from-model")

_TAKING = GIVES[Kind.MODULE]
USES = {
    "value": (
        "This reads a parameter or its gradient, which is now a DTensor of the whole one; under FSDP1 it was this rank's "
        "shard. Use `p.to_local()` for the shard (as in a sum over ranks), or `p.full_tensor()` for the whole values."
    ),
    "drawn": (
        "This draws random values for a parameter, which is now a DTensor; under FSDP1 it was this rank's shard. Other "
        "numbers are drawn: initialize the model before sharding it."
    ),
    "saved": (
        "This saves parameters as DTensors, which only the same number of ranks can load. Save what "
        "`get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))` returns, which "
        "every rank must call."
    ),
    "modules": (
        "This counts or orders modules, among which were FSDP1's wrappers and no longer are. Select modules by name or "
        "class instead."
    ),
    "order": (
        "This depends on the number or order of parameters. Under FSDP1 each unit had one; now there are all the "
        "original ones. Use their names instead."
    ),
    "freeze": (
        "This now freezes this part of the model; under FSDP1 it had no effect on the flat parameter. Remove the line to "
        "train as before, or keep it if the part should be frozen."
    ),
    "name": (
        "This uses names that contained `_fsdp_wrapped_module` under FSDP1 and no longer do. A choice by name may be "
        "another one now, and labels read differently. If your code spells out that part of a name, remove it there; if "
        "it selects by name, check what it selects."
    ),
    "class": (
        "This looks up the exact class of a module, but `fully_shard` gives each sharded module a new class. Look it up "
        "with `isinstance`."
    ),
    "gradient": (
        "This test is true of other parameters now. Under FSDP1 a parameter without a shard on this rank had no "
        "gradient; under FSDP2 each parameter that was used has one. Check the code that depends on it."
    ),
    "toggle": (
        "This freezes a whole model and trains it again in turn. FSDP1's flat parameters trained differently then: "
        "compare the losses."
    ),
    "child": (
        "This test now matches the module itself. Under FSDP1 a child that was a unit was found as its wrapper, which is "
        "not of this class, so another branch ran for it: check that this branch suits it."
    ),
    "children": (
        "This now finds the children themselves. Under FSDP1 the wrapper was one more level between a unit and its "
        "children: check the depth."
    ),
}


@codemod(
    words=(
        "attrgetter",
        ".state",
        "param_groups",
        "isinstance(",
        "_get_name",
        "__name__",
        "singledispatch",
        "match ",
        "get_parameter",
        "_parameters",
        "arameters(",
        "odules(",
        "children(",
        ".weight",
        ".bias",
        "requires_grad_(",
    )
)
def find(context: Context) -> Iterator[Found]:
    """One finding for each function and kind of use, at the first of its lines."""
    if not context.models.shards(context.file) or is_copy(context.file):
        return
    leaks = _of_both(context, in_place=context.in_place)
    if leaks and context.in_place and keeps_wrappers(context):
        leaks = _of_both(context, in_place=False)
    found: dict[tuple[ast.AST, str], list[ast.expr | ast.stmt]] = {}
    local = {*added_up(context)}
    for leak in leaks:
        if leak.use == "value" and not local.isdisjoint(ast.walk(leak.node)):
            continue  # FSDP508 writes this rank's shard there
        function = context.file.function(leak.node) or context.file.tree
        if not is_known_as_whole(context, leak.node) and not _is_of_others(context, function):
            found.setdefault((function, leak.use), []).append(leak.node)
    for (_, use), nodes in found.items():
        places = sorted({(node.lineno, node.col_offset): node for node in nodes}.items())
        first = places[0][1]
        lines = sorted({line for (line, _), _ in places} - {first.lineno})
        others = also(lines)
        yield Found(RULE, first, Action.MANUAL, f"{USES[use]}{others}")


def _of_both(context: Context, *, in_place: bool) -> list[Leak]:
    """What leaks of flat models and of others; with wrappers, unless they were sharded in place."""
    leaks = [*_all_leaks(context, where_flat(context), were_flat=True, in_place=in_place)]
    leaks += _all_leaks(context, where_original(context), were_flat=False, in_place=in_place)
    if in_place:
        leaks += _children(context)
    return leaks


def _all_leaks(
    context: Context, view: Context | None, *, were_flat: bool, in_place: bool
) -> Iterator[Leak]:
    """What leaks of the models whose parameters were flat, or of those that kept theirs."""
    if view is not None and view.models.shards(view.file):
        flow = Flow(view, _uses, were_flat=were_flat, in_place=in_place)
        for taken_by in _TAKEN_BY:
            yield from taken_by(view, flow)


def _uses(flow: Flow, node: ast.expr, parent: ast.AST, kind: Kind) -> Iterator[Leak]:
    """What is done with a value, by what it is."""
    match kind:
        case Kind.NAME:
            return names_used.uses(flow, node, parent)
        case Kind.PARAMETER:
            return parameters_used.uses(flow, node, parent)
        case Kind.MODULE | Kind.ONE_OF_ALL:
            return modules_used.uses(flow, node, parent, kind)
        case _:
            return containers_used.uses(flow, node, parent, kind)


def _is_of_others(context: Context, function: ast.AST) -> bool:
    """Whether a function shards by FSDP2 beside one that shards by FSDP1, or works before either."""
    if isinstance(function, ast.FunctionDef) and function.name == "param_init_fn":
        return True  # FSDP1 calls it for whole parameters
    if not context.references or isinstance(function, ast.Module):
        return False
    inside = context.models.constructors(context.file)
    is_of_both = function in [context.file.function(each) for each in inside]
    return context.file.calls_in(function, "fully_shard") and not is_of_both


def _leaks(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of parameters and modules that a method of a sharded model gives."""
    for name, kind in _TAKING.items():
        for attribute in context.file.attributes.get(name, ()):
            call = context.call_of(attribute)
            if call is not None and is_of_model(context, attribute.value):
                if not is_sharded_later(context, attribute.value):
                    yield from flow.leaks(call, kind)


_OF_PART = ("weight", "bias", "_parameters", "requires_grad_", *DRAWS_MODULE)


def _of_parts(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of `model.head.weight`, and of `model.module.head.requires_grad_(False)`."""
    for name in _OF_PART:
        for attribute in context.file.attributes.get(name, ()):
            if is_of_model(context, attribute.value):
                yield from _of_part(context, flow, attribute)


def _of_part(context: Context, flow: Flow, asked: ast.Attribute) -> Iterator[Leak]:
    """What is asked of one part."""
    part = asked.value
    if asked.attr in {"weight", "bias"}:
        yield from flow.leaks(asked, Kind.PARAMETER)
    elif context.can_be_model(part) and not isinstance(part, ast.Subscript):
        if flow.were_flat and parameters_used.is_toggled(flow, asked):  # the whole model
            yield Leak(asked, "toggle")
    elif asked.attr == "_parameters":
        yield from flow.leaks(asked, Kind.OWN)
    elif asked.attr in DRAWS_MODULE:
        yield Leak(asked, "drawn")
    elif flow.were_flat:
        yield Leak(asked, "freeze")


def _by_path(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of `getattr(model, part)`, and of `attrgetter("head.weight")(model)`."""
    for call in context.file.calls.get("getattr", ()):
        if len(call.args) > 1 and context.can_be_model(call.args[0]):
            yield from flow.leaks(call, Kind.MODULE)
    for call in context.file.calls.get("attrgetter", ()):
        around = context.file.parents[call]
        if isinstance(around, ast.Call) and around.func is call and around.args:
            if call.args and context.can_be_model(around.args[0]):
                path = text_of(call.args[0])
                if path.endswith(("weight", "bias")):
                    yield from flow.leaks(around, Kind.PARAMETER)
                else:
                    yield from flow.leaks(around, Kind.MODULE)


# What an optimizer has, or its method gives.
_OF_OPTIMIZER = {"state": Kind.STATES, "param_groups": Kind.GROUPS, "state_dict": Kind.STATE_DICT}


def _of_optimizers(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of `optimizer.state[p]["exp_avg"]`, of its values, and of its groups."""
    for name, kind in _OF_OPTIMIZER.items():
        for attribute in context.file.attributes.get(name, ()):
            taken: ast.expr | None = attribute
            if name == "state_dict":
                taken = context.call_of(attribute)
            if taken is None or not isinstance(attribute.ctx, ast.Load):
                continue
            if parameters_of(context).optimized(attribute.value, context.file) is True:
                yield from flow.leaks(taken, kind)


def _of_inner(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of a part that is taken out by its path: `layers = [model.module.head]`."""
    for name in INNER:
        for attribute in context.file.attributes.get(name, ()):
            part: ast.expr = attribute
            parent = context.file.parents[part]
            while isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is part:
                part = parent
                parent = context.file.parents[parent]
            is_called = isinstance(parent, ast.Call) and parent.func is part
            if part is not attribute and not is_called and context.can_be_model(attribute.value):
                assert isinstance(part, ast.Attribute | ast.Subscript)
                if not isinstance(part.ctx, ast.Load):
                    continue
                if last_name(part) in {"weight", "bias"}:
                    yield from flow.leaks(part, Kind.PARAMETER)
                else:
                    yield from flow.leaks(part, Kind.MODULE)


def _of_attributes(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of `model.blocks`, and of `self.blocks` in methods that are called on a sharded model."""
    for name, attributes in context.file.attributes.items():
        if name in words.OF_MODULE | INNER or name.startswith("_"):
            continue
        for attribute in attributes:
            is_read = isinstance(attribute.ctx, ast.Load) and context.call_of(attribute) is None
            if is_read and isinstance(attribute.value, ast.Name | ast.Attribute):
                if context.can_be_model(attribute.value) or _is_of_method(context, attribute.value):
                    yield from modules_used.named(flow, attribute, name)


# Methods that run while the module is made, or whose calls are reported.
_OWN_METHODS = DRAWS_MODULE | {"__init__", "forward"}
# The module in a wrapper gives them; its own names began without FSDP1's prefix.
_OF_SELF = {
    "children": Kind.MODULES,
    "modules": Kind.ALL,
    "named_parameters": Kind.OWN,
    "parameters": Kind.PARAMETERS,
}


def _of_methods(context: Context, flow: Flow) -> Iterator[Leak]:
    """What leaks of `self.children()`, and of `getattr(self, name)`, in methods that are called on a sharded model."""
    for name, kind in _OF_SELF.items():
        for attribute in context.file.attributes.get(name, ()):
            call = context.call_of(attribute)
            if call is not None and _is_of_method(context, attribute.value):
                yield from flow.leaks(call, kind)
    for call in context.file.calls.get("getattr", ()):
        if call.args and _is_of_method(context, call.args[0]):
            yield from flow.leaks(call, Kind.MODULE)


def _is_of_method(context: Context, owner: ast.expr) -> bool:
    """Whether an expression is `self` in a method of a module's class that is called on a sharded model."""
    file = context.file
    if not isinstance(owner, ast.Name) or owner.id != "self":
        return False
    method = file.function(owner)
    cls = file.enclosing_class(owner)
    if method is None or cls is None or method.name in _OWN_METHODS:
        return False
    if context.models.called_on(method.name) is not True:
        return False
    return is_module(context.program, Definition(file, cls))


_TAKEN_BY = (_leaks, _of_parts, _of_inner, _by_path, _of_optimizers, _of_attributes, _of_methods)


def _children(context: Context) -> Iterator[Leak]:
    """`module.children()` in a function that calls itself, for a sharded model: it counts the levels."""
    for name in ("children", "named_children"):
        for attribute in context.file.attributes.get(name, ()):
            function = context.file.function(attribute)
            itself = calls_around(context.file, attribute)
            inside = [call for call in itself if context.file.function(call) is function]
            if any(_is_counted(context, call) for call in inside):
                if context.can_be_model(attribute.value):
                    yield Leak(attribute, "children")


def _is_counted(context: Context, call: ast.Call) -> bool:
    """Whether a number is given to a call or reckoned with what it gives: `walk(child, level + 1)`, `1 + height(child)`."""
    given = [node for each in values_given(call) for node in ast.walk(each)]
    around = context.file.ancestors(call)
    within = itertools.takewhile(lambda node: not isinstance(node, ast.stmt), around)
    return any_is((*given, *within), ast.BinOp)
