"""What the program's code says of a line that it printed: which expression each number comes from.

Code that prints is found by its literal text, in f-strings, in formats and among the arguments of a call. Values are
followed back by name, through assignments, arguments and results of the program's own functions.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from fsdp_migrate.verify.left import Left

_COST = re.compile(
    r"""(?:time|perf_counter|monotonic|process_time|thread_time)(?:_ns)?|now|utcnow|elapsed_time|default_timer|timeit
    |total_seconds|(?:max_)?memory_(?:allocated|reserved)|memory_info|virtual_memory|mem_get_info|memory_stats|getrusage""",
    re.VERBOSE,
)
"""Functions that return a time or an amount of memory."""
_SAME_KIND = re.compile("round|float|int|str|format|abs|max|min|sum|mean|item|len")
"""Functions of which the result is of the kind of what they are given."""
_WORDS = 3
"""A text of fewer letters says nothing of the code that printed it."""
_DEPTH = 12
_SPECIFIER = re.compile(r"%(?:\(\w+\))?[-+ #0]*[\d*]*(?:\.[\d*]+)?[a-zA-Z]")


class Value(NamedTuple):
    """An expression, the function around it (None at the top of the file), and its file."""

    node: ast.expr
    function: ast.AST | None
    module: _Module


@dataclass(frozen=True)
class Template:
    """A text in the code that has values filled in; the pattern has a group for each."""

    pattern: re.Pattern[str]
    values: Sequence[Value]
    letters: int


class Sources:
    """The code of a program, and what its migration left to people.

    Args:
        files: the program's Python files, read when a line is looked for.
        left: the findings; None if there was no migration.
    """

    def __init__(self, files: Sequence[Path] = (), left: Left | None = None) -> None:
        self._files = files
        self._left = left

    def is_cost(self, text: str, span: tuple[int, int]) -> bool:
        """Whether the number at this place of a printed line is certainly a time or an amount of memory."""
        values = self._values(text, span)
        return bool(values) and all(map(self._is_cost, values))

    def finding(self, text: str, span: tuple[int, int] | None = None) -> str:
        """The finding on code that a number of a printed line, or the whole line, comes from; empty if there is none."""
        if self._left is None or not self._left.findings:
            return ""
        for value in self._values(text, span):
            for part in self._followed(value):
                if found := self._left.at(part.module.path, part.node):
                    return self._left.text(found[0])
        return ""

    def _values(self, text: str, span: tuple[int, int] | None) -> list[Value]:
        """What may have been printed there: of the texts in the code that fit, those with most letters."""
        fitting = []
        for template in self._templates:
            for match in template.pattern.finditer(text):
                for group, value in enumerate(template.values, 1):
                    start, stop = match.span(group)
                    if span is None or start <= span[0] < stop:
                        fitting.append((template.letters, value))
        most = max((letters for letters, _ in fitting), default=0)
        return [value for letters, value in fitting if letters == most]

    @cached_property
    def _modules(self) -> list[_Module]:
        modules = []
        for path in self._files:
            try:
                modules.append(_Module(path, ast.parse(path.read_bytes())))
            except (OSError, ValueError, SyntaxError, RecursionError):
                continue
        return modules

    @cached_property
    def _templates(self) -> list[Template]:
        found = [template for module in self._modules for template in module.templates()]
        return [template for template in found if template.letters >= _WORDS and template.values]

    def _is_cost(self, value: Value, above: frozenset[int] = frozenset()) -> bool | None:
        """Whether a value is a time or an amount of memory; None for a constant, or what depends on itself."""
        node = value.node
        if isinstance(node, ast.Constant) or id(node) in above or len(above) > _DEPTH:
            return None
        if isinstance(node, ast.Call) and _COST.fullmatch(_called(node)):
            return True
        above |= {id(node)}
        operands = [self._is_cost(part, above) for part in self._operands(value)]
        origins = [self._is_cost(part, above) for part in self._origins(value)]
        # One operand is enough, as in tokens / seconds; a name is a time if all that it is set to are.
        return True in operands or (True in origins and False not in origins)

    def _followed(self, value: Value) -> Iterator[Value]:
        """An expression and all that its value is made of."""
        waiting = [(value, 0)]
        seen = set()
        while waiting:
            part, depth = waiting.pop()
            if id(part.node) in seen or depth > _DEPTH:
                continue
            seen.add(id(part.node))
            yield part
            inner = [*self._operands(part), *self._origins(part)]
            waiting += [(each, depth + 1) for each in inner]

    def _operands(self, value: Value) -> Iterator[Value]:
        """The parts of an expression that its value is computed from, and of the same kind as these."""
        node = value.node
        parts: list[ast.expr] = []
        match node:
            case ast.Call(func=function, args=arguments) if _SAME_KIND.fullmatch(_called(node)):
                parts += arguments
                if isinstance(function, ast.Attribute):
                    parts += [function.value]
            case ast.BinOp(left=left, right=right):
                parts += [left, right]
            case ast.UnaryOp(operand=operand):
                parts.append(operand)
            case ast.IfExp(body=body, orelse=otherwise):
                parts += [body, otherwise]
            case ast.FormattedValue(value=inner) | ast.Starred(value=inner):
                parts.append(inner)
            case (
                ast.GeneratorExp(elt=element, generators=loops)
                | ast.ListComp(elt=element, generators=loops)
            ):
                parts.append(element)
                for loop in loops:
                    parts += loop.ifs
        return (value._replace(node=part) for part in parts)

    def _origins(self, value: Value) -> Iterator[Value]:
        """What a name, an attribute or the result of a function of the program is set to."""
        node, function, module = value
        match node:
            case ast.Call():
                for other in self._modules:
                    yield from other.results(_called(node))
            case ast.Name(id=name):
                yield from module.assigned(name, function)
                yield from self._given(name, function)
            case ast.Attribute(attr=name):
                yield from module.attributes(name)

    def _given(self, name: str, function: ast.AST | None) -> Iterator[Value]:
        """What calls give to a parameter of a function of the program."""
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        if name not in names and all(name != a.arg for a in function.args.kwonlyargs):
            return
        for module in self._modules:
            for call, around in module.calls.get(function.name, ()):
                bound = names
                if names[:1] == ["self"]:
                    bound = names[1:]
                found = dict(zip(bound, call.args, strict=False))
                found |= {k.arg: k.value for k in call.keywords if k.arg is not None}
                if name in found:
                    yield Value(found[name], around, module)


class _Module:
    """One file: what is assigned to each name in each function, what functions return, and the texts with values."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.calls: dict[str, list[tuple[ast.Call, ast.AST | None]]] = {}
        self._assigned: dict[tuple[str, ast.AST | None], list[Value]] = {}
        self._attributes: dict[str, list[Value]] = {}
        self._returned: dict[str, list[Value]] = {}
        self._texts: list[tuple[ast.expr, ast.AST | None]] = []
        self._visit(tree, None)

    def assigned(self, name: str, function: ast.AST | None) -> list[Value]:
        """What a name is set to in a function, or at the top of the file."""
        own = self._assigned.get((name, function), [])
        return own or self._assigned.get((name, None), [])

    def attributes(self, name: str) -> list[Value]:
        """What an attribute of this name is set to."""
        return self._attributes.get(name, [])

    def results(self, name: str) -> list[Value]:
        """What a function of this name returns."""
        return self._returned.get(name, [])

    def templates(self) -> Iterator[Template]:
        """The texts with values in them."""
        for node, function in self._texts:
            pieces = [*_pieces(node)]
            literal = ""
            pattern = ""
            values = []
            for piece in pieces:
                if isinstance(piece, str):
                    literal += piece
                    pattern += re.escape(piece.strip("\n"))
                else:
                    pattern += "(.*?)"
                    values.append(Value(piece, function, self))
            # The last value goes to the end of the line, or to where the next word begins.
            if pieces and not isinstance(pieces[-1], str):
                pattern += r"(?=\s|[,;|)\]}]|$)"
            yield Template(re.compile(pattern), values, sum(map(str.isalpha, literal)))

    def _visit(self, node: ast.AST, function: ast.AST | None) -> None:
        for child in ast.iter_child_nodes(node):
            inner = function
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                inner = child
            self._note(child, function)
            self._visit(child, inner)

    def _note(self, node: ast.AST, function: ast.AST | None) -> None:
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._bind(target, value, function)
            case ast.AugAssign(target=target, value=value):
                self._bind(target, value, function)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._bind(target, value, function)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, value, function)
            case ast.For(target=target, iter=value):
                self._bind(target, value, function)
            case ast.Return(value=ast.expr() as value) if isinstance(
                function, ast.FunctionDef | ast.AsyncFunctionDef
            ):
                self._returned.setdefault(function.name, []).append(Value(value, function, self))
            case ast.Call():
                self.calls.setdefault(_called(node), []).append((node, function))
                self._texts.append((node, function))
            case ast.JoinedStr() | ast.BinOp(left=ast.Constant(value=str()), op=ast.Mod()):
                self._texts.append((node, function))

    def _bind(self, target: ast.expr, value: ast.expr, function: ast.AST | None) -> None:
        match target:
            case ast.Name(id=name):
                self._assigned.setdefault((name, function), []).append(Value(value, function, self))
            case ast.Attribute(attr=name):
                self._attributes.setdefault(name, []).append(Value(value, function, self))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                values = [value] * len(targets)
                if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(targets):
                    values = value.elts
                for part, own in zip(targets, values, strict=True):
                    self._bind(part, own, function)


def _pieces(node: ast.expr) -> Iterator[str | ast.expr]:
    """The literal texts and the values of an expression that makes a line."""
    match node:
        case ast.JoinedStr(values=parts):
            for part in parts:
                if isinstance(part, ast.FormattedValue):
                    yield part.value
                else:
                    yield _literal(part)
        case ast.BinOp(left=ast.Constant(value=str() as text), op=ast.Mod(), right=right):
            if isinstance(right, ast.Tuple):
                values = right.elts
            else:
                values = [right]
            yield from _filled(_SPECIFIER.split(text), values)
        case ast.Call(func=ast.Attribute(value=ast.Constant(value=str() as text), attr="format")):
            yield from _formatted(text, node)
        case ast.Call(args=[ast.Constant(value=str() as text), *values]) if _SPECIFIER.search(text):
            yield from _filled(_SPECIFIER.split(text), values)  # as loggers do
        case ast.Call(args=[first, *others]) if others:
            yield from _argument(first)
            for argument in others:
                yield " "
                yield from _argument(argument)


def _argument(node: ast.expr) -> Iterator[str | ast.expr]:
    """The pieces of one of the arguments that `print` joins."""
    match node:
        case ast.Constant(value=str()):
            yield _literal(node)
        case ast.JoinedStr():
            yield from _pieces(node)
        case _:
            yield node


def _literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    return ""


def _filled(texts: Sequence[str], values: Sequence[ast.expr]) -> Iterator[str | ast.expr]:
    if len(texts) == len(values) + 1:
        for text, value in zip(texts, values, strict=False):
            yield text
            yield value
        yield texts[-1]


def _formatted(text: str, call: ast.Call) -> Iterator[str | ast.expr]:
    """The pieces of `text.format(...)`."""
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    try:
        fields = [*string.Formatter().parse(text)]
    except ValueError:
        return
    following = iter(call.args)
    for literal, name, _, _ in fields:
        yield literal
        if name is None:
            continue
        root = re.split(r"[.\[]", name)[0]
        value = named.get(root)
        if not root:
            value = next(following, None)
        elif root.isdigit() and int(root) < len(call.args):
            value = call.args[int(root)]
        if value is not None:
            yield value


def _called(call: ast.Call) -> str:
    """The last part of a called function's name."""
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""
