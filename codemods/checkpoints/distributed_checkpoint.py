"""The former names of torch.distributed.checkpoint: `save_state_dict`, `load_state_dict`, `load_sharded_optimizer_state_dict`.

`save` and `load` do the same. The last one reads the optimizer's states into ShardedTensors, for FSDP1: an FSDP2 program loads
into the states that `get_optimizer_state_dict` gives, in place.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_migrate.codemods.checkpoints.optimizer_call import is_model
from fsdp_migrate.codemods.checkpoints.runtime_function import members
from fsdp_migrate.codemods.checkpoints.state_dict import positions
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import STATE_DICT, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.edit.statements import parse_statements, replace_statement
from fsdp_migrate.codemods.expressions import enclosed, is_dotted, values_given
from fsdp_migrate.codemods.rule import Draft, Edit, Example, Need, Rule, Statements
from fsdp_migrate.findings import Action
from fsdp_migrate.index.module import Assigned, Imported

RULE = Rule(
    "FSDP337",
    "former-checkpoint-functions",
    "save_state_dict and load_state_dict of torch.distributed.checkpoint are save and load",
    """`save` and `load` read and write the same files and are what torch keeps; the former names are deprecated.
`load_sharded_optimizer_state_dict` makes ShardedTensors, which an FSDP2 model's optimizer cannot take. `load` into what
`get_optimizer_state_dict` returns reads the same files in place: the state dict must hold the tensors beforehand, since `load`
leaves alone what it has no key for (torch/distributed/checkpoint/state_dict_loader.py).""",
    (
        Example(
            "former names",
            """\
import torch.distributed.checkpoint as dist_cp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = {"model": model.state_dict()}
    dist_cp.load_state_dict(state, dist_cp.FileSystemReader(path), no_dist=False)
    model.load_state_dict(state["model"])
    dist_cp.save_state_dict(state_dict=state, storage_writer=writer)
""",
            """\
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

fully_shard(model)
state = {"model": get_model_state_dict(model)}
dist_cp.load(state, storage_reader=dist_cp.FileSystemReader(path))
set_model_state_dict(model, state["model"])
dist_cp.save(state_dict=state, storage_writer=writer)
""",
        ),
        Example(
            "the states of an optimizer",
            """\
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    saved = load_sharded_optimizer_state_dict(
        model_state_dict=state["model"], optimizer_key="optim", storage_reader=reader
    )
    sharded = FSDP.optim_state_dict_to_load(model, optimizer, saved["optim"])
    optimizer.load_state_dict(sharded)
""",
            """\
from fsdp_migrate.runtime import set_optimizer_state_dict
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
saved = {"optim": get_optimizer_state_dict(model, optimizer)}
dcp.load(saved, storage_reader=reader)
set_optimizer_state_dict(model, optimizer, saved["optim"])
""",
        ),
        Example(
            "states that are used otherwise",
            """\
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
states = load_sharded_optimizer_state_dict(state, key, reader)
""",
            """\
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.fsdp import fully_shard

fully_shard(model)
# fsdp-migrate: FSDP337 by hand: dcp.load into {key: get_optimizer_state_dict(...)}, then set_optimizer_state_dict
states = load_sharded_optimizer_state_dict(state, key, reader)
""",
            message="dcp.load into",
        ),
        Example(
            "the names of now",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
dcp.save(state, checkpoint_id=path)
""",
            """\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

fully_shard(model)
dcp.save(state, checkpoint_id=path)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_PACKAGE = "torch.distributed.checkpoint"
_PACKAGES = (_PACKAGE, "torch.distributed._shard.checkpoint")
_SAVE = ("state_dict", "storage_writer", "process_group", "coordinator_rank", "no_dist", "planner")
_LOAD = ("state_dict", "storage_reader", *_SAVE[2:])
_FORMER = {
    **{
        f"{package}{module}.{name}": (name.removesuffix("_state_dict"), signature)
        for package in _PACKAGES
        for name, module_of, signature in (
            ("save_state_dict", ".state_dict_saver", _SAVE),
            ("load_state_dict", ".state_dict_loader", _LOAD),
        )
        for module in ("", module_of)
    }
}
_SHARDED = {
    f"{package}{module}.load_sharded_optimizer_state_dict"
    for package in _PACKAGES
    for module in ("", ".optimizer")
}
_OF_SHARDED = ("model_state_dict", "optimizer_key", "storage_reader", "planner")


def find(context: Context) -> Iterator[Draft]:
    """Calls of the former functions, in projects that have FSDP1 models."""
    around = context.project.connected(context.module)
    if not any(module in around for module, _ in context.models.constructors):
        if not context.references():
            return
    for call in context.module.calls:
        paths = context.project.dotted(call.func, context.module)
        if len(paths) != 1:
            continue
        path = next(iter(paths))
        if path in _FORMER:
            yield _renamed(context, call, *_FORMER[path])
        elif path in _SHARDED:
            yield _sharded(context, call)


def _renamed(context: Context, call: ast.Call, name: str, signature: tuple[str, ...]) -> Draft:
    construct = context.source(call.func)
    starred = any(isinstance(a, ast.Starred) for a in call.args)
    unknown = any(keyword.arg not in signature for keyword in call.keywords)
    given = {k.arg: k.value for k in call.keywords} | dict(zip(signature, call.args, strict=False))
    rank = given.get("coordinator_rank")
    is_first = rank is None or (isinstance(rank, ast.Constant) and rank.value == 0)
    if starred or unknown or len(call.args) > len(signature) or not is_first:
        message = f"dcp.{name} is its name now; it has no coordinator_rank"
        return Draft(RULE, call, Action.MANUAL, message, construct, mark=True)
    defaults = {"coordinator_rank": 0, "no_dist": False}
    dropped = [
        v
        for k, v in given.items()
        if isinstance(v, ast.Constant) and k in defaults and v.value == defaults[k]
    ]
    place = positions(call)
    edits = ArgumentEdits(
        drop=frozenset(place[value] for value in dropped),
        rename={
            place[value]: key
            for key, value in zip(signature, call.args, strict=False)
            if key != "state_dict" and value not in dropped
        },
    )
    function, needs = _function(context, call, name)
    message = f"dcp.{name} reads and writes the same files"
    edit = context.edit_call(call, edits, function)
    gone = (call.func,) if isinstance(call.func, ast.Name) else ()
    return Draft(
        RULE,
        call,
        Action.REWRITE,
        message,
        construct,
        edits=(edit,),
        needs=needs,
        gone=gone,
        on_fsdp1=True,
    )


def _function(context: Context, call: ast.Call, name: str) -> tuple[str, tuple[Need, ...]]:
    """How `torch.distributed.checkpoint.save` is written here."""
    if isinstance(call.func, ast.Attribute):
        owners = context.project.dotted(call.func.value, context.module)
        if owners <= set(_PACKAGES):
            return f"{context.source(call.func.value)}.{name}", ()
    for local, bindings in context.module.scope.bindings.items():
        means = context.project.dotted(ast.Name(local, ast.Load()), context.module)
        if means == {_PACKAGE} and all(isinstance(binding, Imported) for binding in bindings):
            return f"{local}.{name}", ()
    local = context.free("dcp", call)
    return f"{local}.{name}", (Need("torch.distributed", f"checkpoint as {local}"),)


@dataclass(frozen=True, eq=False)
class _Chain:
    """`name = load_sharded_optimizer_state_dict(...)`, and the one call that takes `name[key]`."""

    statement: ast.Assign
    name: str
    key: str
    model: ast.expr
    optimizer: ast.expr
    reader: ast.expr
    planner: ast.expr | None


def _sharded(context: Context, call: ast.Call) -> Draft:
    construct = context.source(call.func)
    chain = _chain(context, call)
    if chain is None:
        message = (
            "dcp.load into {key: get_optimizer_state_dict(...)}, then set_optimizer_state_dict"
        )
        return Draft(RULE, call, Action.MANUAL, message, construct, mark=True)
    get, needs = context.name(STATE_DICT, "get_optimizer_state_dict", use=call)
    load, more = _function(context, call, "load")
    model, optimizer = ast.unparse(chain.model), ast.unparse(chain.optimizer)
    planner = "" if chain.planner is None else f", planner={context.source(chain.planner)}"
    lines = [
        f"{chain.name} = {{{chain.key}: {get}({model}, {optimizer})}}",
        f"{load}({chain.name}, storage_reader={enclosed(context.source(chain.reader))}{planner})",
    ]
    edit = _statements(context, chain.statement, lines)
    return Draft(
        RULE,
        call,
        Action.REWRITE,
        "the states are loaded into those of the optimizer",
        construct,
        context.sites(chain.model),
        edits=(edit,),
        needs=(*needs, *more),
        gone=(chain.statement,),
        on_fsdp1=True,
    )


def _chain(context: Context, call: ast.Call) -> _Chain | None:
    statement = context.module.parents[call]
    if not isinstance(statement, ast.Assign) or not context.stands_alone(statement):
        return None
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name):
        return None
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    given = dict(zip(_OF_SHARDED, call.args, strict=False))
    given.update({k.arg: k.value for k in call.keywords if k.arg is not None})
    key = given.get("optimizer_key")
    bindings = context.module.scope_of(target).bindings.get(target.id, [])
    if not isinstance(key, ast.Constant) or "storage_reader" not in given or len(bindings) != 1:
        return None
    binding = bindings[0]
    reads = context.readers(binding) if isinstance(binding, Assigned) else []
    if len(reads) != 1:
        return None
    item = context.module.parents[reads[0]]
    if not isinstance(item, ast.Subscript) or ast.unparse(item.slice) != ast.unparse(key):
        return None
    for _, taker, _ in members(
        context, "optim_state_dict_to_load", "flatten_sharded_optim_state_dict"
    ):
        values = [] if taker is None else values_given(taker)
        others = [value for value in values if value is not item]
        if taker is None or len(values) != 3 or len(others) != 2:
            continue
        named = {keyword.arg: keyword.value for keyword in taker.keywords}
        model, optimizer = named.get("model", others[0]), named.get("optim", others[1])
        if is_dotted(model) and is_dotted(optimizer) and is_model(context, model):
            planner, reader = given.get("planner"), given["storage_reader"]
            return _Chain(
                statement, target.id, context.source(key), model, optimizer, reader, planner
            )
    return None


def _statements(context: Context, statement: ast.stmt, lines: list[str]) -> Edit:
    node = context.syntax.statement(statement)
    indent = context.module.column(statement.lineno, statement.col_offset)

    def apply(updated: cst.CSTNode) -> Statements:
        assert isinstance(updated, cst.SimpleStatementLine)
        made = parse_statements(
            "\n".join(lines), context.syntax.module, context.line_length, indent
        )
        kept = [comment for new in made for comment in comments_in(new)]
        lost = missing(comments_in(updated.body[0]), kept)
        placed = replace_statement(updated, made)
        return Statements(placed, tuple(lost))

    return Edit(node, apply)


Command = command(find, __doc__ or "")
