"""Optimizers that fail on DTensors, and those of other libraries that go by the shape or the norm of a parameter."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.taken import taken
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import values_given
from fsdp_migrate.facts.nodes import any_below, constant, text_of
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP521", "failing-optimizer", Severity.RAISES)

_FAILING = ("Adafactor", "LBFGS", "Rprop")
# Of other libraries: they go by the shape of a parameter, or by a norm of it or of its gradient.
_BY_SHAPE = re.compile(
    r"Ada(?:[Ff]actor|lomo)|AdamP\b|Adam_?[Mm]ini|CAME|DAdapt|Fromage|GaLore|Kron\b|LAMB|LAR[SC]|Lamb(?!da)|Lars|Lomo|Muon|"
    r"Nero\b|Nov[oO][gG]rad|PSGD|Prodigy|Ranger|SGDP\b|SM3|SOAP|Shampoo"
)
_BY_NAME = frozenset({"create_optimizer", "create_optimizer_v2", "create_optimizer_with_params"})
_OF_SHAPE = (
    "This optimizer uses the shapes or norms of parameters, which are now whole ones as DTensors; under FSDP1 they were "
    "this rank's shards. Its steps change or raise: try it, or use `torch.optim.AdamW`."
)


@codemod(words=("opt", "Opt"))
def find(context: Context) -> Iterator[Found]:
    """Calls of both kinds with sharded parameters."""
    for name in (*_FAILING, "SGD"):
        for call in context.file.calls.get(name, ()):
            yield from _of_torch(context, name, call)
    for name, calls in context.file.calls.items():
        if name in _BY_NAME or _BY_SHAPE.search(name):
            for call in calls:
                if _goes_by_shape(context, name, call):
                    yield Found(RULE, call, Action.MANUAL, _OF_SHAPE, f"{name}(...)")


def _of_torch(context: Context, name: str, call: ast.Call) -> Iterator[Found]:
    """An optimizer of torch's that DTensors make fail."""
    fused = constant(keyword(call, "fused")) is True
    if name == "SGD" and not fused:
        return
    given = keyword(call, "params", 0)
    if given is not None and f"torch.optim.{name}" in context.dotted(call.func):
        if taken(context).are_parameters(given, context.file):
            way = "Use another optimizer."
            if fused:
                way = "Remove `fused=True`."
            message = (
                f"This optimizer raises under FSDP2, because it does not support DTensors. {way}"
            )
            yield Found(RULE, call, Action.MANUAL, message, f"{name}(...)")


def _goes_by_shape(context: Context, name: str, call: ast.Call) -> bool:
    """Whether another library's optimizer is made in a program that shards, and not for what is shown to be whole."""
    if name in _BY_NAME:
        texts = set(map(text_of, values_given(call)))
        if not any(re.search(_BY_SHAPE.pattern, text, re.IGNORECASE) for text in texts):
            return False
    paths = context.dotted(call.func)
    if not paths or any_below(paths, "torch."):
        return False
    given = values_given(call)
    if not given or not context.models.shards(context.file):
        return False
    if isinstance(given[0], ast.Call) and isinstance(given[0].func, ast.Attribute):
        return context.models.sharded(given[0].func.value, context.file) is not False
    return True
