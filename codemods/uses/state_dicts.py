"""The type of a model's state dict: `with FSDP.state_dict_type(model, ...)` and `FSDP.set_state_dict_type(model, ...)`.

A context becomes torch's functions, which take the type as an option. The runtime serves every type but LOCAL_STATE_DICT, of a
model in any form.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.codemods.uses import optimizer_states, read_shards, set_types
from fsdp_migrate.codemods.uses.blocks import rewritten, shared_options, together
from fsdp_migrate.codemods.uses.contexts import OF_MODELS, Block, read
from fsdp_migrate.codemods.uses.options import Setting, Untranslatable, is_local, is_typed
from fsdp_migrate.codemods.uses.untyped import OWN_NAMES, uses_without_type
from fsdp_migrate.codemods.uses.use import Use, imports, local_names, written
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity

CONTEXT = Rule("FSDP331", "state-dict-context", Severity.RAISES)
SET_TYPE = Rule("FSDP332", "set-state-dict-type", Severity.RAISES)
LOCAL = Rule("FSDP334", "local-state-dict", Severity.RAISES)
OPTIMIZER = Rule("FSDP335", "optimizer-state-dict", Severity.RAISES)

# Groups of ranks in which another rank than the first of all may be rank 0.
_GROUPS = (
    r"HYBRID|ShardingStrategy\s*[\[(]|getattr\(\s*ShardingStrategy"
    r"|\b(?:process_group|device_mesh|mesh)[\"']?\s*[:=](?!\s*None\b)"
)
_TYPED = ("state_dict_type", "set_state_dict_type")
_OLD_FILES = (
    "FSDP1's LOCAL_STATE_DICT files hold flat shards, which FSDP2 cannot load: load old files once with the original "
    "program, on as many ranks as wrote them, and save them as `FULL_STATE_DICT`. New files hold each rank's shards as "
    "DTensors; those of `torch.save` load only on as many ranks as wrote them."
)
_GETS_TYPE = "Still works: `fsdp_migrate.runtime` returns what FSDP1 returned."
_GETS_NO_TYPE = (
    "FSDP2 has no types of state dicts, so this returns nothing useful. "
    "Remove this call, and use `StateDictOptions` where the result was used."
)
# What the runtime's functions for optimizers do; the others return what `optimizer.load_state_dict` takes.
_OF_OPTIMIZERS = {
    "optim_state_dict": "Still works: `fsdp_migrate.runtime` uses the current type of state dict.",
    "rekey_optim_state_dict": "Still works: `fsdp_migrate.runtime` converts between parameter names and numbers.",
    "full_optim_state_dict": "Still works: `fsdp_migrate.runtime` returns to each rank what FSDP1 returned.",
    "sharded_optim_state_dict": "Still works: `fsdp_migrate.runtime` returns to each rank what FSDP1 returned.",
}


@codemod(words=("state_dict", "STATE_DICT"))
def find(context: Context) -> Iterator[Found]:
    """Every use of FSDP1's types of state dicts, and of its functions for optimizers."""
    blocks, others = _contexts(context)
    groups = together(blocks, context.file)
    for group in groups:
        yield from rewritten(context, group, CONTEXT)
    for block in blocks:
        if block.own is not None and block.own.is_local:
            yield Found(LOCAL, block.call, Action.MANUAL, _OLD_FILES)
    yield from others
    inside = {node for block in blocks for region in block.spent for node in ast.walk(region)}
    for_good, gone = _set_types(context)
    yield from for_good
    for attribute, _ in _calls(context, "get_state_dict_type"):
        if context.form == "torch":
            yield Found(SET_TYPE, attribute, Action.MANUAL, _GETS_NO_TYPE)
        else:
            yield Found(SET_TYPE, attribute, Action.RUNTIME, _GETS_TYPE)
    yield from _local_types(context)
    yield from _of_optimizers(context, inside | gone, shared_options(context, groups))
    yield from _shards_read(context, inside | gone)
    yield from uses_without_type(context, CONTEXT)


def _contexts(context: Context) -> tuple[list[Block], list[Found]]:
    """The contexts that become functions, and what is said of the others."""
    blocks: list[Block] = []
    others: dict[ast.Call, Found] = {}
    for _, call in _calls(context, "state_dict_type"):
        try:
            blocks.append(_block(context, call))
        except Untranslatable as reason:
            others[call] = _left(context, call, reason)
    if context.form == "auto":
        # In one function all or none, so that nobody reads two ways to save side by side.
        functions = {context.file.function(call) for call in others}
        for block in [each for each in blocks if not _is_local(context, each.call)]:
            if context.file.function(block.call) in functions:
                blocks.remove(block)
                others[block.call] = _as_it_is(block.call)
    return blocks, list(others.values())


def _block(context: Context, call: ast.Call) -> Block:
    """The block of a context that becomes functions.

    Raises:
        Untranslatable: for one that stays.
    """
    if context.form == "bridge":
        raise Untranslatable("The bridge has types.")
    if context.form == "auto" and not (_is_local(context, call) or _is_safe_in_auto(context)):
        raise Untranslatable("The model's own methods return what FSDP1's did.")
    return read(context, call)


def _left(context: Context, call: ast.Call, reason: Untranslatable) -> Found:
    """What is said of a context that stays."""
    if context.form == "torch":
        return Found(CONTEXT, call, Action.MANUAL, str(reason))
    if _is_local(context, call) and not _is_around_others(context, call):
        return _raises(call)
    return _as_it_is(call)


def _as_it_is(call: ast.Call) -> Found:
    return Found(
        CONTEXT,
        call,
        Action.RUNTIME,
        "Now calls `fsdp_migrate.runtime`'s `state_dict_type`: in this block `model.state_dict()` still returns the type "
        "that is asked for.",
    )


def _is_safe_in_auto(context: Context) -> bool:
    """Whether torch's functions give what FSDP1 did, whatever the program does with it."""
    return context.program.once(_is_known_to_torch)


def _set_types(context: Context) -> tuple[list[Found], set[ast.AST]]:
    """What is said of `FSDP.set_state_dict_type(model, ...)`, and the code that goes with it."""
    found: list[Found] = []
    gone: set[ast.AST] = set()
    for attribute, call in _calls(context, "set_state_dict_type"):
        is_flat = _is_local(context, call) and not _are_all_in_contexts(context)
        if is_flat and context.form != "torch":
            found.append(_raises(call))
        elif context.form == "torch":
            own = list(set_types.without(context, SET_TYPE, attribute, call))
            found += own
            for part in [part for each in own for part in each.removed]:
                gone.update(ast.walk(part))
            if is_flat and own[0].edits is not None:
                found.append(Found(LOCAL, call, Action.MANUAL, _OLD_FILES))
        else:
            message = (
                "Now calls `fsdp_migrate.runtime`'s `set_state_dict_type`: later calls of `model.state_dict()` still return "
                "the type that is set."
            )
            found.append(Found(SET_TYPE, attribute, Action.RUNTIME, message))
    return found, gone


def _calls(context: Context, name: str) -> Iterator[tuple[ast.Attribute, ast.Call]]:
    """The calls of a static method, by FSDP1's class or by a model."""
    for attribute in context.file.attributes.get(name, ()):
        call = context.call_of(attribute)
        if call is not None:
            if context.fsdp1(attribute.value) == CLASS or _is_of_model(context, attribute, call):
                yield attribute, call


def _is_of_model(context: Context, attribute: ast.Attribute, call: ast.Call) -> bool:
    given = keyword(call, "state_dict_type", 1)
    if given is None:
        member = None
    else:
        member = context.member(given)
    return context.can_be_model(attribute.value) or (member or ("",))[0] == "StateDictType"


def _is_local(context: Context, call: ast.Call) -> bool:
    """Whether a call gives LOCAL_STATE_DICT."""
    return is_local(context, keyword(call, "state_dict_type", 1))


def _is_around_others(context: Context, call: ast.Call) -> bool:
    """Whether a context is around state dicts of optimizers and the like alone, which do not depend on the type."""
    inside = {*ast.walk(context.file.statement(call))}
    owners = [n.value for n in context.file.attributes.get("state_dict", ()) if n in inside]
    model = keyword(call, "module", 0)
    named = model and ast.unparse(model)
    return bool(owners) and not any(
        context.can_be_model(each) or ast.unparse(each) == named for each in owners
    )


def _is_known_to_torch(program: Program) -> bool:
    """Whether rank 0 of each model is rank 0 of all, and modules save parameters and buffers alone, by the texts of the run."""
    models = models_of(program)
    calls = [call for file in program.files for call in models.constructors(file)]
    if program.has(_GROUPS) or any(map(_has_group_by_position, calls)):
        return False
    return not program.tree.having(OWN_NAMES)


def _has_group_by_position(call: ast.Call) -> bool:
    """Return whether a constructor's second argument, the process group, is anything but `None`."""
    match call.args:
        case [_, ast.Constant(value=None), *_]:
            return False
    return len(call.args) > 1


def _raises(node: ast.AST) -> Found:
    """The finding where LOCAL_STATE_DICT is asked for."""
    message = (
        "This raises for LOCAL_STATE_DICT, because FSDP2 has no flat parameters. Use FULL_STATE_DICT or "
        "SHARDED_STATE_DICT: load old files once with FSDP1 on the same number of ranks, and save them as one of these."
    )
    return Found(LOCAL, node, Action.MANUAL, message)


def _are_all_in_contexts(context: Context) -> bool:
    """Whether each state dict of a file's model is asked for in a context of a type: one set for good applies to none."""
    reached = {*context.program.reach.of(context.file.path)}
    asked = [
        is_typed(file, attribute)
        for file in context.program.files
        if str(file.path) in reached
        for name in (*OF_MODELS, *OPTIMIZER_STATES)
        for attribute in file.attributes.get(name, ())
        if name in OPTIMIZER_STATES or context.models.can_hold(attribute.value, file)
    ]
    return bool(asked) and all(asked)


def _local_types(context: Context) -> Iterator[Found]:
    """LOCAL_STATE_DICT as a default, or as the value of a name or an argument: a context far away will ask for it."""
    for member in context.file.attributes.get("LOCAL_STATE_DICT", ()):
        place = context.file.parents[member]
        call = context.file.parents[place]
        is_asked = isinstance(call, ast.Call) and last_name(call.func) in _TYPED
        if context.fsdp1(member.value) == "StateDictType" and not is_asked:
            if isinstance(place, ast.Assign | ast.AnnAssign | ast.arguments | ast.keyword):
                if context.form == "torch":
                    yield Found(LOCAL, member, Action.MANUAL, _OLD_FILES)
                else:
                    yield _raises(member)


def _of_optimizers(
    context: Context, inside: Collection[ast.AST], shared: Mapping[str, tuple[str, ast.stmt]]
) -> Iterator[Found]:
    """FSDP1's functions for optimizer states, by the class or by a model, but for those in contexts that go.

    Args:
        shared: the options that have a name in the whole file.
    """
    otherwise = (
        "Still works: `fsdp_migrate.runtime` returns what `optimizer.load_state_dict` accepts."
    )
    for name in OPTIMIZER_STATES:
        for attribute in context.file.attributes.get(name, ()):
            owner = attribute.value
            is_class = context.fsdp1(owner) == CLASS
            if attribute in inside or not (is_class or context.can_be_model(owner)):
                continue
            if context.form == "torch":
                yield from _of_optimizer(context, attribute, shared)
            else:
                message = _OF_OPTIMIZERS.get(name, otherwise)
                yield Found(OPTIMIZER, attribute, Action.RUNTIME, message)


def _shards_read(context: Context, inside: Collection[ast.AST]) -> Iterator[Found]:
    """What reads shards of states for FSDP1 outside of a context, in torch's form."""
    for call in context.file.calls.get(read_shards.FUNCTION, ()):
        use = None
        if context.form == "torch" and call.func not in inside:
            use = read_shards.reading(context, call)
        if use is not None:
            yield _one(context, use, call)


def _of_optimizer(
    context: Context, attribute: ast.Attribute, shared: Mapping[str, tuple[str, ast.stmt]]
) -> Iterator[Found]:
    """A function for optimizer states where no type is set: FSDP1's default is whole ones."""
    how = Setting(offload="True")
    use = optimizer_states.getting(context, attribute, how)
    use = use or optimizer_states.loading(context, attribute, how)
    is_typed_here = is_typed(context.file, attribute) or context.program.has("set_state_dict_type")
    if use is None or is_typed_here:
        message = optimizer_states.by_hand(attribute.attr)
        yield Found(OPTIMIZER, attribute, Action.MANUAL, message)
        return
    name, of = shared.get(use.options, ("", None))
    if name and _is_of_file(context, name, attribute):
        yield _one(context, replace(use, options=name), attribute)._replace(of=of)
    else:
        yield _one(context, use, attribute)
    yield from use.behind(OPTIMIZER, attribute)


def _is_of_file(context: Context, name: str, at: ast.AST) -> bool:
    """Whether a name means in a function what it means in the whole file."""
    found = context.file.scope_of(at).lookup(name)
    is_in_function = context.file.function(at) is not None
    return is_in_function and found is not None and found.scope is context.file.scope


def _one(context: Context, use: Use, node: ast.expr) -> Found:
    """The finding of a use by itself."""
    names = local_names(context, [use], node)
    return Found(
        OPTIMIZER,
        node,
        use.action,
        use.message,
        edits=lambda: written(context, use.named(names)),
        imports=imports([use], names, node),
        removed=(node,),
    )
