"""`FSDP.state_dict_type(...)` and `FSDP.set_state_dict_type(...)`: which kind of state dict a model gives and takes.

The kind is an option of `get_model_state_dict` and `set_model_state_dict`, so the context goes away. Only bodies whose every
call is understood are rewritten: anything else could rely on the kind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import comments_in, with_leading_comments
from fsdp_migrate.codemods.edit.statements import dedent_body
from fsdp_migrate.codemods.expressions import values_given
from fsdp_migrate.codemods.rule import Draft, Edit, Example, Need, Rule, Statements
from fsdp_migrate.codemods.state_dict import functional, is_plain, static_method
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.names import fsdp1_member
from fsdp_migrate.index.values import origin

CONTEXT = Rule(
    "FSDP331",
    "state-dict-context",
    "a FULL_STATE_DICT context becomes get_model_state_dict and set_model_state_dict",
    """Inside the context FSDP1 gathers the full state dict. `get_model_state_dict` with `full_state_dict=True` does so without
a context; `cpu_offload=True` in addition is FSDP1's `offload_to_cpu=True, rank0_only=True`: rank 0 gets the tensors on the
CPU, the others an empty dict. Only bodies whose every use of the model is recognised are rewritten. Both are collective: all
ranks must call them.""",
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
            "a body that cannot be read",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    trainer.save_model()
""",
            """\
from fsdp_migrate.runtime import StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

fully_shard(model)
# fsdp-migrate: FSDP331 by hand: get_/set_model_state_dict (`trainer.save_model` may use it)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    trainer.save_model()
""",
            message="trainer.save_model",
        ),
    ),
)
SET_TYPE = Rule(
    "FSDP332",
    "set-state-dict-type",
    "set_state_dict_type does nothing on an FSDP2 model, without an error",
    """It changes what every later `state_dict()` of the model returns. On an FSDP2 model it has no effect and `state_dict()`
returns shards. Replace the calls that it was meant for by `get_model_state_dict` and `set_model_state_dict` first; both work
on FSDP1 models as well.""",
    (
        Example(
            "a type for all that follows",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
state = model.state_dict()
""",
            message="get_model_state_dict",
        ),
    ),
)
RULES = (CONTEXT, SET_TYPE)


def find(context: Context) -> Iterator[Draft]:
    """Contexts and calls that set the kind of a model's state dict."""
    for call in context.module.calls:
        member = static_method(context, call)
        if member == "state_dict_type":
            yield _of_context(context, call, _with_of(context, call))
        elif member == "set_state_dict_type":
            yield Draft(
                SET_TYPE,
                call,
                Action.MANUAL,
                "has no effect on an FSDP2 model: use get_model_state_dict / set_model_state_dict instead, first",
                "set_state_dict_type(...)",
                context.sites(call.args[0]) if call.args else frozenset(),
                silent=True,
            )


def _with_of(context: Context, call: ast.Call) -> ast.With | None:
    """The `with` statement of which the call is the only context."""
    parent = context.module.parents[call]
    statement = context.module.parents[parent]
    if isinstance(parent, ast.withitem) and isinstance(statement, ast.With):
        return statement if len(statement.items) == 1 and parent.optional_vars is None else None
    return None


def _of_context(context: Context, call: ast.Call, statement: ast.With | None) -> Draft:
    model = call.args[0] if call.args else None
    sites = context.sites(model) if model is not None else frozenset()
    reason = "the context is no plain `with` statement"
    if statement is not None and model is not None:
        options = _options(context, call)
        if isinstance(options, str):
            reason = options
        else:
            calls = _model_calls(context, statement, model)
            if isinstance(calls, str):
                reason = calls
            else:
                return _rewritten(context, call, statement, calls, options, sites)
    return Draft(
        CONTEXT,
        call,
        Action.MANUAL,
        f"get_/set_model_state_dict ({reason})",
        "state_dict_type(...)",
        sites,
        mark=True,
    )


def _options(context: Context, call: ast.Call) -> dict[str, str] | str:
    """The options for saving, or why they cannot be told."""
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
    if not given or len(call.args) > 3:
        return "the type is not in sight"
    kind = origin(context.project, given[0], context.module)
    members = set()
    if kind is not None and kind.node is not None:
        members = {fsdp1_member(path) for path in context.project.dotted(kind.node, kind.module)}
    if members != {("StateDictType", "FULL_STATE_DICT")}:
        return "only FULL_STATE_DICT is rewritten"
    if len(given) > 2:
        return "optimizer states are not rewritten"
    return _config(context, given[1]) if len(given) == 2 else {"full_state_dict": "True"}


def _config(context: Context, value: ast.expr) -> dict[str, str] | str:
    made = origin(context.project, value, context.module)
    unseen = "the configuration is not in sight"
    if made is None or not isinstance(made.node, ast.Call):
        return unseen
    if context.project.fsdp1(made.node.func, made.module) != "FullStateDictConfig":
        return unseen
    flags: dict[str, object] = {"offload_to_cpu": False, "rank0_only": False}
    given = [
        *zip(flags, made.node.args, strict=False),
        *((k.arg, k.value) for k in made.node.keywords),
    ]
    for name, flag in given:
        if name not in flags or not isinstance(flag, ast.Constant):
            return unseen
        flags[name] = flag.value
    if flags["offload_to_cpu"] and flags["rank0_only"]:
        return {"full_state_dict": "True", "cpu_offload": "True"}
    if not flags["offload_to_cpu"] and not flags["rank0_only"]:
        return {"full_state_dict": "True"}
    return "one of offload_to_cpu and rank0_only alone has no counterpart"


def _model_calls(context: Context, statement: ast.With, model: ast.expr) -> list[ast.Call] | str:
    """The state-dict calls in the body, or the first use of the model that is none."""
    text = ast.dump(model)
    found: list[ast.Call] = []
    for node in (inner for part in statement.body for inner in ast.walk(part)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and ast.dump(node.func.value) == text:
            if not is_plain(node):
                return f"`{context.source(node)}` is no plain state-dict call"
            found.append(node)
        elif not _is_bystander(context, node, text):
            return f"`{context.source(node.func)}` may use it"
    return found if found else "no state-dict call is in sight"


def _is_bystander(context: Context, call: ast.Call, model: str) -> bool:
    """Whether a call in the body can have no business with the model's state dict."""
    arguments = values_given(call)
    if any(ast.dump(node) == model for argument in arguments for node in ast.walk(argument)):
        return False
    if context.project.dotted(call.func, context.module):
        return static_method(context, call) is None
    if isinstance(call.func, ast.Name):
        return (
            context.module.lookup(call.func.id, context.module.scope_of(call)) is None
        )  # a builtin
    root: ast.expr = call.func
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    if not isinstance(root, ast.Name):
        return isinstance(root, ast.Constant | ast.JoinedStr)
    return call.func.attr in _HARMLESS_METHODS if isinstance(call.func, ast.Attribute) else False


_HARMLESS_METHODS = frozenset(
    {
        "items",
        "keys",
        "values",
        "get",
        "format",
        "join",
        "info",
        "debug",
        "warning",
        "mkdir",
        "exists",
        "append",
        "cpu",
    }
)


def _rewritten(
    context: Context,
    call: ast.Call,
    statement: ast.With,
    calls: Sequence[ast.Call],
    options: dict[str, str],
    sites: frozenset[Site],
) -> Draft:
    spent = _spent(context, call)
    lost = [comment for line in spent for comment in comments_in(context.syntax.statement(line))]
    edits = [_unwrap(context, statement, lost)]
    needs: list[Need] = []
    for inner in calls:
        edit, more = functional(context, inner, options)
        edits.append(edit)
        needs += more
    edits += [context.removal(line) for line in spent]
    return Draft(
        CONTEXT,
        call,
        Action.REWRITE,
        "the state dict is gathered by get_model_state_dict, without a context",
        "state_dict_type(...)",
        sites,
        edits=tuple(edits),
        needs=tuple(needs),
        gone=(*statement.items, *spent),
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


def _unwrap(context: Context, statement: ast.With, lost: Sequence[str]) -> Edit:
    node = context.syntax.statement(statement)
    assert isinstance(node, cst.With)
    orphans = [*lost, *(comment for item in node.items for comment in comments_in(item))]

    def apply(updated: cst.CSTNode) -> Statements:
        assert isinstance(updated, cst.With)
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
