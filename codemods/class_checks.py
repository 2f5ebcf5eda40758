"""The class itself: `isinstance(model, FSDP)`, annotations, `type(model) is FSDP`, subclasses, `wrapper_cls=FSDP`.

`fully_shard` gives a module a class made for the occasion, a subclass of its own class and of `FSDPModule`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Draft, Example, Rule
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import PACKAGE

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
    "type(m) is FSDP is never true under FSDP2",
    """`type(m)` of a sharded module is a class made for it, `FSDP<its own class>`. Use `isinstance(m, FSDPModule)`, or
`isinstance(m, ItsOwnClass)`, which stays true.""",
    (
        Example(
            "a comparison",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

wrapped = type(model) is FSDP
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


def find(context: Context) -> Iterator[Draft]:
    """References to the class that are no constructor calls and no attribute accesses."""
    for reference in context.references():
        if context.fsdp1(reference) != "FullyShardedDataParallel":
            continue
        if _is_test(context, reference) or _is_annotation(context, reference):
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
        elif isinstance(parent, ast.Compare):
            yield Draft(
                TYPE_IDENTITY,
                reference,
                Action.MANUAL,
                "the type of a sharded module is a class made for it: use isinstance(m, FSDPModule)",
                context.source(parent),
                silent=True,
            )


def _is_test(context: Context, reference: ast.expr) -> bool:
    """Whether a reference is the class, or one of the classes, of an isinstance or issubclass test."""
    node: ast.AST = reference
    parent = context.module.parents[node]
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


def _is_annotation(context: Context, reference: ast.expr) -> bool:
    node: ast.AST = reference
    for parent in context.module.ancestors(reference):
        if isinstance(parent, ast.arg | ast.AnnAssign) and parent.annotation is node:
            return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is node:
            return True
        if not isinstance(parent, ast.expr) or isinstance(parent, ast.Call):
            return False
        node = parent
    return False


Command = command(find, __doc__ or "")
