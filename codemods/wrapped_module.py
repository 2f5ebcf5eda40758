"""`model.module`: the module inside the wrapper, which under FSDP2 is the model itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.values import origins

RULE = Rule(
    "FSDP009",
    "dot-module",
    "model.module is the model itself",
    """FSDP2 wraps nothing, so there is no inner module to reach: `.module` and `._fsdp_wrapped_module` go away. Idioms that
ask first (`getattr(model, "module", model)`) keep working as they are. A receiver that can be something else as well, such
as a DistributedDataParallel, is left to be done by hand, and so is a test that takes wrappers off, `while isinstance(model,
(DDP, FSDP)): model = model.module`: what FSDP2 sharded is no wrapper and does not belong into it.""",
    (
        Example(
            "unwrapping",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
config = model.module.config
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
config = model.config
""",
        ),
        Example(
            "a model with an attribute `module` of its own",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
config = model.module.module.config
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
config = model.module.config
""",
        ),
        Example(
            "taking all wrappers off",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    while isinstance(model, (DDP, FSDP)):
        model = model.module
    return model
""",
            """\
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel as DDP


def unwrap(model):
    while isinstance(model, (DDP, FSDPModule)):
        # fsdp-migrate: FSDP009 by hand: a model sharded by FSDP2 has no `.module`: leave its class out of the test
        model = model.module
    return model
""",
            message="leave its class out of the test",
        ),
        Example(
            "taking other wrappers off",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def name(model):
    if isinstance(model, FSDP):
        return "sharded"
    while isinstance(model, DDP):
        model = model.module
    return type(model).__name__
""",
            """\
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel as DDP


def name(model):
    if isinstance(model, FSDPModule):
        return "sharded"
    while isinstance(model, DDP):
        model = model.module
    return type(model).__name__
""",
            quiet=True,
        ),
        Example(
            "a model that nobody can follow",
            """\
def unwrap(module):
    return module._fsdp_wrapped_module
""",
            message="no `._fsdp_wrapped_module`",
        ),
    ),
)
RULES = (RULE,)

_NO_MODULE = (
    "a model sharded by FSDP2 has no `.{}`: ask for it where the model may be something else"
)
_TESTED = "a model sharded by FSDP2 has no `.{}`: leave its class out of the test"
_INNER = frozenset({"module", "_fsdp_wrapped_module"})


def find(context: Context) -> Iterator[Draft]:
    """`.module` on expressions that hold an FSDP1 model."""
    for attribute in context.module.attributes:
        if attribute.attr not in _INNER or not isinstance(attribute.ctx, ast.Load):
            continue
        sites = context.sites(attribute.value)
        own = attribute.attr == "_fsdp_wrapped_module"  # nothing but FSDP1's wrapper has it
        guard = _guard(context, attribute)
        unwrapped = guard is None and _is_unwrapped(context, attribute.value)
        if not own and guard is None and (unwrapped or not sites):
            continue
        construct = f".{attribute.attr}"
        endless = isinstance(guard, ast.While)  # if the model is its own module
        if sites and not unwrapped and not endless and context.only_fsdp1(attribute.value):
            node = context.syntax.find(attribute, cst.Attribute)
            yield Draft(
                RULE,
                attribute,
                Action.REWRITE,
                "the model is not wrapped any more: it is its own module",
                construct,
                sites,
                edits=(Edit(node, _receiver),),
            )
        else:
            yield Draft(
                RULE,
                attribute,
                Action.MANUAL,
                (_NO_MODULE if guard is None else _TESTED).format(attribute.attr),
                construct,
                sites,
                mark=True,
            )


def _guard(context: Context, attribute: ast.Attribute) -> ast.AST | None:
    """The test behind which the model's class is FSDP1's, alone or among others: `while isinstance(m, (DDP, FSDP)):`."""
    node: ast.AST = attribute
    for parent in context.module.ancestors(attribute):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and node is not parent.test:
            test, body = parent.test, parent.body
            behind = node in body if isinstance(body, list) else node is body
            if behind and isinstance(test, ast.Call) and len(test.args) == 2:
                same = ast.unparse(test.args[0]) == ast.unparse(attribute.value)
                if (
                    same
                    and ast.unparse(test.func) == "isinstance"
                    and _names(context, test.args[1])
                ):
                    return parent
        node = parent
    return None


def _names(context: Context, classes: ast.expr) -> bool:
    """Whether FSDP1's class is one of those of a test, written out or in a tuple with a name."""
    return any(
        isinstance(node, ast.Name | ast.Attribute)
        and context.project.fsdp1(node, made.module) == "FullyShardedDataParallel"
        for made in origins(context.project, classes, context.module)
        if made.node is not None
        for node in ast.walk(made.node)
    )


def _is_unwrapped(context: Context, expression: ast.expr) -> bool:
    """Whether a model was taken out of its wrapper already: a `.module` of it is an attribute of its own."""
    return any(
        isinstance(made.node, ast.Attribute) and made.node.attr in _INNER
        for made in origins(context.project, expression, context.module)
    )


def _receiver(updated: cst.CSTNode) -> Edited:
    assert isinstance(updated, cst.Attribute)
    return Edited(updated.value)


Command = command(find, __doc__ or "")
