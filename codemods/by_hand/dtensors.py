"""Random numbers that are drawn for a parameter: others for a DTensor than for FSDP1's shard."""

from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.taken import is_sharded
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.nodes import receiver
from fsdp_migrate.findings import Action

RANDOM = Rule("FSDP522", "random-parameters")

_DRAWN = frozenset(
    {"bernoulli_", "exponential_", "normal_", "random_", "trunc_normal_", "uniform_"}
)
_DRAWN |= {"rand_like", "randint_like", "randn_like"}
_OTHERS = (
    "This draws different random numbers for a DTensor than for FSDP1's shard. Call it on `p.to_local()` to draw per "
    "rank as before."
)


@codemod(words=("_like(", "normal_", "bernoulli_", "exponential_", "random_", "uniform_"))
def find(context: Context) -> Iterator[Found]:
    """Calls with sharded parameters."""
    for name, calls in context.file.calls.items():
        if name not in _DRAWN:
            continue
        for call in calls:
            drawn = [*call.args[:1], receiver(call) or call]
            if any(is_sharded(context, each) for each in drawn):
                yield Found(RANDOM, call, Action.MANUAL, _OTHERS, f"{name}(...)")
