"""`FSDP(...)`: the call that wraps a model.

FSDP1 wraps: the call returns a new module around the old one. FSDP2 shards in place: `fully_shard` is called on every unit,
children before parents, and on the root last, and the model stays the same object. Where everything that decides is in
sight, the call becomes that loop; otherwise it becomes one call of `shard_model`, which has FSDP1's signature.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp_migrate.codemods import (
    cpu_offload,
    device_mesh,
    mixed_precision,
    runtime_only,
    sharding_strategy,
    without_effect,
    wrap_policy,
)
from fsdp_migrate.codemods.command import command
from fsdp_migrate.codemods.context import RUNTIME, Context
from fsdp_migrate.codemods.edit.arguments import ArgumentEdits, edit_call
from fsdp_migrate.codemods.edit.comments import comments_in, with_leading_comments
from fsdp_migrate.codemods.edit.statements import parse_statements, replace_statement
from fsdp_migrate.codemods.plan import (
    FORMER_NAMES,
    SIGNATURE,
    Argument,
    Constructor,
    Plain,
    Plan,
    Translation,
)
from fsdp_migrate.codemods.rule import Draft, Edit, Edited, Example, Rule, Statements
from fsdp_migrate.findings import Action
from fsdp_migrate.index.names import PACKAGE

CONSTRUCTOR = Rule(
    "FSDP002",
    "fsdp1-constructor",
    "FSDP(model, ...) becomes fully_shard(model, ...), or shard_model where a value is known only at run time",
    """`fully_shard` shards a module in place and returns the same module, so `model = FSDP(model)` becomes a statement
`fully_shard(model)`. Positional arguments are bound to FSDP1's signature first (the same from torch 2.2 to 2.13). Each
argument has a rule of its own, which says what becomes of it.""",
    (
        Example(
            "the simplest call",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
""",
            """\
from torch.distributed.fsdp import fully_shard

fully_shard(model)
""",
        ),
        Example(
            "another name, and a model built in place",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

wrapped = FSDP(Net().cuda())
""",
            """\
from torch.distributed.fsdp import fully_shard

wrapped = fully_shard(Net().cuda())
""",
        ),
        Example(
            "arguments by position, comments at arguments",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

model = FSDP(
    model,
    None,  # all ranks
    ShardingStrategy.SHARD_GRAD_OP,  # memory is plenty
)
""",
            """\
from torch.distributed.fsdp import fully_shard

# all ranks
# memory is plenty
fully_shard(model, reshard_after_forward=False)
""",
        ),
    ),
)
DYNAMIC = Rule(
    "FSDP004",
    "dynamic-constructor",
    "a call whose arguments are not in sight goes to shard_model",
    """`FSDP(model, **options)` and `functools.partial(FSDP, ...)` give arguments that no analysis can bind. `shard_model` has
FSDP1's signature, so it takes their place as it stands.""",
    (
        Example(
            "arguments from a dictionary",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, **options)
""",
            """\
from fsdp_migrate.runtime import shard_model

model = shard_model(model, **options)
""",
        ),
        Example(
            "a partial application",
            """\
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

shard = partial(FSDP, sharding_strategy=strategy)
""",
            """\
from functools import partial

from fsdp_migrate.runtime import shard_model

shard = partial(shard_model, sharding_strategy=strategy)
""",
        ),
    ),
)
UNKNOWN = Rule(
    "FSDP003",
    "unknown-argument",
    "an argument that FSDP1 does not have",
    """The call would fail under FSDP1 as well, or the class is not torch's. Nothing is changed.""",
    (
        Example(
            "an argument of another library",
            """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model, mesh=mesh)
""",
            message="no argument of FSDP1",
        ),
    ),
)
RULES = (CONSTRUCTOR, DYNAMIC, UNKNOWN)

_TRANSLATORS: dict[str, Callable[[Constructor], Translation | None]] = {
    "process_group": device_mesh.translate_group,
    "sharding_strategy": sharding_strategy.translate,
    "cpu_offload": cpu_offload.translate,
    "auto_wrap_policy": wrap_policy.translate,
    "backward_prefetch": without_effect.translate_backward_prefetch,
    "mixed_precision": mixed_precision.translate,
    "ignored_modules": lambda c: runtime_only.translate_ignored(c, "ignored_modules"),
    "param_init_fn": runtime_only.translate_param_init_fn,
    "device_id": without_effect.translate_device_id,
    "sync_module_states": runtime_only.translate_sync_module_states,
    "forward_prefetch": runtime_only.translate_forward_prefetch,
    "limit_all_gathers": without_effect.translate_limit_all_gathers,
    "use_orig_params": without_effect.translate_use_orig_params,
    "ignored_states": lambda c: runtime_only.translate_ignored(c, "ignored_states"),
    "device_mesh": device_mesh.translate_mesh,
}


def plan(context: Context, call: ast.Call) -> Plan:
    """What becomes of one constructor call."""
    constructor = Constructor(context, call)
    translations = {}
    for name in SIGNATURE[1:]:
        translation = _TRANSLATORS[name](constructor)
        if translation is not None:
            translations[name] = translation
    return Plan(constructor, translations)


def find(context: Context) -> Iterator[Draft]:
    """The constructor calls of a file, their arguments, and partial applications."""
    for module, call in context.models.constructors:
        if module is context.module:
            yield from _of_call(context, context.plans[call])
    yield from _partials(context)


def _of_call(context: Context, planned: Plan) -> Iterator[Draft]:
    constructor = planned.constructor
    sites = frozenset({planned.site})
    unknown = constructor.unknown
    if unknown or (constructor.model is None and not constructor.splat) or planned.refused:
        yield from _refused(context, planned)
        return
    shape = _shape(context, planned) if planned.plain else None
    if shape is None:
        yield _runtime_draft(context, planned)
    else:
        yield _plain_draft(context, planned, shape)
    for name, argument in constructor.arguments.items():
        if name == "module":
            continue
        translation = planned.translations[name]
        action = Action.RUNTIME if shape is None and translation.in_runtime else Action.REWRITE
        message = translation.message
        if shape is None and translation.in_runtime and translation.plain is not None:
            message = "passed on to shard_model, which takes FSDP1's values"
        yield Draft(
            translation.rule, argument.node, action, message, _construct(context, argument), sites
        )
    for translation in planned.needs_runtime:
        if not any(planned.translations.get(name) is translation for name in constructor.arguments):
            message = translation.message
            yield Draft(
                translation.rule, constructor.call, Action.RUNTIME, message, "FSDP(...)", sites
            )
    for keyword in constructor.call.keywords:
        if keyword.arg is None:
            message = "shard_model binds these arguments to FSDP1's signature when the program runs"
            yield Draft(
                DYNAMIC,
                keyword.value,
                Action.RUNTIME,
                message,
                f"**{context.source(keyword.value)}",
                sites,
            )


def _refused(context: Context, planned: Plan) -> Iterator[Draft]:
    constructor = planned.constructor
    sites = frozenset({planned.site})
    reasons = [f"`{keyword.arg}` is no argument of FSDP1" for keyword in constructor.unknown]
    reasons += [translation.message for translation in planned.refused]
    if constructor.model is None:
        reasons.append("no module is given")
    message = f"left as it is: {'; '.join(reasons)}"
    yield Draft(
        CONSTRUCTOR, constructor.call, Action.MANUAL, message, "FSDP(...)", sites, silent=True
    )
    for keyword in constructor.unknown:
        text = f"`{keyword.arg}` is no argument of FSDP1"
        yield Draft(UNKNOWN, keyword, Action.MANUAL, text, f"{keyword.arg}=", sites, silent=True)
    for name, argument in constructor.arguments.items():
        if name != "module":
            translation = planned.translations[name]
            text = (
                translation.message
                if translation.refused
                else "left as it is, with the rest of its call"
            )
            yield Draft(
                translation.rule,
                argument.node,
                Action.MANUAL,
                text,
                _construct(context, argument),
                sites,
            )


def _construct(context: Context, argument: Argument) -> str:
    source = " ".join(context.source(argument.value).split())
    return f"{argument.name}={source if len(source) <= 40 else source[:37] + '...'}"


# the runtime form


def _runtime_draft(context: Context, planned: Plan) -> Draft:
    constructor = planned.constructor
    call = constructor.call
    name, needs = context.name(RUNTIME, "shard_model", call.func)
    reasons = [f"{t.rule.name}: {t.message}" for t in planned.needs_runtime]
    if constructor.splat:
        reasons.append("arguments are unpacked from a value")
    why = "; ".join(reasons) or "the call stands inside an expression, where no loop can stand"
    edit = _runtime_edit(context, planned, cst.parse_expression(name))
    gone: list[ast.AST] = [call.func]
    for argument_name, translation in planned.translations.items():
        argument = constructor.arguments.get(argument_name)
        if argument is not None and not translation.in_runtime:
            gone.append(argument.value)
    return Draft(
        CONSTRUCTOR,
        call,
        Action.RUNTIME,
        f"becomes shard_model(...): {why}",
        "FSDP(...)",
        frozenset({planned.site}),
        edits=(edit,),
        needs=needs,
        gone=tuple(gone),
    )


def _runtime_edit(context: Context, planned: Plan, function: cst.BaseExpression) -> Edit:
    constructor = planned.constructor
    node = context.syntax.find(constructor.call, cst.Call)
    drop, rename = set(), {}
    for name, argument in constructor.arguments.items():
        translation = planned.translations.get(name)
        if translation is not None and not translation.in_runtime:
            drop.add(_position(constructor, argument))
        elif isinstance(argument.node, ast.keyword) and argument.node.arg in FORMER_NAMES:
            rename[_position(constructor, argument)] = name
    positional = [a for a in constructor.arguments.values() if not isinstance(a.node, ast.keyword)]
    if any(_position(constructor, argument) in drop for argument in positional):
        rename |= {
            a.index: a.name for a in positional if a.index not in drop and a.name != "module"
        }
    edits = ArgumentEdits(drop=frozenset(drop), rename=rename)

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        edited = edit_call(updated, edits, func=function)
        return Edited(edited.call, edited.orphans)

    return Edit(node, apply)


def _position(constructor: Constructor, argument: Argument) -> int:
    """The argument's place in the call as written: `ast` lists positional arguments first, even behind `**kwargs`."""
    everything: list[ast.expr | ast.keyword] = [*constructor.call.args, *constructor.call.keywords]
    in_order = sorted(everything, key=lambda node: (node.lineno, node.col_offset))
    return in_order.index(everything[argument.index])


# the plain form


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
    needs_loop = planned.merged().condition is not None or planned.merged().setup
    inline = _Shape(None, None, False, source)
    nested = any(
        isinstance(n, ast.Call) and n in context.plans for n in ast.walk(call) if n is not call
    )
    statement = context.module.parents[call]
    alone = isinstance(statement, ast.Assign | ast.Return | ast.Expr) and not nested
    if not alone or not _stands_alone(context, statement):
        return None if needs_loop else inline
    if isinstance(statement, ast.Assign):
        if len(statement.targets) != 1 or not isinstance(
            statement.targets[0], ast.Name | ast.Attribute
        ):
            return None if needs_loop else inline
        target = context.source(statement.targets[0])
    else:
        target = ""
    assert isinstance(statement, ast.stmt)
    returned = isinstance(statement, ast.Return)
    if _is_dotted(model):
        keeps = target == source or isinstance(statement, ast.Expr)
        return _Shape(statement, None if keeps or returned else target, returned, source)
    if not needs_loop:
        return inline
    name = target if isinstance(statement, ast.Assign) else context.free("model", call)
    return _Shape(statement, None, returned, name, f"{name} = {source}")


def _stands_alone(context: Context, statement: ast.AST) -> bool:
    try:
        return isinstance(statement, ast.stmt) and isinstance(
            context.syntax.statement(statement), cst.SimpleStatementLine
        )
    except LookupError:
        return False


def _is_dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _plain_draft(context: Context, planned: Plan, shape: _Shape) -> Draft:
    constructor = planned.constructor
    call = constructor.call
    merged = planned.merged()
    name, needs = context.name(PACKAGE, "fully_shard", call.func)
    lines = _lines(context, constructor, merged, shape, name)
    edits = [*merged.edits]
    if shape.statement is None:
        edits.append(_inline_edit(context, planned, merged, cst.parse_expression(name)))
    else:
        spent = [context.module.statement(binding.target) for binding in merged.spent]
        edits.append(_statement_edit(context, shape.statement, lines, spent))
        edits += [_removal(context, statement) for statement in spent]
    return Draft(
        CONSTRUCTOR,
        call,
        Action.REWRITE,
        "becomes fully_shard(...) on every unit, children before parents, and on the model itself last"
        if merged.condition
        else "becomes fully_shard(...): the model is sharded in place and stays the same object",
        "FSDP(...)",
        frozenset({planned.site}),
        edits=tuple(edits),
        needs=(*needs, *merged.needs),
        gone=(call.func, *merged.gone),
    )


def _lines(
    context: Context, constructor: Constructor, merged: Plain, shape: _Shape, name: str
) -> list[str]:
    """The statements of the plain form, as source."""
    lines = [shape.first] if shape.first else []
    lines += merged.setup
    shared = _arguments(merged.shared)
    child, root = _arguments(merged.child), _arguments(merged.root)
    if merged.condition:
        if len(merged.shared) > 1:
            kwargs = context.free("fsdp_kwargs", constructor.call)
            lines.append(f"{kwargs} = dict({shared.removeprefix(', ')})")
            shared = f", **{kwargs}"
        unit = context.free("module", constructor.call)
        condition = merged.condition.format(module=unit)
        if shape.first or shape.model != context.source(constructor.model or constructor.call):
            original = context.source(constructor.model or constructor.call)
            condition = condition.replace(f"is not {original} ", f"is not {shape.model} ")
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
    indent = context.syntax.column(statement.lineno, statement.col_offset)
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


def _removal(context: Context, statement: ast.stmt) -> Edit:
    """An assignment without any use goes away; its comments go where its value went."""
    return Edit(context.syntax.statement(statement), lambda updated: Statements(), whole=True)


def _inline_edit(
    context: Context, planned: Plan, merged: Plain, function: cst.BaseExpression
) -> Edit:
    constructor = planned.constructor
    node = context.syntax.find(constructor.call, cst.Call)
    drop = {
        _position(constructor, a) for name, a in constructor.arguments.items() if name != "module"
    }
    module = constructor.arguments["module"]
    rename = {_position(constructor, module): None} if isinstance(module.node, ast.keyword) else {}
    added = {**merged.shared, **merged.root}
    edits = ArgumentEdits(
        drop=frozenset(drop),
        rename=rename,
        add=tuple((name, cst.parse_expression(value)) for name, value in added.items()),
    )

    def apply(updated: cst.CSTNode) -> Edited:
        assert isinstance(updated, cst.Call)
        edited = edit_call(updated, edits, func=function)
        return Edited(edited.call, edited.orphans)

    return Edit(node, apply)


# functools.partial(FSDP, ...)


def _partials(context: Context) -> Iterator[Draft]:
    for call in context.module.calls:
        if not call.args or context.project.dotted(call.func, context.module) != {
            "functools.partial"
        }:
            continue
        if context.fsdp1(call.args[0]) != "FullyShardedDataParallel":
            continue
        name, needs = context.name(RUNTIME, "shard_model", call.args[0])
        yield Draft(
            DYNAMIC,
            call,
            Action.RUNTIME,
            "shard_model has FSDP1's signature and takes the same arguments",
            "partial(FSDP, ...)",
            edits=(rename_reference(context, call.args[0], name),),
            needs=needs,
            gone=(call.args[0],),
        )


def rename_reference(context: Context, reference: ast.expr, name: str) -> Edit:
    """A reference to an FSDP1 name becomes another name or dotted name."""
    node = context.syntax.find(reference, cst.BaseExpression)  # type: ignore[type-abstract]
    replacement = cst.parse_expression(name)
    return Edit(node, lambda updated: Edited(replacement))


Command = command(find, __doc__ or "")
