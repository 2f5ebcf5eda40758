"""Whether a program goes on with a dictionary that it loads: torch's function fills that with shards."""

import ast

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import File
from fsdp_migrate.facts.nodes import all_are
from fsdp_migrate.facts.scopes import Assigned


def is_new(context: Context, state: ast.expr) -> bool:
    """Whether a dictionary, or an entry of one, is used for nothing but the load that it is given to."""
    if isinstance(state, ast.Call):
        return True
    root = state
    if isinstance(state, ast.Subscript):
        root = state.value
    bindings = context.file.bindings(root)
    if not bindings or not all_are(bindings, Assigned):
        return False
    made = [each.value for each in bindings if isinstance(each, Assigned) and not each.path]
    if not all(_is_made_here(context, value) for value in made):
        return False
    end = state.end_lineno or state.lineno
    reads = []
    if isinstance(root, ast.Name):
        reads = context.file.reads(root)
    behind = [read for read in reads if read.lineno > end]
    return all(
        _are_apart(context.file, read, state) or _is_of_another(context, read, state)
        for read in behind
    )


def _is_made_here(context: Context, value: ast.expr) -> bool:
    """Whether a value is a new dictionary, or an entry of one that nothing else uses: `torch.load(path)["model"]`."""
    match value:
        case ast.Subscript(ast.Name()):
            return is_new(context, value)
        case ast.Subscript(inner):
            return _is_made_here(context, inner)
    return isinstance(value, ast.Call | ast.Dict | ast.DictComp)


def _are_apart(file: File, read: ast.AST, state: ast.AST) -> bool:
    """Whether two pieces of code are in the two branches of an `if`."""
    path = {read, *file.ancestors(read)}
    child = state
    for around in file.ancestors(state):
        match around:
            case ast.If(body=body, orelse=orelse) if around in path:
                if child in body:
                    return not path.isdisjoint(orelse)
                return not path.isdisjoint(body)
        child = around
    return False


def _is_of_another(context: Context, read: ast.Name, state: ast.expr) -> bool:
    """Whether code looks at another entry than `both["model"]`, or only whether there is one."""
    if not isinstance(state, ast.Subscript) or not isinstance(state.slice, ast.Constant):
        return False
    around = context.file.parents[read]
    match around:
        case ast.Subscript(value, ast.Constant(key)):
            return value is read and key != state.slice.value
        case ast.Compare(ast.Constant(), [ast.In() | ast.NotIn()], [held]):
            return held is read
        case ast.Attribute(attr="get"):
            call = context.call_of(around)
            match call:
                case ast.Call(args=[ast.Constant(key), *_]):
                    return key != state.slice.value
    return False
