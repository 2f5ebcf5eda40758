"""Whether the first of all ranks alone uses a state dict, however models are split over groups of ranks."""

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File, given, is_method
from fsdp_migrate.facts.program import Definition, Program
from fsdp_migrate.facts.scopes import Assigned, Parameter

_GET_RANK = frozenset({"torch.distributed.get_rank"})
_VARIABLES = ("int(os.environ['RANK'])", "int(os.environ.get('RANK'))")
# What may be around a state dict in the value that is assigned: it only makes another dictionary of it.
_PARTS = (ast.Dict, ast.DictComp, ast.comprehension)
_VIEWS = ("copy", "items")
_DEEP = 8  # names behind names


def is_for_first_of_all(context: Context, call: ast.Call) -> bool:
    """Whether each use of what is assigned from a state dict is under a test that the first of all ranks alone passes."""
    file = context.file
    match file.statement(call):
        case ast.Assign([ast.Name() as target]):
            variable = file.variable(target)
        case _:
            return False
    is_local = variable is not None and isinstance(variable.scope.node, ast.FunctionDef)
    if not is_local or not _makes_a_dictionary(file, call):
        return False
    known = _Ranks(context.program)
    reads = file.reads(target)
    return bool(reads) and all(known.is_reached(file, read) for read in reads)


def _makes_a_dictionary(file: File, call: ast.Call) -> bool:
    """Whether a statement gives a state dict to nothing but the dictionary that it assigns."""
    for node in file.ancestors(call):
        match node:
            case ast.Assign():
                return True
            case ast.Attribute(_, attribute) if attribute in _VIEWS:
                continue
            case ast.Call(ast.Attribute(_, attribute), [], []) if attribute in _VIEWS:
                continue
            case _ if not isinstance(node, _PARTS):
                return False
    return False


class _Ranks:
    """What the files of a run show of tests for the first of all ranks."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def is_reached(self, file: File, node: ast.AST) -> bool:
        """Whether the first of all ranks alone comes to a node: by a test around it, or one above that others return by."""
        part = node
        for around in file.ancestors(node):
            if isinstance(around, ast.If | ast.IfExp) and self._is_in_branch(file, around, part):
                return True
            if isinstance(part, ast.stmt) and self._others_have_left(file, part):
                return True
            if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                return False
            part = around
        return False

    def _is_in_branch(self, file: File, around: ast.If | ast.IfExp, part: ast.AST) -> bool:
        """Whether a part of a decision is in the branch that the first of all ranks alone takes."""
        if part is around.body or (isinstance(around.body, list) and part in around.body):
            return self._is_first(file, around.test)
        return part is not around.test and self._is_another(file, around.test)

    def _others_have_left(self, file: File, statement: ast.stmt) -> bool:
        """Whether a statement above in the same block returns on each rank but the first of all."""
        block = file.block(statement)
        for above in block[: block.index(statement)]:
            match above:
                case ast.If(test, [*_, ast.Return() | ast.Raise()]):
                    if self._is_another(file, test):
                        return True
        return False

    def _is_first(self, file: File, test: ast.expr, depth: int = 0) -> bool:
        """Whether a test is true on the first of all ranks alone."""
        match test:
            case ast.Compare(left, [ast.Eq()], [ast.Constant(0)]):
                return self._is_rank(file, left, depth)
            case ast.BoolOp(ast.And(), values):
                return any(self._is_first(file, value, depth) for value in values)
            case ast.UnaryOp(ast.Not(), operand):
                return self._is_another(file, operand, depth)
        made = self._values(file, test)
        return (
            bool(made)
            and depth < _DEEP
            and all(self._is_first(other, value, depth + 1) for other, value in made)
        )

    def _is_another(self, file: File, test: ast.expr, depth: int = 0) -> bool:
        """Whether a test is true on every rank but the first of all."""
        match test:
            case ast.Compare(left, [ast.NotEq() | ast.Gt()], [ast.Constant(0)]):
                return self._is_rank(file, left, depth)
            case ast.BoolOp(ast.Or(), values):
                return any(self._is_another(file, value, depth) for value in values)
            case ast.UnaryOp(ast.Not(), operand):
                return self._is_first(file, operand, depth)
        return self._is_rank(file, test, depth)

    def _is_rank(self, file: File, number: ast.expr, depth: int = 0) -> bool:
        """Whether a number is the place of a rank among all."""
        match number:
            case ast.Call(function, [], []) if self._program.dotted(function, file) == _GET_RANK:
                return True
        if ast.unparse(number) in _VARIABLES:
            return True
        made = self._values(file, number)
        return (
            bool(made)
            and depth < _DEEP
            and all(self._is_rank(other, value, depth + 1) for other, value in made)
        )

    def _values(self, file: File, expression: ast.expr) -> Sequence[tuple[File, ast.expr]]:
        """All that can give a name, or an attribute of `self`, its value; nothing where there may be more."""
        found: list[tuple[File, ast.expr]] = []
        match expression:
            case ast.Name():
                for binding in file.bindings(expression):
                    values = list(self._bound(file, binding))
                    if not values:
                        return ()
                    found += values
            case ast.Attribute(ast.Name("self"), name):
                for other in self._program.files:
                    for attribute in other.attributes.get(name, ()):
                        if isinstance(attribute.ctx, ast.Load):
                            continue
                        match other.parents[attribute]:
                            case ast.Assign([target], value) if target is attribute:
                                found.append((other, value))
                            case _:
                                return ()
        return found

    def _bound(self, file: File, binding: object) -> Iterator[tuple[File, ast.expr]]:
        match binding:
            case Assigned(_, value, ()):
                yield file, value
            case Parameter(function, argument) if isinstance(function, ast.FunctionDef):
                yield from self._given(function, argument.arg, file)

    def _given(
        self, function: ast.FunctionDef, parameter: str, file: File
    ) -> list[tuple[File, ast.expr]]:
        """What calls give for a parameter; nothing where one does not say, or where the function has no name of its own."""
        if file.function(function) is not None or is_method(function):
            return []
        found = []
        for other, call in self._calls(function.name, file):
            meanings = self._program.meanings(call.func, other)
            is_it = any(isinstance(m, Definition) and m.node is function for m in meanings)
            if not meanings and isinstance(call.func, ast.Name):
                return []
            if is_it:
                value = given(call, function, parameter)
                if value is None:
                    return []
                found.append((other, value))
        return found

    def _calls(self, name: str, file: File) -> Iterator[tuple[File, ast.Call]]:
        """The calls of what has a name, also in files that import another and do not mention FSDP."""
        importers = map(self._program.load, self._program.reach.importers(str(file.path)))
        for other in dict.fromkeys([*self._program.files, *importers]):
            if other is not None:
                for call in other.calls.get(name, ()):
                    yield other, call
