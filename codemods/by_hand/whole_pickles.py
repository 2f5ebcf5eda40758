"""Checkpoints that hold the program's arguments as they are: since torch 2.6 `torch.load` refuses them unless it is told."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.nodes import has_double_star
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP531", "load-of-objects", Severity.RAISES)

_MESSAGE = (
    "Since torch 2.6 `torch.load` refuses a file that holds this object. If you trust the file, pass "
    "`weights_only=False` where it is loaded: {}."
)
# Keys that show that a dictionary is a checkpoint.
_OF_CHECKPOINTS = frozenset({"epoch", "iter", "model", "optimizer", "state_dict", "step"})


@codemod(words=("torch.load(",))
def find(context: Context) -> Iterator[Found]:
    """The arguments in the checkpoints of a file that also loads them, and does not say what it may read."""
    if not context.references:
        return
    loads = [call.lineno for call in context.file.calls.get("load", ()) if _is_open(context, call)]
    if loads:
        word = "line" if len(loads) == 1 else "lines"
        where = f"{word} {', '.join(map(str, loads))}"
        for made in context.file.of(ast.Dict):
            held = _held(made)
            if held is not None:
                yield Found(RULE, held, Action.MANUAL, _MESSAGE.format(where), "args")


def _is_open(context: Context, call: ast.Call) -> bool:
    """Whether a call of `torch.load` leaves it to torch what it may read."""
    is_open = has_double_star(call)  # `**options`
    says = is_open or keyword(call, "weights_only") is not None
    return not says and "torch.load" in context.dotted(call.func)


def _held(made: ast.Dict) -> ast.expr | None:
    """The arguments in a dictionary that is a checkpoint: `{"model": states, "args": args}`."""
    entries = {
        key.value: value
        for key, value in zip(made.keys, made.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    match entries.get("args"):
        case (ast.Name(id="args") | ast.Attribute(attr="args")) as held:
            if not _OF_CHECKPOINTS.isdisjoint(entries):
                return held
    return None
