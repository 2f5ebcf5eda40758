"""The type of a model's state dict: `with FSDP.state_dict_type(model, ...)` and `FSDP.set_state_dict_type(model, ...)`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.imports import removal, spent
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.codemods.uses.snapshots import is_kept
from fsdp_migrate.codemods.uses.state_dict_bodies import Body, body_of
from fsdp_migrate.codemods.uses.state_dict_edits import (
    Replacement,
    are_editable,
    call_edits,
    unwrapped,
)
from fsdp_migrate.codemods.uses.state_dict_settings import (
    ON_RANK_0,
    Settings,
    Unknown,
    first_is_rank_0,
    has_other_names,
    is_set,
    kind_of,
    settings,
)
from fsdp_migrate.facts.file import File, values_given
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.facts.values import last_value
from fsdp_migrate.findings import Action

CONTEXT = Rule("FSDP331", "state-dict-context")
SET_TYPE = Rule("FSDP332", "set-state-dict-type")
LOCAL = Rule("FSDP334", "local-state-dict")
OPTIMIZER = Rule("FSDP335", "optimizer-state-dict")
BARE = Rule("FSDP333", "bare-state-dict")
RULES = (CONTEXT, SET_TYPE, BARE, LOCAL, OPTIMIZER)

_TYPED = ("state_dict_type", "set_state_dict_type")
_LEGACY = "torch.distributed._shard.checkpoint"
# What the runtime's functions for optimizers do; the others return what `optimizer.load_state_dict` takes.
_OF_OPTIMIZERS = {
    "optim_state_dict": "the runtime follows the state-dict type currently set",
    "rekey_optim_state_dict": "the runtime turns parameter numbers into names, or names into numbers",
    "full_optim_state_dict": "the runtime gives each rank what FSDP1 gave it",
    "sharded_optim_state_dict": "the runtime gives each rank what FSDP1 gave it",
}


@dataclass(frozen=True, eq=False)
class _Plain:
    """A context that becomes plain.

    Attributes:
        call: `state_dict_type(...)`.
        replacements: what takes the place of the calls in its body.
        reference: FSDP1's class as the call names it.
    """

    call: ast.Call
    statement: ast.With
    settings: Settings
    replacements: Sequence[Replacement]
    reference: ast.expr


def find(context: Context) -> Iterator[Found]:
    """Every use of FSDP1's types of state dicts, and of its functions for optimizers."""
    plain: list[_Plain] = []
    every = [_decided(context, each) for each in _attributes(context, "state_dict_type")]
    function = context.file.function
    # In one function all or none, so that nobody reads two ways to save side by side.
    stay = {function(each.node) for each in every if isinstance(each, Found)}
    for decided in every:
        if isinstance(decided, Found):
            yield decided
        elif function(decided.call) in stay:
            message = "the runtime sets the type, as for another context of this function"
            yield Found(CONTEXT, decided.call, Action.RUNTIME, message)
        else:
            plain.append(decided)
            yield from _rewritten(context, decided)
    yield from _spent(context, plain)
    if any(each.replacements for each in plain):
        yield from _legacy_paths(context)
    for attribute in _attributes(context, "set_state_dict_type"):
        call = context.file.parents[attribute]
        assert isinstance(call, ast.Call)
        if kind_of(context, call) == "Local" and not _are_all_in_contexts(context):
            yield _raises(call)
        else:
            message = "the runtime sets the type, and model.state_dict() follows it from here on"
            yield Found(SET_TYPE, attribute, Action.RUNTIME, message)
    for attribute in _attributes(context, "get_state_dict_type"):
        yield Found(SET_TYPE, attribute, Action.RUNTIME, "the runtime returns what FSDP1 did")
    yield from _local_types(context)
    yield from _of_optimizers(context)
    yield from _bare(context) if context.plain else ()


def _attributes(context: Context, name: str) -> Iterator[ast.Attribute]:
    """The calls of a static method, by FSDP1's class or by a model."""
    for attribute in context.file.attributes.get(name, ()):
        call = context.file.parents[attribute]
        if isinstance(call, ast.Call) and call.func is attribute:
            if context.fsdp1(attribute.value) == CLASS or _is_of_model(context, attribute, call):
                yield attribute


def _is_of_model(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    given = keyword(call, "state_dict_type", 1)
    member = None if given is None else context.member(given)
    return context.can_be_model(attribute.value) or (member or ("",))[0] == "StateDictType"


def _decided(context: Context, attribute: ast.Attribute) -> _Plain | Found:
    """Whether a context becomes plain or stays as it is."""
    call = context.file.parents[attribute]
    assert isinstance(call, ast.Call)
    item = context.file.parents[call]
    statement = context.file.parents[item]
    model = keyword(call, "module", 0)
    body = None
    if isinstance(item, ast.withitem) and isinstance(statement, ast.With) and model is not None:
        body = body_of(context, statement, model)
    is_local = kind_of(context, call) == "Local"
    if is_local and (body is None or body.reason or body.calls or body.to_load):
        return _raises(call)
    try:
        if not context.plain or _is_silenced(context, call):
            raise Unknown("")
        if body is None or not isinstance(statement, ast.With):
            raise Unknown("it is not the context of a plain `with` statement")
        if len(statement.items) > 1 or statement.items[0].optional_vars is not None:
            raise Unknown("the statement does more than set the type")
        asked = settings(context, call)
        made = list(_replacements(context, body, asked))
        if not are_editable(context, made):
            raise Unknown("a comment or a name in the body prevents the edit")
        return _Plain(call, statement, asked, made, _imported(context, attribute, call))
    except Unknown as reason:
        if is_local:
            return _raises(call)
        because = f": {reason}" if str(reason) else ""
        message = f"the runtime sets the type, of a model in any form{because}"
        return Found(CONTEXT, call, Action.RUNTIME, message)


def _imported(context: Context, attribute: ast.Attribute, call: ast.Call) -> ast.expr:
    """A name of FSDP1's in the call: torch's functions are imported where that was."""
    names = (node for node in (attribute.value, *ast.walk(call)) if isinstance(node, ast.expr))
    return next((node for node in names if context.fsdp1(node) is not None), attribute.value)


def _is_silenced(context: Context, call: ast.Call) -> bool:
    """Whether a comment silences the context: then what it reads stays, too."""
    start, end = context.file.lines(call)
    return "fsdp-migrate:" in context.file.text[start:end]


def _replacements(context: Context, body: Body, asked: Settings) -> Iterator[Replacement]:
    """What takes the place of the calls in the body of a context.

    Raises:
        Unknown: where torch has nothing that means the same.
    """
    if body.reason:
        raise Unknown(body.reason)
    if body.loads and asked.kind == "Full":
        raise Unknown("set_model_state_dict would pass over missing keys")
    # The runtime's takes whole states and shards, whatever the type. Only `rank0_only` changes what it does.
    if body.to_load and (asked.loads_on_rank_0 or is_set(context.models)):
        raise Unknown("optim_state_dict_to_load goes by rank0_only")
    for call in body.saves:
        assert isinstance(call.func, ast.Attribute)
        if asked.options is None:
            raise Unknown("no option says offload_to_cpu without rank0_only, or the reverse")
        if asked.options == ON_RANK_0 and not context.program.once(first_is_rank_0):
            raise Unknown("rank 0 of the model's process group may not be rank 0 of all")
        if asked.options != ON_RANK_0 and is_kept(context, call):
            raise Unknown("training may go on before what it gives is read")
        arguments = [context.source(call.func.value), *_keyword("options", asked.options)]
        yield Replacement(call, "get_model_state_dict", arguments)
    for call in body.loads:
        yield _loading(context, call)
    # Last: it searches the files that this one imports.
    if body.calls and bool(context.program.once(has_other_names, context.file)):
        raise Unknown("the program may give the state dict names of its own")


def _keyword(name: str, value: str) -> list[str]:
    return [f"{name}={value}"] if value else []


def _loading(context: Context, call: ast.Call) -> Replacement:
    """`model.load_state_dict(shards)` as `set_model_state_dict(model, shards)`."""
    assert isinstance(call.func, ast.Attribute)
    state, strict = keyword(call, "state_dict", 0), keyword(call, "strict", 1)
    assert state is not None
    options = "" if strict is None else f"StateDictOptions(strict={context.source(strict)})"
    arguments = [context.source(call.func.value), context.source(state)]
    return Replacement(call, "set_model_state_dict", [*arguments, *_keyword("options", options)])


def _rewritten(context: Context, each: _Plain) -> Iterator[Found]:
    """The findings of a context that becomes plain: its own, and one for each call in its body."""
    imports = [need for made in each.replacements for need in made.imports(each.reference)]
    functions = [made.call.func for made in each.replacements]
    message = "is removed: the state-dict type becomes an option of the calls inside"
    if not each.replacements:
        message = "is removed: nothing inside depends on the state-dict type"
    rule = CONTEXT
    if each.settings.kind == "Local":
        rule = LOCAL
        message += "; an optimizer's own states that FSDP1 saved inside load under FSDP1 alone"
    yield Found(
        rule,
        each.statement,
        Action.REWRITE,
        message,
        shortened(context.source(each.call)),
        edits=lambda: unwrapped(context, each.statement, each.replacements),
        imports=tuple(dict.fromkeys(imports)),
        removed=(each.call, *functions),
    )
    for made in each.replacements:
        message = f"becomes {made.function}, with the state-dict type as an option"
        yield Found(CONTEXT, made.call, Action.REWRITE, message)


def _spent(context: Context, plain: Sequence[_Plain]) -> Iterator[Found]:
    """The assignments of configurations and types that only removed contexts read."""
    given = [
        value
        for each in plain
        for value in values_given(each.call)
        if value is not keyword(each.call, "module", 0)
    ]
    for statement in spent(context, given):
        names = ", ".join(map(ast.unparse, getattr(statement, "targets", ())))
        yield removal(context, CONTEXT, statement, f"nothing reads {names} any more")


def _legacy_paths(context: Context) -> Iterator[Found]:
    """Imports of `torch.distributed._shard.checkpoint`, the old name of the module torch.distributed.checkpoint."""
    statements: list[ast.Import | ast.ImportFrom] = [
        *context.file.of(ast.Import),
        *context.file.of(ast.ImportFrom),
    ]
    for node in statements:
        start, end = context.file.span(node)
        at = context.file.text.find(_LEGACY, start, end)
        named = isinstance(node, ast.ImportFrom) or all(alias.asname for alias in node.names)
        if at >= 0 and named:
            where = at + len("torch.distributed"), at + len("torch.distributed._shard")
            message = "becomes torch.distributed.checkpoint, the public name of the same module"
            edit = Edit(*where, "")
            yield Found(CONTEXT, node, Action.REWRITE, message, edits=partial(list, [edit]))


def _raises(node: ast.AST) -> Found:
    """The finding where LOCAL_STATE_DICT is asked for."""
    message = (
        "raises for this type, because FSDP2 has no flat parameters: load such files once with FSDP1, on as many ranks, and "
        "save them as FULL_STATE_DICT or SHARDED_STATE_DICT"
    )
    return Found(LOCAL, node, Action.MANUAL, message)


def _are_all_in_contexts(context: Context) -> bool:
    """Whether each state dict of a model is asked for in a context of a type, so that one set for good applies to none."""
    asked = [
        _is_typed(file, attribute)
        for file in context.program.files
        for name in ("state_dict", "load_state_dict", *OPTIMIZER_STATES)
        for attribute in file.attributes.get(name, ())
        if name in OPTIMIZER_STATES or context.models.can_hold(attribute.value, file)
    ]
    return bool(asked) and all(asked)


def _is_typed(file: File, node: ast.AST) -> bool:
    """Whether a node is in the context of a type of state dicts."""
    items = (i for n in file.ancestors(node) if isinstance(n, ast.With) for i in n.items)
    return any("state_dict_type" in file.source(item.context_expr) for item in items)


def _local_types(context: Context) -> Iterator[Found]:
    """LOCAL_STATE_DICT as a default, or as the value of a name or an argument: a context far away will ask for it."""
    for member in context.file.attributes.get("LOCAL_STATE_DICT", ()):
        place = context.file.parents[member]
        call = context.file.parents[place]
        is_asked = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in _TYPED
        if context.fsdp1(member.value) == "StateDictType" and not is_asked:
            if isinstance(place, ast.Assign | ast.AnnAssign | ast.arguments | ast.keyword):
                yield _raises(member)


def _of_optimizers(context: Context) -> Iterator[Found]:
    """FSDP1's functions for optimizer states, by the class or by a model."""
    otherwise = "the runtime returns what optimizer.load_state_dict takes"
    for name in OPTIMIZER_STATES:
        for attribute in context.file.attributes.get(name, ()):
            owner = attribute.value
            if context.fsdp1(owner) == CLASS or context.can_be_model(owner):
                message = _OF_OPTIMIZERS.get(name, otherwise)
                yield Found(OPTIMIZER, attribute, Action.RUNTIME, message)


def _bare(context: Context) -> Iterator[Found]:
    """`model.state_dict()` outside of any context, of a model that the same function made by FSDP1's constructor."""
    for attribute in context.file.attributes.get("state_dict", ()):
        call, model = context.file.parents[attribute], attribute.value
        if not isinstance(call, ast.Call) or call.func is not attribute or call.args:
            continue
        constructor = _constructor(context, call, model) if not call.keywords else None
        if constructor is None or _may_have_type(context, call) or is_kept(context, call):
            continue
        made = Replacement(
            call,
            "get_model_state_dict",
            [context.source(model), "options=StateDictOptions(full_state_dict=True)"],
        )
        if are_editable(context, [made]) and not context.program.once(
            has_other_names, context.file
        ):
            yield Found(
                BARE,
                call,
                Action.REWRITE,
                "becomes get_model_state_dict, which gathers as FSDP1's state_dict() did",
                edits=partial(call_edits, context, [made]),
                imports=tuple(made.imports(constructor.func)),
                removed=(attribute,),
            )


def _constructor(context: Context, call: ast.Call, model: ast.expr) -> ast.Call | None:
    """FSDP1's constructor, if it gave a name its last value and certainly runs before a call."""
    made = last_value(context.file, model, call)
    return made if isinstance(made, ast.Call) and context.fsdp1(made.func) == CLASS else None


def _may_have_type(context: Context, call: ast.Call) -> bool:
    """Whether a type other than the default may be in force at a call, or parameters be whole."""
    items = [i for n in context.file.ancestors(call) if isinstance(n, ast.With) for i in n.items]
    scoped = any(
        getattr(getattr(i.context_expr, "func", None), "attr", "")
        in ("state_dict_type", "summon_full_params")
        for i in items
    )
    return scoped or is_set(context.models)
