"""The type of a model's state dict: `with FSDP.state_dict_type(model, ...)` and `FSDP.set_state_dict_type(model, ...)`.

The runtime serves every type, of a model in any form. One context has a plain form that is shorter, and means the same
wherever the file shows it: a whole state dict that is gathered on the CPU of rank 0.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.edit.text import comments_between, in_steps, indentation, newline
from fsdp_migrate.codemods.imports import removal, spent
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses.state_dict_bodies import body_of, names_of_its_own
from fsdp_migrate.facts.file import NEWLINE, File, values_given
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.values import Value, last_value
from fsdp_migrate.findings import Action

CONTEXT = Rule("FSDP331", "state-dict-context")
SET_TYPE = Rule("FSDP332", "set-state-dict-type")
LOCAL = Rule("FSDP334", "local-state-dict")
OPTIMIZER = Rule("FSDP335", "optimizer-state-dict")
RULES = (CONTEXT, SET_TYPE, LOCAL, OPTIMIZER)

_MODULE = "torch.distributed.checkpoint.state_dict"
_FUNCTIONS = ("StateDictOptions", "get_model_state_dict")
_ON_RANK_0 = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"
_TYPED = ("state_dict_type", "set_state_dict_type")
# Groups of ranks in which another rank than the first of all may be rank 0.
_GROUPS = (
    r"HYBRID|ShardingStrategy\s*[\[(]|getattr\(\s*ShardingStrategy"
    r"|\b(?:process_group|device_mesh|mesh)[\"']?\s*[:=]"
)
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
        call: `state_dict_type(...)`, the context of `statement`.
        gathers: `model.state_dict()` in its body.
        reference: FSDP1's class, where torch's functions are imported.
    """

    call: ast.Call
    statement: ast.With
    gathers: ast.Call
    reference: ast.expr


def find(context: Context) -> Iterator[Found]:
    """Every use of FSDP1's types of state dicts, and of its functions for optimizers."""
    plain: list[_Plain] = []
    every = [_decided(context, *each) for each in _calls(context, "state_dict_type")]
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
    given = [value for each in plain for value in values_given(each.call)]
    models = [keyword(each.call, "module", 0) for each in plain]
    for statement in spent(context, [value for value in given if value not in models]):
        names = ", ".join(map(ast.unparse, getattr(statement, "targets", ())))
        yield removal(context, CONTEXT, statement, f"nothing reads {names} any more")
    for attribute, call in _calls(context, "set_state_dict_type"):
        if _kind(context, call) == "LOCAL_STATE_DICT" and not _are_all_in_contexts(context):
            yield _raises(call)
        else:
            message = "the runtime sets the type, and model.state_dict() follows it from here on"
            yield Found(SET_TYPE, attribute, Action.RUNTIME, message)
    for attribute, _ in _calls(context, "get_state_dict_type"):
        yield Found(SET_TYPE, attribute, Action.RUNTIME, "the runtime returns what FSDP1 did")
    yield from _local_types(context)
    yield from _of_optimizers(context)


def _calls(context: Context, name: str) -> Iterator[tuple[ast.Attribute, ast.Call]]:
    """The calls of a static method, by FSDP1's class or by a model."""
    for attribute in context.file.attributes.get(name, ()):
        call = context.file.parents[attribute]
        if isinstance(call, ast.Call) and call.func is attribute:
            if context.fsdp1(attribute.value) == CLASS or _is_of_model(context, attribute, call):
                yield attribute, call


def _is_of_model(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    given = keyword(call, "state_dict_type", 1)
    member = None if given is None else context.member(given)
    return context.can_be_model(attribute.value) or (member or ("",))[0] == "StateDictType"


def _decided(context: Context, attribute: ast.Attribute, call: ast.Call) -> _Plain | Found:
    """Whether a context becomes plain or stays as it is."""
    item = context.file.parents[call]
    statement, model = context.file.parents[item], keyword(call, "module", 0)
    gathers: list[ast.Call] = []
    reason = "it is not the context of a plain `with` statement"
    if isinstance(item, ast.withitem) and isinstance(statement, ast.With) and model is not None:
        gathers, reason = body_of(context, statement, model)
        if _kind(context, call) == "LOCAL_STATE_DICT" and not gathers and not reason:
            message = "the runtime sets the type, on which nothing inside depends"
            return Found(CONTEXT, call, Action.RUNTIME, message)
        reason = reason or next(_reasons(context, call, statement, gathers), "")
    if _kind(context, call) == "LOCAL_STATE_DICT":
        return _raises(call)
    start, end = context.file.lines(call)
    is_silenced = "fsdp-migrate:" in context.file.text[start:end]  # what it reads stays, too
    if not context.plain or is_silenced or reason:
        because = f": {reason}" if reason and context.plain and not is_silenced else ""
        message = f"the runtime sets the type, of a model in any form{because}"
        return Found(CONTEXT, call, Action.RUNTIME, message)
    assert isinstance(statement, ast.With)
    # By a name of FSDP1's in the call: torch's functions are imported where that was.
    names = (node for node in (attribute.value, *ast.walk(call)) if isinstance(node, ast.expr))
    reference = next((n for n in names if context.fsdp1(n) is not None), attribute.value)
    return _Plain(call, statement, gathers[0], reference)


def _reasons(
    context: Context, call: ast.Call, statement: ast.With, gathers: Sequence[ast.Call]
) -> Iterator[str]:
    """Why a context stays whose body gathers state dicts of its model and has no other way to it."""
    if len(statement.items) > 1 or statement.items[0].optional_vars is not None:
        yield "the statement does more than set the type"
    if len(gathers) != 1 or not _is_on_rank_0(context, call):
        yield "get_model_state_dict takes its place for one state dict that is whole, on the CPU of rank 0"
    if not context.program.once(_first_is_rank_0):
        yield "rank 0 of the model's process group may not be rank 0 of all"
    if any(comments_between(context.file, *context.file.span(each)) for each in gathers):
        yield "a comment in the body prevents the edit"
    if not all(context.means(name, statement, f"{_MODULE}.{name}") for name in _FUNCTIONS):
        yield "a name of torch's means something else in this file"
    # Last: it searches the files that this one imports.
    if context.program.once(names_of_its_own, context.file):
        yield "the program may give the state dict names of its own"


def _kind(context: Context, call: ast.Call) -> str:
    """The type that a call gives, such as FULL_STATE_DICT; "" if it is not known."""
    given = keyword(call, "state_dict_type", 1)
    made = _value(context, given, call) if given is not None else None
    if made is None or not isinstance(made.node, ast.Attribute):
        return ""
    is_type = context.program.fsdp1(made.node.value, made.file) == "StateDictType"
    return made.node.attr if is_type else ""


def _is_on_rank_0(context: Context, call: ast.Call) -> bool:
    """Whether a call asks for whole state dicts on the CPU of rank 0."""
    flags = ("offload_to_cpu", "rank0_only")
    given = keyword(call, "state_dict_config", 2)
    made = _value(context, given, call) if given is not None else None
    if made is None or not isinstance(made.node, ast.Call):
        return False
    is_config = context.program.fsdp1(made.node.func, made.file) == "FullStateDictConfig"
    values = [keyword(made.node, flag, place) for place, flag in enumerate(flags)]
    is_changed = any(
        not isinstance(attribute.ctx, ast.Load)
        for flag in flags
        for attribute in context.file.attributes.get(flag, ())
    )
    asked = all(getattr(value, "value", None) is True for value in values)
    return _kind(context, call) == "FULL_STATE_DICT" and is_config and asked and not is_changed


def _value(context: Context, expression: ast.expr, use: ast.AST) -> Value | None:
    """The one expression behind a name; where it is given several, the last one in front of its use."""
    if isinstance(expression, ast.Attribute):
        return Value(expression, context.file)
    made, last = context.value(expression), last_value(context.file, expression, use)
    return context.value(last) if made is None and last is not None else made


def _first_is_rank_0(program: Program) -> bool:
    """Whether rank 0 of each model's process group is rank 0 of all ranks, by the texts of the run."""
    if program.has(_GROUPS):
        return False
    calls = (call for file in program.files for call in models_of(program).constructors(file))
    return not any(len(call.args) > 1 for call in calls)  # the second one is the process group


def _rewritten(context: Context, each: _Plain) -> Iterator[Found]:
    """The findings of a context that becomes plain: its own, and one for the call in its body."""
    yield Found(
        CONTEXT,
        each.statement,
        Action.REWRITE,
        "is removed: the state-dict type becomes an option of the call inside",
        shortened(context.source(each.call)),
        edits=lambda: _edits(context, each),
        imports=tuple(Import(_MODULE, name, each.reference) for name in _FUNCTIONS),
        removed=(each.call, each.gathers.func),
    )
    message = "becomes get_model_state_dict, with the state-dict type as an option"
    yield Found(CONTEXT, each.gathers, Action.REWRITE, message)


def _edits(context: Context, each: _Plain) -> list[Edit]:
    """The edits that put the body in the place of the statement, with torch's call in it."""
    file, call = context.file, each.gathers
    assert isinstance(call.func, ast.Attribute)
    arguments = f"{context.source(call.func.value)}, {_ON_RANK_0}"
    code = f"get_model_state_dict({arguments})"
    start, stop = file.span(call)
    shift = len(indentation(file, each.statement)) - len(indentation(file, each.statement.body[0]))
    line = file.text[file.line_starts[call.lineno - 1] : start]
    behind = NEWLINE.split(file.text[stop : file.lines(call)[1]])[0]
    if len(line) + shift + len(code) + len(behind) > context.line_length:
        margin = line[: len(line) - len(line.lstrip())]
        # The last line of a header, with a body behind it, may begin left of the statement.
        end = newline(file) + (margin[:shift] if shift < 0 else margin + " " * shift)
        code = f"get_model_state_dict({end}{in_steps(file, '    ')}{arguments}{end})"
    # The lines of the call are written anew, and have their indentation already.
    dedent = [edit for edit in context.dedent(each.statement) if not start < edit.start < stop]
    return [Edit(start, stop, code), *dedent]


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
