"""Settings and parameters whose last use the edits of a file take away, such as a flag for an argument without effect."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.rule import Found, Rule
from fsdp_migrate.facts.file import parsed
from fsdp_migrate.facts.program import Program
from fsdp_migrate.findings import Action, Severity

RULE = Rule("FSDP022", "setting-without-use", Severity.PRINTS)

_MESSAGE = "Nothing reads {} any more, so setting this has no effect. Remove it."
_READ = re.compile(r"\.([A-Za-z_]\w*)\b(?!\s*=[^=])")
# A setting that only becomes another object's setting of the same name.
_HANDED_ON = re.compile(r"\b(\w+)=(?:[A-Za-z_]\w*\.)+\1\b")


@dataclass(frozen=True)
class _Setting:
    """A setting, where it was read, and the place that defines it, in words; or a parameter, where it is."""

    name: str
    node: ast.expr | ast.arg
    home: str


def without_use(context: Context, after: str) -> Iterator[Found]:
    """One finding, at the first of them, which names all.

    Args:
        after: the text of the file with its edits.
    """
    settings = sorted(_settings(context, after), key=lambda each: (each.node.lineno, each.name))
    if not settings:
        return
    names = ", ".join(f"`{each.name}`{each.home}" for each in settings)
    first = settings[0].node
    yield Found(RULE, first, Action.MANUAL, _MESSAGE.format(names), context.source(first))


def _settings(context: Context, after: str) -> Iterator[_Setting]:
    removed = Counter(_READ.findall(context.file.text)) - Counter(_READ.findall(after))
    gone = removed.keys() - {*_READ.findall(_HANDED_ON.sub("", after))}
    for name, attributes in context.file.attributes.items():
        if name not in gone or name.startswith("_"):
            continue
        reads = [each for each in attributes if isinstance(each.ctx, ast.Load)]
        if not reads or not all(_is_setting(context, each) for each in reads):
            continue
        homes = context.program.once(_homes, name, str(context.file.path))
        if not homes:
            continue
        is_here = str(context.file.path) in (path for path, _ in homes)
        if not is_here or re.search(rf"\b{name.replace('_', '[-_]')}\b", after):  # not renamed
            shown = ", ".join(f"{Path(path).name}:{line}" for path, line in homes)
            yield _Setting(context.source(reads[0]), reads[0], f" (defined at {shown})")
    for each in unread_parameters(context, after):
        yield _Setting(each.node.arg, each.node, f", a parameter of `{each.function.name}`")


def _is_setting(context: Context, attribute: ast.Attribute) -> bool:
    """Whether an attribute is of an object of the program, and no method or name of a module."""
    is_called = context.call_of(attribute) is not None
    return not is_called and not context.dotted(attribute) and attribute not in context.references


def _homes(program: Program, name: str, path: str) -> list[tuple[str, int]]:
    """The files and lines that define a setting, if no other file reads it but to hand it on under the same name."""
    read = re.compile(rf"(?<!\b{name}=)(?<![\w.])(?:[A-Za-z_]\w*\.)+{name}\b(?!\s*=[^=])".encode())
    by_name = re.compile(rf"(?:getattr\([^()\n]*|\[|get\()[\"']{name}[\"']".encode())
    flag = name.replace("_", "[-_]")
    own = rf"^[ \t]*(?:self\.{name}[ \t]*=[^=]|{name}[ \t]*:)"
    defined = re.compile(rf"(?m)[\"']--{flag}[\"']|{own}".encode())
    homes = []
    for other in program.tree.having(rf"{flag}".encode()):
        data = program.tree.data(other)
        if by_name.search(data) or (other != path and read.search(data)):
            return []
        homes += [
            (other, data.count(b"\n", 0, each.start()) + 1) for each in defined.finditer(data)
        ]
    return sorted(homes)


@dataclass(frozen=True)
class Parameter:
    """A parameter of a function."""

    function: ast.FunctionDef
    node: ast.arg


def unread_parameters(context: Context, after: str) -> Iterator[Parameter]:
    """Parameters that nothing in their function reads any more.

    Args:
        after: the text of the file with its edits.
    """
    try:
        now = _functions(parsed(after))
    except (SyntaxError, ValueError):
        return  # these edits are refused
    for name, function in _functions(context.file.tree).items():
        if name not in now:
            continue
        names = {node.id for node in ast.walk(now[name]) if isinstance(node, ast.Name)}
        taken = {node.arg for node in ast.walk(now[name].args) if isinstance(node, ast.arg)}
        for argument in (*function.args.args, *function.args.kwonlyargs):
            reads = [
                node
                for part in function.body
                for node in ast.walk(part)
                if isinstance(node, ast.Name) and node.id == argument.arg
            ]
            if reads and argument.arg in taken - {*names, "self", "cls"}:
                yield Parameter(function, argument)


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a file by their names, those of which there is one."""
    homes: list[tuple[str, ast.Module | ast.ClassDef]] = [("", tree)]
    homes += [(each.name, each) for each in tree.body if isinstance(each, ast.ClassDef)]
    found = [
        (f"{home}.{each.name}", each)
        for home, block in homes
        for each in block.body
        if isinstance(each, ast.FunctionDef)
    ]
    names = [name for name, _ in found]
    return {name: each for name, each in found if names.count(name) == 1}
