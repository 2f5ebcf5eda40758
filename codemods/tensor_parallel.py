"""What FSDP1 needed beside tensor parallelism, and FSDP2 knows by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Imported
from fsdp_migrate.index.order import block_of

RULE = Rule(
    "FSDP016",
    "tensor-parallel-extension",
    "FSDP2 shards tensor-parallel parameters without an extension",
    """FSDP1 flattened parameters and needed `DTensorExtensions` to flatten DTensors, which programs switched on with
`enable_2d_with_fsdp()` (removed in torch 2.2) or `_set_fsdp_extensions(...)`. FSDP2's own parameters are DTensors:
`parallelize_module(model, mesh["tp"], plan)` and then `fully_shard(model, mesh=mesh["dp"])` is all. A statement that only
switches the extension on goes away with its import; a program that asks for the result is left to you.""",
    (
        Example(
            "switched on",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor.parallel.fsdp import enable_2d_with_fsdp

enable_2d_with_fsdp()
model = FSDP(model, device_mesh=mesh["dp"])
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model, mesh=mesh["dp"])
""",
        ),
        Example(
            "set by hand",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._fsdp_extensions import _set_fsdp_extensions
from torch.distributed.tensor.parallel.fsdp import DTensorExtensions

_set_fsdp_extensions(DTensorExtensions())  # 2-D
model = FSDP(model, device_mesh=mesh["dp"])
""",
            """\
from torch.distributed.fsdp import fully_shard

# 2-D
fully_shard(model, mesh=mesh["dp"])
""",
        ),
        Example(
            "asked for",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor.parallel.fsdp import enable_2d_with_fsdp

assert enable_2d_with_fsdp()
model = FSDP(model, device_mesh=mesh["dp"])
""",
            """\
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel.fsdp import enable_2d_with_fsdp

# fsdp-migrate: FSDP016 by hand: FSDP2 needs no extension for tensor parallelism: remove it
assert enable_2d_with_fsdp()
fully_shard(model, mesh=mesh["dp"])
""",
            message="remove it",
        ),
        Example(
            "no FSDP in it",
            """\
from torch.distributed.tensor.parallel import parallelize_module

model = parallelize_module(model, mesh["tp"], plan)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_SWITCHES = frozenset(
    {
        "torch.distributed.tensor.parallel.fsdp.enable_2d_with_fsdp",
        "torch.distributed.fsdp._fsdp_extensions._set_fsdp_extensions",
    }
)
NAMES = _SWITCHES | {"torch.distributed.tensor.parallel.fsdp.DTensorExtensions"}


def find(context: Context) -> Iterator[Draft]:
    """Uses of the extension, and the imports of it that nothing needs any more."""
    imported = {
        binding
        for scope in context.module.scopes.values()
        for bindings in scope.bindings.values()
        for binding in bindings
        if isinstance(binding, Imported) and f"{binding.module}.{binding.member}" in NAMES
    }
    if not imported:
        return
    uses = [
        load
        for local in {binding.alias.asname or binding.alias.name for binding in imported}
        for load in context.module.loads.get(local, ())
        if context.project.dotted(load, context.module) <= NAMES
    ]
    switches = {statement for load in uses if (statement := _switch(context, load)) is not None}
    inside = {node for statement in switches for node in ast.walk(statement)}
    for load in uses:
        if load not in inside:
            message = "FSDP2 needs no extension for tensor parallelism: remove it"
            yield Draft(RULE, load, Action.MANUAL, message, context.source(load), mark=True)
    for statement in switches:
        message = "FSDP2 needs no extension for tensor parallelism"
        construct = context.source(statement)
        edits = (context.removal(statement, comments_stay=True),)
        yield Draft(
            RULE, statement, Action.REWRITE, message, construct, edits=edits, gone=(statement,)
        )
    if switches and all(load in inside for load in uses):
        yield from _imports(context, {binding.statement for binding in imported})


def _switch(context: Context, load: ast.Name) -> ast.stmt | None:
    """The statement that does nothing but switch the extension on, if a name is used in one."""
    statement = context.module.statement(load)
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return None
    dotted = context.project.dotted(statement.value.func, context.module)
    removable = bool(dotted) and dotted <= _SWITCHES and _can_go(context, statement)
    return statement if removable else None


def _can_go(context: Context, statement: ast.stmt) -> bool:
    around = block_of(context.module.parents[statement], statement)
    return len(around) > 1 and context.stands_alone(statement)


def _imports(context: Context, statements: set[ast.Import | ast.ImportFrom]) -> Iterator[Draft]:
    for statement in statements:
        others = [
            alias
            for alias in statement.names
            if not isinstance(statement, ast.ImportFrom)
            or f"{statement.module}.{alias.name}" not in NAMES
        ]
        if not others and _can_go(context, statement):
            construct = context.source(statement)
            edits = (context.removal(statement, comments_stay=True),)
            message = "nothing uses it any more"
            yield Draft(RULE, statement, Action.REWRITE, message, construct, edits=edits)


Command = command(find, __doc__ or "")
