"""`type(model) is FSDP`, and the name of a type compared with the class's: the type of a module asked for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.loop.clip_branches import is_folded
from fsdp_migrate.codemods.roles import asks_for_none
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import PACKAGE
from fsdp_migrate.index.values import origins

RULE = Rule(
    "FSDP008",
    "type-identity",
    "type(m) is FSDP becomes isinstance(m, FSDPModule)",
    """`type(m)` of a sharded module is a class made for it, `FSDP<its own class>`, so that a comparison with FSDP's class is
never true. `isinstance(m, FSDPModule)` asks the same, and `isinstance(m, ItsOwnClass)` stays true. A comparison with several
classes, with the class's name, or in a project that has a subclass of FSDP, is left to be done by hand.""",
    (
        Example(
            "a comparison",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

wrapped = type(model) is FSDP
plain = type(model) != FSDP
""",
            """\
from torch.distributed.fsdp import FSDPModule

wrapped = isinstance(model, FSDPModule)
plain = not isinstance(model, FSDPModule)
""",
        ),
        Example(
            "several classes",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

if FSDP == type(model) == type(other):
    print("wrapped")
""",
            message="isinstance",
        ),
        Example(
            "by the name of the class",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
wrapped = type(model).__name__ == "FullyShardedDataParallel"
""",
            message="isinstance",
        ),
    ),
)
RULES = (RULE,)

_CLASS = "FullyShardedDataParallel"
_BY_TYPE = "the type of a sharded module is a class made for it: use isinstance(m, FSDPModule)"


def find(context: Context) -> Iterator[Draft]:
    """Comparisons of types with the class, and of types' names with its name."""
    yield from _by_class(context)
    yield from _by_name(context)


def _by_class(context: Context) -> Iterator[Draft]:
    for reference in context.references():
        parent = context.module.parents[reference]
        if context.fsdp1(reference) != _CLASS or not isinstance(parent, ast.Compare):
            continue
        if asks_for_none(context, reference) or is_folded(context, reference):
            continue
        if not _is_of_one_module(context, parent):
            construct = context.source(parent)
            yield Draft(RULE, reference, Action.MANUAL, _BY_TYPE, construct, silent=True)
            continue
        name, needs = context.name(PACKAGE, "FSDPModule", reference)
        yield Draft(
            RULE,
            reference,
            Action.REWRITE,
            "every sharded module is an FSDPModule",
            context.source(parent),
            edits=(_as_test(context, parent, name),),
            needs=needs,
            gone=(reference,),
        )


def _is_of_one_module(context: Context, comparison: ast.Compare) -> bool:
    """Whether a comparison asks of one module whether its type is the class and no other: `type(m) is FSDP`."""
    sides = [comparison.left, *comparison.comparators]
    plain = len(sides) == 2 and isinstance(
        comparison.ops[0], ast.Is | ast.Eq | ast.IsNot | ast.NotEq
    )
    types = [s for s in sides if isinstance(s, ast.Call) and ast.unparse(s.func) == "type"]
    if not plain or len(types) != 1 or len(types[0].args) != 1 or types[0].keywords:
        return False
    return context.means_builtin("type", comparison) and not _is_subclassed(context)


def _is_subclassed(context: Context) -> bool:
    """Whether a class around inherits from FSDP's, so that its instances are no other FSDP1 model's equals."""
    return any(
        context.project.fsdp1(base, module) == _CLASS
        for module in context.project.connected(context.module)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
        for base in node.bases
    )


def _as_test(context: Context, comparison: ast.Compare, name: str) -> Edit:
    negated = isinstance(comparison.ops[0], ast.IsNot | ast.NotEq)

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Comparison)
        sides = [updated.left, updated.comparisons[0].comparator]
        asked = next(side for side in sides if isinstance(side, cst.Call))
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        module = cst.Arg(asked.args[0].value, comma=comma)
        test: cst.BaseExpression = asked.with_changes(
            func=cst.Name("isinstance"), args=[module, cst.Arg(cst.parse_expression(name))]
        )
        if negated:
            around = (updated.lpar, updated.rpar)
            test = cst.UnaryOperation(cst.Not(), test, lpar=around[0], rpar=around[1])
        else:
            test = test.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        return Edited(test, tuple(missing(comments_in(updated), comments_in(test))))

    return Edit(context.syntax.find(comparison, cst.Comparison), apply)


def _by_name(context: Context) -> Iterator[Draft]:
    """Comparisons of a type's name with the class's: `type(m).__name__ == "FullyShardedDataParallel"`."""
    if _CLASS not in context.module.text:
        return
    for node in ast.walk(context.module.tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_holds_name, sides)) and any(_is_type_name(context, s) for s in sides):
                construct = context.source(node)
                yield Draft(RULE, node, Action.MANUAL, _BY_TYPE, construct, silent=True)


def _holds_name(side: ast.expr) -> bool:
    values = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
    return any(isinstance(value, ast.Constant) and value.value == _CLASS for value in values)


def _is_type_name(context: Context, side: ast.expr) -> bool:
    """Whether an expression is the name of a class, read on the spot or into a name before."""
    return any(
        isinstance(made.node, ast.Attribute) and made.node.attr in {"__name__", "__qualname__"}
        for made in origins(context.project, side, context.module)
    )


Command = command(find, __doc__ or "")
