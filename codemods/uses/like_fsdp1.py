"""`with like_fsdp1(model):`, which the default form writes: in torch's form the block stands without it."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.constructor import assumptions
from fsdp_migrate.codemods.constructor.code import KEEPS
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.edit.text import indentation, newline
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Action

RULE = Rule("FSDP008", "like-fsdp1")
RULES = (RULE,)

_READS = (
    "Reads FSDP1's arguments at run time, for which torch has no equivalent. "
    "Call `fully_shard` for each unit yourself."
)


def find(context: Context) -> Iterator[Found]:
    """Every block, in torch's form."""
    if context.form != "torch":
        return
    for statement in context.file.of(ast.With):
        call = statement.items[0].context_expr
        if len(statement.items) > 1 or not isinstance(call, ast.Call):
            continue
        if not _is_of_runtime(context, call.func, "like_fsdp1"):
            continue
        inside = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
        reader = next((c for c in inside if _is_of_runtime(context, c.func, "units")), None)
        if reader is not None:
            yield Found(RULE, reader, Action.MANUAL, _READS)
            continue
        edits = lambda statement=statement, call=call: _edits(context, statement, call)  # noqa: E731
        message = "Removed, together with the FSDP1 behaviour that it kept: see the assumptions listed here."
        yield Found(RULE, statement, Action.REWRITE, message, "like_fsdp1", edits, (), (call.func,))
        yield from assumptions.of_model(context, statement, norms=False, lacks_attributes=False)


def _is_of_runtime(context: Context, function: ast.expr, name: str) -> bool:
    return any(path == f"{RUNTIME}.{name}" for path in context.dotted(function))


def _edits(context: Context, statement: ast.With, call: ast.Call) -> list[Edit]:
    """The edits that take the block one step out, and write what `buffer_dtype` asked for behind it."""
    from fsdp_migrate.codemods.edit.statement import Statement

    block = Statement(context.file, statement)
    block.step_out()
    return [*_remark(context, statement), *block.edits(), *_cast(context, statement, call)]


def _remark(context: Context, statement: ast.With) -> list[Edit]:
    """The edit that takes away the comment which the default form writes above."""
    start, text = context.file.lines(statement)[0], context.file.text
    found = re.search(rf"[ \t]*{re.escape(KEEPS)}(?:\r\n|\r|\n)\Z", text[:start])
    return [] if found is None else [Edit(found.start(), start, "", (KEEPS,))]


def _cast(context: Context, statement: ast.With, call: ast.Call) -> list[Edit]:
    dtype, model = keyword(call, "buffer_dtype"), keyword(call, "model", 0)
    if dtype is None or model is None:
        return []
    margin, end_of_line = indentation(context.file, statement), newline(context.file)
    buffer = context.local("buffer", call)
    given = context.source(dtype)
    lines = [
        f"for {buffer} in {context.source(model)}.buffers():",
        f"    if {buffer}.is_floating_point():",
        f"        {buffer}.data = {buffer}.to({given})",
    ]
    if not given.startswith("torch."):
        lines = [f"if {given} is not None:", *(f"    {line}" for line in lines)]
    place = context.file.lines(statement)[1]
    return [Edit(place, place, "".join(f"{margin}{line}{end_of_line}" for line in lines))]
