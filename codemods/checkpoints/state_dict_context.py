"""`with FSDP.state_dict_type(model, ...)`: the type of a model's state dict, for a while.

The type is an option of the functions of `torch.distributed.checkpoint.state_dict`, so the context goes away. Where its type,
its configuration or its body cannot be judged, the runtime's context of the same name takes its place, inside which the model's
own `state_dict()` and `load_state_dict()` go by the type.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp_migrate.codemods.checkpoints.local_state_dict import LOCAL, NO_LOCAL
from fsdp_migrate.codemods.checkpoints.runtime_function import members, renamed
from fsdp_migrate.codemods.checkpoints.state_dict import functional
from fsdp_migrate.codemods.checkpoints.state_dict_bodies import NOTHING, Item, items
from fsdp_migrate.codemods.checkpoints.state_dict_settings import Settings, settings
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import comments_in, with_leading_comments
from fsdp_migrate.codemods.edit.statements import dedent_body
from fsdp_migrate.codemods.rule import Draft, Edit, Example, Need, Rule, Statements
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.values import origin

CONTEXT = Rule(
    "FSDP331",
    "state-dict-context",
    "a state-dict context becomes get_model_state_dict and set_model_state_dict",
    """With FULL_STATE_DICT FSDP1 gathers the whole state dict inside the context. `get_model_state_dict` with
`full_state_dict=True` does so without a context; `cpu_offload=True` in addition is FSDP1's
`offload_to_cpu=True, rank0_only=True`: rank 0 gets the tensors on the CPU, the others an empty dict. With SHARDED_STATE_DICT
every rank has its shards, as ShardedTensors then and as DTensors now; the files of
torch.distributed.checkpoint are the same. Only bodies whose every use of the model is recognised lose their context. A type, a
configuration or a body that cannot be told gets the runtime's context, in which the model's `state_dict()` and
`load_state_dict()` stay as they are. All of this is collective: all ranks must call it.""",
    (
        Example(
            "saving from rank 0",
            """\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model)
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    # gathered on rank 0
    state = model.state_dict()
    if rank == 0:
        torch.save(state, path)
""",
            """\
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# gathered on rank 0
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
if rank == 0:
    torch.save(state, path)
""",
        ),
        Example(
            "shards, model and optimizer together",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict()}
    state["optim"] = FSDP.optim_state_dict(model, optimizer)
    dcp.save(state, checkpoint_id=path)
""",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = {"model": get_model_state_dict(model)}
state["optim"] = get_optimizer_state_dict(
    model, optimizer, options=StateDictOptions(cpu_offload=True)
)
dcp.save(state, checkpoint_id=path)
""",
        ),
        Example(
            "a body that cannot be read",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    trainer.save_model()
""",
            """\
from fsdp_migrate.runtime import StateDictType, state_dict_type
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with state_dict_type(model, StateDictType.FULL_STATE_DICT):
    trainer.save_model()
""",
            message="trainer.save_model",
        ),
        Example(
            "rank 0 of a group of ranks",
            """\
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model, process_group=group)
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
""",
            """\
from fsdp_migrate.runtime import (
    FullStateDictConfig,
    StateDictType,
    shard_model,
    state_dict_type,
)

model = shard_model(model, process_group=group)
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
""",
            message="may be another than rank 0 of all",
        ),
        Example(
            "a type that is known at run time",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with FSDP.state_dict_type(model, config.state_dict_type):
    state = model.state_dict()
    states = FSDP.optim_state_dict(model, optimizer)
""",
            """\
from fsdp_migrate.runtime import optim_state_dict, state_dict_type
from torch.distributed.fsdp import fully_shard

fully_shard(model)
with state_dict_type(model, config.state_dict_type):
    state = model.state_dict()
    states = optim_state_dict(model, optimizer)
""",
            message="known only when the program runs",
        ),
        Example(
            "functions that set the type themselves",
            """\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = get_model_state_dict(model)
""",
            """\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = get_model_state_dict(model)
""",
            quiet=True,
        ),
    ),
)
RULES = (CONTEXT, LOCAL)


_FUNCTIONS = "the type is an option of the functions that get and set the state dict"
_OPTIMIZERS = (
    "the type has no say in optimizer.state_dict(), which holds a rank's shards as DTensors now: a rank can load its own file "
    "again, not one of FSDP1's; get_optimizer_state_dict makes files for any number of ranks"
)


def find(context: Context) -> Iterator[Draft]:
    """Contexts that set the type of a model's state dict."""
    for attribute, call, sites in members(context, "state_dict_type"):
        item = None if call is None else _item_of(context, call)
        asked = None if call is None else settings(context, call)
        if item is not None and _does_nothing(item):
            yield _rewritten(context, item, sites, LOCAL, _OPTIMIZERS)
        elif isinstance(asked, Settings) and asked.kind == "LOCAL":
            construct = "state_dict_type(...)"
            yield Draft(LOCAL, attribute, Action.MANUAL, NO_LOCAL, construct, sites, mark=True)
        elif item is not None and not item.reason:
            yield _rewritten(context, item, sites, CONTEXT, _FUNCTIONS)
        else:
            reason = "the context is no plain `with` statement" if item is None else item.reason
            message = f"the runtime's context gives the model's state dict its type ({reason})"
            yield renamed(context, CONTEXT, attribute, message, sites)


def _item_of(context: Context, call: ast.Call) -> Item | None:
    """What the `with` statement around a context does with it; None where there is none."""
    item = context.module.parents[call]
    statement = context.module.parents[item]
    if not isinstance(item, ast.withitem) or not isinstance(statement, ast.With):
        return None
    return next((found for found in items(context, statement) if found.call is call), None)


def _does_nothing(item: Item) -> bool:
    """Whether a context of LOCAL_STATE_DICT is around nothing that it could change."""
    return item.is_local and item.reason == NOTHING and len(item.statement.items) == 1


def _rewritten(
    context: Context, item: Item, sites: frozenset[Site], rule: Rule, message: str
) -> Draft:
    """The context goes away, with the configurations that only it reads; the model's calls become functions."""
    assert isinstance(item.settings, Settings)
    spent = _spent(context, item.call)
    edits: list[Edit] = []
    contexts = items(context, item.statement)
    if contexts[0].call is item.call:  # one edit of the statement for all its contexts
        lines = [line for one in contexts for line in _spent(context, one.call)]
        lost = [text for line in lines for text in comments_in(context.syntax.statement(line))]
        edits.append(_unwrap(context, item.statement, [one.call for one in contexts], lost))
    needs: list[Need] = []
    for inner in item.calls:
        edit, more = functional(context, inner, item.settings)
        edits.append(edit)
        needs += more
    edits += [context.removal(line) for line in spent]
    return Draft(
        rule,
        item.call,
        Action.REWRITE,
        message,
        "state_dict_type(...)",
        sites,
        edits=tuple(edits),
        needs=tuple(needs),
        gone=(item.call, *spent),
        on_fsdp1=rule is CONTEXT,
    )


def _spent(context: Context, call: ast.Call) -> list[ast.stmt]:
    """The assignments of configurations that only this context reads."""
    statements = []
    for value in [*call.args[2:], *(keyword.value for keyword in call.keywords)]:
        made = origin(context.project, value, context.module)
        if (
            made is not None
            and made.module is context.module
            and all(map(context.is_only_use, made.names))
        ):
            statements += [context.module.statement(binding.target) for binding in made.names]
    return statements


def _unwrap(
    context: Context, statement: ast.With, calls: Sequence[ast.Call], lost: Sequence[str]
) -> Edit:
    """The statement without some of its contexts; its body alone where there are no others."""
    node = context.syntax.statement(statement)
    assert isinstance(node, cst.With)
    leaving = [any(item.context_expr is call for call in calls) for item in statement.items]
    gone = [item for item, leaves in zip(node.items, leaving, strict=True) if leaves]
    orphans = [*lost, *(comment for item in gone for comment in comments_in(item))]

    def apply(updated: cst.CSTNode) -> Statements:
        assert isinstance(updated, cst.With)
        kept = [item for item, leaves in zip(updated.items, leaving, strict=True) if not leaves]
        if kept:
            kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
            return Statements([with_leading_comments(updated.with_changes(items=kept), orphans)])
        body = updated.body
        if isinstance(body, cst.IndentedBlock):
            first, *rest = dedent_body(body)
        else:
            assert isinstance(body, cst.SimpleStatementSuite)
            first, rest = (
                cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace),
                [],
            )
        own = getattr(first, "leading_lines", ())
        first = first.with_changes(leading_lines=[*updated.leading_lines, *own])
        return Statements([with_leading_comments(first, orphans), *rest])

    return Edit(node, apply)


Command = command(find, __doc__ or "")
