"""FSDP1 reached by a string: `import_module("torch.distributed.fsdp")`, `patch("torch.distributed.fsdp...")`."""

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.registry import codemod
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import last_name
from fsdp_migrate.facts.names import CLASS, RUNTIME, TORCH, fsdp1_name, is_module
from fsdp_migrate.facts.nodes import text_of
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP010", "dynamic-name")

_IMPORTING = frozenset({"import_module", "__import__"})
_PATCHING = frozenset({"patch", "resolve_name"})
_NOT_CALLED = (
    "The file that this patches calls `fully_shard` now: the patch has no effect, or raises `AttributeError` where that file "
    "no longer imports FSDP1's class. Patch `fully_shard` there, or shard a small model in the test."
)
_BY_TORCH = "In the code that looks it up, use `fully_shard` of `torch.distributed.fsdp` instead."
# Functions that may import what they are given, and files that may import the names in their tables.
_MAY_IMPORT = re.compile(
    r"(?!is_|_is_|can_|has_).*(import|lazy|load|locate|resolve)", re.IGNORECASE
)
_IMPORTS_NAMES = re.compile(r"import_module|__import__|lazy", re.IGNORECASE)


@codemod(words=("patch(", '"torch.', "'torch.", '"fsdp_migrate.', "'fsdp_migrate."))
def find(context: Context) -> Iterator[Found]:
    """Strings in calls that name FSDP1 by its path."""
    yield from _patched(context)
    if TORCH not in context.file.text and RUNTIME not in context.file.text:
        return
    for constant in context.file.of(ast.Constant):
        path = constant.value
        user = context.file.parents[constant]
        if not isinstance(path, str):
            continue
        if isinstance(user, ast.keyword):
            user = context.file.parents[user]
        function = _function(context, user)
        name = is_of_fsdp1(path)
        # An argument, or a value of a dictionary.
        handed_on = isinstance(user, ast.Call) or (
            isinstance(user, ast.Dict) and constant in user.values
        )
        module = is_module(path.replace(RUNTIME, TORCH, 1))
        if (module and function in _IMPORTING) or (name and function in _PATCHING):
            yield _moved(context, constant, path)
        elif path.startswith(TORCH) and (
            (name and handed_on)
            or ((name or module) and _may_be_imported(context, constant, user, function))
        ):
            yield Found(RULE, constant, Action.MANUAL, may_give(path, context.form))


def _patched(context: Context) -> Iterator[Found]:
    """`patch("train.FSDP")`: the name of FSDP1's class in a file of the program, which makes no wrapper with it any more."""
    if not context.in_place:
        return
    for call in context.file.calls.get("patch", ()):
        path = ""
        if call.args:
            path = text_of(call.args[0])
        module, _, name = path.rpartition(".")
        located = None
        if module:
            located = context.program.tree.locate(module, context.file.folder)
        if located is not None and (other := context.program.load(located)) is not None:
            if CLASS in [context.program.fsdp1(n, other) for n in other.loads.get(name, ())]:
                yield Found(
                    RULE,
                    call,
                    Action.MANUAL,
                    _NOT_CALLED,
                    f"patch({path!r})",
                    severity=Severity.RAISES,
                )


def is_of_fsdp1(path: str) -> bool:
    """Whether a path is that of an FSDP1 name, or of a method or member of it."""
    return any(map(fsdp1_name, (path, path.rpartition(".")[0])))


def may_give(path: str, form: str) -> str:
    """What is said of a path whose reader is not known."""
    if form == "torch":
        return f"This string may be used to look up torch's FSDP1, which is then still used. {_BY_TORCH}"
    return (
        "This string may be used to look up torch's FSDP1, which is then still used. For FSDP2, use "
        f"`{path.replace(TORCH, RUNTIME)}`."
    )


def _function(context: Context, user: ast.AST) -> str:
    """The name of a function that is called, not that of an alias."""
    if not isinstance(user, ast.Call):
        return ""
    name = next(iter(context.dotted(user.func)), last_name(user.func)).rpartition(".")[2]
    # Without a list of names it gives `torch`.
    is_package = name == "__import__" and len(user.args) + len(user.keywords) == 1
    if is_package:
        return "import_package"
    return name


def _may_be_imported(
    context: Context, constant: ast.Constant, user: ast.AST, function: str
) -> bool:
    """Whether a string goes to an import by name whose result is used, or to a table for one."""
    if isinstance(user, ast.Call):
        is_used = not isinstance(context.file.parents[user], ast.Expr)
        return is_used and _MAY_IMPORT.match(function) is not None
    in_table = isinstance(user, ast.Assign | ast.AnnAssign | ast.Tuple | ast.List)
    in_table |= isinstance(user, ast.Dict) and constant in user.values
    return in_table and _IMPORTS_NAMES.search(context.file.text) is not None


def _moved(context: Context, constant: ast.Constant, path: str) -> Found:
    if context.form == "torch":
        message = (
            f"This string is used to look up torch's FSDP1, which is then still used. {_BY_TORCH}"
        )
        return Found(RULE, constant, Action.MANUAL, message)
    code = context.source(constant).replace(TORCH, RUNTIME)
    message = f"Replaced by the path of the same name in `{RUNTIME}`."
    found = Found(RULE, constant, Action.RUNTIME, message)
    if path.startswith(TORCH):
        return found._replace(edits=lambda: [context.replace(constant, code)])
    return found
