"""What becomes of the objects that a file makes for constructors, where it makes them: precisions and strategies."""

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.codemods.constructor import given_meshes, precision, sharding, wrapping
from fsdp_migrate.codemods.constructor.construction import constructions
from fsdp_migrate.codemods.constructor.options import Rewritten, made_here, policy_edits
from fsdp_migrate.codemods.constructor.predicates import Predicate
from fsdp_migrate.codemods.constructor.strategies import Strategies
from fsdp_migrate.codemods.context import Context, keyword
from fsdp_migrate.codemods.edit.text import newline
from fsdp_migrate.codemods.rule import Edit, Found, Import
from fsdp_migrate.facts.names import TORCH
from fsdp_migrate.findings import Action

_NAMED = (
    "Replaced by the name of the strategy as a string, which the new code compares. An unknown name raised `KeyError` or "
    "`AttributeError` here; now it means FULL_SHARD."
)


def find(context: Context, options: Rewritten, gone: Collection[ast.AST]) -> Iterator[Found]:
    """The objects of a file.

    Args:
        gone: what the constructors' own edits take away.
    """
    for made in made_here(context, options):
        if made not in gone:
            yield _policy(context, made, options)
    for read, (file, instead) in options.buffer_dtypes.items():
        if file is context.file:
            edits = lambda read=read, text=instead: [context.replace(read, text)]  # noqa: E731
            message = f"Replaced by `{instead}`, which has the same value: `MixedPrecisionPolicy` has no `buffer_dtype`."
            yield Found(precision.BUFFERS, read, Action.REWRITE, message, "", edits)
    yield from _named(context, options, gone)
    yield from _predicates(context, options, gone)
    if options.strategies is not None:
        for find_each in (_strategies, _meshes, _booleans):
            for each in find_each(context, options.strategies):
                if each.node not in gone:
                    yield each


def _policy(context: Context, made: ast.expr, options: Rewritten) -> Found:
    at = None
    removed: tuple[ast.AST, ...] = ()
    message = "Replaced by `MixedPrecisionPolicy()`, which changes no dtype."
    if isinstance(made, ast.Call):
        at = made.func
        removed = (made.func,)
        message = "Replaced by `MixedPrecisionPolicy`."
        if keyword(made, "buffer_dtype", 2) is not None:
            message = (
                "Replaced by `MixedPrecisionPolicy`, which has no `buffer_dtype`. "
                "If it matters, buffers are cast where the model is sharded."
            )
    need = Import(TORCH, "MixedPrecisionPolicy", at)
    return Found(
        precision.POLICY,
        made,
        Action.REWRITE,
        message,
        edits=lambda: policy_edits(context, made, options),
        imports=(need,),
        removed=removed,
        of=_taking(context, made),
    )


def _named(context: Context, options: Rewritten, gone: Collection[ast.AST]) -> Iterator[Found]:
    """The meshes that get names."""
    for made, (file, source) in options.named_meshes.items():
        if file is context.file and made not in gone:
            edits = lambda made=made, text=source: [context.replace(made, text)]  # noqa: E731
            yield Found(given_meshes.MESH, made, Action.REWRITE, given_meshes.NAMED, "", edits)


_PREDICATE = (
    "Replaced by a function that says whether to shard a module; the new loop calls it. If other code still passes one "
    "of FSDP1's policies there, it raises `TypeError`."
)


def _predicates(context: Context, options: Rewritten, gone: Collection[ast.AST]) -> Iterator[Found]:
    """The policies that become functions of one module."""
    if options.predicates is None:
        return
    for made, predicate in options.predicates.ends.items():
        if predicate.file is context.file and made not in gone:
            yield _predicate(context, made, predicate)


def _predicate(context: Context, made: ast.expr, predicate: Predicate) -> Found:
    """The finding for a policy: a function with the name of its variable takes its place, or a lambda."""
    edits = lambda: [context.replace(made, predicate.source)]  # noqa: E731
    match context.file.parents[made]:
        case ast.Assign(targets=[ast.Name() as target], value=value) as statement:
            is_only = len(context.file.bindings(target)) == 1
            if is_only and value is made and predicate.body and context.is_alone(statement):
                code = f"def {target.id}(module):\n    return {predicate.body}"
                edits = lambda: [_with_room(context, statement, code)]  # noqa: E731
    found = Found(wrapping.CLASS_POLICY, made, Action.REWRITE, _PREDICATE, "", edits)
    return found._replace(removed=predicate.removed, of=_taking(context, made))


def _with_room(context: Context, statement: ast.stmt, code: str) -> Edit:
    """A function in a statement's place, with an empty line behind it."""
    edit = context.replace_statement(statement, code)
    end = newline(context.file)
    behind = context.file.text[edit.end :].removeprefix(end)
    if behind.lstrip(" \t").startswith(("\r", "\n")) or not behind.strip():
        return edit
    return edit._replace(text=f"{edit.text}{end}")


def _strategies(context: Context, strategies: Strategies) -> Iterator[Found]:
    """The strategies of which the constructors compare the names."""
    for node, made in strategies.ends.items():
        if made.file is not context.file:
            continue
        edits = lambda node=node, name=made.source: [context.replace(node, name)]  # noqa: E731
        found = Found(sharding.DYNAMIC, node, Action.REWRITE, _NAMED, "", edits)
        yield found._replace(removed=(made.enum,), of=_taking(context, node))


def _meshes(context: Context, strategies: Strategies) -> Iterator[Found]:
    """The strategies that become meshes, and the names that carry them."""
    seen: set[ast.AST] = set()
    for value, chosen in strategies.meshes.items():
        own = _call_of(context, value)
        for statement, (file, source) in chosen.statements.items():
            if file is context.file and statement not in seen:
                seen |= {statement, *statement.targets}
                edits = lambda at=statement, source=source: [context.replace_statement(at, source)]  # noqa: E731
                member = statement.value
                message = "Replaced by the device mesh for this strategy, which is passed to `fully_shard`."
                found = Found(sharding.DYNAMIC, member, Action.REWRITE, message, "", edits)
                yield found._replace(imports=chosen.imports(statement), removed=(member,), of=own)
        for name, (file, new) in chosen.names.items():
            if file is context.file and name not in seen:
                seen.add(name)
                rename = lambda name=name, new=new: [context.replace(name, new)]  # noqa: E731
                message = f"Renamed to `{new}`: it now holds the device mesh for the strategy."
                yield Found(sharding.DYNAMIC, name, Action.REWRITE, message, "", rename, of=own)


def _booleans(context: Context, strategies: Strategies) -> Iterator[Found]:
    """The strategies that become `reshard_after_forward`, and what carries them."""
    seen: set[ast.AST] = set()
    for value, freed in strategies.freed.items():
        if freed.file is not context.file:
            continue
        own = _call_of(context, value)
        for made, new in freed.values.items():
            if made not in seen:
                seen.add(made)
                edits = lambda made=made, new=new: [context.replace(made, new)]  # noqa: E731
                message = (
                    f"Replaced by `{new}`, the value of `reshard_after_forward` for this strategy."
                )
                found = Found(sharding.DYNAMIC, made, Action.REWRITE, message, "", edits)
                yield found._replace(removed=(made,), of=own)
        for name, new in freed.names.items():
            if name not in seen and name is not value:
                seen.add(name)
                edits = lambda name=name, new=new: [context.replace(name, new)]  # noqa: E731
                found = Found(sharding.DYNAMIC, name, Action.REWRITE, freed.message, "", edits)
                removed: tuple[ast.AST, ...] = ()
                if isinstance(name, ast.arg) and name.annotation is not None:
                    removed = (name.annotation,)
                yield found._replace(removed=removed, of=own)


def _call_of(context: Context, value: ast.expr) -> ast.Call | None:
    """The constructor of this file that is given a value."""
    every = constructions(context)
    return next((e.call for e in every if e.value("sharding_strategy") is value), None)


def _taking(context: Context, made: ast.expr) -> ast.expr | None:
    """The constructor of this file that takes an option object: it takes FSDP2's only where it is rewritten itself."""
    for construction in constructions(context):
        for name in ("mixed_precision", "sharding_strategy", "auto_wrap_policy"):
            value = construction.value(name)
            if value is not None and made in [end.node for end in construction.flow(value).ends]:
                return construction.call
    return None
