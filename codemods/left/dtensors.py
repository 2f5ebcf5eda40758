"""What torch cannot do with DTensors, or does otherwise: some optimizers, and random numbers."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.left.taken import is_sharded, taken
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.findings import Action

OPTIMIZER = Rule("FSDP521", "failing-optimizer", "some optimizers of torch fail on DTensors")
RANDOM = Rule("FSDP522", "random-parameters", "random numbers for sharded parameters are others")
RULES = (OPTIMIZER, RANDOM)

_FAILING = frozenset({"Adafactor", "LBFGS", "Rprop"})
_DRAWN = frozenset(
    {"bernoulli_", "exponential_", "normal_", "random_", "trunc_normal_", "uniform_"}
)
_DRAWN |= {"rand_like", "randint_like", "randn_like"}
_OTHERS = "draws other numbers for a DTensor, on CUDA by one generator for all ranks: draw for p.to_local()"


def find(context: Context) -> Iterator[Found]:
    """Calls of both kinds with sharded parameters."""
    named = ((name, call) for name, calls in context.file.calls.items() for call in calls)
    for name, call in named:
        if name in _DRAWN:
            drawn = [*call.args[:1], getattr(call.func, "value", call)]
            if any(is_sharded(context, each) for each in drawn):
                yield Found(RANDOM, call, Action.MANUAL, _OTHERS, f"{name}(...)")
        fused = name == "SGD" and getattr(keyword(call, "fused"), "value", None) is True
        if (fused or name in _FAILING) and f"torch.optim.{name}" in context.dotted(call.func):
            given = keyword(call, "params", 0)
            if given is not None and taken(context).are_parameters(given, context.file):
                way = "leave fused out" if fused else "take another optimizer"
                message = f"fails on FSDP2's DTensors: {way}"
                yield Found(OPTIMIZER, call, Action.MANUAL, message, f"{name}(...)")
