"""What each constructor becomes, and what is reported of it and of its arguments.

It is in torch's words where the file shows every value, a loop over `units` or a function elsewhere.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.codemods.constructor import assumptions, layout, precision, rows
from fsdp_migrate.codemods.constructor.construction import (
    CONSTRUCTOR,
    DIRECT,
    ENABLE_WRAP,
    FORMER_NAMES,
    SUBCLASS,
    UNKNOWN,
    UNPACKED,
    WRAP,
    AtRunTime,
    Construction,
    constructions,
)
from fsdp_migrate.codemods.constructor.layout import Code
from fsdp_migrate.codemods.constructor.rows import ROWS, in_torchs_words
from fsdp_migrate.codemods.constructor.silent import Hit, hits
from fsdp_migrate.codemods.context import Context, shortened
from fsdp_migrate.codemods.dictionaries import Argument
from fsdp_migrate.codemods.edit.text import comments
from fsdp_migrate.codemods.imports import removal, spent
from fsdp_migrate.codemods.rule import Edit, Found, Import
from fsdp_migrate.codemods.swap import RULE as IMPORT
from fsdp_migrate.codemods.swap import written_out
from fsdp_migrate.codemods.uses.methods import is_replaced
from fsdp_migrate.facts.file import root_of, values_given
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.findings import Action

RULES = (CONSTRUCTOR, UNPACKED, UNKNOWN, *rows.RULES, *assumptions.RULES)

_BUILTINS = ("reversed", "list", "isinstance", "dict")
_META = rb"""'meta'|"meta"|init_empty_weights|deferred_init|init_on_device|skip_init"""
# What makes a model there: no key of a dictionary, no part of a path, no test for it.
_ON_META = re.compile(
    rb"""(?<![=!]= torch\.)device\(\s*["']meta|(?<![=!<>])=\s*["']meta|\bto(?:_empty)?\(\s*["']meta"""
    rb"""|["']meta["']\s+if\b|\b(?:else|return)\s+["']meta"""
    rb"""|(?:init_empty_weights|deferred_init|init_on_device|skip_init)\("""
)


@dataclass(frozen=True, eq=False)
class Form:
    """A constructor on FSDP2.

    Attributes:
        message: what becomes of the call.
        edits: makes the edits.
        imports: the names that they use.
        removed: code that they take away.
        said: what its arguments become, by name, in torch's words; empty where the runtime reads them.
        names: the names that the new code reads.
    """

    message: str
    edits: Callable[[], Sequence[Edit]]
    imports: tuple[Import, ...]
    removed: tuple[ast.AST, ...]
    said: Mapping[str, str] = field(default_factory=dict)
    names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Decision:
    """What is decided of one constructor: its form, or all that keeps it on the bridge.

    Attributes:
        reasons: what keeps it there, each with the edit that removes it.
        hits: what changes in silence all the same, where the form does not ask for it.
    """

    form: Form | None
    reasons: tuple[str, ...] = ()
    hits: tuple[Hit, ...] = ()


def find(context: Context) -> Iterator[Found]:
    """The constructors of a file, and their arguments."""
    spoken: set[ast.AST] = set()
    forms: list[Form] = []
    for construction in constructions(context):
        decision = Decision(None) if context.form == "bridge" else decide(construction)
        if context.silenced(CONSTRUCTOR, construction.call):
            if context.stays(construction.call.func, IMPORT):
                continue
            decision = Decision(None)
        yield _constructor(construction, decision)
        yield from _arguments(construction, decision.form, spoken)
        if decision.form is not None:
            forms.append(decision.form)
            if context.form == "torch":
                yield from assumptions.of(construction, decision.form.said, decision.hits)
    yield from _spent(context, forms)


def _constructor(construction: Construction, decision: Decision) -> Found:
    call, construct, form = construction.call, construction.kind, decision.form
    if form is not None:
        made = form.edits, form.imports, form.removed
        return Found(CONSTRUCTOR, call, Action.REWRITE, form.message, construct, *made)
    message = "stays on the bridge"
    if decision.reasons:
        count = f"{len(decision.reasons)} places: " if len(decision.reasons) > 1 else ""
        message += f": {count}{'; '.join(decision.reasons)}"
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
        message = f"`{keyword.arg}` is not an argument of FSDP1: the call raises TypeError"
        yield Found(UNKNOWN, keyword, Action.MANUAL, message, f"{keyword.arg}=")
    for keyword in construction.unseen:
        message = "the runtime binds the unpacked arguments when the program runs"
        construct = f"**{shortened(construction.context.source(keyword.value))}"
        yield Found(UNPACKED, keyword.value, Action.RUNTIME, message, construct)


def _argument(construction: Construction, argument: Argument, form: Form | None) -> Found:
    rule, text = ROWS[argument.name].say(construction, argument)
    construct = f"{argument.name}={shortened(construction.context.source(argument.value))}"
    action = Action.MANUAL if rule is precision.LOW_PRECISION_GRADS else Action.RUNTIME
    former = getattr(argument.node, "arg", None)
    if former in FORMER_NAMES:
        text += f"; {former} is its former name, which raises TypeError"
        if form is None and isinstance(argument.node, ast.keyword):
            start, _ = construction.context.file.span(argument.node)
            edit = Edit(start, start + len(str(former)), argument.name)
            return Found(rule, argument.node, Action.REWRITE, text, construct, lambda: [edit])
    if form is not None and argument.name in form.said:
        return Found(rule, argument.node, Action.REWRITE, form.said[argument.name], construct)
    return Found(rule, argument.node, action, text, construct)


def _spent(context: Context, forms: list[Form]) -> Iterator[Found]:
    """The assignments that only the arguments of constructors have read."""
    gone = [node for form in forms for node in form.removed]
    written = {name for form in forms for name in form.names}
    for statement in spent(context, gone, written):
        yield removal(context, CONSTRUCTOR, statement, "only FSDP1's constructor has read it")


def decide(construction: Construction) -> Decision:
    """The form of one constructor, whatever others do."""
    context = construction.context
    if construction.kind == SUBCLASS:
        reason = "a subclass of FSDP1's class has no counterpart: derive from nn.Module"
        return Decision(None, (reason,))
    if construction.unknown:
        name = construction.unknown[0].arg
        return Decision(None, (f"`{name}` is not an argument of FSDP1: remove it",))
    found = tuple(hits(construction))
    if found and context.form == "auto":
        return Decision(None, tuple(map(str, found)))
    return Decision(form_of(construction), hits=found)


def form_of(construction: Construction) -> Form:
    """The form of a constructor that leaves the bridge."""
    context = construction.context
    direct = construction.kind == DIRECT and not _has_another(context, construction.call)
    place = layout.place_of(construction) if direct else None
    if place is None or not _are_free(context, construction.call):
        return _by_function(construction)
    try:
        code = _in_torchs_words(construction)
    except AtRunTime as reason:
        return _by_units(construction, place, str(reason))
    message = "becomes fully_shard(...): the model is sharded in place and stays the same object"
    if code.units:
        message = "becomes fully_shard(...) on every unit, children before parents, the model last"
    return Form(
        message,
        lambda: layout.in_torchs_words(construction, code, place),
        (*_imports(construction), *code.imports),
        tuple(_given(construction)),
        code.said,
        code.names,
    )


def _has_another(context: Context, call: ast.Call) -> bool:
    """Whether FSDP1's class is named inside of a call, too: as in `FSDP(Net(FSDP(part)))`."""
    inside = (node for node in ast.walk(call) if node is not call.func)
    return any(isinstance(n, ast.expr) and context.references.get(n) == CLASS for n in inside)


def _in_torchs_words(construction: Construction) -> Code:
    """The arguments in torch's words; raises AtRunTime where `units` has to read them."""
    context, call = construction.context, construction.call
    tree, paths = context.program.tree, context.program.reach.of(context.file.path)
    if any(_ON_META.search(tree.data(path)) for path in tree.having(_META).intersection(paths)):
        raise AtRunTime("the model may be on the meta device")
    if comments(context.source(call)):
        raise AtRunTime("comments stand at them")
    code = in_torchs_words(construction)
    if not all(_is_free(context, call, need) for need in code.imports):
        raise AtRunTime("a name is taken")
    return code


def _by_units(construction: Construction, place: layout.Place, reason: str) -> Form:
    need = _runtime("units", construction)
    inside = {*ast.walk(construction.call)}
    # Those have an edit of their own, which leaves no room for one of the whole statement.
    attributes = (node for node in inside if isinstance(node, ast.Attribute))
    has_own = any(node in inside for node, _ in written_out(construction.context))
    has_own |= any(is_replaced(construction.context, node) for node in attributes)
    if has_own or not _is_free(construction.context, construction.call, need):
        return _by_function(construction)
    return Form(
        "becomes fully_shard(...) on every unit that FSDP1 would make: units(...) reads its arguments"
        f" ({reason})",
        lambda: layout.by_units(construction, place),
        (*_imports(construction), need),
        (construction.call.func,),
    )


def _by_function(construction: Construction) -> Form:
    """A function of the file's own in the place of the class, which shards what it is given."""
    context, call = construction.context, construction.call
    if construction.kind == WRAP:
        message = "wraps by the function that `enable_wrap` is given"
        return Form(message, list, (), ())
    names = [call.func, *values_given(call)]
    cls = next(each for each in names if context.references.get(each) == CLASS)
    shared = context.program.kept.setdefault("functions", {})
    name, first = shared.setdefault(str(context.file.path), (_function_name(context), call))
    top = layout.above_of(context, first)
    needs = (*_imports(construction), _runtime("units", construction))
    root = root_of(cls)
    found = None if root is None else context.file.variable(root)
    if found is None or found.scope is not context.file.scope:  # imported in a function
        needs = tuple(need._replace(at=None) for need in needs)
    # Names that the file uses for something else are imported inside of the function.
    inside = [need for need in needs if not _is_free(context, context.file.tree, need)]

    def edits() -> list[Edit]:
        code = layout.function(construction, name, inside)
        defined = [layout.defined_above(context, top, code)] if first is call else []
        return [*defined, context.rename(cls, name)]

    what = "its units are made" if construction.kind == ENABLE_WRAP else "the model is sharded"
    return Form(
        f"becomes {name}(...), a function above: {what} in place by fully_shard",
        edits,
        tuple(need for need in needs if need not in inside),
        (cls,),
    )


def _function_name(context: Context) -> str:
    """A name that is free wherever the file names the class."""
    name = "shard"
    for reference, meaning in context.references.items():
        name = context.free(name, reference) if meaning == CLASS else name
    return name


def _imports(construction: Construction) -> tuple[Import, ...]:
    needs = (Import(TORCH, "fully_shard", construction.call.func),)
    return (*needs, _runtime("like_fsdp1", construction)) if construction.like_fsdp1 else needs


def _runtime(name: str, construction: Construction) -> Import:
    return Import(RUNTIME, name, construction.call.func)


def _given(construction: Construction) -> list[ast.AST]:
    """The code of a call that goes with it: all but the model."""
    given = [each for each in values_given(construction.call) if each is not construction.module]
    return [construction.call.func, *given]


def _are_free(context: Context, at: ast.AST) -> bool:
    """Whether the names of the code mean at a place what they mean to it."""
    scope = context.file.scope_of(at)
    needs = (Import(TORCH, "fully_shard"), Import(RUNTIME, "like_fsdp1"))
    are_free = all(_is_free(context, at, need) for need in needs)
    return are_free and not any(map(scope.lookup, _BUILTINS))


def _is_free(context: Context, at: ast.AST, need: Import) -> bool:
    return context.means(need.name, at, f"{need.module}.{need.name}")
