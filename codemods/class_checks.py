"""The class itself: `isinstance(model, FSDP)`, annotations, subclasses, `wrapper_cls=FSDP`.

`fully_shard` gives a module a class made for the occasion, a subclass of its own class and of `FSDPModule`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst

from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.loop.clip_branches import is_folded
from fsdp_migrate.codemods.roles import asks_for_none, is_annotation, is_test, is_truth
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule
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
RULES = (ISINSTANCE, SUBCLASS)

_CLASS = "FullyShardedDataParallel"
_PLAIN_STRING = re.compile(r"""[uU]?('[^'\\\n]*'|"[^"\\\n]*")""")


def find(context: Context) -> Iterator[Draft]:
    """References to the class, or to its name, that are no constructor calls and no attribute accesses."""
    yield from _references(context)
    yield from _quoted(context)


def _references(context: Context) -> Iterator[Draft]:
    for reference in context.references():
        if context.fsdp1(reference) != _CLASS or is_folded(context, reference):
            continue
        if (
            is_test(context, reference)
            or is_annotation(context, reference)
            or asks_for_none(context, reference)
            or is_truth(context, reference)
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


Command = command(find, __doc__ or "")
