"""`with like_fsdp1(model):`, which the default form writes: in torch's form the block stands without it."""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.assumptions import constructor as assumptions
from fsdp_migrate.codemods.assumptions.lines import is_false
from fsdp_migrate.codemods.constructor import from_units, root
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.edit.text import indentation, newline
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.facts.nodes import any_is
from fsdp_migrate.findings import Action

RULE = Rule("FSDP008", "like-fsdp1")

_MESSAGE = (
    "Removed, together with the FSDP1 behaviour that it kept: see the assumptions listed here."
)
# What every unit is given stands behind what the root alone is.
_SHARED = ("mesh", "offload_policy", "ignored_params")


@codemod(words=("like_fsdp1",))
def find(context: Context) -> Iterator[Found]:
    """Every block, in torch's form; one that asks `units` for FSDP1's arguments is a constructor."""
    if context.form != "torch":
        return
    for statement in context.file.of(ast.With):
        if from_units.is_block(context, statement) and not _asks_units(context, statement):
            yield from _of_block(context, statement)


def _asks_units(context: Context, statement: ast.With) -> bool:
    inside = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    return any(f"{RUNTIME}.units" in context.dotted(call.func) for call in inside)


def _of_block(context: Context, statement: ast.With) -> Iterator[Found]:
    call = statement.items[0].context_expr
    assert isinstance(call, ast.Call)
    model = keyword(call, "model", 0)
    shards = None
    if model is not None:
        shards = _root(statement, model)
    why = ""
    if shards:
        why = root.may_be_read(context, statement)
        if why and _keeps_below(statement, shards):
            why = f"{why} {root.STAY_BELOW}"
    gathered = None
    if why:
        gathered = shards
    edits = lambda: _edits(context, statement, call, gathered)  # noqa: E731
    yield Found(RULE, statement, Action.REWRITE, _MESSAGE, "like_fsdp1", edits, (), (call.func,))
    if why and shards is not None:
        yield Found(root.GATHERED, shards, Action.REWRITE, why, "fully_shard")
    yield from assumptions.of_model(
        context,
        statement,
        norms=_has_units_in_low_precision(statement),
        lacks_attributes=is_false(keyword(call, "parameter_attributes")),
        two_types=any(map(assumptions.has_two_types, _policies(context, statement))),
        gathered=root.stays_gathered(why),
    )


def _keeps_below(statement: ast.With, shards: ast.Expr) -> bool:
    """Whether units below the root are told whether to free their parameters."""
    below = [node for each in statement.body if each is not shards for node in ast.walk(each)]
    return any(isinstance(n, ast.keyword) and n.arg == "reshard_after_forward" for n in below)


def _has_units_in_low_precision(statement: ast.With) -> bool:
    """Whether a loop shards units by a policy of precision."""
    inside = [*ast.walk(statement)]
    keywords = [each.arg for each in inside if isinstance(each, ast.keyword)]
    return any_is(inside, ast.For) and "mp_policy" in keywords


def _policies(context: Context, statement: ast.With) -> Iterator[ast.expr]:
    """The policies of precision that a block passes on as they are."""
    for node in ast.walk(statement):
        if isinstance(node, ast.keyword) and node.arg == "mp_policy":
            if not isinstance(node.value, ast.Call) or last_name(node.value.func) != "replace":
                made = context.value(node.value)
                yield node.value if made is None else made.node


def _root(statement: ast.With, model: ast.expr) -> ast.Expr | None:
    """The statement that shards the root, which the tool writes last, if it leaves `reshard_after_forward` to FSDP2."""
    last = statement.body[-1]
    match last:
        case ast.Expr(value=ast.Call(args=[given], keywords=keywords) as call):
            names = {each.arg for each in keywords}
            is_root = ast.unparse(call.func) == "fully_shard" and ast.dump(given) == ast.dump(model)
            if is_root and "reshard_after_forward" not in names:
                return last
            return None
    return None


def _edits(
    context: Context, statement: ast.With, call: ast.Call, shards: ast.Expr | None
) -> list[Edit]:
    """The edits that take the block one step out, and write what `buffer_dtype` asked for behind it."""
    from fsdp_migrate.codemods.edit.statement import Statement

    block = Statement(context.file, statement)
    if shards is not None:
        assert isinstance(shards.value, ast.Call)
        block.give(shards.value, "reshard_after_forward", "True", _SHARED)
        block.comment(shards, root.NOTE)
    block.step_out()
    remark = from_units.without_remark(context, statement)
    return [*remark, *block.edits(), *_cast(context, statement, call)]


def _cast(context: Context, statement: ast.With, call: ast.Call) -> list[Edit]:
    dtype = keyword(call, "buffer_dtype")
    model = keyword(call, "model", 0)
    if dtype is None or model is None:
        return []
    margin = indentation(context.file, statement)
    end_of_line = newline(context.file)
    buffer = context.local("buffer", call)
    given = context.source(dtype)
    lines = [
        f"for {buffer} in {context.source(model)}.buffers():",
        f"    if {buffer}.is_floating_point():",
        f"        {buffer}.data = {buffer}.to({given})",
    ]
    if not given.startswith("torch."):
        lines = [f"if {given} is not None:", *[f"    {line}" for line in lines]]
    place = context.file.lines(statement)[1]
    return [Edit(place, place, "".join(f"{margin}{line}{end_of_line}" for line in lines))]
