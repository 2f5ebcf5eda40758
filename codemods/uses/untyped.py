"""State dicts of models that no type is set for: FSDP1's were whole."""

import ast
import re
from collections.abc import Iterable, Iterator

from fsdp_migrate.codemods.constructor.mixed import are_mixed
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.codemods.uses.contexts import OF_MODELS, setting
from fsdp_migrate.codemods.uses.guards import always_shards, is_sharded
from fsdp_migrate.codemods.uses.options import MODULE, Setting, Untranslatable, is_typed
from fsdp_migrate.codemods.uses.use import Use, imports, local_names, written
from fsdp_migrate.facts.file import File, last_name, words_in
from fsdp_migrate.facts.names import OPTIMIZER_STATES
from fsdp_migrate.facts.nodes import all_are, any_is
from fsdp_migrate.facts.parts import has_sharded_part
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned
from fsdp_migrate.facts.unreached import is_for_others
from fsdp_migrate.findings import Action, Severity

_FUNCTIONS = ("StateDictOptions", "get_model_state_dict")
_WHOLE = "options=StateDictOptions(full_state_dict=True)"
_SAVED = "Replaced by `get_model_state_dict`: every rank gets whole tensors, as under FSDP1."
_OFFLOADED = " With CPU offloading it raises if the model has buffers: those are on the device."
_MOST_NAMES = 200
_READS = re.compile(r"(?:\w+_)?load(?:_file|_checkpoint)?")
# By these a module writes other names or values than those of its parameters and buffers.
OWN_NAMES = (
    rb"_state_dict_hook|_state_dict_post_hook|def (?:_save_to_)?state_dict\b|def get_extra_state\b"
    rb"|torch\.compile\((?<![@\w]torch\.compile\()"
)


def untyped(context: Context) -> Iterator[tuple[ast.Attribute, bool]]:
    """`model.state_dict()` and `model.load_state_dict(state)` where no type is set, and whether torch's function takes their
    place; none where a type may be set elsewhere."""
    program = context.program
    typed = set[ast.AST]()
    for path in program.reach.of(context.file.path):
        functions = program.once(_typed_elsewhere, path)
        if functions is None:
            return
        typed |= functions
    for name in OF_MODELS:
        for use in context.file.attributes.get(name, ()):
            if is_typed(context.file, use) or not typed.isdisjoint(context.file.ancestors(use)):
                continue
            if _has_shards(context, use.value):
                yield use, _is_saved(context, use) or _load(context, use) is not None


def _has_shards(context: Context, model: ast.expr) -> bool:
    """Whether a model is sharded, or a part of it; also where it was compiled, `model._orig_mod`."""
    if isinstance(model, ast.Attribute) and model.attr == "_orig_mod":
        return _has_shards(context, model.value)
    return context.can_be_model(model) or has_sharded_part(context.program, model, context.file)


def _typed_elsewhere(program: Program, path: str) -> frozenset[ast.AST] | None:
    """The functions that may run where a file has set a type; None where that may be anywhere."""
    file = None
    if program.mentions(path):
        file = program.load(path)
    if file is None or "state_dict_type" not in file.text:
        return frozenset()
    if "set_state_dict_type" in words_in(file.tree):
        return None
    asked = [a for name in (*OF_MODELS, *OPTIMIZER_STATES) for a in file.attributes.get(name, ())]
    around = {each for attribute in asked for each in file.ancestors(attribute)}
    contexts = {*map(file.statement, file.attributes.get("state_dict_type", ()))} - around
    inside = [node for each in contexts for node in ast.walk(each)]
    if not all_are(contexts, ast.With) or any_is(inside, ast.Yield):
        return None
    return _called_by(program, inside)


def _called_by(program: Program, nodes: Iterable[ast.AST]) -> frozenset[ast.AST] | None:
    """The functions and classes of the run that code may call, by their names; None where that are too many to look at."""
    pending = _names_called(nodes)
    seen = set[str]()
    found = set[ast.AST]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if len(seen) > _MOST_NAMES:
            return None
        for path in program.tree.having(rf"\b(?:def|class) {name}\b".encode()):
            file = program.load(path)
            if file is None:
                return None
            made: list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = [
                *file.of(ast.FunctionDef),
                *file.of(ast.AsyncFunctionDef),
                *file.of(ast.ClassDef),
            ]
            for each in made:
                if each.name == name:
                    found.add(each)
                    pending |= _names_called(ast.walk(each))
    return frozenset(found)


def _names_called(nodes: Iterable[ast.AST]) -> set[str]:
    return {last_name(node.func) for node in nodes if isinstance(node, ast.Call)} - {""}


def _is_saved(context: Context, attribute: ast.Attribute) -> bool:
    """Whether a whole state dict goes to `torch.save` at once: torch's function shares buffers, and FSDP1's are copies."""
    file = context.file
    program = context.program
    call = context.call_of(attribute)
    statement = file.statement(attribute)
    if attribute.attr != "state_dict" or call is None or call.args + call.keywords:
        return False
    holder = _holder(file, call)
    uses = list[ast.expr]([call])
    if isinstance(holder, ast.Assign) and isinstance(holder.targets[0], ast.Name):
        uses = [*file.reads(holder.targets[0])]
    block = file.block(statement)
    near = {*block[block.index(statement) :][:2]}
    return (
        bool(uses)
        and all("torch.save" in _called(context, _holder(file, use)) for use in uses)
        and all(near & {*file.ancestors(use)} for use in uses)
        and not is_for_others(file, call)
        and not program.has(r"DistributedDataParallel|\bDDP\b")
        and not program.once(are_mixed)
        and not program.tree.having(OWN_NAMES)
        and all(context.means(each, attribute, f"{MODULE}.{each}") for each in _FUNCTIONS)
    )


def _holder(file: File, node: ast.AST) -> ast.AST:
    """What is given an expression, or a dictionary or list with it."""
    holder = file.parents[node]
    if isinstance(holder, ast.Dict | ast.List | ast.Tuple):
        return _holder(file, holder)
    return holder


def _called(context: Context, node: ast.AST) -> frozenset[str]:
    if isinstance(node, ast.Call):
        return context.dotted(node.func)
    return frozenset()


def uses_without_type(context: Context, rule: Rule) -> Iterator[Found]:
    """The whole state dicts that are saved at once, and those that a model loads under a test for FSDP, in torch's form."""
    if context.form != "torch":
        return
    for attribute, is_replaced in untyped(context):
        load = _load(context, attribute)
        if load is not None:
            yield _loaded(context, rule, load)
        elif is_replaced:
            call = context.file.parents[attribute]
            code = f"get_model_state_dict({context.source(attribute.value)}, {_WHOLE})"
            edit = context.replace(call, code)
            needs = [Import(MODULE, n) for n in _FUNCTIONS]
            edits = lambda edit=edit: [edit]  # noqa: E731
            yield Found(rule, call, Action.REWRITE, _SAVED, edits=edits, imports=tuple(needs))


def _load(context: Context, attribute: ast.Attribute) -> Use | None:
    """`model.load_state_dict(state)` by torch's function, where FSDP certainly shards the model and the state is whole."""
    call = context.call_of(attribute)
    if attribute.attr != "load_state_dict" or call is None or context.form != "torch":
        return None
    sharded = is_sharded(context, attribute, attribute.value)
    if sharded is None:
        sharded = always_shards(context.program) and _is_from_file(context, call)
    if not sharded:
        return None
    try:
        return setting(context, call, Setting())
    except Untranslatable:
        return None


def _is_from_file(context: Context, call: ast.Call) -> bool:
    """Whether the state that a call loads was read from a file, by a name or at once: `torch.load(path)["model"]`."""
    state = keyword(call, "state_dict", 0)
    if state is None:
        return False
    held = _holding(state)
    if not isinstance(held, ast.Name):
        return _reads_file(held)
    bindings = context.file.bindings(held)
    return bool(bindings) and all(
        isinstance(each, Assigned) and _reads_file(_holding(each.value)) for each in bindings
    )


def _holding(state: ast.expr) -> ast.expr:
    """What holds a state: `saved` of `saved["model"]` and `saved.get("model")`."""
    match state:
        case ast.Subscript(value=held) | ast.Call(func=ast.Attribute(value=held, attr="get")):
            return _holding(held)
    return state


def _reads_file(made: ast.expr) -> bool:
    return isinstance(made, ast.Call) and _READS.fullmatch(last_name(made.func)) is not None


def _loaded(context: Context, rule: Rule, use: Use) -> Found:
    names = local_names(context, [use], use.node)
    action = Action.REWRITE
    message = use.message
    if context.program.once(are_mixed):
        action = Action.MANUAL
        message += _OFFLOADED
    return Found(
        rule,
        use.node,
        action,
        message,
        edits=lambda: written(context, use.named(names)),
        imports=imports([use], names, use.node),
        severity=Severity.RAISES,
    )
