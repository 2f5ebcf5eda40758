"""The class itself: `isinstance(model, FSDP)`, annotations, `type(model) is FSDP`, subclasses, `wrapper_cls=FSDP`.

`fully_shard` gives a module a class made for the occasion, a subclass of its own class and of `FSDPModule`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.loop.clip_branches import is_folded
from fsdp_migrate.codemods.roles import asks_for_none, is_annotation, is_test
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import PACKAGE
from fsdp_migrate.index.values import origins

ISINSTANCE = Rule(
    "FSDP007",
    "isinstance",
    "isinstance(m, FSDP) becomes isinstance(m, FSDPModule), and so do annotations",
    """`FSDPModule` is the class that every sharded module gets (`_fully_shard/_fully_shard.py`). Left behind,
`isinstance(m, FSDP)` is silently False and the other branch runs.""",
    (
        Example(
            "a test and an annotation",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def units(model: FSDP):
    return [m for m in model.modules() if isinstance(m, FSDP)]
""",
            """\
from torch.distributed.fsdp import FSDPModule


def units(model: FSDPModule):
    return [m for m in model.modules() if isinstance(m, FSDPModule)]
""",
        ),
        Example(
            "an annotation in quotes",
            """\
from typing import Optional

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model: "Optional[FSDP]") -> None: ...
""",
            """\
from typing import Optional

from torch.distributed.fsdp import FSDPModule


def save(model: "Optional[FSDPModule]") -> None: ...
""",
        ),
        Example(
            "a pattern",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def name(model):
    match model:
        case FSDP():
            return "sharded"
""",
            """\
from torch.distributed.fsdp import FSDPModule


def name(model):
    match model:
        case FSDPModule():
            return "sharded"
""",
        ),
        Example(
            "one class among several",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel


def is_wrapped(model):
    return isinstance(model, (FullyShardedDataParallel, DistributedDataParallel))
""",
            """\
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


def is_wrapped(model):
    return isinstance(model, (FSDPModule, DistributedDataParallel))
""",
        ),
    ),
)
TYPE_IDENTITY = Rule(
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
SUBCLASS = Rule(
    "FSDP005",
    "fsdp-subclass",
    "a subclass of FSDP has to become a function",
    """FSDP2 has no class to inherit from: a module is sharded in place. What the subclass adds to construction becomes a
function that calls `fully_shard`; what it adds to the module becomes methods of the model's own class.""",
    (
        Example(
            "a subclass",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapper(FSDP):
    pass
""",
            message="inherit",
        ),
    ),
)
RULES = (ISINSTANCE, TYPE_IDENTITY, SUBCLASS)

_CLASS = "FullyShardedDataParallel"
_BY_TYPE = "the type of a sharded module is a class made for it: use isinstance(m, FSDPModule)"
_PLAIN_STRING = re.compile(r"""[uU]?('[^'\\\n]*'|"[^"\\\n]*")""")


def find(context: Context) -> Iterator[Draft]:
    """References to the class, or to its name, that are no constructor calls and no attribute accesses."""
    yield from _references(context)
    yield from _quoted(context)
    yield from _by_name(context)


def _references(context: Context) -> Iterator[Draft]:
    for reference in context.references():
        if context.fsdp1(reference) != _CLASS or is_folded(context, reference):
            continue
        if (
            is_test(context, reference)
            or is_annotation(context, reference)
            or asks_for_none(context, reference)
        ):
            name, needs = context.name(PACKAGE, "FSDPModule", reference)
            yield Draft(
                ISINSTANCE,
                reference,
                Action.REWRITE,
                "every sharded module is an FSDPModule",
                context.source(reference),
                edits=(context.rename(reference, name),),
                needs=needs,
                gone=(reference,),
            )
            continue
        parent = context.module.parents[reference]
        if isinstance(parent, ast.ClassDef):
            yield Draft(
                SUBCLASS,
                reference,
                Action.MANUAL,
                "there is no class to inherit from in FSDP2: shard the module in a function with fully_shard",
                f"class {parent.name}({context.source(reference)})",
                silent=True,
            )
        elif isinstance(parent, ast.Compare) and _compared(context, parent) is not None:
            name, needs = context.name(PACKAGE, "FSDPModule", reference)
            yield Draft(
                TYPE_IDENTITY,
                reference,
                Action.REWRITE,
                "every sharded module is an FSDPModule",
                context.source(parent),
                edits=(_as_test(context, parent, name),),
                needs=needs,
                gone=(reference,),
            )
        elif isinstance(parent, ast.Compare):
            yield Draft(
                TYPE_IDENTITY,
                reference,
                Action.MANUAL,
                _BY_TYPE,
                context.source(parent),
                silent=True,
            )


def _compared(context: Context, comparison: ast.Compare) -> ast.expr | None:
    """The module of which a comparison asks whether its type is the class and no other: `type(m) is FSDP`."""
    sides = [comparison.left, *comparison.comparators]
    plain = len(sides) == 2 and isinstance(
        comparison.ops[0], ast.Is | ast.Eq | ast.IsNot | ast.NotEq
    )
    types = [s for s in sides if isinstance(s, ast.Call) and ast.unparse(s.func) == "type"]
    if not plain or len(types) != 1 or len(types[0].args) != 1 or types[0].keywords:
        return None
    if not context.means_builtin("type", comparison) or _is_subclassed(context):
        return None
    return types[0].args[0]


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


def _quoted(context: Context) -> Iterator[Draft]:
    """Annotations in quotes: the class's name is replaced inside the string."""
    module = context.module
    for string, annotation in module.quoted:
        scope = module.scope_of(string)
        names = [
            node
            for node in ast.walk(annotation)
            if isinstance(node, ast.Name | ast.Attribute)
            and context.project.fsdp1(node, module, scope) == _CLASS
        ]
        if not names:
            continue
        construct = context.source(string)
        if not _PLAIN_STRING.fullmatch(construct) or not isinstance(names[0], ast.Name):
            message = "every sharded module is an FSDPModule: write that into the string"
            yield Draft(ISINSTANCE, string, Action.MANUAL, message, construct)
            continue
        name, needs = context.name(PACKAGE, "FSDPModule", names[0])
        yield Draft(
            ISINSTANCE,
            string,
            Action.REWRITE,
            "every sharded module is an FSDPModule",
            construct,
            edits=(_renamed_inside(context, string, names[0].id, name),),
            needs=needs,
            gone=(string,),
        )


def _renamed_inside(context: Context, string: ast.Constant, old: str, new: str) -> Edit:
    text = re.sub(rf"(?<![\w.]){old}\b", new, context.source(string))
    return Edit(
        context.syntax.find(string, cst.SimpleString),
        lambda updated: Edited(cst.SimpleString(text)),
    )


def _by_name(context: Context) -> Iterator[Draft]:
    """Comparisons of a type's name with the class's: `type(m).__name__ == "FullyShardedDataParallel"`."""
    if _CLASS not in context.module.text:
        return
    for node in ast.walk(context.module.tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(_holds_name, sides)) and any(_is_type_name(context, s) for s in sides):
                construct = context.source(node)
                yield Draft(TYPE_IDENTITY, node, Action.MANUAL, _BY_TYPE, construct, silent=True)


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
