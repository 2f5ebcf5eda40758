"""The class itself: `isinstance(model, FSDP)`, annotations, `type(model) is FSDP`, subclasses, `wrapper_cls=FSDP`.

`fully_shard` gives a module a class made for the occasion, a subclass of its own class and of `FSDPModule`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

import libcst as cst

from fsdp_migrate.codemods.annotations import is_annotation, quoted, renamed_inside
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.comments import comments_in, missing
from fsdp_migrate.codemods.loop.clip_branches import is_folded
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
            "whether the class was imported",
            """\
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
except ImportError:
    FSDP = None


def is_wrapped(model):
    if not FSDP:
        return False
    return bool(model) if FSDP and isinstance(model, FSDP) else False
""",
            """\
try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:
    FSDPModule = None


def is_wrapped(model):
    if not FSDPModule:
        return False
    return bool(model) if FSDPModule and isinstance(model, FSDPModule) else False
""",
        ),
        Example(
            "types in other places than annotations, and a tuple for tests",
            """\
from typing import TypeVar, Union, cast

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (FSDP, DDP)
Wrapped = Union[FSDP, DDP]
Model = TypeVar("Model", bound=FSDP)


def checked(model: Wrapped):
    return model if isinstance(model, WRAPPERS) else cast(FSDP, model)
""",
            """\
from typing import TypeVar, Union, cast

from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (FSDPModule, DDP)
Wrapped = Union[FSDPModule, DDP]
Model = TypeVar("Model", bound=FSDPModule)


def checked(model: Wrapped):
    return model if isinstance(model, WRAPPERS) else cast(FSDPModule, model)
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
same = (model.head.__class__ is FSDP)  # of a part
""",
            """\
from torch.distributed.fsdp import FSDPModule

wrapped = isinstance(model, FSDPModule)
plain = not isinstance(model, FSDPModule)
same = (isinstance(model.head, FSDPModule))  # of a part
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
            _is_test(context, reference)
            or is_annotation(context, reference)
            or _asks_for_none(context, reference)
            or _is_truth(context, reference)
            or _is_for_tests(context, reference)
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
    modules = [module for side in sides if (module := _typed(context, side)) is not None]
    return modules[0] if plain and len(modules) == 1 and not _is_subclassed(context) else None


def _typed(context: Context, side: ast.expr) -> ast.expr | None:
    """The object whose type an expression is: `type(m)` or `m.__class__`."""
    if isinstance(side, ast.Attribute) and side.attr == "__class__":
        return side.value
    if not isinstance(side, ast.Call) or ast.unparse(side.func) != "type":
        return None
    plain = len(side.args) == 1 and not side.keywords and context.means_builtin("type", side)
    return side.args[0] if plain else None


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
        asked = next(side for side in sides if _is_type(side))
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        kept = asked if isinstance(asked, cst.Call) else cst.Call(cst.Name("isinstance"))
        of = asked.args[0].value if isinstance(asked, cst.Call) else asked.value
        test: cst.BaseExpression = kept.with_changes(
            func=cst.Name("isinstance"),
            args=[cst.Arg(of, comma=comma), cst.Arg(cst.parse_expression(name))],
        )
        if negated:
            around = (updated.lpar, updated.rpar)
            test = cst.UnaryOperation(cst.Not(), test, lpar=around[0], rpar=around[1])
        else:
            test = test.with_changes(lpar=updated.lpar, rpar=updated.rpar)
        return Edited(test, tuple(missing(comments_in(updated), comments_in(test))))

    return Edit(context.syntax.find(comparison, cst.Comparison), apply)


def _is_type(side: cst.BaseExpression) -> TypeGuard[cst.Call | cst.Attribute]:
    """Whether one side of a comparison is `type(m)` or `m.__class__`, and not FSDP's class."""
    return isinstance(side, cst.Call) or (
        isinstance(side, cst.Attribute) and side.attr.value == "__class__"
    )


def _quoted(context: Context) -> Iterator[Draft]:
    """Annotations in quotes: the class's name is replaced inside the string."""
    for string, written in quoted(context, _CLASS):
        construct = context.source(string)
        message = "every sharded module is an FSDPModule"
        if written is None:
            message = f"{message}: write that into the string"
            yield Draft(ISINSTANCE, string, Action.MANUAL, message, construct)
            continue
        name, needs = context.name(PACKAGE, "FSDPModule", written)
        edits, gone = (renamed_inside(context, string, written.id, name),), (string,)
        yield Draft(
            ISINSTANCE,
            string,
            Action.REWRITE,
            message,
            construct,
            edits=edits,
            needs=needs,
            gone=gone,
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


def _asks_for_none(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is only asked whether it was imported: `FSDP is not None`."""
    parent = context.module.parents[reference]
    return (
        isinstance(parent, ast.Compare)
        and len(parent.comparators) == 1
        and any(
            isinstance(side, ast.Constant) and side.value is None
            for side in (parent.left, parent.comparators[0])
        )
    )


def _is_truth(context: Context, reference: ast.expr) -> bool:
    """Whether only the truth of a reference counts, which is that of its import: `if FSDP and ...:`, `not FSDP`."""
    node: ast.AST = reference
    parent = context.module.parents[node]
    while isinstance(parent, ast.BoolOp):
        node, parent = parent, context.module.parents[parent]
    if isinstance(parent, ast.UnaryOp):
        return isinstance(parent.op, ast.Not)
    if isinstance(parent, ast.comprehension):
        return node in parent.ifs
    return isinstance(parent, ast.If | ast.IfExp | ast.While | ast.Assert) and parent.test is node


def _is_for_tests(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is one of the classes in a tuple with a name that only tests use: `WRAPPERS = (FSDP, DDP)`."""
    module, uses = context.module, context.models.uses
    around = module.parents[reference]
    assigned = module.parents[around]
    if not (isinstance(around, ast.Tuple) and isinstance(assigned, ast.Assign)):
        return False
    name = assigned.targets[0]
    if len(assigned.targets) > 1 or not isinstance(name, ast.Name):
        return False
    found = module.lookup(name.id, module.scope_of(name))
    if found is None or len(found[1]) > 1 or isinstance(module.parents[assigned], ast.ClassDef):
        return False
    if found[0] is module.scope and (
        any(True for _ in uses.importers(module, name.id))
        or any(True for _ in uses.through_module(module, name.id))
        or any(True for _ in uses.stars(module))
    ):
        return False
    loads = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
        if module.lookup(name.id, module.scope_of(node)) == found
    ]
    return bool(loads) and all(_is_test(context, load) for load in loads)


def _is_test(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is the class, or one of the classes, of an isinstance or issubclass test, or of `case FSDP():`."""
    node: ast.AST = reference
    parent = context.module.parents[node]
    if isinstance(parent, ast.MatchClass):
        return not (parent.patterns or parent.kwd_patterns)
    while isinstance(parent, ast.Tuple) or (
        isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.BitOr)
    ):
        node, parent = parent, context.module.parents[parent]
    return (
        isinstance(parent, ast.Call)
        and isinstance(parent.func, ast.Name)
        and parent.func.id in {"isinstance", "issubclass"}
        and len(parent.args) == 2
        and parent.args[1] is node
    )


Command = command(find, __doc__ or "")
