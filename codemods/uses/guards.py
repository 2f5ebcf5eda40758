"""What the program, and the tests around some code, say of a model there: whether FSDP shards it, and which."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import models_of
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.program import Program
from fsdp_migrate.source import is_test

# Flags that say that models are sharded, and nothing more: not `fsdp_cpu_offload`.
_FLAG = re.compile(r"(?:is_|use_|using_|with_|enable_)?fsdp(?:_enabled)?", re.IGNORECASE)


def shards_itself(program: Program) -> bool:
    """Whether a program calls FSDP1's constructor itself."""
    models = models_of(program)
    return any(map(models.constructors, program.files))


def always_shards(program: Program) -> bool:
    """Whether each program shards its models whatever its options are, and there is no other way to train: no DDP."""
    return program.once(_always_shards)


def _always_shards(program: Program) -> bool:
    models = models_of(program)
    calls = [(file, call) for file in program.files for call in models.constructors(file)]
    calls += [each for name in models.wrapping for each in program.calls(name)]
    calls = [(file, call) for file, call in calls if not is_test(str(file.path))]
    is_alone = not program.has(r"DistributedDataParallel|\bDDP\b")
    return bool(calls) and is_alone and not any(_is_optional(file, call) for file, call in calls)


def _is_optional(file: File, call: ast.Call) -> bool:
    """Whether a test decides that a call runs, other than that for the main module."""
    child: ast.AST = call
    for around in file.ancestors(call):
        match around:
            case ast.If(test) if child is not test:
                if "__name__" not in ast.unparse(test):
                    return True
            case ast.IfExp() | ast.Try() | ast.BoolOp() | ast.Match():
                return True
        child = around
    return False


def stays_fsdp1(program: Program) -> bool:
    """Whether libraries alone shard the models, and the project requires releases that have no FSDP2."""
    return program.is_too_old and not shards_itself(program)


def is_sharded(context: Context, node: ast.AST, model: ast.expr) -> bool | None:
    """Whether a model is sharded where a node is evaluated, as the tests above say; None if they say nothing."""
    for expression, holds in _known(context, node):
        if says_sharded(context, expression, model):
            return holds
    return None


def has_class(context: Context, node: ast.AST, model: ast.expr) -> bool:
    """Whether a node is evaluated only where a model has FSDP1's class: `isinstance(model, FSDP) and model.rank`."""
    return any(holds and _asks(context, test, model) for test, holds in _known(context, node))


def says_sharded(context: Context, test: ast.expr, model: ast.expr) -> bool:
    """Whether a test asks whether a model is sharded: for its class, or by a flag that is called so."""
    if isinstance(test, ast.Name | ast.Attribute):
        return _FLAG.fullmatch(last_name(test)) is not None
    return _asks(context, test, model)


def _asks(context: Context, test: ast.expr, model: ast.expr) -> bool:
    """Whether a test asks for the class of a model."""
    match test:
        case ast.Call(ast.Name("isinstance"), [asked, cls], []):
            is_class = context.fsdp1(cls) == CLASS
            return is_class and ast.unparse(asked) == ast.unparse(model)
    return False


def _known(context: Context, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """The tests around a node in its function, the nearest first, and whether each holds where the node is evaluated."""
    child = node
    for around in context.file.ancestors(node):
        match around:
            case ast.If(test, body) if child is not test:
                yield from _facts(test, holds=child in body)
            case ast.IfExp(test, value) if child is not test:
                yield from _facts(test, holds=child is value)
            case ast.BoolOp(op, values) if isinstance(child, ast.expr):
                for value in values[: values.index(child)]:
                    yield from _facts(value, holds=isinstance(op, ast.And))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                return
        child = around


def _facts(test: ast.expr, *, holds: bool) -> Iterator[tuple[ast.expr, bool]]:
    """What is known of the parts of a test that holds, or does not."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            yield from _facts(operand, holds=not holds)
        case ast.BoolOp(op, values):
            if isinstance(op, ast.And) is holds:
                for value in values:
                    yield from _facts(value, holds=holds)
        case _:
            yield test, holds
