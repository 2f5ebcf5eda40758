"""States of optimizers in files that each rank writes and reads by itself: FSDP1's held flat shards, FSDP2's hold DTensors."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.kept_states import kept_states
from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import is_name, last_name
from fsdp_migrate.facts.names import OPTIMIZER_STATES
from fsdp_migrate.facts.nodes import any_is, name_around, receiver
from fsdp_migrate.facts.parameters import loop_of
from fsdp_migrate.facts.scopes import Parameter
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP336", "optimizer-files")

_SAVED = (
    "This saves only this rank's shards, as DTensors: the file loads only on the same number of FSDP2 ranks, and not "
    "with FSDP1. To save whole states, call `get_optimizer_state_dict(model, optimizer, "
    "options=StateDictOptions(full_state_dict=True))` on every rank and write the file on rank 0."
)
_LOADED = (
    "This loads per-rank files of FSDP1 without complaint, but the next `optimizer.step()` raises. If you have such "
    "files, save whole states once with FSDP1, and load those with `set_optimizer_state_dict` of "
    "`torch.distributed.checkpoint.state_dict`."
)
_STATES = {"state_dict", "load_state_dict"}
_BY_RANK = re.compile(r"(?s)(?:LOCAL|SHARDED)_STATE_DICT.*torch\.save\(")
# By these a function gives or takes states as FSDP means them.
_CONVERTED = (*OPTIMIZER_STATES, "get_optimizer_state_dict", "set_optimizer_state_dict")


@codemod(words=("state_dict",))
def find(context: Context) -> Iterator[Found]:
    """`optimizer.state_dict()` where it is saved or used, and `optimizer.load_state_dict(...)`."""
    speaks = context.models.shards(context.file) or context.references
    if not (speaks and context.models.shards()):
        return
    for method, call, used in _calls(context, "state_dict"):
        if _leaves(context, call, used):
            yield Found(RULE, method, Action.MANUAL, _SAVED)
        for save in _saved(context, call):
            yield Found(RULE, save, Action.MANUAL, _SAVED)
    for method, call, used in _calls(context, "load_state_dict"):
        if _leaves(context, call, used):
            yield Found(RULE, method, Action.MANUAL, _LOADED, severity=Severity.RAISES)


def _calls(context: Context, name: str) -> Iterator[tuple[ast.Attribute, ast.Call, list[ast.Call]]]:
    """A method of an optimizer, its calls, and all calls of the function around, unless that converts the states.

    Nor those of states that the program keeps in memory.
    """
    kept = kept_states(context)
    for attribute in context.file.attributes.get(name, ()):
        call = context.file.parents[attribute]
        if not isinstance(call, ast.Call) or not _is_optimizer(context, attribute.value):
            continue
        around = context.file.function(call) or context.file.tree
        used = [node for node in ast.walk(around) if isinstance(node, ast.Call)]
        is_converted = not {*_CONVERTED}.isdisjoint([last_name(each.func) for each in used])
        if not (is_converted or call in kept or is_known_as_whole(context, call)):
            yield attribute, call, used


def _leaves(context: Context, call: ast.Call, used: list[ast.Call]) -> bool:
    """Whether states leave a function as a whole, or come from outside: not if it hands a call on, or loads its own states."""
    files = {n for each in used for n in context.dotted(each.func)} & {"torch.save", "torch.load"}
    own = set[str]()
    for each in used:
        name = last_name(each.func)
        if name in _STATES and _is_optimizer(context, receiver(each) or each):
            own.add(name)
    comes_back = own == _STATES
    is_saved = "torch.save(" in context.source(context.file.statement(call))
    if is_saved or (files and (call.args or not comes_back)):
        return True
    around = context.file.parents[call]
    if comes_back or not call.args:
        return not (comes_back or isinstance(around, ast.Return | ast.Subscript | ast.Attribute))
    handed_on = any_is(context.file.bindings(call.args[0]), Parameter)
    return not handed_on or "state_dict" not in name_around(context.file, call)


def _saved(context: Context, states: ast.expr) -> Iterator[ast.Call]:
    """The calls that save a name for states, or send it to other ranks."""
    file = context.file
    assign = context.file.statement(states)
    if not isinstance(assign, ast.Assign) or isinstance(assign.value, ast.Dict):
        return
    target = assign.targets[0]
    if not isinstance(target, ast.Name):
        return
    for read in file.reads(target):
        call = file.parents[read]
        if isinstance(call, ast.Call) and read in call.args and read.lineno > states.lineno:
            if "_object" in last_name(call.func) or "torch.save" in context.dotted(call.func):
                yield call


def _is_optimizer(context: Context, owner: ast.expr) -> bool:
    """Whether what has the state is an optimizer by its name or its making, and not known to be another model's."""
    if isinstance(owner, ast.Name) and loop_of(context.file, owner) is not None:
        # Among what is saved beside a model's shards there are optimizers, and what has a type of state dict is none.
        function = context.file.function(owner)
        saves = function is not None and _BY_RANK.search(context.source(function)) is not None
        return saves and not _is_given_a_type(context, owner)
    optimized = taken(context).optimized(owner, context.file)
    return optimized or (optimized is None and "optim" in last_name(owner).lower())


def _is_given_a_type(context: Context, model: ast.Name) -> bool:
    """Whether a context around sets the type of a model's state dict."""
    for parent in context.file.ancestors(model):
        if not isinstance(parent, ast.With):
            continue
        for item in parent.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and last_name(call.func) == "state_dict_type":
                if any(is_name(each, model.id) for each in call.args):
                    return True
    return False
