"""Programs that have code for FSDP1 and for FSDP2: which way a model of `fully_shard` takes at their tests.

In torch's form such tests remain: `isinstance(model, FSDP)`, `fsdp_version(model) == 1`. No model is FSDP1's any more.
"""

import ast
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.names import CLASS, TORCH
from fsdp_migrate.facts.program import Program

_ENDS = (ast.Return, ast.Raise, ast.Continue)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def tells_both_apart(program: Program) -> bool:
    """Whether the program tests for FSDP2's class as well: its branches for FSDP1 and FSDP2 stay two."""
    texts = [(path, program.tree.data(path)) for path in program.tree.paths]
    asking = [program.load(p) for p, text in texts if b"isinstance(" in text and b"FSDP" in text]
    files = dict.fromkeys([*program.files, *filter(None, asking)])  # which may be but a part
    return any(tests_of_fsdp2(program, file) for file in files)


def tests_of_fsdp2(program: Program, file: File) -> list[ast.Call]:
    """The calls `isinstance(model, FSDPModule)` of a file, by whatever name, also among other classes."""
    return [
        call
        for call in file.calls.get("isinstance", ())
        if len(call.args) == 2 and any(_is_fsdp2s(program, c, file) for c in classes(call.args[1]))
    ]


def classes(expression: ast.expr) -> Iterator[ast.expr]:
    """The classes of `isinstance(model, (A, B))` and `isinstance(model, A | B)`."""
    match expression:
        case ast.Tuple(elts):
            for each in elts:
                yield from classes(each)
        case ast.BinOp(left, ast.BitOr(), right):
            yield from classes(left)
            yield from classes(right)
        case _:
            yield expression


def holds(program: Program, test: ast.expr, file: File) -> bool | None:
    """Whether a test holds of a model that `fully_shard` has sharded; None if it asks for something else."""
    match test:
        case ast.UnaryOp(ast.Not(), operand):
            answer = holds(program, operand, file)
            if answer is None:
                return None
            return not answer
        case ast.BoolOp(operator, values):
            answers = {holds(program, each, file) for each in values}
            decisive = isinstance(operator, ast.Or)
            if decisive in answers:
                return decisive
            if None in answers:
                return None
            return not decisive
    answer = _of_class(program, test, file)
    if answer is None:
        return _of_call(program, test, file)
    return answer


def _of_call(program: Program, test: ast.expr, file: File) -> bool | None:
    """`is_fsdp1(model)`, `fsdp_version(model) == 1`: functions of the program that test for classes."""
    match test:
        case ast.Compare(
            ast.Call() as call, [ast.Eq() | ast.NotEq() as sign], [ast.Constant(value)]
        ):
            result = _result(program, call, file)
            if result is not None:
                return (result == value) is isinstance(sign, ast.Eq)
        case ast.Call():
            result = _result(program, test, file)
            if isinstance(result, bool):
                return result
    return None


def _is_fsdp2s(program: Program, cls: ast.expr, file: File) -> bool:
    named = isinstance(cls, ast.Name | ast.Attribute)
    return named and f"{TORCH}.FSDPModule" in program.dotted(cls, file)


def _result(program: Program, call: ast.Call, file: File) -> object:
    """What a function of the program returns for a sharded model; None if that is not known."""
    function = program.definition(call.func, file)
    if function is None or not call.args:
        return None
    return program.once(_of_function, function.file, function.node)


def _of_function(program: Program, file: File, function: ast.AST) -> object:
    if isinstance(function, _FUNCTIONS):
        return _of_block(program, function.body, file)
    return None


def _of_block(program: Program, block: list[ast.stmt], file: File) -> object:
    """What some statements return that test for classes and return constants; None if they do more."""
    for place, statement in enumerate(block):
        match statement:
            case ast.Expr(ast.Constant()):
                continue
            case ast.Return(ast.expr() as value):
                return _of_value(program, value, file)
            case ast.If(test, body, orelse):
                answer = _of_class(program, test, file)
                if answer is None:
                    return None
                way = body
                if not answer:
                    way = orelse
                return _of_block(program, [*way, *block[place + 1 :]], file)
        return None
    return None


def _of_value(program: Program, value: ast.expr, file: File) -> object:
    match value:
        case ast.Constant():
            return value.value
        case ast.IfExp(test, body, orelse):
            answer = _of_class(program, test, file)
            if answer is None:
                return None
            if answer:
                return _of_value(program, body, file)
            return _of_value(program, orelse, file)
    return _of_class(program, value, file)


def _of_class(program: Program, test: ast.expr, file: File) -> bool | None:
    """Whether `isinstance(model, A)` holds of a sharded model; None if it is about other classes, or another test."""
    match test:
        case ast.Call(ast.Name("isinstance"), [_, wanted], []):
            every = [*classes(wanted)]
        case _:
            return None
    if any(_is_fsdp2s(program, each, file) for each in every):
        return True
    if {program.fsdp1(each, file) for each in every} <= {CLASS}:
        return False
    return None


def why_for_fsdp1(context: Context, node: ast.AST) -> str:
    """Why no sharded model gets to a place in torch's form: a test of the program leaves it to FSDP1; "" where one may."""
    if context.form != "torch" or not context.program.once(tells_both_apart):
        return ""
    test = _leaves_to_fsdp1(context, node)
    if test is None:
        return ""
    return f"Unchanged: the test in line {test.lineno} keeps models of FSDP2 away from here. Nothing has to be done."


def _leaves_to_fsdp1(context: Context, node: ast.AST) -> ast.expr | None:
    """The test around a place, or above it, by which sharded models do not get there."""
    program = context.program
    file = context.file
    child = node
    is_inside = True  # of the innermost function
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            answer = holds(program, parent.test, file)
            if answer is not None and answer is not _is_in_body(child, parent):
                return parent.test
        if is_inside and isinstance(child, ast.stmt):
            block = file.block(child)
            for above in block[: block.index(child)]:
                match above:
                    case ast.If(test, [*_, ast.Return() | ast.Raise() | ast.Continue()]):
                        if holds(program, test, file):
                            return test
        if isinstance(parent, _FUNCTIONS):
            is_inside = False
        child = parent
    return None


def _is_in_body(child: ast.AST, parent: ast.If | ast.IfExp) -> bool:
    """Whether a part of an `if` runs where its test holds."""
    if isinstance(parent, ast.IfExp):
        return child is parent.body
    return child in parent.body


def branch_of_fsdp2(context: Context, test: ast.expr) -> ast.Call | None:
    """The test for FSDP2's class below one that leaves sharded models out, which they meet next."""
    file = context.file
    statement = file.statement(test)
    if not isinstance(statement, ast.If) or test not in ast.walk(statement.test):
        return None
    if holds(context.program, statement.test, file) is not False:
        return None
    block = file.block(statement)
    after = block[block.index(statement) + 1 :]
    if not isinstance(statement.body[-1], _ENDS):
        after = [each for each in after[:1] if isinstance(each, ast.If)]
    below = [*statement.orelse, *after]
    inside = {node for part in below for node in ast.walk(part)}
    return next((e for e in tests_of_fsdp2(context.program, file) if e in inside), None)
