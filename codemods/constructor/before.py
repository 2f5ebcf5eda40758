"""What is known at a place: whether a model is wrapped there yet, which tests hold, and what a name was given last.

Before it is wrapped a model is no FSDP1 model, and its names and classes are its own. A test holds inside of its `if`, and
below an `if` whose body leaves the block.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property

from fsdp_migrate.codemods.constructor.construction import Construction
from fsdp_migrate.codemods.constructor.evaluations import Evaluations
from fsdp_migrate.codemods.constructor.makers import Uses, runs_only
from fsdp_migrate.codemods.constructor.origin import is_module, may_be_module
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.models import given
from fsdp_migrate.facts.file import File, root_of, values_given
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH
from fsdp_migrate.facts.program import Definition
from fsdp_migrate.facts.scopes import Assigned, Opaque, Parameter
from fsdp_migrate.facts.values import reaching

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_NO_UNIT = re.compile(r"(modules|parameters|buffers)\(|conf|cfg|args|optim|\.(weight|bias|grad)$")
_PARTS = ("modules", "named_modules", "children", "named_children")
# The calls of a name in the files that can share a model.
Calls = Callable[[str], Iterable[tuple[File, ast.Call]]]


class Before:
    """The code of a file that runs before its models are wrapped.

    Args:
        factories: the calls that make the models.
        nested: whether a wrapped model may be a part of another, whose class says nothing about it.
    """

    def __init__(
        self,
        context: Context,
        constructions: Collection[Construction],
        calls: Calls,
        factories: Collection[ast.Call],
        *,
        nested: Callable[[], bool],
    ) -> None:
        self.context = context
        self.calls = calls
        self.factories = factories
        self.nested = nested
        self.evaluations = Evaluations(context)
        self._first: dict[ast.AST | None, int] = {}
        self._wrapped: set[str] = set()
        self._names: dict[ast.AST | None, set[str]] = {}
        self._constructors = {each.call: each.context.file for each in constructions}
        for each in constructions:
            file = each.context.file
            function = file.function(each.call)
            around = [n for n in file.ancestors(each.call) if isinstance(n, _LOOPS)]
            line = 0 if around else each.call.lineno
            self._first[function] = min(line, self._first.get(function, line))
            statement = file.statement(each.call)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            roots = [root_of(target) for target in (each.module, *targets) if target is not None]
            names = {root.id for root in roots if root is not None}
            self._names.setdefault(function, set()).update(names)
            if file is context.file:
                self._wrapped |= names

    def covers(self, node: ast.AST) -> bool:
        """Whether a node is above the wrapping of the model that it is about, or in `__init__` of a module."""
        file, subject = self.context.file, subject_of(node)
        if isinstance(subject, ast.Name) and self._is_unwrapped(file, subject, set()):
            return True
        function = file.function(node)
        if function is not None and self._is_policy(function):
            return True
        if function is not None and self._only_makes(function):
            return subject is None or not self.context.can_be_model(subject)
        first = self._first.get(function)
        if first is not None:
            above = (getattr(node, "end_lineno", 0) or 0) < first
            root = subject if isinstance(subject, ast.Name) else None
            other = subject is not None and (root is None or root.id not in self._wrapped)
            return above and not (other and self.context.can_be_model(subject))  # type: ignore[arg-type]
        if function is None or function.name != "__init__":
            return False
        cls = file.enclosing_class(function)
        return cls is not None and is_module(self.context.program, Definition(file, cls))

    def rules_out(self, node: ast.AST, uses: Uses) -> bool:
        """Whether a node never runs where the models are wrapped: it does only where a test fails that holds at each
        constructor, `if not args.fsdp` beside `if args.fsdp`."""
        return bool(self._tests) and runs_only(self.context.file, node, self._fails, uses, set())

    @cached_property
    def _tests(self) -> set[tuple[str, bool]]:
        """The tests that hold at all constructors, or that do not, by their text."""
        every = [set(self._fixed(file, call)) for call, file in self._constructors.items()]
        return set.intersection(*every) if every else set()

    def _fails(self, file: File, node: ast.AST) -> bool:
        return any((text, not truth) in self._tests for text, truth in self._fixed(file, node))

    def _fixed(self, file: File, node: ast.AST) -> Iterator[tuple[str, bool]]:
        """The tests at a node whose values never change: of constants of the file, and what is never set of them."""
        for test, truth in _holding(file, node):
            inside = list(ast.walk(test))
            names = [file.variable(each) for each in inside if isinstance(each, ast.Name)]
            fields = {each.attr for each in inside if isinstance(each, ast.Attribute)}
            is_set = any(
                isinstance(each.ctx, ast.Store)
                for other in self.context.program.files
                for field in fields
                for each in other.attributes.get(field, ())
            )
            is_fixed = all(f and f.scope is file.scope and len(f.bindings) == 1 for f in names)
            if is_fixed and not is_set and not any(isinstance(each, ast.Call) for each in inside):
                yield f"{file.name}: {ast.unparse(test)}", truth

    def _only_makes(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a function is called only where it makes a model, which is wrapped afterwards."""
        calls = [call for _, call in self.calls(function.name)] if self.factories else []
        return bool(calls) and all(call in self.factories for call in calls)

    def _is_policy(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a function does nothing but decide about units, which FSDP1 asks it before it wraps."""
        parents = self.context.file.parents
        uses = [parents[load] for load in self.context.file.loads.get(function.name, ())]
        return bool(uses) and all(
            (isinstance(use, ast.keyword) and use.arg == "lambda_fn")
            or (isinstance(use, ast.Call) and self.context.fsdp1(use.func) == "CustomPolicy")
            for use in uses
        )

    def _is_unwrapped(self, file: File, name: ast.Name, seen: set[ast.AST]) -> bool:
        """Whether a local name holds a model that is wrapped further below, or a parameter gets none but such models."""
        found, function = file.variable(name), file.function(name)
        if found is None or function is None or found.scope.node is not function:
            return False
        if name.id in self._names.get(function, ()) and name.lineno < self._first[function]:
            return True
        whole = [_whole(each.node) for each in found.bindings if isinstance(each, Opaque)]
        if whole and len(whole) == len(found.bindings):  # a loop over the modules of a model
            return all(each is not None and self._is_unwrapped(file, each, seen) for each in whole)
        assigned = found.assigned
        parameters = [each for each in found.bindings if isinstance(each, Parameter)]
        if parameters and len(found.bindings) == 1 and function not in seen:
            seen.add(function)
            values = list(self._passed(file, parameters[0]))
            return bool(values) and all(
                isinstance(value, ast.Name) and self._is_unwrapped(other, value, seen)
                for other, value in values
            )
        if len(assigned) != len(found.bindings):
            return False
        wraps = [each for each in assigned if self.context.models.can_hold(each.value, file)]
        reached = list(reaching(file, assigned, name))
        return bool(wraps and reached) and not any(each in wraps for each in reached)

    def _passed(self, file: File, parameter: Parameter) -> Iterator[tuple[File, ast.expr | None]]:
        """What the calls of a function give for a parameter; nothing for a method, or a function that is passed on."""
        function = parameter.function
        if isinstance(function, ast.Lambda) or isinstance(file.parents[function], ast.ClassDef):
            return
        for other, call in self.calls(function.name):
            yield other, given(call, function, parameter.argument.arg)

    def is_fresh(self, node: ast.AST) -> bool:
        """Whether a node is behind a constructor in its function, and nothing between them can run the model."""
        file = self.context.file
        function = file.function(node)
        first = self._first.get(function)
        if first is None or any(isinstance(n, _LOOPS) for n in file.ancestors(node)):
            return False
        return not any(
            self._runs_model(call)
            for call in file.of(ast.Call)
            if file.function(call) is function
            and first < call.lineno < getattr(node, "lineno", 0)
            and call not in self._constructors
        )

    def may_have_run(self, file: File, node: ast.AST, depth: int = 3) -> bool:
        """Whether an evaluation may be above a node, in its function or in one that calls this: it leaves the root's
        parameters gathered, and an optimizer that is made then does not get the sharded ones."""
        function, line = file.function(node), getattr(node, "lineno", 0)
        above = (c for c in file.of(ast.Call) if file.function(c) is function and c.lineno < line)
        if any(self.evaluations.may_be(file, call) for call in above):
            return True
        if function is None or not depth or function.name == "__init__":
            return False
        calls = self.calls(function.name)
        return any(self.may_have_run(other, call, depth - 1) for other, call in calls)

    def _runs_model(self, call: ast.Call) -> bool:
        """Whether a call is one of the model, gets it as an argument, or may evaluate it otherwise."""
        every = [call.func, *values_given(call)]
        names = any(isinstance(each, ast.Name) and each.id in self._wrapped for each in every)
        return names or self.evaluations.may_be(self.context.file, call)


def _whole(loop: ast.AST) -> ast.Name | None:
    """The model of `for module in model.modules()`."""
    call = loop.iter if isinstance(loop, ast.For) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        if call.func.attr in _PARTS and isinstance(call.func.value, ast.Name):
            return call.func.value
    return None


def may_be_unit(context: Context, module: ast.expr | None) -> bool:
    """Whether an expression may be a wrapped model, or a part of one with its own wrapper; not one of `model.modules()`, which
    gives what is inside as well."""
    file = context.file
    bound = file.bindings(module) if isinstance(module, ast.Name) else ()
    nodes = [getattr(each, "node", None) for each in bound]
    loops = [node.iter for node in nodes if isinstance(node, ast.For | ast.comprehension)]
    parts = [
        n
        for each in (*loops, module)
        if each and not _NO_UNIT.search(ast.unparse(each))
        for n in ast.walk(each)
    ]
    named = [n for n in parts if isinstance(n, ast.Attribute) or getattr(n, "id", "self") != "self"]
    if any(context.can_be_model(n) or getattr(n, "attr", "") == "model" for n in named):  # type: ignore[arg-type]
        return True
    method = file.function(module) if module is not None else None
    of_self = any(getattr(getattr(n, "value", 0), "id", "") == "self" for n in named)
    return of_self and any(  # in a method of the model
        isinstance(call.func, ast.Attribute) and context.models.can_hold(call.func.value, other)
        for other, call in context.models.calls.get(getattr(method, "name", ""), ())
    )


def subject_of(node: ast.AST) -> ast.expr | None:
    """The model that a node is about: the receiver of an attribute, the first argument of a call."""
    if isinstance(node, ast.Attribute):
        return node.value
    return node.args[0] if isinstance(node, ast.Call) and node.args else None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def asks_first(file: File, attribute: ast.Attribute) -> bool:
    """Whether `model.module` is behind a `hasattr` of the same receiver."""
    asked = f"hasattr({ast.unparse(attribute.value)}, '{attribute.attr}')"
    return any(truth and ast.unparse(test) == asked for test, truth in _holding(file, attribute))


def is_wrapped(context: Context, model: ast.expr) -> bool | None:
    """Whether `isinstance(model, FSDP)` holds where a name is read; None if no test says it."""
    for test, truth in _holding(context.file, model):
        if not isinstance(test, ast.Call) or getattr(test.func, "id", "") != "isinstance":
            continue
        if isinstance(model, ast.Name) and ast.unparse(test.args[0]) == model.id:
            if context.references.get(test.args[1]) == CLASS:
                return truth
    return None


def was_wrapper(context: Context, attribute: ast.Attribute) -> bool | None:
    """Whether a run has read `.module` of FSDP1's wrappers at a place, or of other modules; None for both, and for neither."""
    ran = context.recorded(attribute)
    on_line = [a for a in context.file.attributes["module"] if a.lineno == attribute.lineno]
    if ran is None or not (ran.end_line or len(on_line) == 1):
        return None  # before Python 3.11 a place is a line
    return ran.facts.get("of_wrapper")


def last_value(file: File, name: ast.expr, at: ast.AST) -> ast.expr | None:
    """The value that a local name certainly has at a place: that of its last assignment, if no way to the place avoids it."""
    found = file.variable(name, at)
    if found is None or found.scope is not file.scope_of(at):
        return None
    if any(not isinstance(binding, Assigned | Parameter) for binding in found.bindings):
        return None
    line = getattr(at, "lineno", 0)
    earlier = [binding for binding in found.assigned if binding.target.lineno < line]
    is_repeated = any(isinstance(each, _LOOPS) for each in file.ancestors(at))
    if not earlier or (is_repeated and len(earlier) < len(found.assigned)):
        return None
    last = max(earlier, key=lambda binding: binding.target.lineno)
    statement = file.statement(last.target)
    block = file.block(statement)
    behind = block[block.index(statement) + 1 :] if statement in block else []
    around = (file.statement(at), *file.ancestors(at))
    return None if last.path or not any(node in behind for node in around) else last.value


def are_held(context: Context) -> bool:
    """Whether a file may put a wrapped model into another module, whose class does not show the model inside."""
    for call in context.file.of(ast.Call):
        given = values_given(call)
        if not any(
            context.can_be_model(e) for e in given if isinstance(e, ast.Name | ast.Attribute)
        ):
            continue
        made = context.program.definition(call.func, context.file)
        if made is None:
            kept = isinstance(context.file.parents[call], ast.Assign | ast.Return)
            others = (d for d in context.dotted(call.func) if not d.startswith((TORCH, RUNTIME)))
            held = kept and any(others)
        else:
            is_class = isinstance(made.node, ast.ClassDef)
            held = is_class and may_be_module(context.program, made)
        if held:
            return True
    return False


def _holding(file: File, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """The tests that hold at a node, and those that do not, each with which of the two."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            body = _listed(parent.body)
            yield from _unchanged(parent.test, child in body, [*body, *_listed(parent.orelse)])
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            for value in parent.values[: parent.values.index(child)]:  # type: ignore[arg-type]
                yield from _unchanged(value, True, [])
        if isinstance(child, ast.stmt):
            block = file.block(child)
            place = block.index(child) if child in block else 0
            for above in block[:place]:
                if isinstance(above, ast.If) and isinstance(above.body[-1], _LEAVES):
                    yield from _unchanged(above.test, False, block[block.index(above) :])
        if isinstance(parent, _FUNCTIONS):
            return
        child = parent


def _listed(branch: list[ast.stmt] | ast.expr) -> Sequence[ast.AST]:
    return branch if isinstance(branch, list) else [branch]


def _unchanged(
    test: ast.expr, truth: bool, region: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr, bool]]:
    """The parts of a test, if nothing in a region gives another value to a name in it."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    stores = (n for each in region for n in ast.walk(each) if isinstance(n, ast.Name))
    if not any(n.id in names and not isinstance(n.ctx, ast.Load) for n in stores):
        yield from _parts(test, truth)


def _parts(test: ast.expr, truth: bool) -> Iterator[tuple[ast.expr, bool]]:
    """A test without `not`, and each of several that hold, or do not, together."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not truth)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) is truth:
        for value in test.values:
            yield from _parts(value, truth)
    else:
        yield test, truth


def given_names(cls: ast.AST) -> set[str]:
    """The methods of a class, and the attributes that it gives `self`."""
    nodes = list(ast.walk(cls))
    stored = (n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store))
    methods = {n.name for n in getattr(cls, "body", ()) if isinstance(n, ast.FunctionDef)}
    return methods | {n.attr for n in stored if getattr(n.value, "id", "") == "self"}
