"""The root's parameters after a forward without gradients: `fully_shard` leaves them gathered, FSDP1 did not.

What reads or collects a model's parameters then gets the gathered ones: an optimizer that is made there trains nothing of the
root, and a moving average that is swapped in and out raises. `reshard_after_forward=True` at the root frees them, for one
all-gather more in each step. Under `like_fsdp1` the runtime does it.
"""

import ast
import re

from fsdp_migrate.codemods.constructor import without_gradients
from fsdp_migrate.codemods.constructor.code import Code
from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Rule
from fsdp_migrate.facts.file import last_name, values_given

GATHERED = Rule("FSDP006", "root-stays-gathered")

_SWAPS = rb"(?i:\bema\b|_ema\b|\bema_|moving_average|\bswap\w*\()|\.lerp_\(|AveragedModel"
_MAKES = re.compile(r"optim|adam|sgd|lion|adafactor|muon", re.IGNORECASE)


# What the default is for, at the root.
NOTE = "# Also after a forward without gradients; costs one all-gather more in each step"


def keep_sharded(construction: Construction, code: Code) -> str:
    """Tells the root to free its parameters after forward where a program may read them then; says why, or "" if not.

    In torch's form alone.
    """
    if construction.like_fsdp1:
        return ""
    why = may_be_read(construction.context, construction.call, code.model)
    if why:
        code.root["reshard_after_forward"] = "True"
        code.note = NOTE
    return why


def may_be_read(context: Context, at: ast.expr | ast.stmt, model: str) -> str:
    """Why the root has to free its parameters after forward, of a model that is sharded at a node; "" if it need not."""
    tree, paths = context.program.tree, context.program.reach.of(context.file.path)
    if not tree.having(_SWAPS).isdisjoint(paths):
        what = (
            "the program seems to swap a moving average in and out at that point, which would fail"
        )
    elif _runs_before_optimizer(context, at, model):
        what = "an optimizer created at that point would not train the root's parameters"
    else:
        return ""
    without = tree.having(without_gradients.WORDS).intersection(paths)
    if not any(context.program.once(without_gradients.runs_in, path) for path in sorted(without)):
        return ""
    return (
        "The root gets `reshard_after_forward=True`: by default it keeps its parameters gathered after a forward without "
        f"gradients, and {what}. If not, remove the argument and save one all-gather a step."
    )


def _runs_before_optimizer(context: Context, at: ast.expr | ast.stmt, model: str) -> bool:
    """Whether the model is given to something between the constructor and the making of an optimizer."""
    file = context.file
    function = file.function(at)
    calls = [
        call
        for call in file.of(ast.Call)
        if call.lineno > (at.end_lineno or 0) and file.function(call) is function
    ]
    makers = [call.lineno for call in calls if _MAKES.search(last_name(call.func))]
    if not makers:
        return False
    runs = (call for call in calls if call.lineno < min(makers))
    return any(_runs(call, model) for call in runs)


_SETS_UP = re.compile(r"eval\b|val|test|check|generate|sample|warm")


def _runs(call: ast.Call, model: str) -> bool:
    """Whether a call runs the model: the model itself, or an evaluation that is given it."""
    if ast.unparse(call.func) == model:
        return True
    given = [ast.unparse(value) for value in values_given(call)]
    return model in given and bool(_SETS_UP.search(last_name(call.func)))
