"""Whether a state dict is read after the model has trained on.

FSDP1's state dicts are copies. Those that torch's functions return share memory with the parameters unless they go to the CPU:
shards always, whole ones where a rank has whole parameters, alone or under NO_SHARD. A best state that stays in memory trains
on with the model.
"""

from __future__ import annotations

import ast
import re

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name

_KEEPING = {"add", "append", "copy", "dict", "extend", "insert", "OrderedDict", "put", "setdefault"}
_TRAINS = re.compile(r"backward|epoch|fit|learn|run|step|train|update")
_PLACES = (ast.For, ast.AsyncFor, ast.While, ast.FunctionDef, ast.AsyncFunctionDef)


def is_kept(context: Context, call: ast.Call) -> bool:
    """Whether what a call of `state_dict` returns may be read after further training."""
    file, reads = context.file, set[ast.expr]()
    pending: list[ast.expr] = [call]
    while pending:
        value = pending.pop()
        if not _escapes(file, value):
            continue
        statement = file.statement(value)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        name = target.value if isinstance(target, ast.Subscript) else target
        if not isinstance(name, ast.Name):
            return True
        more = [r for r in file.reads(name) if r not in reads and not _is_another(file, value, r)]
        reads.update(more)
        pending += more
    place = next((each for each in file.ancestors(call) if isinstance(each, _PLACES)), file.tree)
    if any(place not in file.ancestors(read) for read in reads):
        return True
    last = max((read.lineno for read in reads), default=0)
    return any(
        call.lineno < other.lineno < last and _TRAINS.search(last_name(other.func))
        for other in file.of(ast.Call)
        if file.function(other) is file.function(call)
    )


def _is_another(file: File, value: ast.expr, read: ast.expr) -> bool:
    """Whether `state["step"]` reads another entry of `state = {"model": model.state_dict(), "step": step}`."""
    entry, made = file.parents[read], file.parents[value]
    if not isinstance(made, ast.Dict) or not isinstance(entry, ast.Subscript):
        return False
    return ast.unparse(entry.slice) != ast.unparse(made.keys[made.values.index(value)] or entry)


def _escapes(file: File, value: ast.AST) -> bool:
    """Whether a value goes to another name, to a container, or to who called the function."""
    for parent in file.ancestors(value):
        if isinstance(parent, ast.Call):
            name = last_name(parent.func)
            return (
                name in _KEEPING
                if value is not parent.func
                else name in {"copy", "items", "values"}
            )
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.AugAssign):
            return value is parent.value
        if isinstance(parent, ast.stmt | ast.Lambda | ast.Yield | ast.YieldFrom):
            return isinstance(parent, ast.Return | ast.Lambda | ast.Yield | ast.YieldFrom)
        value = parent
    return False
