"""Lines where FSDP1's model did more than one of `fully_shard` does: torch's form assumes away what no line shows.

A line is named where the file shows that it is about a model, or a parameter of one. `like_fsdp1` keeps each of these by a
switch of its own, which the findings name.
"""

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.codemods.assumptions.attributes import calls_that_set, set_in
from fsdp_migrate.codemods.assumptions.table import INTERFACE, STATE_DICTS
from fsdp_migrate.codemods.assumptions.words import ASKED, REPLACED, WORDS
from fsdp_migrate.codemods.by_hand.measured import is_torchs
from fsdp_migrate.codemods.by_hand.module_names import is_any_module, subject_of
from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.constructor.construction import ASSUMPTION, constructions
from fsdp_migrate.codemods.constructor.from_units import is_block
from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.codemods.uses.contexts import OF_MODELS, without_wrapper
from fsdp_migrate.codemods.uses.guards import has_class
from fsdp_migrate.codemods.uses.methods import is_gathered
from fsdp_migrate.codemods.uses.options import is_typed
from fsdp_migrate.codemods.uses.untyped import untyped
from fsdp_migrate.facts.file import last_name, root_of, values_given
from fsdp_migrate.facts.models import INNER
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import text_of
from fsdp_migrate.facts.parameters import loop_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.unreached import is_for_others
from fsdp_migrate.findings import Action, Severity

_DATA = (
    "This assignment has no effect: FSDP2 keeps using the old memory. Write `p.data.copy_(x)`, where `x` is a DTensor as "
    "well."
)
_LOST = "This attribute is lost when the model is sharded, because sharding replaces its parameters. Set it after line {}."
_LOST_BY_CALL = "This call sets attributes of parameters, and sharding replaces the parameters. Call it after line {}."
_OLDER = (
    "This optimizer trains nothing: it holds the parameters from before `fully_shard`, which replaces them. Create it "
    "after line {}."
)
_GATHERED = (
    "This change of parameters is lost or raises after a forward under `no_grad`, which leaves the root's parameters "
    "gathered. Call `model.reshard()` after each such forward."
)
_FROZEN = (
    "This change of `requires_grad` is lost after a forward under `no_grad` (an evaluation), which leaves parameters gathered: "
    "only the gathered ones change. Call `reshard()` of each `FSDPModule` before this line."
)
_NAME = (
    "The class of a sharded module has another name: `FSDPBlock` where it was `Block`, so comparisons with `Block` fail. "
    "Use `isinstance(module, Block)`."
)
_SAVED = (
    "With transformers before 4.57, this saves the name of the sharded class, `FSDPNet` for `Net`, as `architectures` in "
    "config.json. Use transformers 4.57 or newer, or correct the name in that file."
)
_TWICE = (
    "Replaced by a checkpoint that is not reentrant and computes the same: inside a reentrant one, FSDP2 loses gradients of a "
    "unit that runs twice before a backward pass."
)
# Methods of models that set `requires_grad`, and code that trains.
_FREEZES = re.compile(r"^_?(?:un)?freeze|^requires_grad_$", re.IGNORECASE)
_TRAINS = re.compile(r"\.backward\(|\bepoch\b")
# Methods that change a parameter in place.
_WRITING = ("add_", "copy_", "div_", "fill_", "lerp_", "mul_", "sub_", "zero_")


class _Sharding(NamedTuple):
    """A call that shards a module, the last line of that, and whether FSDP1 kept what was set on parameters.

    The last is None where only the function that is called shows it.
    """

    call: ast.Call
    module: ast.expr
    line: int
    keeps_attributes: bool | None


class Line(NamedTuple):
    """A line that breaks an assumption.

    Attributes:
        switch: the switch of `like_fsdp1` that would keep it.
        node: the place.
        message: what to say; nothing where another rule does.
        code: what takes its place; "" where a person must decide.
    """

    switch: str
    node: ast.AST
    message: str
    code: str = ""


@codemod(forms=("torch",))
def find(context: Context) -> Iterator[Found]:
    """These lines, in torch's form."""
    if context.form == "torch" and context.models.shards(context.file):
        for line in context.program.once(lines_of, str(context.file.path)):
            if line.code:
                edit = context.replace(line.node, line.code)
                edits = lambda edit=edit: [edit]  # noqa: E731
                yield Found(ASSUMPTION, line.node, Action.REWRITE, line.message, edits=edits)
            elif line.message:
                yield _by_hand(context, line)


def _by_hand(context: Context, line: Line) -> Found:
    kept = "Or use `--form auto`, which keeps FSDP1's behaviour."
    severity = None
    if line.switch == "interface" or line.message == STATE_DICTS["load_state_dict"]:
        severity = Severity.RAISES
    construct = shortened(context.source(line.node))
    return Found(
        ASSUMPTION, line.node, Action.MANUAL, f"{line.message} {kept}", construct, severity=severity
    )


def lines_of(program: Program, path: str) -> list[Line]:
    """Those of a file, but for code about models that FSDP1 does not wrap, or for FSDP2 itself."""
    file = program.load(path)
    assert file is not None
    context = Context(file, program, form="torch")
    found = list[Line]()
    for finder in _FINDERS:
        for line in finder(context):
            around = file.function(line.node)
            is_of_fsdp2 = False
            if around is not None and file.calls_in(around, "fully_shard"):
                is_of_fsdp2 = not file.calls_in(around, "like_fsdp1")
            if not (is_of_fsdp2 or is_for_others(file, line.node)):
                found.append(line)
    return found


def _interface(context: Context) -> Iterator[Line]:
    """`model.process_group`, `hasattr(model, "no_sync")`."""
    for name in (*INTERFACE, *REPLACED):
        for attribute in context.file.attributes.get(name, ()):
            if context.fsdp1(attribute.value) == CLASS:
                yield Line("interface", attribute, "")
            elif isinstance(attribute.ctx, ast.Load) and (
                context.can_be_model(attribute.value)
                or has_class(context, attribute, attribute.value)
            ):
                message = ""
                if name in INTERFACE:
                    message = f"This raises `AttributeError`: an FSDP2 model has no `{name}`. {INTERFACE[name]}"
                yield Line("interface", attribute, message)
    for call in (*context.file.calls.get("getattr", ()), *context.file.calls.get("hasattr", ())):
        name = ""
        if len(call.args) > 1:
            name = text_of(call.args[1])
        if name in ASKED and context.can_be_model(call.args[0]):
            message = f"This finds nothing: an FSDP2 model has no `{name}`. {ASKED[name]}"
            yield Line("interface", call, message)


def _states(context: Context) -> Iterator[Line]:
    """`model.state_dict()` and `model.load_state_dict(state)`."""
    for name in OF_MODELS:
        for attribute in context.file.attributes.get(name, ()):
            if is_typed(context.file, attribute):
                yield Line("whole_state_dicts", attribute, "")
    for attribute, is_rewritten in untyped(context):
        message = ""
        if not is_rewritten:
            message = STATE_DICTS[attribute.attr]
        yield Line("whole_state_dicts", attribute, message)


def _writes(context: Context) -> Iterator[Line]:
    """`p.data = x`."""
    for attribute in context.file.attributes.get("data", ()):
        statement = context.file.parents[attribute]
        if isinstance(statement, ast.Tuple):  # `p.data, kept = kept, p.data`
            statement = context.file.parents[statement]
        if isinstance(statement, ast.Assign) and isinstance(attribute.ctx, ast.Store):
            if taken(context, proven=True).is_parameter(attribute.value, context.file):
                if not is_known_as_whole(context, attribute):
                    yield Line("data_writes", statement, _DATA)


def _gathered(context: Context) -> Iterator[Line]:
    """`p.data.copy_(average)` in a function of its own, such as one that swaps averaged weights in and out."""
    if not context.program.has(WORDS["sharded_after_forward"]):
        return
    for name in _WRITING:
        for attribute in context.file.attributes.get(name, ()):
            written = attribute.value
            if isinstance(written, ast.Attribute) and written.attr == "data":
                written = written.value
            if isinstance(written, ast.Name) and _is_swapped(context, attribute, written):
                if taken(context, proven=True).is_parameter(written, context.file):
                    if not is_known_as_whole(context, attribute):
                        yield Line("sharded_after_forward", attribute, _GATHERED)


def _frozen(context: Context) -> Iterator[Line]:
    """`model.unfreeze()` and `p.requires_grad = True` in a function that trains, or in a loop, as over epochs."""
    if not context.program.has(WORDS["sharded_after_forward"]):
        return
    for attribute in context.file.attributes.get("requires_grad", ()):
        if isinstance(attribute.ctx, ast.Store) and _is_repeated(context, attribute):
            if taken(context, proven=True).is_parameter(attribute.value, context.file):
                yield Line("sharded_after_forward", attribute, _FROZEN)
    for name in filter(_FREEZES.search, context.file.attributes):
        for method in context.file.attributes[name]:
            if context.call_of(method) is not None and _is_repeated(context, method):
                if context.can_be_model(without_wrapper(method.value)):
                    yield Line("sharded_after_forward", method, _FROZEN)


def _is_repeated(context: Context, node: ast.AST) -> bool:
    """Whether code runs again once training has begun: in a function or a loop that trains or speaks of epochs."""
    function = context.file.function(node)
    if function is not None and _TRAINS.search(context.source(function)):
        return True
    return any(
        isinstance(around, ast.For | ast.While) and _TRAINS.search(context.source(around))
        for around in context.file.ancestors(node)
    )


def _is_swapped(context: Context, method: ast.Attribute, written: ast.Name) -> bool:
    """Whether a function that trains nothing itself writes what a loop takes from a model, as an optimizer does not."""
    function = context.file.function(method)
    loop = loop_of(context.file, written)
    if function is None or loop is None or context.call_of(method) is None:
        return False
    text = context.source(function)
    return "parameters(" in context.source(loop[1]) and ".backward(" not in text


def _before(context: Context) -> Iterator[Line]:
    """What holds parameters of a model that is sharded below: optimizers, and attributes such as `p.no_weight_decay = True`."""
    file = context.file
    for name in ("parameters", "named_parameters"):
        for method in file.attributes.get(name, ()):
            below = _sharded_below(context, method.value)
            if below is None:
                continue
            for around in file.ancestors(method):
                if isinstance(around, ast.Call) and is_torchs(context, around.func):
                    if "optim" in next(iter(context.dotted(around.func))):
                        yield Line("older_optimizers", around, _OLDER.format(below.line))
                elif isinstance(around, ast.For) and below.keeps_attributes is not None:
                    yield from _set_in(around, below)


def _set_in(loop: ast.For, below: _Sharding) -> Iterator[Line]:
    """The attributes that a loop over parameters sets."""
    message = _LOST.format(below.line)
    if not below.keeps_attributes:
        message = ""  # they were lost under FSDP1, too
    for node in set_in(loop):
        yield Line("parameter_attributes", node, message)


def _set_by_functions(context: Context) -> Iterator[Line]:
    """The calls that set attributes of parameters of a model that is sharded below, where FSDP1 kept these."""
    for call in calls_that_set(context):
        below = _sharded_below(context, call.args[0])
        if below is not None and below.keeps_attributes:
            yield Line("parameter_attributes", call, _LOST_BY_CALL.format(below.line))


def is_false(value: ast.expr | None) -> bool:
    """Whether an argument is written as `False`."""
    return isinstance(value, ast.Constant) and value.value is False


def _sharded_below(context: Context, model: ast.expr) -> _Sharding | None:
    """What shards a model, or what it is a part of, below in the same function."""
    if context.can_be_model(model):
        return None
    file = context.file
    path = f"{ast.unparse(model)}."
    for each in (*_shardings(context), *_given_to_functions(context, model)):
        if path.startswith(f"{ast.unparse(each.module)}."):
            is_same = file.function(each.call) is file.function(model)
            if is_same and each.call.lineno > model.lineno:
                return each
    return None


def _given_to_functions(context: Context, model: ast.expr) -> Iterator[_Sharding]:
    """The calls that are given a model, and return it sharded: `model = shard(model)`."""
    name = root_of(model)
    if isinstance(name, ast.Name):
        for read in context.file.reads(name):
            for around in context.file.ancestors(read):
                if isinstance(around, ast.Call):
                    for value in values_given(around):
                        if root_of(value) is read and context.can_be_model(around):
                            kept = _keeps_attributes(context, around)
                            yield _Sharding(around, value, around.lineno, kept)
                    break


def _keeps_attributes(context: Context, call: ast.Call) -> bool | None:
    """Whether attributes stayed under FSDP1 in the function that a call of this file shards by; None if it is elsewhere."""
    shards = [
        each
        for each in constructions(context)
        if _name_of(context.file.function(each.call)) == last_name(call.func)
    ]
    if not shards:
        return None
    return all(each.keeps_attributes != "False" for each in shards)


def _name_of(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> str:
    if function is None:
        return ""
    return function.name


def _shardings(context: Context) -> Iterator[_Sharding]:
    """The constructors, and the blocks with `like_fsdp1` that an earlier run wrote for some."""
    for each in constructions(context):
        if each.module is not None:
            keeps_attributes = each.keeps_attributes != "False"
            yield _Sharding(each.call, each.module, each.call.lineno, keeps_attributes)
    for statement in context.file.of(ast.With):
        call = statement.items[0].context_expr
        if is_block(context, statement) and isinstance(call, ast.Call):
            module = keyword(call, "model", 0)
            keeps_attributes = not is_false(keyword(call, "parameter_attributes"))
            if module is not None:
                yield _Sharding(call, module, statement.body[-1].lineno, keeps_attributes)


def _names(context: Context) -> Iterator[Line]:
    """`type(module).__name__ == "Block"`, and the name of a model."""
    for attribute in context.file.attributes.get("__name__", ()):
        subject = subject_of(attribute.value)
        around = context.file.parents[attribute]
        if isinstance(subject, ast.Attribute) and subject.attr in INNER:
            subject = subject.value
        is_compared = isinstance(around, ast.Compare)
        if subject is not None and (
            context.can_be_model(subject) or (is_compared and is_any_module(context, subject))
        ):
            if is_compared:
                yield Line("class_names", around, _NAME)
            else:
                yield Line("class_names", attribute, _NAME)


def _saved_names(context: Context) -> Iterator[Line]:
    """`model.save_pretrained(folder)`."""
    for method in context.file.attributes.get("save_pretrained", ()):
        if context.call_of(method) is not None and context.can_be_model(
            without_wrapper(method.value)
        ):
            yield Line("class_names", method, _SAVED)


def _reentrant(context: Context) -> Iterator[Line]:
    """`CheckpointImpl.REENTRANT`, and `use_reentrant=True`."""
    for attribute in context.file.attributes.get("REENTRANT", ()):
        if last_name(attribute.value) == "CheckpointImpl":
            code = f"{context.source(attribute.value)}.NO_REENTRANT"
            yield Line("reentrant", attribute, _TWICE, code)
    for argument in context.file.of(ast.keyword):
        if argument.arg == "use_reentrant" and text_of(argument.value) == "True":
            yield Line("reentrant", argument, _TWICE, "use_reentrant=False")


def _applies(context: Context) -> Iterator[Line]:
    """`model.apply(f)`, of which `methods` speaks."""
    for attribute in context.file.attributes.get("apply", ()):
        call = context.call_of(attribute)
        if call is not None and is_gathered(context, attribute):
            yield Line("whole_in_apply", call, "")


_FINDERS = (
    _interface,
    _states,
    _writes,
    _gathered,
    _frozen,
    _before,
    _set_by_functions,
    _names,
    _saved_names,
    _applies,
    _reentrant,
)
