"""`torch.nn.utils.clip_grad_norm_` on an FSDP1 model: it clipped each rank by a norm of its own."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.taken import is_known_as_whole, taken
from fsdp_migrate.codemods.constructor.ignored import may_ignore
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.unreached import is_for_others
from fsdp_migrate.findings import Action

RULE = Rule("FSDP302", "clip-local-norm")

_NAME = "clip_grad_norm_"
_TORCH = frozenset({f"torch.nn.utils.{_NAME}", f"torch.nn.utils.clip_grad.{_NAME}"})
_MESSAGE = (
    "This call now clips by the norm over all ranks. Under FSDP1 each rank used the smaller norm of its own shard, so "
    "gradients are clipped more than before. Keep `max_norm` if it is meant for the whole model; raise it only to repeat "
    "old runs."
)
_HANDED_ON = (
    "This call now clips sharded parameters by the norm over all ranks. Under FSDP1 each rank used the smaller norm of "
    "its own shard, so gradients are clipped more than before. Keep `max_norm` if it is meant for the whole model; raise "
    "it only to repeat old runs."
)
_RESULT = "The norm it returns is now a DTensor: use `norm.full_tensor()` for a plain tensor."
_IGNORED = (
    "The norm includes this rank's own gradients of ignored parameters. If those differ between ranks, each rank scales "
    "its shards by another factor; under FSDP2 a shard holds other elements, so training changes. Clip the ignored "
    "parameters in a separate call."
)
_PARALLEL = (
    "Under FSDP1 each tensor-parallel rank clipped by the norm of its own part. Under FSDP2 all clip by the norm of the "
    "whole model, so gradients are clipped more than before. Raise `max_norm` only to repeat old runs."
)


@codemod(words=("clip_grad_norm_",))
def find(context: Context) -> Iterator[Found]:
    """Calls of torch's function with the parameters of an FSDP1 model, and of the model's where parameters are ignored."""
    yield from _by_the_model(context)
    for name in (*context.file.loads.get(_NAME, ()), *context.file.attributes.get(_NAME, ())):
        if (
            context.call_of(name) is None
            and context.dotted(name) & _TORCH
            and context.models.shards(context.file)
        ):
            for use in [*_calls_of_field(context, name)] or [name]:
                yield Found(RULE, use, Action.MANUAL, _HANDED_ON)
    for call in context.file.calls.get(_NAME, ()):
        if not context.dotted(call.func) & _TORCH:
            continue
        given = keyword(call, "parameters", 0)
        if (
            given is None
            or not _are_sharded(context, given)
            or _is_for_others(context, call, given)
        ):
            continue
        used = not isinstance(context.file.parents[call], ast.Expr)
        message = _MESSAGE
        if used:
            message = f"{_MESSAGE} {_RESULT}"
        yield Found(RULE, call, Action.MANUAL, message, f"{context.source(call.func)}(...)")


def _calls_of_field(context: Context, name: ast.expr) -> Iterator[ast.Call]:
    """The calls of the attribute that holds the function: `self.clip = clip_grad_norm_`."""
    statement = context.file.parents[name]
    target = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    if isinstance(target, ast.Attribute):
        for call in context.file.calls.get(target.attr, ()):
            if ast.unparse(call.func) == ast.unparse(target):
                yield call


def _by_the_model(context: Context) -> Iterator[Found]:
    """`model.clip_grad_norm_(...)` under tensor parallelism, or where gradients of ignored parameters may differ between
    ranks."""
    for attribute in context.file.attributes.get(_NAME, ()):
        call = context.call_of(attribute)
        of_class = context.fsdp1(attribute.value) == CLASS
        if call is None:
            continue
        if not of_class and not context.can_be_model(attribute.value):
            continue
        if context.program.once(_is_tensor_parallel):
            yield Found(RULE, attribute, Action.MANUAL, _PARALLEL)
        place = 1
        if of_class:
            place = 2
        norm = keyword(call, "norm_type", place)
        if norm is not None and "inf" in ast.unparse(norm):
            continue
        action = context.program.once(_of_ignored)
        if action is not None:
            yield Found(RULE, attribute, action, _IGNORED)


def _is_tensor_parallel(program: Program) -> bool:
    return any("parallelize_module(" in file.text for file in program.files)


def _of_ignored(program: Program) -> Action | None:
    """By hand if parameters are ignored; not where code that can get the model freezes some, or reduces gradients itself."""
    if not program.once(may_ignore):
        return None
    files = [file for file in program.files if models_of(program).shards(file)]
    is_cared_for = any(map(_cares_for_ignored, files))
    if is_cared_for:
        return Action.RUNTIME
    return Action.MANUAL


def _cares_for_ignored(file: File) -> bool:
    """Whether a file speaks of `requires_grad`, or calls a function that reduces over ranks."""
    freezes = not {"requires_grad", "requires_grad_"}.isdisjoint(file.attributes)
    return freezes or any("all_reduce" in name for name in file.calls)


def _are_sharded(context: Context, given: ast.expr) -> bool:
    from_models = taken(context)
    file = context.file
    others = from_models.several(given, file) is False or from_models.one(given, file) is False
    shards = context.models.shards(file) and not others
    return shards and not is_known_as_whole(context, given)


def _is_for_others(context: Context, call: ast.Call, given: ast.expr) -> bool:
    """Whether a test leaves a call to models that are not sharded, or code above has clipped those by their own method.

    The class of a compiled model is another one, whatever it holds.
    """
    file = context.file
    statement = context.file.statement(call)
    is_compiled = f"{file.source(given).partition('.parameters')[0]} = torch.compile(" in file.text
    others: list[ast.stmt] = []  # what runs instead of the call
    block = file.block(statement)
    if statement in block:
        above = block[: block.index(statement)]
        others += [each for each in above if isinstance(each, ast.If) and _may_end(each)]
    for handler in file.ancestors(call):
        tried = file.parents.get(handler)
        if isinstance(handler, ast.ExceptHandler) and isinstance(tried, ast.Try):
            others += tried.body
    clipped = any(_clips(context, node) for other in others for node in ast.walk(other))
    return clipped or (is_for_others(file, call) and not is_compiled)


def _may_end(block: ast.If) -> bool:
    """Whether what is below a block may be left out by it."""
    inside = [node for part in block.body for node in ast.walk(part)]
    return any_is(inside, ast.Return)


def _clips(context: Context, node: ast.AST) -> bool:
    """Whether a node calls a method of that name, or another function for sharded gradients."""
    if not isinstance(node, ast.Call) or not last_name(node.func).endswith(_NAME):
        return False
    return not context.dotted(node.func) & _TORCH
