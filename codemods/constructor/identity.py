"""Which expressions can be the models of one constructor: what the files show, and what they leave open."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from fsdp_migrate.facts.file import File, last_name, root_of, values_given
from fsdp_migrate.facts.models import SAME, Models, models_of
from fsdp_migrate.facts.names import CLASS
from fsdp_migrate.facts.origins import Origin, of_assigned, reaching, returned, stored
from fsdp_migrate.facts.program import Program
from fsdp_migrate.facts.scopes import Assigned, Binding, Parameter

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# What makes a model: constructors, and None for what the files leave open.
Sources = frozenset[ast.Call | None]
_NOTHING: Sources = frozenset()
_OPEN: Sources = frozenset({None})


class Identity:
    """The models that one constructor shards.

    Args:
        sharding: the constructor's call, or the statement that shards.
        files: the files in which their uses are followed.
        paths: all files that can get the models.
    """

    def __init__(
        self, program: Program, sharding: ast.AST, files: Sequence[File], paths: frozenset[str]
    ) -> None:
        self.program = program
        self._paths = paths
        self.models: Models = models_of(program)
        self._own = {sharding, *_in_place_around(files, sharding)}
        self._files = files
        self._known: dict[ast.expr, Sources] = {}

    def shown(self, file: File, expression: ast.expr) -> bool:
        """Whether an expression can be one of the models, as far as the files show."""
        return self.models.can_hold(expression, file) and self.possible(file, expression)

    def possible(self, file: File, expression: ast.expr) -> bool:
        """Whether an expression can be one of the models: no file shows that it is something else."""
        sources = self.sources(file, expression)
        return None in sources or not self._own.isdisjoint(sources)

    def sources(self, file: File, expression: ast.expr) -> Sources:
        """What can make the sharded models that an expression can be."""
        if expression not in self._known:
            self._known[expression] = _NOTHING  # where it leads back to itself
            self._known[expression] = self._found(file, expression)
        return self._known[expression]

    def _found(self, file: File, expression: ast.expr) -> Sources:
        is_sharded = self.models.sharded(expression, file)
        if is_sharded is False:
            return _NOTHING
        in_place = _in_place(file, expression)
        found = in_place or self._followed(file, expression)
        if is_sharded and not found:
            return _OPEN
        return found

    def _followed(self, file: File, expression: ast.expr) -> Sources:
        match expression:
            case ast.Name():
                return self._named(file, expression)
            case ast.Attribute():
                return self._kept(file, expression)
            case ast.Call():
                return self._made(file, expression, ())
            case ast.IfExp(body=body, orelse=orelse):
                return self.sources(file, body) | self.sources(file, orelse)
            case ast.Lambda() | ast.Constant() | ast.JoinedStr():
                return _NOTHING
        return _OPEN

    def _named(self, file: File, name: ast.Name) -> Sources:
        bindings = file.bindings(name)
        if not bindings:
            is_known = hasattr(builtins, name.id) or self.program.dotted(name, file)
            if is_known:
                return _NOTHING
            return _OPEN
        assigned = [each for each in bindings if isinstance(each, Assigned)]
        others: list[Binding] = [each for each in bindings if not isinstance(each, Assigned)]
        reached = list(reaching(file, assigned, name))
        last = _last_before(file, reached, name)
        if last is not None:  # what the name had before is gone
            function = file.function(name)
            reached = [
                each
                for each in reached
                if file.function(each.target) is not function
                or each.target.lineno >= last.target.lineno
            ]
            others = []
        every = [*reached, *others]
        return _NOTHING.union(*[self._bound(file, binding) for binding in every])

    def _bound(self, file: File, binding: Binding) -> Sources:
        match binding:
            case Assigned():
                return self._at(of_assigned(binding, file))
            case Parameter(function=function, argument=argument):
                if _is_class(function, argument):
                    return _NOTHING
                every = self.models.origins.given(binding, file)
                given = [each for each in every if str(each.file.path) in self._paths]
                if given:
                    return _NOTHING.union(*[self._at(each) for each in given])
                return _OPEN
        return _OPEN

    def _at(self, origin: Origin) -> Sources:
        if origin.path and isinstance(origin.value, ast.Call):
            return self._made(origin.file, origin.value, origin.path)
        return self.sources(origin.file, origin.value)

    def _made(self, file: File, call: ast.Call, path: tuple[int, ...]) -> Sources:
        """What makes the models that a call can return: of a function of the program, those that it returns."""
        if self.program.fsdp1(call.func, file) == CLASS:
            return frozenset({call})
        if isinstance(call.func, ast.Attribute) and call.func.attr in SAME:
            return self.sources(file, call.func.value)
        if last_name(call.func) in ("compile", "getattr"):
            return _NOTHING.union(*[self.sources(file, value) for value in values_given(call)])
        if isinstance(call.func, ast.Name) and call.func.id in ("type", "super"):
            return _NOTHING
        called = self.models.origins.called(call, file)
        if called is None or not isinstance(called.node, _FUNCTIONS):
            return self._made_elsewhere(file, call)
        return _NOTHING.union(
            *[self.sources(each.file, each.value) for each in returned(called, path)]
        )

    def _made_elsewhere(self, file: File, call: ast.Call) -> Sources:
        """What makes the models that a call of another library can return: no method of an object without one does."""
        if self.models.sharded(call, file) is False:
            return _NOTHING
        given = list(values_given(call))
        if not isinstance(call.func, ast.Attribute):
            return _OPEN
        given.append(call.func.value)
        if any(self.sources(file, value) for value in given):
            return _OPEN
        return _NOTHING

    def _kept(self, file: File, attribute: ast.Attribute) -> Sources:
        """What makes the models that an attribute of that name is given anywhere; one that is stored nowhere is open."""
        if self.program.dotted(attribute, file):
            return _NOTHING
        if isinstance(attribute.value, ast.Call) and not self.sources(file, attribute.value):
            return _NOTHING
        kept = [
            of_assigned(each, home) for home in self._files for each in stored(home, attribute.attr)
        ]
        if kept:
            return _NOTHING.union(*[self._at(each) for each in kept])
        return _OPEN


def _in_place(file: File, expression: ast.expr) -> Sources:
    """The blocks `with like_fsdp1(model):` of an earlier run that shard what an expression names."""
    calls = file.calls.get("like_fsdp1", ())
    root = root_of(expression)
    if not calls or root is None:
        return _NOTHING
    found = set[ast.Call | None]()
    for call in calls:
        if call.args and ast.unparse(call.args[0]) == ast.unparse(expression):
            own = root_of(call.args[0])
            if own is not None and file.variable(own) == file.variable(root):
                found.add(call)
    return frozenset(found)


def _in_place_around(files: Sequence[File], sharding: ast.AST) -> Iterator[ast.AST]:
    """The call of `like_fsdp1` whose block shards, or is around what shards."""
    for file in files:
        if sharding in file.parents:
            for node in (sharding, *file.ancestors(sharding)):
                if isinstance(node, ast.With):
                    for item in node.items:
                        yield item.context_expr


def _last_before(file: File, assigned: Sequence[Assigned], name: ast.Name) -> Assigned | None:
    """The last assignment that is always made before a name is read: in a block around that, above it."""
    around = {name, *file.ancestors(name)}
    found: Assigned | None = None
    for each in assigned:
        statement = file.statement(each.target)
        block = file.block(statement)
        below = block[block.index(statement) + 1 :]
        if around.isdisjoint(below):
            continue
        if found is None or each.target.lineno > found.target.lineno:
            found = each
    return found


def _is_class(function: ast.AST, argument: ast.arg) -> bool:
    """Whether a parameter is the class of a class method."""
    if not isinstance(function, _FUNCTIONS) or argument not in function.args.args[:1]:
        return False
    names = [ast.unparse(each) for each in function.decorator_list]
    return "classmethod" in names
