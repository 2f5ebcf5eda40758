"""`hasattr(model, "no_sync")`, `getattr(model, "no_sync", nullcontext)`: a model that is asked whether it is FSDP1's.

An FSDP2 model has none of the wrapper's methods, so the answer would turn round without an error: gradients are synchronised
after every micro-batch, or not clipped any more. For the methods that the runtime has as functions, the question becomes one
for `FSDPModule` as well. `hasattr(model, "_fsdp_wrapped_module")` asks whether a model is FSDP1's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.by_hand import is_of_wrapper
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.expressions import is_dotted
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.models import Site
from fsdp_migrate.index.names import PACKAGE

RULE = Rule(
    "FSDP367",
    "asked-for-method",
    "a question for a method of FSDP1's wrapper is one for FSDPModule",
    """`hasattr(model, "clip_grad_norm_")` is false for an FSDP2 model, and `getattr` gives its default, without an error.
`isinstance(model, FSDPModule)` comes first where the runtime has a function in the method's place (`no_sync`,
`clip_grad_norm_`); other models are asked as before. Questions for other methods and attributes of the wrapper are left to be
done by hand.""",
    (
        Example(
            "a context with a default",
            """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
context = getattr(model, "no_sync", nullcontext)
""",
            """\
from contextlib import nullcontext
from functools import partial

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import FSDPModule, fully_shard

fully_shard(model)
context = (
    partial(no_sync, model)
    if isinstance(model, FSDPModule)
    else getattr(model, "no_sync", nullcontext)
)
""",
        ),
        Example(
            "called at once",
            """\
from contextlib import nullcontext

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
with getattr(model, "no_sync", nullcontext)():
    loss.backward()
""",
            """\
from contextlib import nullcontext
from functools import partial

from fsdp_migrate.runtime import no_sync
from torch.distributed.fsdp import FSDPModule, fully_shard

fully_shard(model)
with (partial(no_sync, model) if isinstance(model, FSDPModule) else getattr(model, "no_sync", nullcontext))():
    loss.backward()
""",
        ),
        Example(
            "a condition",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if clip and hasattr(model, "clip_grad_norm_"):
    model.clip_grad_norm_(1.0)
""",
            """\
from fsdp_migrate.runtime import clip_grad_norm_
from torch.distributed.fsdp import FSDPModule, fully_shard

fully_shard(model)
if clip and (isinstance(model, FSDPModule) or hasattr(model, "clip_grad_norm_")):
    clip_grad_norm_(model.parameters(), 1.0)
""",
        ),
        Example(
            "an attribute that nothing replaces",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if hasattr(model, "sharding_strategy"):
    print("sharded")
""",
            message="the answer is another now",
        ),
        Example(
            "whether a model is FSDP1's",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if hasattr(model, "_fsdp_wrapped_module"):
    print("sharded")
""",
            """\
from torch.distributed.fsdp import FSDPModule, fully_shard

fully_shard(model)
if isinstance(model, FSDPModule):
    print("sharded")
""",
            message="every sharded module is an FSDPModule",
        ),
        Example(
            "unwrapping, which goes on working",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
inner = getattr(model, "module", model)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
inner = getattr(model, "module", model)
""",
            quiet=True,
        ),
    ),
)
RULES = (RULE,)

_WRAPPED = "_fsdp_wrapped_module"
_FUNCTIONS = frozenset({"no_sync", "clip_grad_norm_"})
# Parents under which a condition or a choice needs no parentheses.
_LOOSE = (ast.If, ast.While, ast.Assign, ast.AnnAssign, ast.Return, ast.keyword, ast.Call)


def find(context: Context) -> Iterator[Draft]:
    """`hasattr` and `getattr` of FSDP1 models."""
    for call in context.module.calls:
        if not (isinstance(call.func, ast.Name) and call.func.id in {"hasattr", "getattr"}):
            continue
        if len(call.args) < 2 or call.keywords or not isinstance(call.args[1], ast.Constant):
            continue
        model, name, sites = call.args[0], call.args[1].value, context.sites(call.args[0])
        if not sites or not isinstance(name, str):
            continue
        if name == _WRAPPED and call.func.id == "hasattr" and not _unwraps(context, call):
            yield _told(context, call, sites)
        if not is_of_wrapper(name):
            continue
        if name in _FUNCTIONS and is_dotted(model):
            yield _rewritten(context, call, name, sites)
            continue
        message = f"an FSDP2 model has no `{name}`: the answer is another now"
        construct = context.source(call)
        yield Draft(RULE, call, Action.MANUAL, message, construct, sites, silent=True, mark=True)


def _unwraps(context: Context, call: ast.Call) -> bool:
    """Whether a question stands where the wrapped module is taken out if there is one, which is right without."""
    statement = context.module.statement(call)
    return any(
        isinstance(node, ast.Attribute) and node.attr == _WRAPPED for node in ast.walk(statement)
    )


def _told(context: Context, call: ast.Call, sites: frozenset[Site]) -> Draft:
    kind, needs = context.name(PACKAGE, "FSDPModule", use=call)

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        arguments = [updated.args[0], cst.Arg(cst.parse_expression(kind))]
        made = updated.with_changes(func=cst.Name("isinstance"), args=arguments)
        return Edited(made, tuple(missing(comments_in(updated), comments_in(made))))

    edit = Edit(context.syntax.find(call, cst.Call), apply)
    message = "every sharded module is an FSDPModule"
    construct = context.source(call)
    return Draft(RULE, call, Action.REWRITE, message, construct, sites, edits=(edit,), needs=needs)


def _rewritten(context: Context, call: ast.Call, name: str, sites: frozenset[Site]) -> Draft:
    model = ast.unparse(call.args[0])
    kind, needs = context.name(PACKAGE, "FSDPModule", use=call)
    is_sharded = f"isinstance({model}, {kind})"
    around = context.module.parents[call]
    called = isinstance(around, ast.Call) and around.func is call
    loose = isinstance(around, _LOOSE) and not called
    if isinstance(call.func, ast.Name) and call.func.id == "hasattr":
        edit = _edit(context, call, f"{is_sharded} or CALL", loose)
    else:
        function, more = context.name(RUNTIME, name, use=call)
        partial, and_more = context.partial(call)
        needs = (*needs, *more, *and_more)
        edit = _edit(
            context, call, f"{partial}({function}, {model}) if {is_sharded} else CALL", loose
        )
    message = (
        f"`{name}` of an FSDP2 model is a function of the runtime; other models are asked as before"
    )
    return Draft(
        RULE, call, Action.RUNTIME, message, context.source(call), sites, edits=(edit,), needs=needs
    )


def _edit(context: Context, call: ast.Call, form: str, loose: bool) -> Edit:
    """The form with the call as it stands in the place of `CALL`."""

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        code = form.replace("CALL", cst.Module([]).code_for_node(updated))
        made = cst.parse_expression(code if loose else f"({code})")
        return Edited(made, tuple(missing(comments_in(updated), comments_in(made))))

    return Edit(context.syntax.find(call, cst.Call), apply)


Command = command(find, __doc__ or "")
