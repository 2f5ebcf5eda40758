"""Whether a policy for wrapping goes by size, so that it must be given the number of parameters that no unit below has."""

import ast

from fsdp_migrate.codemods.constructor.flow import Flow, flow_of
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.origins import Value
from fsdp_migrate.facts.program import Definition, Program

_COUNT = "nonwrapped_numel"
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def can_count(program: Program, flow: Flow) -> bool:
    """Whether one of the policies that an expression can be may go by size, as far as the files show."""
    return flow.unknown or any(_counts(program, end) for end in flow.ends)


def can_mark(program: Program, flow: Flow) -> bool:
    """Whether one of the policies sets attributes of modules: what it answers then depends on what it was asked before."""
    return any(_marks(program, end) for end in flow.ends)


def _marks(program: Program, policy: Value) -> bool:
    match policy.node:
        case ast.Call(func=called, args=[function, *_]):
            is_partial = "functools.partial" in program.dotted(called, policy.file)
            return is_partial and _marks(program, Value(function, policy.file))
        case ast.Name() | ast.Attribute() as name:
            functions = [
                each.node
                for each in program.meanings(name, policy.file)
                if isinstance(each, Definition) and isinstance(each.node, ast.FunctionDef)
            ]
        case ast.FunctionDef() as function:
            functions = [function]
        case _:
            functions = []
    return any(map(_sets_attributes, functions))


def _sets_attributes(function: ast.FunctionDef) -> bool:
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, ast.Call) and last_name(node.func) == "setattr":
            return True
    return False


def _counts(program: Program, policy: Value) -> bool:
    node = policy.node
    file = policy.file
    match node:
        case ast.Constant():
            return False
        case ast.Lambda():
            return _reads_count(node)
        case ast.Call(args=[function, *_]) if "functools.partial" in program.dotted(
            node.func, file
        ):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            return _partial_counts(program, Value(function, file), given.get("policies"))
        case ast.Call():
            return program.fsdp1(node.func, file) != "ModuleWrapPolicy"
    name = program.fsdp1(node, file)
    if name is not None:
        return name in ("size_based_auto_wrap_policy", "default_auto_wrap_policy")
    functions = [
        each.node
        for each in program.meanings(node, file)
        if isinstance(each, Definition) and isinstance(each.node, ast.FunctionDef)
    ]
    return not functions or any(map(_reads_count, functions))


def _partial_counts(program: Program, function: Value, policies: ast.expr | None) -> bool:
    """Whether `partial(function, ...)` goes by size; `_or_policy` does where one of its policies does."""
    if program.fsdp1(function.node, function.file) != "_or_policy":
        return _counts(program, function)
    if not isinstance(policies, ast.List | ast.Tuple):
        return True
    flows = [flow_of(program, function.file, each) for each in policies.elts]
    return any(can_count(program, flow) for flow in flows)


def _reads_count(function: _Function) -> bool:
    """Whether a policy of the program's own reads the count that it is given, by its name or with all that it is given."""
    others = None
    if function.args.kwarg is not None:
        others = function.args.kwarg.arg
    positional = [*function.args.posonlyargs, *function.args.args]
    names = {_COUNT, "unwrapped_params", others, *[each.arg for each in positional[2:]]}
    read = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
    return not read.isdisjoint(names)
