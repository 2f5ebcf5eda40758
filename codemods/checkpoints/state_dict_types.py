"""Which type is in force at a state-dict call: that of a context around it, one that was set before, or FULL_STATE_DICT.

`FSDP.set_state_dict_type` is in force from then on, wherever the model goes. It can be resolved where all state-dict calls of
its model follow it in one function, or stand in the class that sets it in `__init__`. Elsewhere the type stays one of the run,
and the model's own `state_dict()` and `load_state_dict()` stay as they are.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from fsdp_migrate.codemods.checkpoints.rank_zero import is_of_all_ranks
from fsdp_migrate.codemods.checkpoints.runtime_function import members
from fsdp_migrate.codemods.checkpoints.state_dict_bodies import governing, items
from fsdp_migrate.codemods.checkpoints.state_dict_calls import (
    CALLS,
    is_plain,
    same_model,
    static_method,
)
from fsdp_migrate.codemods.checkpoints.state_dict_reach import called_from, calls_of
from fsdp_migrate.codemods.checkpoints.state_dict_regions import around, bodies, regions
from fsdp_migrate.codemods.checkpoints.state_dict_settings import (
    DEFAULT,
    Options,
    Settings,
    arguments,
    settings,
)
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.index.models import Models, Site
from fsdp_migrate.index.order import after, covers, dominates, share_a_loop

_BY_TYPE = frozenset({"optim_state_dict", "optim_state_dict_to_load"})
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Unknown:
    """A type that is known only when the program runs.

    Attributes:
        sure: a type has certainly been set by then; else FSDP1's default may be meant.
    """

    reason: str
    sure: bool = True


def type_for(context: Context, call: ast.Call, model: ast.expr | None) -> Settings | Unknown:
    """The type that a call goes by which is given a model or is a method of one."""
    if model is None:
        return Unknown("the model is not in sight")
    item = governing(context, call, model)
    if item is None:
        return _types(context).of.get(call, DEFAULT)
    if item.reason or isinstance(item.settings, str):
        return Unknown(item.reason or str(item.settings))
    return item.settings


def is_resolved(context: Context, call: ast.Call) -> bool:
    """Whether every call that a `set_state_dict_type` governs becomes a function with that type as its option."""
    return call in _types(context).resolved


@dataclass(eq=False)
class _Types:
    """The types of a project that are set or given from afar.

    Attributes:
        of: by state-dict call.
        resolved: the calls of `set_state_dict_type` that can go.
    """

    of: dict[ast.Call, Settings | Unknown] = field(default_factory=dict)
    resolved: set[ast.Call] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class _Set:
    """One call of `set_state_dict_type`."""

    context: Context
    call: ast.Call
    model: ast.expr
    sites: frozenset[Site]
    settings: Settings | str

    @property
    def function(self) -> ast.AST | None:
        return self.context.module.enclosing_function(self.call)

    @property
    def statement(self) -> ast.stmt:
        return self.context.module.statement(self.call)


@dataclass(frozen=True, eq=False)
class _Use:
    """A call that goes by the type."""

    context: Context
    call: ast.Call
    model: ast.expr


_KNOWN: WeakKeyDictionary[Models, _Types] = WeakKeyDictionary()


def _types(context: Context) -> _Types:
    if context.models not in _KNOWN:
        _KNOWN[context.models] = _found(context)
    return _KNOWN[context.models]


def _found(start: Context) -> _Types:
    types = _Types()
    contexts = [
        Context(module, start.project, start.models, start.plans)
        for module in start.project.modules
        if "state_dict" in module.text
    ]
    sets = [made for context in contexts for made in _sets(context)]
    asking = any("get_state_dict_type" in context.module.text for context in contexts)
    while sets:
        group = _together(sets)
        sets = [one for one in sets if one not in group]
        uses = [
            use
            for context in contexts
            for use in _uses(context)
            if any(_concerns(one, use) for one in group)
        ]
        _decide(types, group, uses, asking)
    _from_afar(types, contexts)
    return types


def _sets(context: Context) -> Iterator[_Set]:
    for _, call, sites in members(context, "set_state_dict_type"):
        given = None if call is None else arguments(call)
        if call is not None and given is not None and "module" in given:
            yield _Set(context, call, given["module"], sites, settings(context, call))


def _together(sets: Sequence[_Set]) -> list[_Set]:
    """The first of some calls and those that speak of the same models."""
    group = [sets[0]]
    while more := [
        one
        for one in sets
        if one not in group
        and any(
            one.sites & other.sites
            or (
                one.context.module is other.context.module
                and same_model(one.context, one.model, other.model)
            )
            for other in group
        )
    ]:
        group += more
    return group


def _uses(context: Context) -> Iterator[_Use]:
    """The calls of a file that no context gives a type."""
    for call in context.module.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        model: ast.expr | None = None
        if call.func.attr in CALLS:
            if not context.project.dotted(call.func, context.module):
                model = call.func.value
        elif call.func.attr in _BY_TYPE and static_method(context, call):
            given = values_given(call)
            model = next((value for value in given if context.sites(value)), None)
            model = model or (call.args[0] if call.args else None)
        if model is not None and governing(context, call, model) is None:
            yield _Use(context, call, model)


def _concerns(one: _Set, use: _Use) -> bool:
    module = use.context.module
    if one.sites & use.context.models.sharded(use.model, module):
        return True
    return one.context.module is module and same_model(one.context, one.model, use.model)


def _decide(types: _Types, group: list[_Set], uses: list[_Use], asking: bool) -> None:
    found = None if asking else _resolved(group, uses)
    if found is not None:
        types.of.update(found)
        types.resolved |= {one.call for one in group}
        return
    for use in uses:
        sure = any(_comes_first(group, one, use) for one in group)
        types.of[use.call] = Unknown("set_state_dict_type says it", sure)


def _resolved(group: list[_Set], uses: list[_Use]) -> dict[ast.Call, Settings] | None:
    """The type of every use, if all can be told."""
    first = group[0]
    module = first.context.module
    if not uses or not all(one.context.module is module and _is_simple(one) for one in group):
        return None
    if any(_is_handed_out(one) for one in group):
        return None
    found: dict[ast.Call, Settings] = {}
    for use in uses:
        asked = _asked(group, use)
        if asked is None or not _has_options(asked, use):
            return None
        found[use.call] = asked
    return found


def _is_simple(one: _Set) -> bool:
    return (
        isinstance(one.settings, Settings)
        and one.settings.kind != "LOCAL"
        and bool(one.sites)
        and isinstance(one.context.module.parents[one.call], ast.Expr)
        and one.context.stands_alone(one.statement)
    )


def _asked(group: list[_Set], use: _Use) -> Settings | None:
    """The type that is in force at a use; None if it cannot be told."""
    module = use.context.module
    asked = [DEFAULT, *(one.settings for one in group if isinstance(one.settings, Settings))]
    if all(_options(one, use) == _options(DEFAULT, use) for one in asked):
        return DEFAULT
    if group[0].context.module is not module:
        return None
    function = module.enclosing_function(use.call)
    if all(one.function is function for one in group):
        before = [one for one in group if after(use.call, one.statement)]
        if not before:
            shared = any(share_a_loop(module, one.statement, use.call) for one in group)
            return None if shared else DEFAULT
        last = max(before, key=lambda one: one.call.lineno)
        looped = any(
            share_a_loop(module, one.statement, use.call) for one in group if one not in before
        )
        if looped or not dominates(module, last.statement, use.call):
            return None
        return last.settings if isinstance(last.settings, Settings) else None
    if len(group) == 1 and _in_init(group[0]):
        cls = module.enclosing_class(group[0].call)
        text = ast.unparse(group[0].model)
        if module.enclosing_class(use.call) is cls and text.startswith("self."):
            only = group[0].settings
            return only if isinstance(only, Settings) else None
    return None


def _options(asked: Settings, use: _Use) -> Options | None:
    """The options with which a type is expressed at a use."""
    assert isinstance(use.call.func, ast.Attribute)
    return {
        "state_dict": asked.of_model,
        "load_state_dict": asked.to_model,
        "optim_state_dict": asked.of_optimizer,
        "optim_state_dict_to_load": asked.to_optimizer,
    }[use.call.func.attr]()


def _in_init(one: _Set) -> bool:
    function = one.function
    return isinstance(function, ast.FunctionDef) and (
        function.name == "__init__" and one.statement in function.body
    )


def _has_options(asked: Settings, use: _Use) -> bool:
    assert isinstance(use.call.func, ast.Attribute)
    if asked.rank0_only:
        sites = use.context.models.sharded(use.model, use.context.module)
        if not is_of_all_ranks(use.context, sites):
            return False
    if use.call.func.attr in CALLS and not is_plain(use.call):
        return False
    if use.call.func.attr == "optim_state_dict" and asked.is_default_of_optimizer:
        return True
    return _options(asked, use) is not None


def _is_handed_out(one: _Set) -> bool:
    """Whether the model is given to code that is not in sight, such as a trainer of another library."""
    context, text = one.context, ast.unparse(one.model)
    for call in context.module.calls:
        values = values_given(call)
        if not any(
            ast.unparse(v) == text for v in values if isinstance(v, ast.Name | ast.Attribute)
        ):
            continue
        paths = context.project.dotted(call.func, context.module)
        is_torchs = bool(paths) and all(path.startswith("torch.") for path in paths)
        is_builtin = isinstance(call.func, ast.Name) and hasattr(builtins, call.func.id)
        known = context.project.definition(call.func, context.module) is not None
        if not (is_torchs or is_builtin or known or static_method(context, call)):
            return True
    return False


def _comes_first(group: list[_Set], one: _Set, use: _Use) -> bool:
    """Whether a type has certainly been set when a use runs."""
    module, function = one.context.module, one.function
    body = module.tree.body if function is None else getattr(function, "body", [])
    if not isinstance(body, list) or not covers(body, [other.statement for other in group]):
        return False
    if use.context.module is module and module.enclosing_function(use.call) is function:
        return after(use.call, one.statement)
    if all(
        site.call is not None
        and site.module is module
        and module.enclosing_function(site.call) is function
        for site in one.sites
    ):
        return bool(one.sites)
    is_init = isinstance(function, _FUNCTIONS) and function.name == "__init__"
    same = use.context.module is module and (
        module.enclosing_class(use.call) is module.enclosing_class(one.call)
    )
    return is_init and same


def _from_afar(types: _Types, contexts: Sequence[Context]) -> None:
    """The types of calls that a context of the run may be around, here or in what is called inside of it."""
    found = regions(contexts)
    statements = [*_loose(contexts), *bodies(found)]
    if not statements and not found:
        return
    inside = {
        id(node)
        for statement in statements
        for part in statement.body
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
    }
    project = contexts[0].project
    names = called_from(project, statements)
    outside = {
        name
        for name in names
        for module, call in calls_of(project, name)
        if id(call) not in inside
        and not any(isinstance(f, _FUNCTIONS) and f.name in names for f in module.ancestors(call))
    }
    for context in contexts:
        for use in _uses(context):
            sites = context.models.sharded(use.model, context.module)
            if use.call in types.of or not sites:
                continue
            near = [one for one in found if not one.sites or one.sites & sites]
            module = context.module
            functions = {f.name for f in module.ancestors(use.call) if isinstance(f, _FUNCTIONS)}
            if any(around(one, module, use.call) for one in near):
                types.of[use.call] = Unknown("a context that is made elsewhere says it")
            elif functions & names:
                reason = "a context around a call of this function says it"
                types.of[use.call] = Unknown(reason, not functions & outside)
            elif any(one.lost for one in near):
                types.of[use.call] = Unknown("a context may say it", sure=False)


def _loose(contexts: Sequence[Context]) -> Iterator[ast.With]:
    """The `with` statements whose types are the run's."""
    for context in contexts:
        for _, call, _ in members(context, "state_dict_type"):
            item = None if call is None else context.module.parents[call]
            statement = None if item is None else context.module.parents[item]
            if isinstance(statement, ast.With):
                if any(found.reason for found in items(context, statement)):
                    yield statement
