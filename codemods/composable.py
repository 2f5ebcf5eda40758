"""The two `fully_shard` of `torch.distributed._composable`: FSDP2 before it had a public name, and FSDP1 without a wrapper."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import FSDP2_NAMES, PACKAGE

FIRST = Rule(
    "FSDP011",
    "composable-fsdp1",
    "torch.distributed._composable.fully_shard was FSDP1 without a wrapper",
    """Until torch 2.5 there were two functions of this name. That of `torch.distributed._composable` took FSDP1's
arguments, two of them under other names (`policy` for `auto_wrap_policy`, `strategy` for `sharding_strategy`), and sharded in
place. torch 2.6 removed it (pytorch#141875). `shard_model` takes its place; what else the program does with the model is
FSDP1's and has to move with it, and no analysis follows models that were never wrapped, so this is left to you.""",
    (
        Example(
            "FSDP1's keywords",
            """\
from torch.distributed._composable import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

fully_shard(model, policy=ModuleWrapPolicy({Block}), strategy=strategy)
""",
            """\
from torch.distributed._composable import fully_shard
from fsdp_migrate.runtime import ModuleWrapPolicy

# fsdp-migrate: FSDP011 by hand: removed in torch 2.6: shard_model(model, auto_wrap_policy=..., sharding_strategy=...)
fully_shard(model, policy=ModuleWrapPolicy({Block}), strategy=strategy)
""",
            message="shard_model(model, auto_wrap_policy=..., sharding_strategy=...)",
        ),
        Example(
            "another function of that package",
            """\
import torch.distributed.fsdp as fsdp
from torch.distributed._composable import checkpoint

checkpoint(model)
fsdp.fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
SECOND = Rule(
    "FSDP012",
    "composable-fsdp2",
    "torch.distributed._composable.fsdp is torch.distributed.fsdp",
    """FSDP2 was imported from `torch.distributed._composable.fsdp` until torch 2.6 gave it its public name. The old path still
leads there (`_composable/fsdp/__init__.py`), but is private.""",
    (
        Example(
            "from the old path",
            """\
from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard  # FSDP2
from torch.distributed._composable.fsdp.fully_shard import FSDPModule

fully_shard(model, mp_policy=MixedPrecisionPolicy())
assert isinstance(model, FSDPModule)
""",
            """\
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # FSDP2
from torch.distributed.fsdp import FSDPModule

fully_shard(model, mp_policy=MixedPrecisionPolicy())
assert isinstance(model, FSDPModule)
""",
        ),
        Example(
            "a name that became another",
            """\
from torch.distributed._composable.fsdp import FSDP, fully_shard

fully_shard(model)
""",
            message="FSDPModule",
        ),
        Example(
            "the public name",
            """\
import torch.distributed.fsdp as fsdp

fsdp.fully_shard(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (FIRST, SECOND)

_COMPOSABLE = "torch.distributed._composable"
_SECOND_PATHS = frozenset({f"{_COMPOSABLE}.fsdp", f"{_COMPOSABLE}.fsdp.fully_shard"})
_FIRST = frozenset({f"{_COMPOSABLE}.fully_shard", f"{_COMPOSABLE}.fully_shard.fully_shard"})


def find(context: Context) -> Iterator[Draft]:
    """Imports from the old path, and calls of the function that is gone."""
    for statement in context.module.imports:
        if isinstance(statement, ast.ImportFrom) and statement.module in _SECOND_PATHS:
            yield _moved(context, statement)
    for call in context.module.calls:
        if context.project.dotted(call.func, context.module) & _FIRST:
            message = "removed in torch 2.6: shard_model(model, auto_wrap_policy=..., sharding_strategy=...)"
            construct = f"{context.source(call.func)}(...)"
            yield Draft(FIRST, call, Action.MANUAL, message, construct, mark=True)


def _moved(context: Context, statement: ast.ImportFrom) -> Draft:
    names = {alias.name for alias in statement.names}
    construct = f"from {statement.module} import ..."
    if not names <= FSDP2_NAMES:
        others = ", ".join(sorted(names - FSDP2_NAMES))
        message = f"{others} is not in {PACKAGE}: the class of sharded modules is FSDPModule there"
        return Draft(SECOND, statement, Action.MANUAL, message, construct)
    line, position = context.syntax.import_at(statement)
    message = f"the public name is {PACKAGE}"
    edits = (Edit(line.body[position], _from_package),)
    return Draft(SECOND, statement, Action.REWRITE, message, construct, edits=edits)


def _from_package(updated: cst.CSTNode) -> Edited:
    assert isinstance(updated, cst.ImportFrom)
    module = cst.parse_expression(PACKAGE)
    assert isinstance(module, cst.Attribute)
    return Edited(updated.with_changes(module=module))


Command = command(find, __doc__ or "")
