"""Evaluations in low precision that record gradients: after one, FSDP1's next backward left none.

They show where a model's result becomes a number at once, and no backward can use it: `loss_of(model).item()`; and where
the function around a forward has no backward and gives the result to nobody.
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.assumptions.constructor import policies_of
from fsdp_migrate.codemods.assumptions.results import never_go_backward
from fsdp_migrate.codemods.constructor.construction import ASSUMPTION, constructions
from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITHOUT = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
_MESSAGE = (
    "This forward records gradients, but no backward uses them. After it, FSDP1 in low precision lost the gradients of "
    "the next backward, so the optimizer changed nothing; under FSDP2 that step trains. Evaluate under "
    "`torch.no_grad()`."
)


@codemod(forms=("torch",))
def find(context: Context) -> Iterator[Found]:
    """These lines, in torch's form."""
    if context.form != "torch" or not context.models.shards(context.file):
        return
    found = [*_numbers(context)]
    inside = {node for call in found for node in ast.walk(call)}
    found += [call for call in _forwards(context) if call not in inside]
    for call in found:
        if not _is_without(context, call) and context.program.once(_loses_gradients):
            construct = shortened(context.source(call))
            yield Found(ASSUMPTION, call, Action.MANUAL, _MESSAGE, construct)


def _numbers(context: Context) -> Iterator[ast.Call]:
    """`f(model).item()`."""
    for attribute in context.file.attributes.get("item", ()):
        call = context.call_of(attribute)
        if call is not None and _runs_model(context, attribute.value):
            yield call


def _forwards(context: Context) -> Iterator[ast.Call]:
    """Calls of a model from whose result no backward starts, in a program that trains."""
    file = context.file
    if not context.program.has(r"backward\("):
        return
    for call in file.of(ast.Call):
        if isinstance(call.func, ast.Name | ast.Attribute) and context.can_be_model(call.func):
            if never_go_backward(file, call):
                yield call


def _runs_model(context: Context, value: ast.expr) -> bool:
    """Whether a value comes of a model's forward: of the model itself, or of a function that calls it."""
    if isinstance(value, ast.Attribute):
        return _runs_model(context, value.value)
    if not isinstance(value, ast.Call):
        return False
    if context.can_be_model(value.func) or _calls_argument(context, value):
        return True
    if isinstance(value.func, ast.Attribute):  # `.mean()`, `.detach()`
        return _runs_model(context, value.func.value)
    return False


def _calls_argument(context: Context, call: ast.Call) -> bool:
    """Whether a call gives a model to a function that calls it."""
    called = context.models.origins.called(call, context.file)
    if called is None or not isinstance(called.node, _FUNCTIONS):
        return False
    names = [argument.arg for argument in called.node.args.args]
    models = {name for name, v in zip(names, call.args, strict=False) if context.can_be_model(v)}
    functions = [n.func for n in ast.walk(called.node) if isinstance(n, ast.Call)]
    return any(isinstance(each, ast.Name) and each.id in models for each in functions)


def _is_without(context: Context, node: ast.AST) -> bool:
    """Whether code runs without gradients: by the lines around it, or by those around a call of its function."""
    if _is_without_here(context.file, node):
        return True
    function = context.file.function(node)
    if function is None:
        return False
    return any(
        _is_without_here(file, call)
        for file in context.program.files
        for call in file.calls.get(function.name, ())
    )


def _is_without_here(file: File, node: ast.AST) -> bool:
    for around in file.ancestors(node):
        chosen: list[ast.expr] = []
        if isinstance(around, ast.With | ast.AsyncWith):
            chosen = [item.context_expr for item in around.items]
        elif isinstance(around, _FUNCTIONS):
            chosen = around.decorator_list
        for each in chosen:
            if isinstance(each, ast.Call):
                each = each.func
            if last_name(each) in _WITHOUT:
                return True
    return False


def _loses_gradients(program: Program) -> bool:
    """Whether FSDP1 computes with parameters in another type somewhere, and raised nothing: they were not flat."""
    contexts = [Context(file, program, form="torch") for file in program.files]
    every = [each for context in contexts for each in constructions(context)]
    return any(
        each.keeps_attributes != "False" and any(map(_may_cast, policies_of(each)))
        for each in every
    )


def _may_cast(policy: ast.expr) -> bool:
    """Whether a policy may name a type for parameters."""
    match policy:
        case ast.Constant():
            return False
        case ast.Call():
            computed = keyword(policy, "param_dtype", 0)
            is_none = isinstance(computed, ast.Constant) and computed.value is None
            return computed is not None and not is_none
    return True
