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
as a DistributedDataParallel, is left to be done by hand.""",
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

_INNER = frozenset({"module", "_fsdp_wrapped_module"})


def find(context: Context) -> Iterator[Draft]:
    """`.module` on expressions that hold an FSDP1 model."""
    for attribute in context.module.attributes:
        if attribute.attr not in _INNER or not isinstance(attribute.ctx, ast.Load):
            continue
        sites = context.sites(attribute.value)
        own = attribute.attr == "_fsdp_wrapped_module"  # nothing but FSDP1's wrapper has it
        unwrapped = _is_unwrapped(context, attribute.value)
        if not own and (unwrapped or not sites):
            continue
        construct = f".{attribute.attr}"
        if sites and not unwrapped and context.only_fsdp1(attribute.value):
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
                f"a model sharded by FSDP2 has no `.{attribute.attr}`: ask for it where the model may be something else",
                construct,
                sites,
                mark=True,
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
