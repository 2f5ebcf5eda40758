"""Which statements of a block can go behind a later one, and nothing that the program does changes but their order.

Proved from what the statements name. What moves (optimizers, schedulers, lists of parameters) has no effect but on what it
binds. What it is moved over may neither read nor bind that, nor change what it reads; of the model that is its parameters:
what is not known to leave them alone stops the move.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.expressions import dotted, values_given
from fsdp_migrate.codemods.optimizers.kept_parameters import FILLING, TAKING
from fsdp_migrate.codemods.optimizers.statement_names import (
    DEFINITIONS,
    containers,
    filled,
    loop_names,
    meet,
    names_in,
)
from fsdp_migrate.index.module import Imported
from fsdp_migrate.index.order import block_of
from fsdp_migrate.index.values import origins

# Builtins that change nothing that they are given.
_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "dict", "enumerate", "filter", "float", "frozenset", "getattr"}
    | {"hasattr", "id", "int", "isinstance", "iter", "len", "list", "map", "max", "min", "next"}
    | {"print", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple"}
    | {"type", "zip"}
)
# Packages whose functions know nothing of a program's models.
_PURE = ("functools.", "itertools.", "math.", "operator.", "collections.", "torch.optim.")
# Methods of strings, containers and tensors that change nothing.
_READING = frozenset(
    {"count", "dim", "endswith", "format", "get", "items", "join", "keys", "lower", "numel"}
    | {"replace", "size", "split", "startswith", "strip", "title", "upper", "values"}
)
# Methods of a model after which its parameters are the same objects under the same names, training or frozen as before.
_KEEPING = (
    TAKING
    | {"bfloat16", "buffers", "children", "cpu", "cuda", "double", "eval", "float", "half"}
    | {"load_state_dict", "modules", "named_buffers", "named_children", "named_modules"}
    | {"state_dict", "to", "train"}
)
_STOPPING = (
    ast.Return,
    ast.Break,
    ast.Continue,
    ast.Yield,
    ast.YieldFrom,
    ast.Await,
    ast.Global,
    ast.Nonlocal,
    ast.Delete,
)


def moved_behind(
    context: Context,
    seeds: Sequence[ast.stmt],
    anchor: ast.stmt,
    models: Sequence[str],
) -> list[ast.stmt] | None:
    """The statements that go behind `anchor` so that the seeds can; None if they cannot.

    Args:
        seeds: statements above the anchor; those inside an `if` or a loop of its block go with that.
        models: the names of the model, dotted.
    """
    return _Mover(context, anchor, models).moved(seeds)


class _Mover:
    def __init__(self, context: Context, anchor: ast.stmt, models: Sequence[str]) -> None:
        self.context = context
        self.module = context.module
        self.anchor = anchor
        self.models = models
        self.block = block_of(self.module.parents[anchor], anchor)

    def moved(self, seeds: Sequence[ast.stmt]) -> list[ast.stmt] | None:
        members = [self._member(seed) for seed in seeds]
        moving = {member for member in members if member is not None}
        if None in members or self.anchor in moving:
            return None
        end = self.block.index(self.anchor)
        above = self.block[:end]
        names = {statement: names_in(self.module, statement) for statement in self.block[: end + 1]}
        if not moving <= set(above):
            return None
        while True:
            first = min(above.index(statement) for statement in moving)
            bound = {name for s in moving for name in names[s].binds}
            read = {name for s in moving for name in names[s].reads}
            more = {
                statement
                for index, statement in enumerate(above)
                if statement not in moving
                and (
                    (index > first and meet(names[statement].reads, bound))
                    or (meet(names[statement].binds, read) and self._of_parameters(statement))
                    or meet(names[statement].binds, filled(moving))
                )
            }
            if not more:
                break
            moving |= more
        in_order = [statement for statement in above if statement in moving]
        staying = [s for s in above[first:] if s not in moving]
        if not all(self._may_move(s, bound) and not self._sets(s) for s in in_order):
            return None
        if self._by_identity(in_order) and not self._all_made_here(read - bound):
            return None
        if any(meet(names[s].binds, read | bound) and not self._is_model(s) for s in staying):
            return None
        rebound = names[self.anchor].binds - set(self.models)
        if meet(rebound, read | bound) or meet(names[self.anchor].reads, bound):
            return None
        if not all(self._may_stay(s, read) for s in [*staying, self.anchor]):
            return None
        return in_order

    def _member(self, statement: ast.AST | None) -> ast.stmt | None:
        """The statement of the block that a statement is or is in."""
        while statement is not None and statement not in self.block:
            statement = self.module.parents.get(statement)
        return statement if isinstance(statement, ast.stmt) else None

    def _of_parameters(self, statement: ast.stmt) -> bool:
        """Whether a statement takes parameters from a model: what it binds is of the old ones."""
        if isinstance(statement, DEFINITIONS):
            return False
        return any(
            isinstance(node, ast.Attribute) and node.attr in TAKING for node in ast.walk(statement)
        )

    def _is_model(self, statement: ast.stmt) -> bool:
        """`model = model.to(device)`, or a constructor: the name goes on holding the same model."""
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        value = statement.value
        if dotted(statement.targets[0]) not in self.models or not isinstance(value, ast.Call):
            return False
        if value in self.context.plans:
            return True
        method = value.func
        return (
            isinstance(method, ast.Attribute)
            and method.attr in _KEEPING
            and dotted(method.value) in self.models
        )

    # what moves

    def _sets(self, statement: ast.stmt) -> bool:
        """Whether a statement sets an attribute of a parameter or of the model: it freezes them, perhaps."""
        loops = loop_names(statement)
        return any(
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and (dotted(node).split(".")[0] in loops or self._names_model(node))
            for node in ast.walk(statement)
        )

    def _may_move(self, statement: ast.stmt, bound: set[str]) -> bool:
        """Whether a statement does nothing but bind names, of values that are made without effects."""
        if isinstance(statement, ast.Assign):
            return all(_is_place(t) for t in statement.targets) and self._is_value(statement.value)
        if isinstance(statement, ast.AnnAssign):
            value = statement.value
            return _is_place(statement.target) and value is not None and self._is_value(value)
        if isinstance(statement, ast.AugAssign):
            return isinstance(statement.target, ast.Name) and self._is_value(statement.value)
        if isinstance(statement, ast.Expr):
            call = statement.value
            return (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in FILLING
                and containers(call.func.value) <= bound
                and all(self._is_value(argument) for argument in values_given(call))
            )
        if isinstance(statement, ast.If):
            inner = [*statement.body, *statement.orelse]
            return self._is_value(statement.test) and all(self._may_move(s, bound) for s in inner)
        if isinstance(statement, ast.For):
            inner = statement.body
            simple = not statement.orelse and not statement.type_comment
            return (
                simple
                and self._is_value(statement.iter)
                and all(self._may_move(s, bound) for s in inner)
            )
        return isinstance(statement, ast.Pass | ast.Continue)

    def _by_identity(self, statements: list[ast.stmt]) -> bool:
        """Whether statements tell parameters apart by `id`: a set of ids made elsewhere is of the old ones."""
        return any(
            isinstance(node, ast.Name) and node.id == "id"
            for statement in statements
            for node in ast.walk(statement)
        )

    def _all_made_here(self, names: set[str]) -> bool:
        """Whether names mean nothing but the model, builtins and what is imported."""
        for name in names - set(self.models):
            root = name.split(".")[0]
            found = self.module.lookup(root, self.module.scope_of(self.anchor))
            of_model = any(name.startswith(f"{model}.") for model in self.models)
            if found and not of_model and not all(isinstance(b, Imported) for b in found[1]):
                return False
        return True

    def _is_value(self, expression: ast.expr) -> bool:
        """Whether an expression only makes a value, of names, constants and what is known to be without effects."""
        for node in ast.walk(expression):
            if isinstance(node, ast.Await | ast.NamedExpr | ast.Yield | ast.YieldFrom):
                return False
            if isinstance(node, ast.Call) and not self._only_makes(node):
                return False
        return True

    def _only_makes(self, call: ast.Call) -> bool:
        function = call.func
        if any(dotted(argument) in self.models for argument in values_given(call)):
            return False
        if self._is_builtin(function):
            return True
        paths = self.context.project.dotted(function, self.module)
        if paths:
            return all(
                path.startswith(_PURE) or "optim" in path.lower() or "sched" in path.lower()
                for path in paths
            )
        if not isinstance(function, ast.Attribute):
            return False
        return function.attr in _READING | TAKING | {"modules", "named_modules"}

    def _is_builtin(self, function: ast.expr) -> bool:
        return (
            isinstance(function, ast.Name)
            and function.id in _BUILTINS
            and self.context.means_builtin(function.id, function)
        )

    # what it is moved over

    def _may_stay(self, statement: ast.stmt, read: set[str]) -> bool:
        """Whether a statement leaves alone what the moved ones read: the model's parameters above all."""
        if isinstance(statement, DEFINITIONS):
            return not statement.decorator_list
        loops = loop_names(statement)
        for node in _executed(statement):
            if isinstance(node, _STOPPING):
                return False
            if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(
                node.ctx, ast.Load
            ):
                root = dotted(node).split(".")[0]
                same = statement is self.anchor or self._is_model(statement)
                if same and dotted(node) in self.models:
                    continue
                if root in loops or not root or self._names_model(node):
                    return False
            if isinstance(node, ast.Call) and not self._leaves_alone(node, read):
                return False
            if isinstance(node, ast.Name | ast.Attribute) and not self._is_harmless(node):
                return False
        return True

    def _names_model(self, node: ast.AST) -> bool:
        return any(dotted(inner) in self.models for inner in ast.walk(node))

    def _leaves_alone(self, call: ast.Call, read: set[str]) -> bool:
        function = call.func
        if call in self.context.plans or self._is_builtin(function):
            return True
        given = {dotted(a) for a in values_given(call)} - {""} - set(self.models)
        if self.context.fsdp1(function) is None and meet(given, read):
            return False
        if self.context.project.dotted(function, self.module):
            return True
        if not isinstance(function, ast.Attribute):
            return False
        if dotted(function.value) in self.models:
            return function.attr in _KEEPING
        if meet({dotted(function.value)}, read) and function.attr not in _READING:
            return False
        return function.attr in _READING or self._is_foreign(function.value)

    def _is_foreign(self, expression: ast.expr) -> bool:
        """Whether an object was made by another library, and of no model: a logger, a parser."""
        if isinstance(expression, ast.Constant | ast.JoinedStr):
            return True
        made = origins(self.context.project, expression, self.module)
        return bool(made) and all(
            isinstance(origin.node, ast.Call)
            and bool(self.context.project.dotted(origin.node.func, origin.module))
            and not self._names_model(origin.node)
            for origin in made
        )

    def _is_harmless(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether the model's name stands where nothing can be done to the model but what is known."""
        if dotted(node) not in self.models or not isinstance(node.ctx, ast.Load):
            return True
        parent = self.module.parents[node]
        if isinstance(parent, ast.keyword):
            parent = self.module.parents[parent]
        if isinstance(parent, ast.Attribute):  # a method, or a part's name
            call = self.module.parents[parent]
            return isinstance(call, ast.Call) and call.func is parent and parent.attr in _KEEPING
        if isinstance(parent, ast.Call):
            return (
                parent in self.context.plans
                or self._is_builtin(parent.func)
                or self.context.project.dotted(parent.func, self.module) == {"copy.deepcopy"}
            )
        return isinstance(parent, ast.FormattedValue)


def _is_place(target: ast.expr) -> bool:
    if isinstance(target, ast.Tuple):
        return all(_is_place(element) for element in target.elts)
    return isinstance(target, ast.Name | ast.Attribute | ast.Subscript) and dotted(target) != ""


def _executed(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement that run where it stands: not the bodies of functions in it."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, ast.Lambda):
            pending += ast.iter_child_nodes(node)
