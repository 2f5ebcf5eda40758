"""`FSDP.set_state_dict_type(model, ...)`, a type for all that follows: torch's functions take it as an option."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.imports import spent
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.codemods.uses.contexts import OF_MODELS, is_part, use_of
from fsdp_migrate.codemods.uses.once import assignment, repeated
from fsdp_migrate.codemods.uses.options import Setting, Untranslatable, is_local, is_typed, settings
from fsdp_migrate.codemods.uses.use import (
    Use,
    imports,
    local_names,
    options_name,
    under,
    with_options,
)
from fsdp_migrate.facts.file import File, values_given
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.findings import Action

_BY_HAND = (
    "FSDP2 has no types of state dicts: `model.state_dict()` always holds shards. Remove this call, and use "
    "`get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))` for whole tensors."
)
_SHARDS = "Removed: state dicts of FSDP2 models always hold shards."
_AS_OPTION = "Removed: torch's functions take the type of state dict as an option."
_ELSEWHERE = f"{_AS_OPTION} Other code that asks for a state dict gets shards now: use `get_model_state_dict` there as well."
_SPENT = "Removed: only the type of state dicts used it."
_LITERAL = {"True", "False"}


def without(
    context: Context, rule: Rule, attribute: ast.Attribute, call: ast.Call
) -> Iterator[Found]:
    """The findings for a type in torch's form, the first one with all edits.

    State dicts that the same function asks for below, or the class of `self.model`, become torch's functions.
    """
    statement = context.file.parents[call]
    model = keyword(call, "module", 0)
    if not isinstance(statement, ast.Expr) or not context.is_alone(statement) or model is None:
        yield Found(rule, attribute, Action.MANUAL, _BY_HAND)
        return
    try:
        own, optimizers = settings(context, call)
        uses = list(_uses(context, statement, model, own, optimizers))
    except Untranslatable:
        own = Setting(full="True")
        if is_local(context, _kind(call)):
            own = Setting(full="False")
        uses = []
    if not uses and own.full != "False":
        yield Found(rule, attribute, Action.MANUAL, _BY_HAND)
        return
    yield from _rewritten(context, rule, call, uses, own)


def _kind(call: ast.Call) -> ast.expr | None:
    return keyword(call, "state_dict_type", 1)


def _rewritten(
    context: Context, rule: Rule, call: ast.Call, uses: list[Use], own: Setting
) -> Iterator[Found]:
    statement = context.file.statement(call)
    names = local_names(context, uses, call)
    needed = (*imports(uses, names, call.func), *own.imports)
    above = ""
    options = repeated(uses)
    if options and all(_is_below(context.file, use.node, statement) for use in uses):
        name = options_name(context, call, under(names, options), uses[0].function)
        above = assignment(context, name, under(names, options), statement)
        uses = with_options(uses, options, name)
    uses = [use.named(names) for use in uses]
    gone = [call, *own.spent]
    gone += [function for use in uses for function in use.called]
    left_over = spent(context, gone)
    action = Action.REWRITE
    message = _SHARDS
    if uses:
        message = _AS_OPTION
    if own.full != "False" and _others_ask(context, {*gone}):
        action = Action.MANUAL
        message = _ELSEWHERE

    def edits() -> list[Edit]:
        made = [context.remove(each) for each in left_over]
        if above:
            made.append(context.replace_statement(statement, above, as_it_is=True))
        else:
            made.append(context.remove_or_pass(statement))
        return made + _written(context, uses)

    yield Found(
        rule, call, action, message, edits=edits, imports=needed, removed=(*gone, *left_over)
    )
    for use in uses:
        source = shortened(context.source(use.node))
        yield Found(rule, use.node, use.action, use.message, source, of=call)
        yield from use.behind(rule, call)
    for each in left_over:
        yield Found(rule, each, Action.REWRITE, _SPENT, shortened(context.source(each)), of=call)


def _written(context: Context, uses: list[Use]) -> list[Edit]:
    """The edits of the statements that uses are in."""
    together: dict[ast.stmt, list[Use]] = {}
    for use in uses:
        together.setdefault(context.file.statement(use.node), []).append(use)
    edits: list[Edit] = []
    for statement, its in together.items():
        changed = context.statement(statement)
        for use in its:
            use.write(context, changed)
        edits += changed.edits()
        edits += [make() for use in its if use.loads is not None for make in use.loads.edits]
    return edits


def _uses(
    context: Context, statement: ast.stmt, model: ast.expr, own: Setting, optimizers: Setting
) -> Iterator[Use]:
    """What asks for state dicts of a model below a type, or in the class whose attribute it is."""
    nodes = list(_asking(context, _below(context, statement, model), model))
    if not nodes and isinstance(model, ast.Attribute) and _is_for_all(own, optimizers):
        around = context.file.enclosing_class(statement)
        if around is not None and len(_types_of(context, around, model)) == 1:
            nodes = list(_asking(context, [around], model))
    are_shards = own.full == own.offload == "False"
    for node in nodes:
        if not are_shards or node.attr not in OF_MODELS:  # the model's own methods are about shards
            yield use_of(context, node, own, optimizers)


def _asking(context: Context, region: list[ast.AST], model: ast.expr) -> Iterator[ast.Attribute]:
    inside = [node for part in region for node in ast.walk(part)]
    for node in inside:
        if not isinstance(node, ast.Attribute) or is_typed(context.file, node):
            continue
        call = context.call_of(node)
        if call is None:
            continue
        owner: ast.expr | None = node.value
        if node.attr in OPTIMIZER_STATES and context.fsdp1(node.value) == CLASS:
            parts = [each for each in values_given(call) if is_part(each, model)]
            owner = next(iter(parts), None)
        elif node.attr not in OF_MODELS:
            continue
        if owner is not None and is_part(owner, model):
            yield node


def _below(context: Context, statement: ast.stmt, model: ast.expr) -> list[ast.AST]:
    """The statements below a type, up to the next one of the model.

    Raises:
        Untranslatable: if a branch among them sets another type.
    """
    block = context.file.block(statement)
    region: list[ast.AST] = []
    for each in block[block.index(statement) + 1 :]:
        types = _types_of(context, each, model)
        if types and context.file.parents[types[0]] is each:
            break
        if types:
            raise Untranslatable("Another type is set below, in a branch.")
        region.append(each)
    return region


def _types_of(context: Context, region: ast.AST, model: ast.expr) -> list[ast.Call]:
    """The calls in a part of the file that set a type for a model."""
    found = []
    for node in ast.walk(region):
        match node:
            case ast.Call(ast.Attribute(_, "set_state_dict_type")):
                theirs = keyword(node, "module", 0)
                if theirs is not None and is_part(theirs, model):
                    found.append(node)
    return found


def _is_for_all(*those: Setting) -> bool:
    """Whether settings read no names, so that they mean the same in every method."""
    return all({each.full, each.offload, each.rank_0} <= _LITERAL for each in those)


def _is_below(file: File, node: ast.AST, statement: ast.stmt) -> bool:
    """Whether code is in the block of a statement, below it."""
    block = file.block(statement)
    below = {*block[block.index(statement) :]}
    return not below.isdisjoint([node, *file.ancestors(node)])


def _others_ask(context: Context, gone: set[ast.AST]) -> bool:
    """Whether other code of the program asks a model for its state dict, where no context sets a type."""
    for file in context.program.files:
        for name in OF_MODELS:
            for use in file.attributes.get(name, ()):
                if use not in gone and not is_typed(file, use):
                    if context.models.can_hold(use.value, file):
                        return True
    return False
