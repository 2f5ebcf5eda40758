"""`if isinstance(model, FSDP): model.clip_grad_norm_(c)`, and torch's function in the other branch: one call for both."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.edit.comments import comments_in, missing, with_leading_comments
from fsdp_migrate.codemods.loop.clip_calls import edit_of, is_torch, plain_will_do
from fsdp_migrate.codemods.rule import Draft, Edit, Example, Rule, Statements
from fsdp_migrate.findings import Action

RULE = Rule(
    "FSDP303",
    "clip-branches",
    "two branches that clip, one for FSDP, become one call",
    """Programs asked for FSDP1 because its models have a `clip_grad_norm_` of their own. FSDP2 needs no branch:
`torch.nn.utils.clip_grad_norm_` knows sharded parameters, and the runtime's function, which takes its place where the
result is used, is torch's for all others.""",
    (
        Example(
            "result unused",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model) if sharded else model
# the norm over all ranks
if isinstance(model, FSDP):
    model.clip_grad_norm_(1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
            """\
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(model) if sharded else model
# the norm over all ranks
torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
        Example(
            "result used",
            """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model) if sharded else model
if isinstance(model, FSDP):
    norm = model.clip_grad_norm_(args.clip)  # all ranks
else:
    norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)  # one
""",
            """\
from torch import nn
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import fully_shard

model = fully_shard(model) if sharded else model
# one
norm = clip_grad_norm_(model.parameters(), args.clip)  # all ranks
""",
        ),
        Example(
            "branches that differ",
            """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model) if sharded else model
if isinstance(model, FSDP):
    model.clip_grad_norm_(1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
""",
            """\
import torch
from torch.distributed.fsdp import FSDPModule, fully_shard

model = fully_shard(model) if sharded else model
if isinstance(model, FSDPModule):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
else:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)


def find(context: Context) -> Iterator[Draft]:
    """Branches over the class of a model that do nothing but clip it."""
    for attribute in context.module.attributes:
        call = context.module.parents[attribute]
        if attribute.attr == "clip_grad_norm_" and isinstance(call, ast.Call):
            branches = context.module.parents[context.module.statement(call)]
            if isinstance(branches, ast.If) and _is_pair(context, branches):
                if _clipping(branches.body) is call:
                    yield _draft(context, attribute, call, branches)


def is_folded(context: Context, node: ast.AST) -> bool:
    """Whether a node stands in branches that become one call."""
    return any(
        isinstance(parent, ast.If) and _is_pair(context, parent)
        for parent in context.module.ancestors(node)
    )


def _is_pair(context: Context, branches: ast.If) -> bool:
    """Whether an `if` clips an FSDP1 model by its method, and in `else` the same model, otherwise alike, by torch's."""
    test, ours, theirs = branches.test, _clipping(branches.body), _clipping(branches.orelse)
    if ours is None or theirs is None or not isinstance(ours.func, ast.Attribute):
        return False
    if not (
        isinstance(test, ast.Call)
        and ast.unparse(test.func) == "isinstance"
        and len(test.args) == 2
        and context.fsdp1(test.args[1]) == "FullyShardedDataParallel"
        and is_torch(context, theirs)
        and context.sites(ours.func.value)
    ):
        return False
    around, model = context.module.parents[branches], ast.unparse(ours.func.value)
    return (
        not (isinstance(around, ast.If) and around.orelse == [branches])  # no `elif`
        and context.stands_alone(branches.body[0])
        and context.stands_alone(branches.orelse[0])
        and ours.func.attr == "clip_grad_norm_"
        and model == ast.unparse(test.args[0])
        and [ast.unparse(a) for a in theirs.args[:1]] == [f"{model}.parameters()"]
        and _targets(branches.body[0]) == _targets(branches.orelse[0])
        and _options(ours.args, ours.keywords) == _options(theirs.args[1:], theirs.keywords)
    )


def _clipping(block: list[ast.stmt]) -> ast.Call | None:
    """The call that is all that a block does."""
    if len(block) != 1 or not isinstance(block[0], ast.Expr | ast.Assign):
        return None
    return block[0].value if isinstance(block[0].value, ast.Call) else None


def _targets(statement: ast.stmt) -> list[str]:
    return list(map(ast.dump, statement.targets)) if isinstance(statement, ast.Assign) else []


def _options(arguments: list[ast.expr], keywords: list[ast.keyword]) -> dict[str | None, str]:
    names: tuple[str | None, ...] = ("max_norm", "norm_type")
    given = dict(zip(names, map(ast.dump, arguments), strict=False))
    return given | {keyword.arg: ast.dump(keyword.value) for keyword in keywords}


def _draft(context: Context, attribute: ast.Attribute, call: ast.Call, branches: ast.If) -> Draft:
    theirs = _clipping(branches.orelse)
    assert theirs is not None
    plain = plain_will_do(context, attribute, call)
    name, needs = ("", ()) if plain else context.name(RUNTIME, "clip_grad_norm_", use=call)

    def apply(updated: cst.CSTNode) -> Statements:
        assert isinstance(updated, cst.If)
        assert isinstance(updated.orelse, cst.Else)
        statement = (updated.orelse if plain else updated).body.body[0]
        assert isinstance(statement, cst.SimpleStatementLine)
        leading = [*updated.leading_lines, *statement.leading_lines]
        statement = statement.with_changes(leading_lines=leading)
        lost = missing(comments_in(updated), comments_in(statement))
        return Statements([with_leading_comments(statement, lost)])

    fold = Edit(context.syntax.statement(branches), apply)
    return Draft(
        RULE,
        attribute,
        Action.REWRITE if plain else Action.RUNTIME,
        "one call clips sharded parameters and all others",
        context.source(attribute),
        context.sites(attribute.value),
        edits=(fold,) if plain else (edit_of(context, call, name), fold),
        needs=needs,
        gone=(branches.test, call if plain else theirs),
    )


Command = command(find, __doc__ or "")
