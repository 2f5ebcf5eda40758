"""`with FSDP.state_dict_type(model, ...)` as functions of torch's, which take the type as an option.

The block moves one step out; in it every use of a state dict of the model becomes a function: `model.state_dict()`,
`model.load_state_dict(state)`, and FSDP1's functions for optimizers.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.uses import optimizer_states, read_shards
from fsdp_migrate.codemods.uses.given_states import is_new
from fsdp_migrate.codemods.uses.options import Setting, Untranslatable, settings
from fsdp_migrate.codemods.uses.side_by_side import ON_EACH_DEVICE, is_side_by_side, options_to_get
from fsdp_migrate.codemods.uses.use import Use
from fsdp_migrate.facts.models import INNER
from fsdp_migrate.facts.names import CLASS, OPTIMIZER_STATES

# The methods of a model whose result a type decides.
OF_MODELS = ("state_dict", "load_state_dict")
_NOT_HERE = (
    "This sets a type for state dicts that other code creates, but FSDP2 has no such types. In that code, replace "
    "`model.state_dict()` by `get_model_state_dict(model, options=StateDictOptions(...))` of "
    "`torch.distributed.checkpoint.state_dict`."
)


@dataclass
class Block:
    """A `with` statement whose type torch's functions take as an option, or that needs no type.

    Attributes:
        statement, call: the statement, and its call of `state_dict_type`.
        uses: what asks for state dicts in it; nothing where none of them depends on the type.
        own: the setting for the model; None where nothing depends on it.
    """

    statement: ast.With
    call: ast.Call
    uses: list[Use]
    own: Setting | None = None

    @property
    def spent(self) -> tuple[ast.AST, ...]:
        """FSDP1's code that nothing needs any more."""
        if self.own is not None:
            known = self.own.spent
        else:
            known = (self.call,)
        return (*known, *[function for use in self.uses for function in use.called])


def read(context: Context, call: ast.Call) -> Block:
    """The block of a context that is translated.

    In the default form only where torch's functions give just what FSDP1 did: whole tensors on the CPU of rank 0, and shards
    where FSDP1's were flat, which the model does not answer.

    Raises:
        Untranslatable: if it cannot be; the message says what to write.
    """
    statement = context.file.statement(call)
    if not isinstance(statement, ast.With) or not _is_manager(statement, call):
        raise Untranslatable(_NOT_HERE)
    model = keyword(call, "module", 0)
    if model is None:
        raise Untranslatable(_NOT_HERE)
    if _is_around_others(context, statement, model):
        return Block(statement, call, [])
    own, optimizers = settings(context, call)
    uses = list(_uses(context, call, model, own, optimizers))
    if not uses and (context.form != "torch" or own.to_get(for_rank_0=False, side_by_side=False)):
        raise Untranslatable(_NOT_HERE)
    if context.form == "auto" and not own.is_local:
        if not all(use.is_on_rank_0 for use in uses):
            raise Untranslatable("The model's own methods return what FSDP1's did.")
    return Block(statement, call, uses, own)


def _is_manager(statement: ast.With, call: ast.Call) -> bool:
    return any(i.context_expr is call and i.optional_vars is None for i in statement.items)


def _uses(
    context: Context, call: ast.Call, model: ast.expr, own: Setting, optimizers: Setting
) -> Iterator[Use]:
    """What asks for state dicts in the block of a context."""
    statement = context.file.statement(call)
    assert isinstance(statement, ast.With)
    inside = [node for part in statement.body for node in ast.walk(part)]
    replaced = set[ast.AST]()
    for call_inside in filter(read_shards.is_call, inside):
        use = read_shards.reading(context, call_inside)
        if use is not None and context.form == "torch":
            replaced.update(ast.walk(call_inside))
            yield use
    for node in inside:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if node in replaced:
            continue
        if _is_of_another_context(context, node, call, model):
            continue
        is_method = node.attr in OF_MODELS and is_of(context, node.value, model)
        if is_method or (node.attr in OPTIMIZER_STATES and context.fsdp1(node.value) == CLASS):
            yield use_of(context, node, own, optimizers)


def use_of(context: Context, node: ast.Attribute, own: Setting, optimizers: Setting) -> Use:
    """What a state dict of a model, or FSDP1's function for an optimizer, becomes under a type.

    Raises:
        Untranslatable: if torch has no function that does the same.
    """
    if node.attr in OPTIMIZER_STATES:
        use = optimizer_states.getting(context, node, optimizers)
        use = use or optimizer_states.loading(context, node, optimizers)
        if use is None:
            raise Untranslatable(optimizer_states.by_hand(node.attr))
        return use
    call = context.call_of(node)
    if call is None:
        raise Untranslatable(_NOT_HERE)
    if node.attr == "state_dict":
        return getting(context, call, own)
    return setting(context, call, own)


def _is_of_another_context(
    context: Context, use: ast.Attribute, own: ast.Call, model: ast.expr
) -> bool:
    """Whether a use is of the model of another context around it."""
    call = context.call_of(use)
    is_method = use.attr in OF_MODELS
    given: ast.expr | None = use.value
    if not is_method and call is not None:
        given = keyword(call, "model", 0)
    if given is None or is_part(given, model):
        return False
    for around in context.file.ancestors(use):
        if not isinstance(around, ast.With):
            continue
        for item in around.items:
            match item.context_expr:
                case ast.Call(func=ast.Attribute(attr="state_dict_type")) as other:
                    theirs = keyword(other, "module", 0)
                    if other is not own and theirs is not None and is_part(given, theirs):
                        return True
    return False


def is_part(expression: ast.expr, model: ast.expr) -> bool:
    """Whether an expression names a model, its wrapped module or a part of it."""
    inner = ast.unparse(without_wrapper(expression))
    named = ast.unparse(without_wrapper(model))
    return inner == named or inner.startswith(f"{named}.")


def without_wrapper(expression: ast.expr) -> ast.expr:
    """The model of `model.module`, and of `model._orig_mod`: torch's functions look into a compiled model themselves."""
    while isinstance(expression, ast.Attribute) and expression.attr in (*INNER, "_orig_mod"):
        expression = expression.value
    return expression


def is_of(context: Context, owner: ast.expr, model: ast.expr) -> bool:
    """Whether an expression is a model, or a part of it."""
    return is_part(owner, model) or context.can_be_model(owner)


def _is_around_others(context: Context, statement: ast.With, model: ast.expr) -> bool:
    """Whether state dicts of optimizers and the like are all that a block asks for, which do not depend on the type."""
    inside = {node for part in statement.body for node in ast.walk(part)}
    names = (*OF_MODELS, *OPTIMIZER_STATES)
    every = [n for name in names for n in context.file.attributes.get(name, ()) if n in inside]
    return bool(every) and not any(
        each.attr in OPTIMIZER_STATES or is_of(context, each.value, model) for each in every
    )


def getting(context: Context, call: ast.Call, how: Setting) -> Use:
    """`model.state_dict()` by torch's function."""
    if call.args or call.keywords:
        raise Untranslatable(
            "An FSDP2 model returns shards. Call `get_model_state_dict`, and apply these arguments to its result."
        )
    assert isinstance(call.func, ast.Attribute)
    options, on_each_device = options_to_get(context, call, how)
    message = "Replaced by `get_model_state_dict`."
    if on_each_device:
        message += ON_EACH_DEVICE
    elif on_device := how.on_device(options):
        message += on_device
    elif "cpu_offload" in options:
        message += " Rank 0 gets whole tensors on the CPU, the other ranks an empty dictionary."
    elif "full_state_dict=True" in options:
        message += " Every rank gets whole tensors."
    parts = {"_model": without_wrapper(call.func.value)}
    return Use(
        call,
        "get_model_state_dict",
        ("_model",),
        parts,
        message,
        options,
        how.config,
        needs_user=on_each_device,
    )


def setting(context: Context, call: ast.Call, how: Setting) -> Use:
    """`model.load_state_dict(state)` by torch's function."""
    assert isinstance(call.func, ast.Attribute)
    state = keyword(call, "state_dict", 0)
    strict = keyword(call, "strict", 1)
    if state is None or keyword(call, "assign", 2) is not None:
        raise Untranslatable(
            "An FSDP2 model loads only shards. Call `set_model_state_dict` instead."
        )
    if how.full != "False" and is_side_by_side(context):
        raise Untranslatable(
            "This loads whole tensors while other ranks load another model. Call `set_model_state_dict` with "
            "`StateDictOptions(full_state_dict=True)`, and check for missing keys: it does not report them."
        )
    strict_code = "True"
    if strict is not None:
        strict_code = ast.unparse(strict)
    options = how.to_set(strict_code)
    state_code = "_state"
    if how.full != "False" and not is_new(context, state):
        state_code = "dict(_state)"
    message = "Replaced by `set_model_state_dict`."
    if how.full == "True":
        message += " It sends rank 0's tensors to the other ranks, and a missing key is an error, as before."
    elif how.full != "False":
        message += " For whole tensors it sends rank 0's to the other ranks; shards are loaded by each rank."
    parts = {"_model": without_wrapper(call.func.value), "_state": state}
    return Use(call, "set_model_state_dict", ("_model", state_code), parts, message, options)
