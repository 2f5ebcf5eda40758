"""The root's parameters after a forward without gradients: `fully_shard` leaves them gathered, FSDP1 did not.

What reads or collects a model's parameters then gets the gathered ones: an optimizer that is made there trains nothing of the
root, and a moving average that is swapped in and out raises. `reshard_after_forward=True` at the root frees them, for one
all-gather more in each step. Under `like_fsdp1` the runtime does it.
"""

import ast

from fsdp_migrate.codemods.assumptions.table import OUTERMOST
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.order import Place, first_read
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.file import place_of
from fsdp_migrate.source import is_test

GATHERED = Rule("FSDP006", "root-stays-gathered")

_MESSAGE = (
    "The root gets `reshard_after_forward=True`, because {} may use parameters after a forward under `no_grad`: without it, "
    "the root's would remain gathered until the next backward. It costs one more all-gather per step: remove it if no code "
    "uses parameters then. If such code changes parameters, the next step uses the new values; FSDP1 used the old ones."
)
# What the default is for, at the root.
NOTE = "# A forward under no_grad would leave the root unsharded; costs one more all-gather a step"
# What an argument at the root does not change.
STAY_BELOW = (
    "Units with `reshard_after_forward=False` still remain gathered, and an optimizer created in that time would not "
    "train them: call `reshard()` on each `FSDPModule` before you create one."
)

_BELOW = "Units with `reshard_after_forward=False` keep gathered copies of their"


def keep_sharded(construction: Construction, code: Code) -> str:
    """Tells the root to free its parameters after forward where a program may read them then; says why, or "" if not."""
    why = may_be_read(construction.context, construction.call)
    if why:
        code.root["reshard_after_forward"] = "True"
        code.note = NOTE
        if "reshard_after_forward" in code.child:
            return f"{why} {STAY_BELOW}"
    return why


def stays_gathered(why: str) -> str:
    """Which units keep whole parameters after a forward without gradients, as a sentence begins; "" if none does.

    Args:
        why: why the root is told to free its own; "" where it is not.
    """
    if not why:
        return OUTERMOST
    if STAY_BELOW in why:
        return _BELOW
    return ""


def may_be_read(context: Context, at: ast.expr | ast.stmt) -> str:
    """Why the root has to free its parameters after forward, of the models that are sharded at a node; "" if it need not."""
    program = context.program
    paths = program.reach.of(context.file.path)
    if not is_test(str(context.file.path)):
        paths = [path for path in paths if not is_test(path)]
    read = program.once(first_read, at, tuple(paths))
    if read is None:
        return ""
    return _MESSAGE.format(_who(context, read))


def _who(context: Context, read: Place) -> str:
    """What may read the parameters: a line where the files show one."""
    if not read.reads:
        return "code outside of these files"
    place = f"line {place_of(read.node)[0]}"
    if read.file is not context.file:
        place += f" of {read.file.path.name}"
    return place
