"""Loops over FSDP1's handles, which hold a unit's flat parameter: over the parameters, where each element is changed by itself.

`for a, b in zip(_get_fsdp_handles(average), _get_fsdp_handles(model))`, as an exponential moving average is written.
"""

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import Refused, comments_between
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Edit, Found, Rule
from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.findings import Action

RULE = Rule("FSDP021", "loop-over-handles")

_REPLACED = "Replaced by a loop over the parameters, which are DTensors of the same shards. Each element is changed as before."
_GET = "_get_fsdp_handles"
# What is read of a flat parameter that means the same for each parameter in it.
_READ = ("data", "dtype", "requires_grad")
# Methods and functions that work on each element by itself.
_ELEMENTWISE = ("add_", "copy_", "lerp_", "mul_", "sub_", "to")


@dataclass(frozen=True, eq=False)
class Lists:
    """The lists of handles of a function that become parameters, with all that reads them.

    Attributes:
        made: the assignment of each name, with the model.
        loops: the loops, with the names of their variables for one handle each.
        asserts: the statements that compare the lengths of lists, which compare those of the parameters then.
        flat: each flat parameter that is read, with the new name of its variable.
        tests: the comparisons of flat parameters with None.
    """

    made: dict[str, tuple[ast.Assign, ast.expr]]
    loops: dict[ast.For, dict[str, str]]
    asserts: list[ast.Assert]
    flat: dict[ast.Attribute, str]
    tests: list[ast.Compare]


@codemod(words=(_GET,), forms=("torch",))
def find(context: Context) -> Iterator[Found]:
    """One finding for each function, with a finding for each line that changes."""
    if context.form != "torch":
        return
    for lists in lists_of(context):
        first = next(iter(lists.made.values()))[0]
        statements = [assign for assign, _ in lists.made.values()]
        yield Found(
            RULE,
            first,
            Action.REWRITE,
            _REPLACED,
            edits=lambda own=lists: _edits(context, own),  # type: ignore[misc]
            removed=tuple(statements),
        )
        inside = [context.file.statement(each) for each in lists.flat]
        for statement in dict.fromkeys([*statements[1:], *lists.asserts, *lists.loops, *inside]):
            yield Found(RULE, statement, Action.REWRITE, _REPLACED, of=first)


def replaced(context: Context) -> set[ast.AST]:
    """The code of which other rules need not speak."""
    if context.form == "torch" and _GET in context.file.text:
        lists = lists_of(context)
    else:
        lists = []
    calls = [assign.value for each in lists for assign, _ in each.made.values()]
    return {node for call in calls for node in ast.walk(call)} | {n for e in lists for n in e.flat}


def lists_of(context: Context) -> list[Lists]:
    """The lists of each function that become parameters."""
    known: dict[str, list[Lists]] = context.program.kept.setdefault("lists of handles", {})
    key = str(context.file.path)
    if key not in known:
        calls = context.file.calls.get(_GET, ())
        functions = dict.fromkeys([context.file.function(call) for call in calls])
        found = [_lists(context, function) for function in functions if function is not None]
        known[key] = [each for each in found if each is not None]
    return known[key]


def _lists(context: Context, function: ast.AST) -> Lists | None:
    """Those of one function; None if something is done with handles that parameters have no word for."""
    file = context.file
    lists = Lists({}, {}, [], {}, [])
    for call in file.calls.get(_GET, ()):
        if file.function(call) is not function:
            continue
        match file.parents[call], call.args:
            case ast.Assign([ast.Name(name) as target]) as assign, [model] if context.is_alone(
                assign
            ):
                if len(file.bindings(target)) != 1:
                    return None
                lists.made[name] = (assign, model)
            case _:
                return None
    for assign, _ in lists.made.values():
        for read in file.reads(assign.targets[0]):  # type: ignore[arg-type]
            if not _is_known(file, lists, read):
                return None
    is_known = all(
        _is_loop_known(context, loop, names, lists) for loop, names in lists.loops.items()
    )
    if lists.loops and is_known:
        return lists
    return None


def _is_known(file: File, lists: Lists, read: ast.Name) -> bool:
    """Notes what reads a list: `assert len(a) == len(b)`, or a loop over it, alone or in a `zip`."""
    around = file.parents[read]
    statement = file.statement(read)
    match statement:
        case ast.Assert(
            ast.Compare(ast.Call(ast.Name("len")), [ast.Eq()], [ast.Call(ast.Name("len"))])
        ):
            if statement not in lists.asserts:
                lists.asserts.append(statement)
            return isinstance(around, ast.Call)
        case ast.For(target, iterated, orelse=[]) if iterated is read:
            targets: list[ast.expr] = [target]
            lists_given: list[ast.expr] = [read]
        case ast.For(ast.Tuple(several), ast.Call(ast.Name("zip"), given, []) as iterated):
            targets = several
            lists_given = given
            if iterated is not around or len(several) != len(given):
                return False
        case _:
            return False
    for target, each in zip(targets, lists_given, strict=True):
        if not isinstance(target, ast.Name) or not isinstance(each, ast.Name):
            return False
        if each.id not in lists.made or len(file.bindings(target)) != 1:
            return False
        new = target.id.replace("handle", "param")
        if new == target.id:
            new = f"{new}_param"
        lists.loops.setdefault(statement, {})[target.id] = new
    return True


def _is_loop_known(context: Context, loop: ast.For, names: dict[str, str], lists: Lists) -> bool:
    """Notes what a loop does with flat parameters, if each element is changed by itself."""
    for name in ast.walk(loop.target):
        if not isinstance(name, ast.Name):
            continue
        new = names[name.id]
        if context.file.scope_of(loop).lookup(new) is not None:
            return False
        for read in context.file.reads(name):
            flat = context.file.parents[read]
            if not isinstance(flat, ast.Attribute) or flat.attr != "flat_param":
                return False
            lists.flat[flat] = new
            if not _is_elementwise(context.file, flat, lists):
                return False
    return True


def _is_elementwise(file: File, flat: ast.Attribute, lists: Lists) -> bool:
    """Whether a flat parameter is only compared with None, asked for what each parameter has, or changed by element."""
    node: ast.expr = flat
    around = file.parents[node]
    match around:
        case ast.Compare(left, [ast.IsNot()], [ast.Constant(None)]) if left is flat:
            lists.tests.append(around)
            conjunction = file.parents[around]
            return isinstance(conjunction, ast.BoolOp) and isinstance(conjunction.op, ast.And)
        case ast.Attribute(attr="dtype" | "requires_grad"):
            return True
    while isinstance(around, ast.Attribute):
        call = file.parents[around]
        if around.attr in _READ:
            node = around
        elif around.attr in _ELEMENTWISE and isinstance(call, ast.Call) and call.func is around:
            node = call
        else:
            return False
        around = file.parents[node]
    match around:
        case ast.Expr():
            return isinstance(node, ast.Call)
        case ast.Call(ast.Attribute(ast.Name() as taken, "append"), [_], []):
            return all(_is_for_each(file, read) for read in file.reads(taken))
        case ast.Call(ast.Attribute(attr=method)):
            return method in _ELEMENTWISE and node in around.args
    return False


def _is_for_each(file: File, read: ast.Name) -> bool:
    """Whether a list of tensors is added to, or given to a function that works on each element of each."""
    around = file.parents[read]
    if isinstance(around, ast.Attribute):
        return around.attr == "append"
    return isinstance(around, ast.Call) and last_name(around.func).startswith("_foreach_")


def _edits(context: Context, lists: Lists) -> list[Edit]:
    file = context.file
    edits = [context.remove(assign) for assign, _ in lists.made.values()]
    for compared in lists.asserts:
        for given in ast.walk(compared):
            if isinstance(given, ast.Name) and given.id in lists.made:
                model = context.source(lists.made[given.id][1])
                edits.append(context.replace(given, f"list({model}.parameters())"))
    for loop, names in lists.loops.items():
        targets = [n for n in ast.walk(loop.target) if isinstance(n, ast.Name)]
        edits += [context.replace(target, names[target.id]) for target in targets]
        for given in ast.walk(loop.iter):
            if isinstance(given, ast.Name) and given.id in lists.made:
                model = context.source(lists.made[given.id][1])
                edits.append(context.replace(given, f"{model}.parameters()"))
    tested = {test.left for test in lists.tests}
    edits += [context.replace(flat, new) for flat, new in lists.flat.items() if flat not in tested]
    for conjunction in dict.fromkeys([file.parents[test] for test in lists.tests]):
        edits += _without_tests(context, conjunction, lists.tests)
    return edits


def _without_tests(
    context: Context, conjunction: ast.AST, tests: Collection[ast.expr]
) -> list[Edit]:
    """The edits that take comparisons with None out of a conjunction."""
    assert isinstance(conjunction, ast.BoolOp)
    file = context.file
    values = conjunction.values
    if comments_between(file, *file.span(conjunction)) or all(each in tests for each in values):
        raise Refused("its test is unusual")
    edits = []
    for place, value in enumerate(values):
        start, end = file.span(value)
        if value not in tests:
            continue
        if all(each in tests for each in values[:place]):
            end = file.span(values[place + 1])[0]
        else:
            start = file.span(values[place - 1])[1]
        edits.append(Edit(start, end, ""))
    return edits
