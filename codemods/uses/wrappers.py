"""Tests for FSDP1's class that met a wrapper and the module in it, and what they select.

A walk over all modules of an FSDP1 model met a wrapper first and the module in it next. In place both are one module. So a
test means FSDPModule where the program does something with wrappers alone. Where it leaves the wrappers out it meant the
modules in them, and its answer is always the same now.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from fsdp_migrate.facts.file import File, last_name
from fsdp_migrate.facts.models import Models
from fsdp_migrate.facts.nodes import name_around
from fsdp_migrate.facts.origins import Origin, of_assigned, stored
from fsdp_migrate.facts.scopes import Opaque, Parameter

_ALL = frozenset({"modules", "named_modules"})
_ONE_LEVEL = frozenset({"children", "fsdp_modules", "named_children"})
# What gives the items of an iterable on.
_SAME_ITEMS = frozenset({"enumerate", "filter", "iter", "list", "reversed", "set", "sorted"})
_SAME_ITEMS |= {"tuple", "zip", "dict"}
# Functions that call what they are given with every module of a model.
_APPLYING = frozenset({"apply", "apply_activation_checkpointing"})
_LEAVING = (ast.Break, ast.Continue, ast.Raise, ast.Return)


class Selects(Enum):
    """The modules that a test for FSDP1's class does something with."""

    UNITS = "wrappers alone"
    OTHERS = "modules that are not wrappers"
    BOTH = "either, each in its own way"


class Walks:
    """The tests of a program for modules that come from a walk over a model.

    Args:
        models: the models of the program, which know the calls of its functions.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self._asked: set[ast.AST] = set()

    # Whether a test meets both #

    def meets_both(self, test: ast.Call, file: File) -> bool:
        """Whether a test is asked of a wrapper and, apart from that, of the module in it."""
        return self._meets(test.args[0], test, file)

    def _meets(self, subject: ast.expr, test: ast.Call, file: File) -> bool:
        self._asked.clear()
        return self._meets_both(subject, test, file)

    def _meets_both(self, subject: ast.expr, test: ast.Call, file: File) -> bool:
        return any(
            self._is_any_module(binding, test, file)
            for binding in file.bindings(subject)
            if isinstance(binding, Opaque | Parameter)
        )

    def _is_any_module(self, binding: Opaque | Parameter, test: ast.Call, file: File) -> bool:
        if isinstance(binding, Parameter):
            return self._is_given_all(binding, test, file)
        loop = binding.node
        if not isinstance(loop, ast.For | ast.comprehension):
            return False
        function = file.function(test)
        if function is not None and _takes_children(loop.iter):
            return _descends(file, function, test)
        are_all = self.are_all(loop.iter, file)
        if are_all is None:
            return last_name(loop.iter).lower().endswith("modules")
        return are_all

    def _is_given_all(self, parameter: Parameter, test: ast.Call, file: File) -> bool:
        """Whether a function is called with every module of a model."""
        function = parameter.function
        if function in self._asked:
            return False
        self._asked.add(function)
        if any(self._calls_with_all(use, file) for use in _uses(file, function)):
            return True
        if isinstance(function, ast.FunctionDef) and _descends(file, function, test):
            return True
        return any(
            self._meets_both(value, test, other)
            for value, other, _ in self.models.origins.given(parameter, file)
        )

    def _calls_with_all(self, function: ast.expr, file: File) -> bool:
        """Whether what a function is given to calls it with every module: `model.apply(f)`, `check_fn=f`."""
        taker = file.parents[function]
        if isinstance(taker, ast.keyword):
            return taker.arg == "check_fn"
        if not isinstance(taker, ast.Call) or function not in taker.args:
            return False
        name = last_name(taker.func)
        if name in ("filter", "map") and len(taker.args) > 1:
            return self.are_all(taker.args[1], file) is not False
        return name in _APPLYING

    def are_all(self, iterable: ast.expr, file: File) -> bool | None:
        """Whether an iterable has all modules of a model, at any depth; None if that is not known."""
        if iterable in self._asked:
            return None
        self._asked.add(iterable)
        return _merged(self._are_all(iterable, file))

    def _are_all(self, iterable: ast.expr, file: File) -> Iterator[bool | None]:
        match iterable:
            case ast.Call(ast.Attribute(_, name)) if name in _ALL | _ONE_LEVEL:
                yield name in _ALL
            case ast.List(items) | ast.Tuple(items) | ast.Set(items):
                unpacked = [each.value for each in items if isinstance(each, ast.Starred)]
                for each in unpacked:
                    yield self.are_all(each, file)
                if len(unpacked) < len(items):
                    yield False
            case ast.Dict():
                yield False
            case ast.Name() | ast.Attribute():
                for value, other, _ in self._values(iterable, file):
                    yield self.are_all(value, other)
            case _:
                for each in _with_the_same_items(iterable):
                    yield self.are_all(each, file)

    def _values(self, variable: ast.Name | ast.Attribute, file: File) -> Sequence[Origin]:
        """What a name or an attribute can be bound to."""
        found = [*self.models.origins.of_name(variable, file)]
        if isinstance(variable, ast.Attribute):
            found += [of_assigned(each, file) for each in stored(file, variable.attr)]
        return [each for each in found if not each.path]

    # What it selects #

    def selects(self, test: ast.expr, file: File, expected: bool = True) -> Selects:
        """What a test that meets both selects; `expected` is its answer for a wrapper."""
        condition, expected = _condition(file, test, expected)
        parent = file.parents[condition]
        match parent:
            case ast.If() if condition is parent.test:
                return _selected(file, parent, expected)
            case ast.IfExp() if condition is parent.test:
                has_body = not _is_nothing(parent.body)
                has_else = not _is_nothing(parent.orelse)
                if expected:
                    return _of_two(has_body, has_else)
                return _of_two(has_else, has_body)
            case ast.Return() | ast.Lambda():
                return self._of_calls(parent, file, expected)
            case ast.Assign([ast.Name() as name]):
                return _of_all([self.selects(read, file, expected) for read in file.reads(name)])
            case ast.Assert() | ast.While():
                return Selects.UNITS
            case ast.GeneratorExp() if last_name(_caller(file, parent)) == "all":
                return Selects.UNITS  # all(not isinstance(...)): a wrapper decides
            case ast.comprehension() | ast.ListComp() | ast.GeneratorExp():
                return _where(expected)
        if expected:
            return Selects.UNITS
        return Selects.BOTH

    def _of_calls(self, result: ast.Return | ast.Lambda, file: File, expected: bool) -> Selects:
        """What a function that returns the answer is used to select."""
        name = ""
        function: ast.AST | None = result
        if isinstance(result, ast.Return):
            function = file.function(result)
            name = name_around(file, result)
        if function is None or any(self._calls_with_all(f, file) for f in _uses(file, function)):
            return _where(expected)
        found = []
        for other, call in self.models.program.calls(name):
            if any(self._meets(each, call, other) for each in call.args):
                found.append(self.selects(call, other, expected))
        # One function cannot have two meanings, and a call in another file cannot lose its test here.
        if _of_all(found) is Selects.UNITS:
            return _where(expected)
        return Selects.BOTH


def _where(expected: bool) -> Selects:
    """What is selected where a test has the answer for a wrapper, or the other one."""
    if expected:
        return Selects.UNITS
    return Selects.OTHERS


def _of_all(found: Sequence[Selects]) -> Selects:
    """What several places select together."""
    if {*found} <= {Selects.UNITS}:
        return Selects.UNITS
    return Selects.BOTH


def _merged(answers: Iterable[bool | None]) -> bool | None:
    found = {*answers}
    if True in found:
        return True
    if found == {False}:
        return False
    return None


def _with_the_same_items(iterable: ast.expr) -> Sequence[ast.expr]:
    """The iterables that a call, a comprehension or a slice takes its items from."""
    match iterable:
        case ast.Call(ast.Attribute(owner, "values" | "items"), []):
            return [owner]
        case ast.Call(ast.Name(name), args) if name in _SAME_ITEMS:
            return args
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return [iterable.generators[0].iter]
        case ast.Subscript(items, ast.Slice()):
            return [items]
    return ()


def _uses(file: File, function: ast.AST) -> Sequence[ast.expr]:
    """Where a function is a value: a lambda itself, and the name of a function or of a lambda."""
    if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        own = file.attributes.get(function.name, ())
        return [*file.loads.get(function.name, ()), *own]
    if not isinstance(function, ast.Lambda):
        return ()
    statement = file.parents[function]
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return file.reads(statement.targets[0])
    return (function,)


def _takes_children(iterable: ast.expr) -> bool:
    names = [last_name(node) for node in ast.walk(iterable)]
    return any(name in ("children", "named_children", "_modules") for name in names)


def _descends(file: File, function: ast.FunctionDef | ast.AsyncFunctionDef, test: ast.Call) -> bool:
    """Whether a function calls itself, also for what is in a wrapper: so it meets the wrapper and the module in it."""
    again = [
        call
        for call in file.calls.get(function.name, ())
        if file.function(call) is function and _is_own(call.func)
    ]
    decision = next((n for n in file.ancestors(test) if isinstance(n, ast.If)), None)
    if decision is None or test not in ast.walk(decision.test):
        return bool(again)
    _, expected = _condition(file, test, True)
    _, other = _branches(file, decision, expected)
    alone = {node for statement in other for node in ast.walk(statement)}
    return not {*again} <= {*alone}


def _is_own(function: ast.expr) -> bool:
    """`walk(child)` and `self.walk(child)`, and not `model.train()` in a function `train`."""
    match function:
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            return True
    return False


def _condition(file: File, test: ast.expr, expected: bool) -> tuple[ast.expr, bool]:
    """The condition that a test is a part of, and its answer for a wrapper if the test alone decides."""
    while True:
        parent = file.parents[test]
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            expected = not expected
        elif not isinstance(parent, ast.BoolOp):
            return test, expected
        test = parent


def _caller(file: File, argument: ast.expr) -> ast.expr | None:
    call = file.parents[argument]
    if isinstance(call, ast.Call) and argument in call.args:
        return call.func
    return None


def _selected(file: File, decision: ast.If, expected: bool) -> Selects:
    wrapper, other = _branches(file, decision, expected)
    return _of_two(any(map(_does, wrapper)), any(map(_does, other)))


def _branches(
    file: File, decision: ast.If, expected: bool
) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements that run for a wrapper and not for another module, and the other way round."""
    wrapper = [*decision.body]
    other = [*decision.orelse]
    if not expected:
        wrapper, other = other, wrapper
    behind = [*_behind(file, decision)]
    for branch, opposite in ((wrapper, other), (other, wrapper)):
        if branch and isinstance(branch[-1], _LEAVING):
            opposite += behind
            break
    return wrapper, other


def _behind(file: File, statement: ast.stmt) -> Iterator[ast.stmt]:
    """What runs after a statement, to the end of the innermost loop or function."""
    node: ast.AST = statement
    while not isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.Module):
        if isinstance(node, ast.stmt):
            block = file.block(node)
            if block:
                yield from block[block.index(node) + 1 :]
        node = file.parents[node]


def _does(statement: ast.stmt) -> bool:
    """Whether a statement does something with a module, or for it."""
    match statement:
        case ast.Pass() | ast.Continue() | ast.Expr(ast.Constant()):
            return False
        case ast.Return():
            return not _is_nothing(statement.value)
    return True


def _is_nothing(value: ast.expr | None) -> bool:
    """`None`, `False`, `0`: the caller does nothing with it."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def _of_two(wrapper: bool, other: bool) -> Selects:
    if wrapper and other:
        return Selects.BOTH
    if other:
        return Selects.OTHERS
    return Selects.UNITS
