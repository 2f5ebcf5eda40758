"""`FSDP.summon_full_params(model)` and `FSDP.fsdp_modules(model)`: static functions of FSDP1's class.

In torch's form a block whose model is only called needs nothing, since `fully_shard` gathers for every call; one that reads
parameters reads whole ones.
"""

import ast
import re
from collections.abc import Iterator
from functools import partial

from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.edit.taken_away import without_comments_above
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Edit, Found, Import, Rule
from fsdp_migrate.codemods.uses import own
from fsdp_migrate.codemods.uses.given_contexts import ABOUT, given_context
from fsdp_migrate.codemods.uses.options import MODULE
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.facts.nodes import all_are, has_double_star, has_star
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.findings import Action, Severity

SUMMON = Rule("FSDP321", "summon-full-params")
UNITS = Rule("FSDP362", "fsdp-modules", Severity.RAISES)

_CALLED = "Removed: the code in this block runs the model, and an FSDP2 model gathers its parameters by itself when it runs."
_EMPTY = "Removed: the block is empty."
_READS = "Removed: the reads in the block now gather whole parameters themselves."
_BY_HAND = (
    "FSDP2 has no such context, so parameters are sharded DTensors here. To read one, use `p.full_tensor()` on all ranks; "
    "to write one, use `p.data.copy_(distribute_tensor(value, p.device_mesh, p.placements))`."
)
_GRADIENTS = (
    "FSDP2 has no such context, so parameters and gradients are sharded DTensors here. To read one, use "
    "`p.full_tensor()` and `p.grad.full_tensor()` on all ranks: what `full_tensor()` returns has no `grad`."
)
_GRADIENT = re.compile(r"\bgrad\b")
_IN_PLACE = re.compile(r"\w_\(|\.data\b|\.copy_|setattr\(|load_state_dict|\] = ")
_READING = {"named_parameters": "whole_parameters", "state_dict": "get_model_state_dict"}


@codemod(words=("summon_full_params", "fsdp_modules"))
def find(context: Context) -> Iterator[Found]:
    """The two functions of the class."""
    for attribute in context.file.attributes.get("summon_full_params", ()):
        if context.fsdp1(attribute.value) == CLASS:
            yield from _of_summon(context, attribute)
    if context.form == "torch":
        for call in context.file.calls.get("summon_full_params", ()):  # of a run in another form
            if context.dotted(call.func) == {f"{RUNTIME}.summon_full_params"}:
                yield from _without(context, call.func, call)
    for attribute in context.file.attributes.get("fsdp_modules", ()):
        if context.fsdp1(attribute.value) == CLASS:
            yield _of_units(context, attribute)


def _of_summon(context: Context, attribute: ast.Attribute) -> Iterator[Found]:
    call = context.call_of(attribute)
    does_nothing = context.in_place and _empty(context, call) is not None
    if does_nothing or context.form == "torch":
        yield from _without(context, attribute, call)
    elif context.in_place and call is not None and _is_free(context, attribute):
        yield _summon(context, attribute)
    else:
        message = "Still works: `fsdp_migrate.runtime` gathers whole parameters as FSDP1 did."
        yield Found(SUMMON, attribute, Action.RUNTIME, message)


def _empty(context: Context, call: ast.Call | None) -> ast.With | None:
    """The block of a context in which nothing is done: it only made FSDP1 initialize itself."""
    if call is None:
        around = None
    else:
        around = context.file.parents[call]
    block = None
    if isinstance(around, ast.withitem):
        block = context.file.parents[around]
    if not isinstance(block, ast.With) or len(block.items) > 1 or not context.is_alone(block):
        return None
    if all_are(block.body, ast.Pass):
        return block
    return None


def _is_free(context: Context, at: ast.AST) -> bool:
    return context.means("summon_full_params", at, f"{RUNTIME}.summon_full_params")


def _of_units(context: Context, attribute: ast.Attribute) -> Found:
    call = context.call_of(attribute)
    if context.in_place and call is not None and len(call.args) == 1 and not call.keywords:
        return _units(context, attribute, call)
    if context.form == "torch":
        message = "FSDP2 has no such function. Use `[m for m in model.modules() if isinstance(m, FSDPModule)]`."
        return Found(UNITS, attribute, Action.MANUAL, message)
    return Found(
        UNITS,
        attribute,
        Action.RUNTIME,
        "Still works: `fsdp_migrate.runtime` returns the list that FSDP1 returned.",
    )


def _without(context: Context, function: ast.expr, call: ast.Call | None) -> Iterator[Found]:
    """The context in torch's form; in every form that is no bridge, one in which nothing is done."""
    empty = _empty(context, call)
    if empty is not None:
        edits = lambda: [context.remove_or_pass(empty)]  # noqa: E731
        yield Found(SUMMON, empty, Action.REWRITE, _EMPTY, edits=edits, removed=(function,))
        return
    model = None
    if call is not None:
        model = keyword(call, "module", 0)
    if call is None or model is None:
        yield Found(SUMMON, function, Action.MANUAL, _BY_HAND)
        return
    around = context.file.parents[call]
    block = None
    if isinstance(around, ast.withitem):
        block = context.file.parents[around]
    if not isinstance(block, ast.With):
        yield from _as_value(context, function, call, model)
        return
    uses = _uses(context, block.body, model)
    if uses is None or (_IN_PLACE.search(_code(context, block.body)) and any(uses)):
        yield Found(SUMMON, function, Action.MANUAL, _BY_HAND)
        return
    reads = [use for use in uses if use is not None]
    if _needs_gradients(context, call, block, reads):
        yield Found(SUMMON, function, Action.MANUAL, _GRADIENTS)
        return
    message = _CALLED
    if reads:
        message = _READS
    yield Found(
        SUMMON,
        block,
        Action.REWRITE,
        message,
        construct=shortened(context.source(call)),
        edits=lambda: _edits(context, block, call, reads),
        imports=_imports(reads, function),
        removed=(function,),
    )
    if "named_parameters" in [read.attr for read in reads]:
        yield from own.define(context, SUMMON, own.WHOLE_PARAMETERS, call)


def _needs_gradients(
    context: Context, call: ast.Call, block: ast.With, reads: list[ast.Attribute]
) -> bool:
    """Whether a block that may ask for whole gradients reads one, or has parameters that others may read them of."""
    given = keyword(call, "with_grads", 5)
    if given is None:
        has_stars = has_star(call)
        is_asked = has_stars or has_double_star(call)
    else:
        match context.value(given):
            case Value(node=ast.Constant(constant)):
                is_asked = bool(constant)
            case _:
                is_asked = True
    if not is_asked:
        return False
    has_parameters = "named_parameters" in [read.attr for read in reads]
    return has_parameters or _GRADIENT.search(_code(context, block.body)) is not None


def _code(context: Context, body: list[ast.stmt]) -> str:
    return "\n".join(map(context.source, body))


def _uses(
    context: Context, body: list[ast.stmt], model: ast.expr
) -> list[ast.Attribute | None] | None:
    """What a block does with a model: None for each call of it, the method for each read; None for anything else."""
    named = ast.unparse(model)
    found = list[ast.Attribute | None]()
    nodes = [node for part in body for node in ast.walk(part)]
    for node in nodes:
        if not isinstance(node, ast.Name | ast.Attribute) or ast.unparse(node) != named:
            continue
        user = context.file.parents[node]
        if isinstance(user, ast.Call) and user.func is node:
            found.append(None)
        elif isinstance(user, ast.Attribute) and context.call_of(user) is not None:
            call = context.call_of(user)
            if user.attr in _READING and call is not None and not call.args + call.keywords:
                found.append(user)
            elif user.attr in ("generate", "forward") or user.attr.startswith("generate"):
                found.append(None)
            elif user.attr not in ("eval", "train"):
                return None
        elif not isinstance(user, ast.Attribute) or ast.unparse(user) != f"{named}.training":
            return None
    return found or None


def _imports(reads: list[ast.Attribute], at: ast.expr) -> tuple[Import, ...]:
    if "state_dict" in [read.attr for read in reads]:
        return tuple(Import(MODULE, n, at) for n in ("StateDictOptions", "get_model_state_dict"))
    return ()


def _edits(
    context: Context, block: ast.With, call: ast.Call, reads: list[ast.Attribute]
) -> list[Edit]:
    changed = context.statement(block)
    if len(block.items) == 1:
        changed.step_out()
    else:
        changed.drop(call)
    for read in reads:
        used = context.call_of(read)
        assert used is not None
        options = ", options=StateDictOptions(full_state_dict=True)"
        if read.attr == "named_parameters":
            options = ""
        changed.replace(used, f"{_READING[read.attr]}(_model{options})", _model=read.value)
    if reads:
        # The reads gather in the place of the context, so comments about that stay true.
        return changed.edits()
    return [*without_comments_above(context.file, block, ABOUT), *changed.edits()]


def _as_value(
    context: Context, function: ast.expr, call: ast.Call, model: ast.expr
) -> Iterator[Found]:
    """A context that is made in one place and entered in another, where the model is called alone."""
    given = given_context(context, call)
    if given is None:
        uses = None
    else:
        uses = _uses(context, given.block.body, model)
    if given is None or uses is None or any(uses):
        yield Found(SUMMON, function, Action.MANUAL, _BY_HAND)
        return
    if _needs_gradients(context, call, given.block, []):
        yield Found(SUMMON, function, Action.MANUAL, _GRADIENTS)
        return
    first = given.statements[0]
    edits = partial(given.edits, context)
    source = shortened(context.source(call))
    yield Found(SUMMON, first, Action.REWRITE, _CALLED, source, edits=edits, removed=given.removed)
    for statement in (*given.statements[1:], given.block):
        yield Found(SUMMON, statement, Action.REWRITE, _CALLED, source, of=first)


def _summon(context: Context, attribute: ast.Attribute) -> Found:
    return Found(
        SUMMON,
        attribute,
        Action.RUNTIME,
        "Replaced by `fsdp_migrate.runtime.summon_full_params`, which gathers whole parameters and writes changes back.",
        edits=lambda: [context.replace(attribute, "summon_full_params")],
        imports=(Import(RUNTIME, "summon_full_params"),),
        removed=(attribute,),
    )


def _units(context: Context, attribute: ast.Attribute, call: ast.Call) -> Found:
    return Found(
        UNITS,
        attribute,
        Action.REWRITE,
        "Replaced by a list of all modules that are instances of `FSDPModule`.",
        edits=lambda: [context.replace(call, _list_of_units(context, call))],
        imports=(Import(TORCH, "FSDPModule", attribute.value),),
        removed=(attribute,),
    )


def _list_of_units(context: Context, call: ast.Call) -> str:
    """A list of the units of a model, or what a comprehension takes for that: the modules with a test behind them."""
    modules = f"{context.source(call.args[0])}.modules()"
    is_bare = context.file.text[: context.file.span(call)[0]].rstrip().endswith("in")
    match context.file.parents[call]:
        case ast.comprehension(target=ast.Name(id=unit), iter=taken, ifs=[]) if (
            taken is call and is_bare
        ):
            return f"{modules} if isinstance({unit}, FSDPModule)"
    unit = context.free("module", call)
    return f"[{unit} for {unit} in {modules} if isinstance({unit}, FSDPModule)]"
