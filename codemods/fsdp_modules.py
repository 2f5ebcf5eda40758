"""`FSDP.fsdp_modules(model)`: the units of a model."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import PACKAGE

RULE = Rule(
    "FSDP362",
    "fsdp-modules",
    "FSDP.fsdp_modules(model) becomes a list of the FSDPModules",
    """FSDP1's function looks for wrappers and returns an empty list for an FSDP2 model, without an error. The units of an
FSDP2 model are the modules that are `FSDPModule`s, in the same order. With `root_only=True` the list holds those that have
no unit around them: write what the program needs, as a rule the model itself.""",
    (
        Example(
            "all units",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for unit in FSDP.fsdp_modules(model):
    print(unit)
""",
            """\
from torch.distributed.fsdp import FSDPModule, fully_shard

fully_shard(model)
for unit in [module for module in model.modules() if isinstance(module, FSDPModule)]:
    print(unit)
""",
        ),
        Example(
            "roots only",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
roots = FSDP.fsdp_modules(model, root_only=True)
""",
            message="root_only",
        ),
    ),
)
RULES = (RULE,)

_BY_HAND = (
    "returns [] for an FSDP2 model: keep the FSDPModule instances of model.modules(), with root_only"
    " those that have none around them"
)


def find(context: Context) -> Iterator[Draft]:
    """`fsdp_modules` of the class and of models."""
    for attribute in context.module.attributes:
        if attribute.attr != "fsdp_modules":
            continue
        sites = context.concerned(attribute)
        if sites is None:
            continue
        construct = context.source(attribute)
        call = context.module.parents[attribute]
        edit = _edit(context, attribute, call)
        if edit is None:
            yield Draft(RULE, attribute, Action.MANUAL, _BY_HAND, construct, sites, silent=True)
            continue
        reference = attribute.value if context.fsdp1(attribute.value) else None
        name, needs = context.name(PACKAGE, "FSDPModule", reference, use=attribute)
        yield Draft(
            RULE,
            attribute,
            Action.REWRITE,
            "the units are the modules that are FSDPModules",
            construct,
            sites,
            edits=(edit(name),),
            needs=needs,
            gone=() if reference is None else (reference,),
        )


def _edit(
    context: Context, attribute: ast.Attribute, call: ast.AST
) -> Callable[[str], Edit] | None:
    """How to write the list, given how `FSDPModule` is written; None if more is asked for than all units."""
    if not (isinstance(call, ast.Call) and call.func is attribute):
        return None
    if len(call.args) != 1 or call.keywords or isinstance(call.args[0], ast.Starred):
        return None
    node = context.syntax.find(call, cst.Call)

    def edit(name: str) -> Edit:
        def apply(updated: cst.CSTNode) -> Edited:
            assert isinstance(updated, cst.Call)
            model = updated.args[0].value
            code = cst.Module([]).code_for_node(model)
            if not isinstance(model, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
                code = f"({code})"
            units = f"[module for module in {code}.modules() if isinstance(module, {name})]"
            made = cst.parse_expression(units)
            return Edited(made, tuple(missing(comments_in(updated), comments_in(made))))

        return Edit(node, apply)

    return edit


Command = command(find, __doc__ or "")
