"""What each constructor becomes, and what is reported of it and of its arguments.

It is in torch's words where each argument has an expression, else in auto a loop over `units`, which reads FSDP1's arguments.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.assumptions import constructor as assumptions
from fsdp_migrate.codemods.constructor import (
    double,
    entries,
    from_units,
    functions,
    layout,
    objects,
    precision,
    root,
    rows,
    wrap_calls,
)
from fsdp_migrate.codemods.constructor.by_units import by_units
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import (
    CONSTRUCTOR,
    DIRECT,
    ENABLE_WRAP,
    FORMER_NAMES,
    PARTIAL,
    SUBCLASS,
    UNITS,
    UNKNOWN,
    UNPACKED,
    WRAP,
    AtRunTime,
    Construction,
    constructions,
)
from fsdp_migrate.codemods.constructor.given_meshes import NAMELESS
from fsdp_migrate.codemods.constructor.options import Rewritten
from fsdp_migrate.codemods.constructor.outcome import (
    Form,
    are_free,
    has_another,
    imports_of,
    is_free,
    still_read,
    taken_away,
)
from fsdp_migrate.codemods.constructor.remarks import of_entries
from fsdp_migrate.codemods.constructor.rows import ROWS, in_torchs_words
from fsdp_migrate.codemods.constructor.silent import Hit, hits
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.edit.text import Refused
from fsdp_migrate.codemods.imports import removal, spent
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Edit, Found
from fsdp_migrate.codemods.swap import RULE as IMPORT
from fsdp_migrate.codemods.uses.methods import is_replaced
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import has_double_star
from fsdp_migrate.findings import Action, Severity

_NOT_REWRITTEN = "Unchanged: it belongs to the FSDP1 call at line {}, which is not rewritten (see FSDP002 there)."


@dataclass(frozen=True)
class Decision:
    """What is decided of one constructor: its form, or all that keeps it FSDP1's, or on the bridge.

    Attributes:
        reasons: what keeps it there, each with the edit that removes it.
        hits: what changes in silence all the same, where the form does not ask for it.
    """

    form: Form | None
    reasons: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()


@codemod()
def find(context: Context) -> Iterator[Found]:
    """The constructors of a file, and their arguments."""
    spoken: set[ast.AST] = set()
    forms: list[Form] = []
    done: list[tuple[Construction, Form]] = []
    for construction in constructions(context):
        if context.form == "bridge":
            decision = Decision(None)
        else:
            decision = decide(construction)
        if context.silenced(CONSTRUCTOR, construction.call):
            if context.stays(construction.call.func, IMPORT):
                continue
            decision = Decision(None)
        yield _constructor(construction, decision)
        yield from _arguments(construction, decision.form, spoken)
        if decision.form is not None:
            forms.append(decision.form)
            unpacks = has_double_star(construction.call)
            if decision.form.in_words and unpacks:
                done.append((construction, decision.form))
            why = decision.form.gathered
            if why:
                yield Found(root.GATHERED, construction.call, Action.REWRITE, why, "fully_shard")
            if context.form == "torch":
                written = decision.form.said
                yield from assumptions.of(
                    construction, written, decision.hits, gathered=root.stays_gathered(why)
                )
    unread: list[Found] = []
    if done:
        unread = list(entries.find(done))
    yield from unread
    yield from _options(context, forms)
    yield from _spent(context, [*forms, *unread])


def _options(context: Context, forms: list[Form]) -> Iterator[Found]:
    """The objects that the file makes outside of its constructors, and that only those read."""
    if context.form == "bridge":
        return
    gone = {node for form in forms for each in form.removed for node in ast.walk(each)}
    options: Rewritten = context.program.once(rows.rewritten, context.form)
    if options.ends or options.strategies is not None or options.predicates is not None:
        yield from objects.find(context, options, gone)


def _constructor(construction: Construction, decision: Decision) -> Found:
    call = construction.call
    construct = construction.kind
    form = decision.form
    node: ast.AST = call
    if construct == UNITS:
        node = from_units.whole(construction.context, call)
    if form is not None:
        action = Action.RUNTIME
        if form.in_words:
            action = Action.REWRITE
        made = form.edits, form.imports, form.removed
        return Found(CONSTRUCTOR, node, action, form.message, construct, *made)
    count = ""
    if len(decision.reasons) > 1:
        count = f"of {len(decision.reasons)} places: "
    reasons = f"{count}{'; '.join(decision.reasons)}"
    if construction.context.form == "torch":
        message = (
            f"Not rewritten, because {reasons}. Call `fully_shard` yourself, or use `--form auto`."
        )
        if construction.kind == UNITS:
            message = f"Still calls `fsdp_migrate.runtime`, because {reasons}. Call `fully_shard` for each unit yourself."
        return Found(CONSTRUCTOR, call, Action.MANUAL, message, construct)
    message = "Keeps FSDP1's interface: the name is now imported from `fsdp_migrate.runtime`, which shards with FSDP2."
    if reasons:
        message = f"{message} It is not replaced by `fully_shard`, because {reasons}. Change that, then run fsdp-migrate again."
    return Found(CONSTRUCTOR, call, Action.RUNTIME, message, construct)


def _arguments(
    construction: Construction, form: Form | None, spoken: set[ast.AST]
) -> Iterator[Found]:
    """The arguments of a call that nothing was said of: a dictionary may be unpacked into several calls."""
    for argument in construction.arguments:
        if argument.name != "module" and argument.node not in spoken:
            spoken.add(argument.node)
            yield _argument(construction, argument, form)
    for keyword in construction.unknown:
        message = (
            f"FSDP1 has no argument `{keyword.arg}`, so this call raises `TypeError`. Remove it."
        )
        yield Found(UNKNOWN, keyword, Action.MANUAL, message, f"{keyword.arg}=")
    for keyword in construction.unseen:
        message = "Still works: `fsdp_migrate.runtime` reads the unpacked arguments when the program runs."
        if construction.context.form == "torch":
            message = _NOT_REWRITTEN.format(construction.call.lineno)
        construct = f"**{shortened(construction.context.source(keyword.value))}"
        yield Found(UNPACKED, keyword.value, Action.RUNTIME, message, construct)


def _argument(construction: Construction, argument: Argument, form: Form | None) -> Found:
    rule, text = ROWS[argument.name].say(construction, argument)
    construct = f"{argument.name}={shortened(construction.text(argument.value))}"
    action = Action.RUNTIME
    if rule is precision.LOW_PRECISION_GRADS:
        action = Action.MANUAL
    if isinstance(argument.node, ast.keyword) and argument.node.arg in FORMER_NAMES:
        former = argument.node.arg
        text += f" `{former}` is a former name that now raises `TypeError`; use `{argument.name}`."
        if form is None:
            start, _ = construction.context.file.span(argument.node)
            edit = Edit(start, start + len(former), argument.name)
            return Found(rule, argument.node, Action.REWRITE, text, construct, lambda: [edit])
    if form is not None and argument.name in form.said and action is Action.RUNTIME:
        text = form.said[argument.name]
        if NAMELESS in text:
            severity = Severity.RAISES
            return Found(rule, argument.node, Action.MANUAL, text, construct, severity=severity)
        return Found(rule, argument.node, Action.REWRITE, text, construct)
    if form is None and construction.context.form == "torch" and action is Action.RUNTIME:
        text = _NOT_REWRITTEN.format(construction.call.lineno)
    return Found(rule, argument.node, action, text, construct)


_IN_NEW_CODE = "only FSDP1's constructor used it. What the new code needs of it is written there"


def _spent(context: Context, done: list[Form | Found]) -> Iterator[Found]:
    """The assignments that only the arguments of constructors have read."""
    gone = [node for each in done for node in each.removed]
    written = {name for each in done if isinstance(each, Form) for name in each.names}
    for statement in spent(context, gone, written):
        loses: Collection[str] = ()
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            loses = of_entries(context, statement.value)
        yield removal(context, CONSTRUCTOR, statement, _IN_NEW_CODE, loses)


def decide(construction: Construction) -> Decision:
    """The form of one constructor, whatever others do."""
    context = construction.context
    if construction.kind == SUBCLASS:
        reason = "FSDP2 has no class to derive from (derive from `nn.Module`)"
        return Decision(None, (reason,))
    if construction.unknown:
        name = construction.unknown[0].arg
        reason = f"`{name}` is not an argument of FSDP1 (remove it)"
        return Decision(None, (reason,))
    found = tuple(hits(construction))
    if found and context.form == "auto":
        return Decision(None, tuple(map(str, found)))
    try:
        return Decision(form_of(construction), hits=found)
    except (AtRunTime, Refused) as reason:
        if context.form == "torch":
            return Decision(None, (str(reason),))
        return Decision(by_units(construction, str(reason)), hits=found)


_TAKEN = "this file already uses one of the needed names for something else"


def form_of(construction: Construction) -> Form:
    """The form of a constructor in torch's words.

    Raises:
        AtRunTime: if it has none; the message says why.
    """
    around = _of_wrapped(construction)
    if around is not None:
        return around
    context = construction.context
    call = construction.call
    place = _place(construction)
    code = _code(construction, place)
    kept = still_read(construction, code.text)
    if any(isinstance(node, ast.Attribute) or context.references[node] == CLASS for node in kept):
        raise AtRunTime(
            "an argument refers to FSDP1's class, or to one of its names by the full path"
        )
    gathered = ""
    if not construction.like_fsdp1:
        gathered = root.keep_sharded(construction, code)
    needs = (*imports_of(construction), *code.imports)
    removed = tuple(taken_away(construction, kept, code.names))
    if construction.kind == UNITS:
        removed += from_units.removed(context, call)
    if construction.kind == ENABLE_WRAP and (calls := wrap_calls.calls_in(construction)):
        removed += (call.func, *[each.func for each in calls])
    if place is not None:
        message = "Replaced by `fully_shard`, which shards the model in place: it is still the same object."
        if code.loop:
            message = (
                "Replaced by calls of `fully_shard` for each module that FSDP1 would have wrapped, children first, and "
                "for the model last. The model is still the same object."
            )
        edits = lambda: _in_place(construction, code, place)  # noqa: E731
    elif context.form == "torch" and _is_expression(code):
        if construction.kind == PARTIAL:
            removed = removed[1:]
        message = "Replaced by `fully_shard`, which shards the model in place and returns it."
        edits = lambda: functions.in_expression(construction, code)  # noqa: E731
    else:
        functions.check_captures(construction)
        name = functions.name_of_function(construction)
        message = f"Replaced by `{name}`, a new function in this file, which shards the model in place with `fully_shard`."
        edits = lambda: functions.in_function(construction, code, name)  # noqa: E731
    read = code.said, code.names, code.text
    message += code.drawn
    return Form(message, edits, needs, removed, *read, in_words=True, gathered=gathered)


def _code(construction: Construction, place: layout.Place | None) -> Code:
    """The code that shards the model; raises AtRunTime where the file uses a name that it needs for something else."""
    context = construction.context
    call = construction.call
    if not are_free(context, call):
        raise AtRunTime(_TAKEN)
    if place is not None:
        model = place.model
    else:
        model = _parameter(construction)
    code = in_torchs_words(construction, model)
    if not all(is_free(context, call, need) for need in code.imports if need.name):
        raise AtRunTime(_TAKEN)
    return code


def _in_place(construction: Construction, code: Code, place: layout.Place) -> list[Edit]:
    """The edits that put calls of `fully_shard` in a constructor's place."""
    edits = layout.in_place(construction, code, place)
    if construction.kind == UNITS:
        edits += from_units.without_remark(construction.context, place.statement)
    return edits


def _of_wrapped(construction: Construction) -> Form | None:
    """The form of a call of `wrap`, or of a constructor around a wrapper; None for any other."""
    if construction.kind == WRAP:
        return _wrap(construction)
    inner = double.wrapped_by(construction)
    if inner is None:
        return None
    is_inside = isinstance(construction.module, ast.Call)
    if not is_inside or _place(inner) is not None:
        return double.form_of(construction)
    return None


def _place(construction: Construction) -> layout.Place | None:
    """Where the statements of a constructor go; None where it becomes a function, or part of an expression.

    Raises:
        AtRunTime: if nothing can stand there.
    """
    context = construction.context
    call = construction.call
    if construction.kind == UNITS:
        place = from_units.place_of(context, call)
        if not construction.is_written_out:
            raise AtRunTime(
                "the call unpacks arguments (`**kwargs`) whose values this file does not show"
            )
        if place is None:
            raise AtRunTime("it is not the loop that fsdp-migrate writes")
        return place
    if construction.kind == DIRECT and construction.module is None:
        raise AtRunTime("the call does not show which argument is the model")
    is_direct = construction.kind == DIRECT and not has_another(context, call)
    if is_direct and not _has_own_edits(construction):
        return layout.place_of(construction)
    return None


def _has_own_edits(construction: Construction) -> bool:
    """Whether another rule rewrites something in the model's expression, which leaves no room for an edit of the statement."""
    module = construction.module
    if module is None:
        return False
    attributes = ast.walk(module)
    return any(
        isinstance(node, ast.Attribute) and is_replaced(construction.context, node)
        for node in attributes
    )


def _parameter(construction: Construction) -> str:
    """The parameter of a function that shards, of a name that no argument reads."""
    values = [each.value for each in construction.arguments if each.name != "module"]
    read = {node.id for value in values for node in ast.walk(value) if isinstance(node, ast.Name)}
    return next(name for name in ("model", "root", "network") if name not in read)


def _wrap(construction: Construction) -> Form:
    context = construction.context
    if context.form == "torch" and _stay_as_given(context):
        raise AtRunTime("the `enable_wrap` that it uses is not rewritten")
    return wrap_calls.form_of(construction)


def _stay_as_given(context: Context) -> bool:
    """Whether a file's calls of `enable_wrap` all stay, so that `wrap` makes FSDP1's units."""
    around = [each for each in constructions(context) if each.kind == ENABLE_WRAP]
    return bool(around) and all(decide(each).form is None for each in around)


def _is_expression(code: Code) -> bool:
    """Whether the code is one call, and does not take several statements."""
    try:
        return code.call is not None
    except AtRunTime:
        return False
