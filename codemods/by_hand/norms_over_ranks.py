"""Norms and sums of gradients that a program adds up over all ranks by itself.

Each rank's part of the sum was that of its shards. How a parameter is cut into them does not matter to the sum, so that
`local_shard` of the runtime gives the total that FSDP1 gave; of a parameter that is not sharded, the parameter itself.
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.by_hand.measured import ELEMENTWISE, measured
from fsdp_migrate.codemods.by_hand.taken import is_sharded
from fsdp_migrate.codemods.constructor.mixed import are_mixed
from fsdp_migrate.codemods.context import Context, keyword, shortened
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Import, Rule
from fsdp_migrate.codemods.uses import own
from fsdp_migrate.codemods.uses.no_sync import shares_code_with_ddp
from fsdp_migrate.facts.file import File, last_name, values_given
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Action

RULE = Rule("FSDP508", "norm-over-ranks")

_NORMS = frozenset({"torch.norm", "torch.linalg.vector_norm"})
_AS_NUMBERS = frozenset({"clone", "cpu", "cuda", "detach", "double", "float", "item", "to"})
_TENSORS = frozenset({"torch.tensor", "torch.as_tensor"})
# What a value is so far; in between it is a norm, of an order such as "2.0".
_ELEMENTS = "its elements"
_ADDED = "a sum"


@codemod(words=("all_reduce", "local_shard"))
def find(context: Context) -> Iterator[Found]:
    """The parameters and gradients of which such a norm or sum is taken."""
    if context.form == "torch":
        yield from _of_runtime(context)
    for node in added_up(context):
        yield from _found(context, node)


def added_up(context: Context) -> Iterator[ast.expr]:
    """The parameters and gradients of which this rule has the shard measured, because all ranks add the results up."""
    if not context.in_place or "all_reduce" not in context.file.calls:
        return
    for node in measured(context):
        if is_local_now(context, node) and is_sharded(context, node):
            yield node


def _of_runtime(context: Context) -> Iterator[Found]:
    """The shards that a run in another form asked the runtime for."""
    for call in context.file.calls.get("local_shard", ()):
        if context.dotted(call.func) == {f"{RUNTIME}.local_shard"} and len(call.args) == 1:
            code = f"{context.source(call.args[0])}.to_local()"
            edits = lambda call=call, code=code: [context.replace(call, code)]  # noqa: E731
            message = f"Replaced by `{code}`, this rank's shard."
            yield Found(RULE, call, Action.REWRITE, message, edits=edits, removed=(call.func,))


def is_local_now(context: Context, node: ast.expr) -> bool:
    """Whether this rule has the shard measured: where all ranks add the results up."""
    edited = context.in_place and context.program.mentions(str(context.file.path))
    return edited and _adds_up(context, node, _ELEMENTS)


def _found(context: Context, node: ast.expr) -> Iterator[Found]:
    source = context.source(node)
    construct = shortened(context.source(context.file.parents[node]))
    code = f"local_shard({source})"
    action = Action.RUNTIME
    imports: tuple[Import, ...] = (Import(RUNTIME, "local_shard"),)
    is_own = shares_code_with_ddp(context) or context.program.once(are_mixed)
    if context.form == "torch":
        action = Action.REWRITE
        imports = ()
        if not is_own:
            code = f"{source}.to_local()"
    message = (
        f"Replaced by `{code}`, this rank's shard as under FSDP1: the ranks add their results up."
    )
    edits = lambda: [context.replace(node, code)]  # noqa: E731
    yield Found(RULE, node, action, message, construct=construct, edits=edits, imports=imports)
    if context.form == "torch" and is_own:
        yield from own.define(context, RULE, own.LOCAL_SHARD, node)


def _adds_up(context: Context, value: ast.AST, done: str) -> bool:
    """Whether a value goes into a sum over all elements and ranks, and nowhere else."""
    parent = context.file.parents[value]
    if isinstance(parent, ast.Attribute):
        call = context.call_of(parent)
        if call is not None:
            after = _method(call, parent.attr, done)
            return after is not None and _adds_up(context, call, after)
        return parent.attr == "data" and _adds_up(context, parent, done)
    if isinstance(parent, ast.Call) and parent.args[:1] == [value]:
        after = _function(context, parent, done)
        return after is not None and _adds_up(context, parent, after)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow) and parent.left is value:
        after = _power(done, parent.right)
        return after is not None and _adds_up(context, parent, after)
    if isinstance(parent, ast.ListComp | ast.GeneratorExp) and parent.elt is value:
        return done != _ELEMENTS and _adds_up(context, parent, done)
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add):
        return done == _ADDED and _goes_on(context, parent, parent.target, done)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return _goes_on(context, parent, parent.targets[0], done)
    return False


def _goes_on(
    context: Context, statement: ast.Assign | ast.AugAssign, target: ast.expr, done: str
) -> bool:
    """Whether a variable that a value is put into, or added to, does so behind the statement, and first of all."""
    file = context.file
    if not isinstance(target, ast.Name):
        return False
    variable = file.variable(target)
    reads = sorted(file.reads(target), key=lambda read: (read.lineno, read.col_offset))
    adds = isinstance(statement, ast.AugAssign)
    if not reads or variable is None or (not adds and len(variable.bindings) > 1):
        return False
    around = list(file.ancestors(statement))
    loops = [place for place, each in enumerate(around) if isinstance(each, ast.For)]
    if adds and loops:
        del around[: loops[0] + 1]  # a sum is read behind the loop that adds it up
    first = file.statement(reads[0])
    conditions = set(file.ancestors(first)) - set(around)
    if first.lineno <= statement.lineno or not all(_holds(file, each) for each in conditions):
        return False  # read before, or not on every way
    if done == _ADDED and _is_reduction(context, reads[0]):
        return True
    return all(_adds_up(context, read, done) for read in reads)


def _is_reduction(context: Context, total: ast.Name) -> bool:
    """Whether a sum over all ranks takes its place."""
    call = context.file.parents[total]
    return (
        isinstance(call, ast.Call)
        and call.args[:1] == [total]
        and context.dotted(call.func) == {"torch.distributed.all_reduce"}
        and {keyword.arg for keyword in call.keywords} <= {"op"}
        and len(call.args) < 3
        and all(context.source(op).endswith(".SUM") for op in values_given(call)[1:])
    )


def _holds(file: File, condition: ast.AST) -> bool:
    """`if dist.is_initialized()`, `if world_size > 1`: so it is wherever there is something to add up."""
    if isinstance(condition, ast.If):
        test = file.source(condition.test)
    else:
        test = ""
    return "is_initialized" in test or "world_size" in test


def _method(call: ast.Call, name: str, done: str) -> str | None:
    """What has been done behind a method of a tensor; None if that is no part of a sum over all elements."""
    if name == "norm":
        return _norm(call, 0, "p", done)
    if name == "sum" and done in (_ELEMENTS, _ADDED):
        if {k.arg for k in call.keywords} <= {"dtype"} and not call.args:
            return _ADDED
        return None
    if name == "pow" and len(call.args) == 1:
        return _power(done, call.args[0])
    if name == "square":
        return _power(done, ast.Constant(2))
    keeping = _AS_NUMBERS
    if done == _ELEMENTS:
        keeping = ELEMENTWISE
    if name in keeping:
        return done
    return None


def _function(context: Context, call: ast.Call, done: str) -> str | None:
    """The same behind a function that takes a tensor, or several, first."""
    paths = context.dotted(call.func)
    if paths and paths <= _NORMS:
        order = "ord"
        if last_name(call.func) == "norm":
            order = "p"
        return _norm(call, 1, order, done)
    if done == _ELEMENTS:
        return None
    builtin = ""
    if not paths and isinstance(call.func, ast.Name):
        builtin = call.func.id
    is_sum = builtin == "sum" and done == _ADDED and len(call.args) == 1
    is_tensor = bool(paths) and (paths <= _TENSORS or paths == {"torch.stack"})
    if builtin == "float" or is_sum or is_tensor:
        return done
    return None


def _norm(call: ast.Call, position: int, name: str, done: str) -> str | None:
    """A norm over all elements, or one of such norms; None where it may be one of rows or of a matrix."""
    given = keyword(call, name, position)
    others = {each.arg for each in call.keywords} - {name, "dtype"}
    if others or len(call.args) > position + 1:
        return None
    order: str | None = "2.0"
    if given is not None:
        order = _number(given)
    if done in (_ELEMENTS, order):
        return order
    return None


def _power(done: str, exponent: ast.expr) -> str | None:
    """What a power makes of the elements, or of a norm: a sum, if it is of the norm's order."""
    if done == _ELEMENTS:
        return done
    if done == _number(exponent):
        return _ADDED
    return None


def _number(value: ast.expr) -> str | None:
    """A number, or a name that stands for one."""
    if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
        return str(float(value.value))
    if isinstance(value, ast.Name):
        return value.id
    return None
