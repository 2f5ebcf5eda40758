"""The plain form of a constructor call: `fully_shard` on every unit, children before parents, and on the model last.

The form needs a statement of its own where there are units below the root. A call inside an expression can become plain
PyTorch only if one call of `fully_shard` says it all.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp_migrate.codemods.constructor_call import Constructor
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits
from fsdp_migrate.codemods.edit.comments import comments_in, with_leading_comments
from fsdp_migrate.codemods.edit.statements import parse_statements, replace_statement
from fsdp_migrate.codemods.expressions import enclosed, is_dotted
from fsdp_migrate.codemods.plan import Form, Plain, Plan
from fsdp_migrate.codemods.rule import Edit, Statements
from fsdp_migrate.index.names import PACKAGE


def plain_form(context: Context, planned: Plan) -> Form | None:
    """The call as plain PyTorch; None if the form needs statements and the call stands inside an expression."""
    shape = _shape(context, planned)
    if shape is None:
        return None
    constructor = planned.constructor
    merged = planned.merged()
    name, needs = context.name(PACKAGE, "fully_shard", constructor.call.func)
    edits = [*merged.edits]
    spent = [context.module.statement(binding.target) for binding in merged.spent]
    if shape.statement is None:
        edits.append(_inline_edit(context, planned, merged, name))
        edits += [context.removal(statement, comments_stay=True) for statement in spent]
    else:
        lines = _lines(context, constructor, merged, shape, name)
        edits.append(_statement_edit(context, shape.statement, lines, spent))
        edits += [context.removal(statement) for statement in spent]
    gone = (constructor.call.func, *merged.gone)
    return Form(edits=tuple(edits), needs=(*needs, *merged.needs), gone=gone)


@dataclass(frozen=True, eq=False)
class _Shape:
    """How the plain form stands in its place.

    Attributes:
        statement: the statement that becomes several; None if the call alone is replaced.
        target: what the result is assigned to; None if the model's own name stays.
        returned: whether the statement returns the model.
        model: the model, as source.
        first: a statement that gives the model a name, if it had none.
    """

    statement: ast.stmt | None
    target: str | None
    returned: bool
    model: str
    first: str | None = None


def _shape(context: Context, planned: Plan) -> _Shape | None:
    """Where the plain form can stand; None if it needs statements and the call stands inside an expression."""
    constructor = planned.constructor
    call, model = constructor.call, constructor.model
    assert model is not None
    source = context.source(model)
    merged = planned.merged()
    needs_loop = merged.units is not None or merged.setup or merged.prepare
    inline = _Shape(None, None, False, source)
    nested = any(
        isinstance(n, ast.Call) and n in context.plans for n in ast.walk(call) if n is not call
    )
    statement = context.module.parents[call]
    alone = isinstance(statement, ast.Assign | ast.Return | ast.Expr) and not nested
    if not alone or not context.stands_alone(statement):
        return None if needs_loop else inline
    if isinstance(statement, ast.Assign):
        if len(statement.targets) != 1 or not isinstance(
            statement.targets[0], ast.Name | ast.Attribute
        ):
            return None if needs_loop else inline
        target = ast.unparse(statement.targets[0])
    else:
        target = ""
    assert isinstance(statement, ast.stmt)
    returned = isinstance(statement, ast.Return)
    if is_dotted(model):
        dotted = ast.unparse(model)  # it may be written over several lines
        keeps = target == dotted or isinstance(statement, ast.Expr)
        return _Shape(statement, None if keeps or returned else target, returned, dotted)
    if not needs_loop:
        return inline
    name = target if isinstance(statement, ast.Assign) else context.free("model", call)
    return _Shape(statement, None, returned, name, f"{name} = {enclosed(source)}")


def _lines(
    context: Context, constructor: Constructor, merged: Plain, shape: _Shape, name: str
) -> list[str]:
    """The statements of the plain form, as source."""
    lines = [shape.first] if shape.first else []
    if merged.prepare is not None:
        function, arguments = merged.prepare
        lines.append(f"{function}({shape.model}{arguments})")
    lines += merged.setup
    shared = _arguments(merged.shared)
    child, root = _arguments(merged.child), _arguments(merged.root)
    if merged.units is not None:
        if len(merged.shared) > 1:
            kwargs = context.free("fsdp_kwargs", constructor.call)
            lines.append(f"{kwargs} = dict({shared.removeprefix(', ')})")
            shared = f", **{kwargs}"
        unit = context.free("module", constructor.call)
        condition = f"isinstance({unit}, {merged.units.classes})"
        if merged.units.may_hold_root:
            condition = f"{unit} is not {shape.model} and {condition}"
        lines.append(
            f"for {unit} in reversed(list({shape.model}.modules())):\n"
            f"    if {condition}:\n"
            f"        {name}({unit}{child}{shared})"
        )
    final = f"{name}({shape.model}{root}{shared})"
    if shape.returned:
        final = f"return {final}"
    elif shape.target is not None:
        final = f"{shape.target} = {final}"
    return [*lines, final]


def _arguments(given: dict[str, str]) -> str:
    return "".join(f", {name}={value}" for name, value in given.items())


def _statement_edit(
    context: Context, statement: ast.stmt, lines: Sequence[str], spent: Sequence[ast.stmt]
) -> Edit:
    node = context.syntax.statement(statement)
    assert isinstance(node, cst.SimpleStatementLine)
    indent = context.module.column(statement.lineno, statement.col_offset)
    orphans = [c for line in spent for c in comments_in(context.syntax.statement(line))]
    orphans += comments_in(node.body[0])
    line_length = context.line_length

    def apply(updated: cst.CSTNode) -> Statements:
        assert isinstance(updated, cst.SimpleStatementLine)
        made = parse_statements("\n".join(lines), context.syntax.module, line_length, indent)
        placed = Counter(comment for new in made for comment in comments_in(new))
        lost = [comment for comment in orphans if not _take(placed, comment)]
        first, *rest = replace_statement(updated, made)
        return Statements([with_leading_comments(first, lost), *rest])

    return Edit(node, apply, whole=True)


def _take(placed: Counter[str], comment: str) -> bool:
    if placed[comment]:
        placed[comment] -= 1
        return True
    return False


def _inline_edit(context: Context, planned: Plan, merged: Plain, function: str) -> Edit:
    constructor = planned.constructor
    drop = {
        constructor.position(a) for name, a in constructor.arguments.items() if name != "module"
    }
    module = constructor.arguments["module"]
    rename = {constructor.position(module): None} if isinstance(module.node, ast.keyword) else {}
    added = {**merged.shared, **merged.root}
    edits = ArgumentEdits(
        drop=frozenset(drop),
        rename=rename,
        add=tuple((name, cst.parse_expression(value)) for name, value in added.items()),
    )
    return context.edit_call(constructor.call, edits, function)
