"""The code of a constructor on FSDP2, which its arguments add to, and where it goes: statements in its place, or a function."""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from textwrap import indent

from fsdp_migrate.codemods.constructor.construction import FORMER_NAMES, Construction
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.codemods.edit.text import indentation, spliced
from fsdp_migrate.codemods.rule import Edit, Import
from fsdp_migrate.facts.file import NEWLINE
from fsdp_migrate.facts.names import TORCH

_NAME = re.compile(r"[^\W\d]\w*")


@dataclass(eq=False)
class Code:
    """What the arguments of one constructor become.

    Attributes:
        said: what is said of each argument, by its name.
        shared: keyword arguments, as source, of every `fully_shard` call.
        child, root: those of the units below the root, and of the root.
        units: the condition by which `{module}` is a unit of its own, as source; "" where the root alone is one.
        above: statements in front, with `{model}` for the model.
        like_fsdp1: keyword arguments of `like_fsdp1`, or `below` the statements that do the same without it.
        imports: the names that all this uses.
    """

    said: dict[str, str] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    child: dict[str, str] = field(default_factory=dict)
    root: dict[str, str] = field(default_factory=dict)
    units: str = ""
    above: list[str] = field(default_factory=list)
    like_fsdp1: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)

    def use(self, construction: Construction, name: str, module: str = TORCH) -> None:
        """Lets the file import a name that the code uses."""
        self.imports.append(Import(module, name, construction.call.func))

    @property
    def names(self) -> frozenset[str]:
        """The names that the code reads."""
        given = (*self.shared.values(), *self.child.values(), *self.root.values())
        every = (*given, self.units, *self.above, *self.like_fsdp1, *self.below)
        return frozenset(_NAME.findall(" ".join(every)))


@dataclass(frozen=True, eq=False)
class Place:
    """How a constructor's statement is written.

    Attributes:
        statement: the statement that becomes several.
        target: what the model is assigned to in the end, "return" where it is returned, "" where it keeps its name.
        model: the model, as source.
        first: a statement that gives the model a name, if it had none.
    """

    statement: ast.stmt
    target: str
    model: str
    first: str = ""

    @property
    def last(self) -> list[str]:
        """The statement behind the sharding."""
        if not self.target:
            return []
        begins = "return" if self.target == "return" else f"{self.target} ="
        return [f"{begins} {self.model}"]


def place_of(construction: Construction) -> Place | None:
    """How a constructor is written; None where statements cannot take its place, as inside of an expression."""
    context, call, module = construction.context, construction.call, construction.module
    statement = context.file.parents[call]
    target = _target(context, statement)
    in_class = isinstance(context.file.scope_of(call).node, ast.ClassDef)
    if target is None or module is None or in_class:
        return None
    assert isinstance(statement, ast.stmt)
    if isinstance(module, ast.Name | ast.Attribute | ast.Subscript) and not _calls(module):
        dotted = ast.unparse(module)
        return Place(statement, "" if target == dotted else target, dotted)
    name = target if target not in ("", "return") else context.local("model", call)
    returned = "return" if target == "return" else ""
    source = context.source(module)
    if NEWLINE.search(source):  # for a statement of its own; Black drops spare brackets
        source = f"({source})"
    return Place(statement, returned, name, f"{name} = {source}")


def _target(context: Context, statement: ast.AST) -> str | None:
    """What a statement does with the result; None if statements cannot take its place."""
    if not isinstance(statement, ast.Assign | ast.Return | ast.Expr):
        return None
    if not context.is_alone(statement):
        return None
    if isinstance(statement, ast.Return):
        return "return"
    if isinstance(statement, ast.Expr):
        return ""
    first = statement.targets[0]
    named = isinstance(first, ast.Name | ast.Attribute | ast.Subscript) and not _calls(first)
    return ast.unparse(first) if named and len(statement.targets) == 1 else None


def _calls(path: ast.expr) -> bool:
    """Whether an expression calls something, and must not be written twice."""
    return any(isinstance(node, ast.Call) for node in ast.walk(path))


def in_torchs_words(construction: Construction, code: Code, place: Place) -> list[Edit]:
    """The edits that put calls of `fully_shard` with literal values in the place of the constructor."""
    context = construction.context
    shared = _arguments(code.shared)
    lines = [line.replace("{model}", place.model) for line in code.above]
    calls: list[str] = []
    if code.units:
        if len(code.shared) > 1:
            name = context.local("fsdp_kwargs", construction.call)
            lines.append(f"{name} = dict({shared.removeprefix(', ')})")
            shared = f", **{name}"
        unit = context.local("module", construction.call)
        calls += [
            f"for {unit} in reversed(list({place.model}.modules())):",
            f"    if {code.units.format(module=unit, model=place.model)}:",
        ]
        if code.child:
            calls.append("        # As under FSDP1, the root alone casts its inputs")
        calls.append(f"        fully_shard({unit}{_arguments(code.child)}{shared})")
    calls.append(f"fully_shard({place.model}{_arguments(code.root)}{shared})")
    lines += _under(construction, place.model, calls, code.like_fsdp1)
    lines += [line.replace("{model}", place.model) for line in code.below]
    return _instead(construction, place, lines)


def by_units(construction: Construction, place: Place) -> list[Edit]:
    """The edits that put a loop over FSDP1's units, by its own arguments, in the place of the constructor."""
    context, call = construction.context, construction.call
    name, options = context.local("module", call), context.local("options", call)
    given = _given(construction, place.model)
    is_long = NEWLINE.search(given) is not None
    if is_long:  # stays in its own layout
        own = indentation(context.file, place.statement)
        rows = [line.removeprefix(own) for line in NEWLINE.split(given)]
        # As deep as the loop's body, the last one would read as a part of that.
        is_alike = re.match(r"(?: {4}|\t)\S", rows[-1])
        given = "\n".join([*rows, ""] if is_alike else rows)
    loop = [f"for {name}, {options} in units({given}):", f"    fully_shard({name}, **{options})"]
    loop = _under(construction, place.model, loop)
    return _instead(construction, place, loop, as_it_is=is_long)


def _under(
    construction: Construction, model: str, lines: list[str], options: Iterable[str] = ()
) -> list[str]:
    if not construction.like_fsdp1:
        return lines
    given = ", ".join([model, *options])
    return [f"with like_fsdp1({given}):", *(indent(line, "    ") for line in lines)]


def _instead(
    construction: Construction, place: Place, lines: list[str], *, as_it_is: bool = False
) -> list[Edit]:
    code = "\n".join([*([place.first] if place.first else []), *lines, *place.last])
    return [construction.context.replace_statement(place.statement, code, as_it_is=as_it_is)]


def _given(construction: Construction, model: str) -> str:
    """The arguments of a call as they are written, with a name for the model, and the names of today."""
    context, call, module = construction.context, construction.call, construction.module
    file = context.file
    assert module is not None
    start, (_, end) = file.text.index("(", file.span(call.func)[1]) + 1, file.span(call)
    edits = [context.replace(module, model)]
    for keyword in call.keywords:
        if keyword.arg in FORMER_NAMES:
            first = file.span(keyword)[0]
            edits.append(Edit(first, first + len(keyword.arg), FORMER_NAMES[keyword.arg]))
    return spliced(file.text, edits, start, end - 1)


def function(construction: Construction, name: str, imports: Iterable[Import]) -> str:
    """A function that shards a module with FSDP1's arguments, and returns it; it may be given by its name, too.

    Args:
        imports: what it imports itself.
    """
    loop = [
        "for unit, options in units(module, *args, **kwargs):",
        "    fully_shard(unit, **options)",
    ]
    lines = _under(construction, "module", loop)
    doc = '"""Shards a module with FSDP1\'s arguments, in place."""'
    ordered = sorted(imports, key=lambda need: need[:2])
    own = [f"from {need.module} import {need.name}" for need in ordered]
    body = indent("\n".join([doc, *own, *lines, "return module"]), "    ")
    return f"def {name}(module, *args, **kwargs):\n{body}"


def above_of(context: Context, node: ast.AST) -> ast.stmt:
    """The statement at the top of a file that a node is in."""
    statement: ast.AST = node
    while not isinstance(context.file.parents[statement], ast.Module):
        statement = context.file.parents[statement]
    assert isinstance(statement, ast.stmt)
    return statement


def defined_above(context: Context, statement: ast.stmt, code: str) -> Edit:
    """A function above a statement of a file's top, with two blank lines around it."""
    edit, file = context.insert_above(statement, code), context.file
    decorators = getattr(statement, "decorator_list", [])
    if decorators:
        start = file.lines(decorators[0])[0]
        edit = edit._replace(start=start, end=start)
    line = edit.text[len(edit.text.rstrip("\r\n")) :] or "\n"
    first = "\r\n" if file.text[: edit.start].endswith("\r") else line  # "\r" and "\n" would be one
    above = NEWLINE.sub("\n", file.text[: edit.start])
    missing = max(0, 3 - (len(above) - len(above.rstrip("\n")))) if above else 0
    return edit._replace(text=first * missing + edit.text + line * 2)


def _arguments(given: dict[str, str]) -> str:
    return "".join(f", {name}={value}" for name, value in given.items())
