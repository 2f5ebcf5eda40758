"""Which places nothing reaches that a finding is about: no torch from the target on, or no program that shards."""

from __future__ import annotations

import ast
import operator
import re

from fsdp_migrate.facts.file import File, last_name

Release = tuple[int, ...]

# By the comparison of the running release with another: what holds from a target on, if this holds of the target.
_FROM = {
    ast.Lt: (operator.ge, False),
    ast.LtE: (operator.gt, False),
    ast.Eq: (operator.gt, False),
    ast.NotEq: (operator.gt, True),
    ast.Gt: (operator.gt, True),
    ast.GtE: (operator.ge, True),
}
_SIGNS = {"<": ast.Lt, "<=": ast.LtE, "==": ast.Eq, "!=": ast.NotEq, ">": ast.Gt, ">=": ast.GtE}
_SHARDED = re.compile(r"fsdp(?!_?2)|fullysharded|\bsharded\b")

_NOT = re.compile(r"\bnot |!=")
_WRAPPERS = re.compile(r"apex|ddp|deepspeed|hasattr|multi_gpu|parallel\b")
_NOT_DDP = re.compile(r"not isinstance\([\w.]+, [\w.]*(?:DistributedDataParallel|DDP)\)$")
_SECOND = re.compile(r"fsdp_?2|fsdp_version|fsdpmodule")


def why_not(file: File, node: ast.AST, target: Release) -> str:
    """Why a place is not reached: by torch from the target on, or by a sharded model; "" where it may be."""
    child = node
    is_inside = True  # of the innermost function
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            is_other_branch = not _is_in_body(child, parent)
            if _holds(parent.test, file, target) is is_other_branch:
                release = ".".join(map(str, target))
                return f"Unchanged: this runs only with torch before {release}. Nothing has to be done."
        if is_inside and isinstance(child, ast.stmt):
            block = file.block(child)
            if any(_excludes(above, file) for above in block[: block.index(child)]):
                return (
                    "Unchanged: a check above excludes sharded models here. Nothing has to be done."
                )
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            is_inside = False
        child = parent
    return ""


def _is_in_body(child: ast.AST, parent: ast.If | ast.IfExp) -> bool:
    """Whether a part of an `if` runs where its test holds."""
    if isinstance(parent, ast.IfExp):
        return child is parent.body
    return child in parent.body


def _excludes(statement: ast.stmt, file: File) -> bool:
    """`assert not use_fsdp`, `assert strategy != "fsdp"`, `if use_fsdp: raise`, `if not isinstance(model, DDP): return`."""
    if isinstance(statement, ast.If):
        if isinstance(statement.body[-1], ast.Raise | ast.Return) and _NOT_DDP.match(
            file.source(statement.test)
        ):
            return True
        test = statement.test
        wanted = False
        if not isinstance(statement.body[-1], ast.Raise):
            return False
    elif isinstance(statement, ast.Assert):
        test = statement.test
        wanted = True
    else:
        return False
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test = test.operand
        wanted = not wanted
    if isinstance(test, ast.Compare):
        if isinstance(test.ops[0], ast.NotEq | ast.NotIn | ast.IsNot):
            wanted = not wanted
        if any(isinstance(each, ast.Constant) and each.value is None for each in test.comparators):
            wanted = not wanted  # `is None` says that there is none
    is_one = not isinstance(test, ast.BoolOp)
    return is_one and not wanted and _SHARDED.search(file.source(test).lower()) is not None


def _holds(test: ast.expr, file: File, target: Release) -> bool | None:
    """Whether a test for torch's release holds from the target on; None if that is open, or it is another test."""
    if isinstance(test, ast.BoolOp):
        answers = {_holds(each, file, target) for each in test.values}
        decisive = isinstance(test.op, ast.Or)
        if decisive in answers:
            return decisive
        if None in answers:
            return None
        return not decisive
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = _holds(test.operand, file, target)
        if answer is None:
            return None
        return not answer
    if isinstance(test, ast.Call) and last_name(test.func) == "is_torch_version":
        signs = [each.value for each in test.args if isinstance(each, ast.Constant)]
        sign = None
        if len(signs) == 2:
            sign = _SIGNS.get(str(signs[0]))
        if sign:
            return _compared(sign, _release(test.args[1]), target)
        return None
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and _is_running(test.left, file):
        return _compared(type(test.ops[0]), _release(test.comparators[0]), target)
    return None


def _compared(kind: type[ast.cmpop], release: Release | None, target: Release) -> bool | None:
    if release is None or kind not in _FROM:
        return None
    compare, answer = _FROM[kind]
    width = max(len(release), len(target))
    ours, other = [each + (0,) * (width - len(each)) for each in (target, release)]
    if compare(ours, other):
        return answer
    return None


def _is_running(expression: ast.expr, file: File) -> bool:
    """Whether an expression is the release of torch that runs."""
    if "torch.__version__" in file.source(expression):
        return True
    found = file.variable(expression)
    if not found:
        return False
    values = [file.source(each.value) for each in found.assigned]
    return len(values) == 1 and "torch.__version__" in values[0]


def _release(expression: ast.expr) -> Release | None:
    """`"2.1"`, `version.parse("2.1")` or `(2, 1)`."""
    if isinstance(expression, ast.Call) and len(expression.args) == 1:
        expression = expression.args[0]
    if isinstance(expression, ast.Tuple):
        constants = [each.value for each in expression.elts if isinstance(each, ast.Constant)]
        numbers = tuple(each for each in constants if isinstance(each, int))
        if len(numbers) == len(expression.elts):
            return numbers
        return None
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        found = re.match(r"\d+(?:\.\d+)*", expression.value)
        if found:
            return tuple(map(int, found[0].split(".")))
    return None


def is_for_others(file: File, node: ast.AST) -> bool:
    """Whether a test leaves a place to what Accelerate's FSDP2 does not shard, or a program to FSDP2 itself."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test:
            test = file.source(parent.test).lower().replace("is not none", "")
            holds = _is_in_body(child, parent) is not bool(_NOT.search(test))
            is_of_fsdp = "fsdp" in test
            is_wrapper = _WRAPPERS.search(test) is not None
            if is_of_fsdp and (not holds or _SECOND.search(test)):
                return True
            if not is_of_fsdp and holds and is_wrapper:
                return True
            if "isinstance(" in test and not (is_of_fsdp or holds or is_wrapper):
                return True  # such a model keeps its class
        child = parent
    return False
