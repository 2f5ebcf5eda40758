"""What torch does otherwise with DTensors: random numbers, and tests for ShardedTensor."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.measured import is_torchs
from fsdp_migrate.codemods.by_hand.private_modules import is_copy
from fsdp_migrate.codemods.by_hand.taken import is_sharded
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name, words_in
from fsdp_migrate.facts.nodes import receiver
from fsdp_migrate.findings import Action

RANDOM = Rule("FSDP522", "random-parameters")
SHARDED_TENSOR = Rule("FSDP524", "sharded-tensor")

_DRAWN = frozenset(
    {"bernoulli_", "exponential_", "normal_", "random_", "trunc_normal_", "uniform_"}
)
_DRAWN |= {"rand_like", "randint_like", "randn_like"}
_OTHERS = (
    "Draws different random numbers for a DTensor than for FSDP1's shard. "
    "Call it on `p.to_local()` to draw per rank as before."
)
_NO_LONGER = (
    "Is never true under FSDP2, whose sharded state dicts hold DTensors. "
    "Test for `torch.distributed.tensor.DTensor`."
)


@codemod(
    words=(
        "_like(",
        "normal_",
        "bernoulli_",
        "exponential_",
        "random_",
        "uniform_",
        "ShardedTensor",
    )
)
def find(context: Context) -> Iterator[Found]:
    """Calls of both kinds with sharded parameters, and tests for the class of FSDP1's shards."""
    for call in context.file.calls.get("isinstance", ()):
        names = [n for n in ast.walk(call) if isinstance(n, ast.Name | ast.Attribute)]
        about = any(last_name(n) == "ShardedTensor" and is_torchs(context, n) for n in names)
        if not about or is_copy(context.file) or not context.models.shards():
            continue
        if not _tests_dtensors(context, context.file.function(call) or context.file.tree):
            yield Found(SHARDED_TENSOR, call, Action.MANUAL, _NO_LONGER)
    for name, calls in context.file.calls.items():
        if name not in _DRAWN:
            continue
        for call in calls:
            drawn = [*call.args[:1], receiver(call) or call]
            if any(is_sharded(context, each) for each in drawn):
                yield Found(RANDOM, call, Action.MANUAL, _OTHERS, f"{name}(...)")


def _tests_dtensors(context: Context, around: ast.AST) -> bool:
    """Whether a function asks for FSDP2's class as well."""
    tests = context.file.calls.get("isinstance", ())
    return any(
        around in context.file.ancestors(each) and "DTensor" in words_in(each) for each in tests
    )
