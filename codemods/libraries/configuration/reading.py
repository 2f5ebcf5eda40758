"""From text to trees: YAML by PyYAML, which Accelerate, transformers and axolotl read it with; JSON and Python by `ast`."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsdp_migrate.codemods.libraries.configuration.tree import (
    UNKNOWN,
    Data,
    Entry,
    Listing,
    Mapping,
    Scalar,
    Value,
)
from fsdp_migrate.facts.file import File

Resolve = Callable[[ast.expr], Data | ast.expr]

_ALIAS = re.compile(r"[ \t]*:[ \t]*\*[^\s,\]}]+")
_NAMES = {"true": True, "false": False}


class Unreadable(ValueError):
    """Text that does not parse; `line` is where the parser gives up, from 1, or 0."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line


def from_yaml(text: str) -> list[Value]:
    """The documents of a YAML file; raises Unreadable if it does not parse."""
    import yaml  # only where there is such a file

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return [_Yaml(text).value(node) for node in yaml.compose_all(text, loader) if node]
    except yaml.MarkedYAMLError as error:
        line = 0
        if error.problem_mark:
            line = error.problem_mark.line + 1
        raise Unreadable(str(error.problem), line) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise Unreadable(str(error).splitlines()[0]) from None


class _Yaml:
    """The trees of one file, from PyYAML's nodes, which tell their kinds by `id`."""

    def __init__(self, text: str) -> None:
        from yaml.constructor import ConstructorError, SafeConstructor

        self.text = text
        self._known: dict[object, Value] = {}
        self._construct = SafeConstructor().construct_object
        self._error = ConstructorError

    def value(self, node: Any) -> Value:
        """The tree of a node; an alias leads to the tree of its anchor."""
        if node in self._known:
            return self._known[node]
        start = node.start_mark.index
        end = node.end_mark.index
        while end > start and self.text[end - 1].isspace():  # a block ends where the next begins
            end -= 1
        if node.id == "mapping":
            style = "block"
            if node.flow_style:
                style = "flow"
            mapping = Mapping(style, (start, end))
            self._known[node] = mapping
            for key, value in node.value:
                self._add(mapping, key, value)
            if mapping.style == "block" and mapping.entries:
                mapping.span = start, max(entry.span[1] for entry in mapping.entries)
            return mapping
        if node.id == "sequence":
            listing = Listing([], (start, end))
            self._known[node] = listing
            listing.items = [self.value(item) for item in node.value]
            if not node.flow_style and listing.items:
                listing.span = start, max(start, *[item.span[1] for item in listing.items])
            return listing
        self._known[node] = Scalar(self._scalar(node), (start, end))
        return self._known[node]

    def _add(self, mapping: Mapping, key: Any, node: Any) -> None:
        value = self.value(node)
        if key.id != "scalar":
            return
        if key.tag == "tag:yaml.org,2002:merge":
            if isinstance(value, Listing):
                sources = value.items
            else:
                sources = [value]
            mapping.merged += [source for source in sources if isinstance(source, Mapping)]
        start = key.start_mark.index
        end = value.span[1]
        alias = _ALIAS.match(self.text, key.end_mark.index)
        if alias:
            end = alias.end()
        mapping.entries.append(Entry(mapping, key.value, value, (start, max(start, end))))

    def _scalar(self, node: Any) -> Data:
        if node.tag == "tag:yaml.org,2002:str":
            return node.value
        try:
            return self._construct(node)
        except (self._error, ValueError):  # a tag of the program's own
            return UNKNOWN


def from_json(text: str) -> list[Value]:
    """The one document of a JSON file, which reads as a Python expression, whose parser knows places.

    Raises Unreadable if it does not parse.
    """
    try:
        json.loads(text)
        file = File(Path("configuration.json"), "", f"({text}\n)")
    except json.JSONDecodeError as error:
        raise Unreadable(error.msg, error.lineno) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Unreadable("nested too deeply") from None
    statement = file.tree.body[0]
    assert isinstance(statement, ast.Expr)
    return [from_python(file, statement.value, _named, "json", -1)]


def _named(node: ast.expr) -> Any:
    """The value of a name in JSON: `true`, `false` or `null`."""
    if isinstance(node, ast.Name):
        return _NAMES.get(node.id)
    return None


def from_python(
    file: File, node: ast.expr, resolve: Resolve, style: str = "dict", shift: int = 0
) -> Value:
    """The tree of an expression.

    Args:
        resolve: what an expression that is no literal is: data, `UNKNOWN`, or a literal elsewhere in the file.
        shift: what is added to the file's places.
    """
    start, end = file.span(node)
    span = start + shift, end + shift
    if isinstance(node, ast.Dict):
        mapping = Mapping(style, span, is_open=None in node.keys)
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                tree = from_python(file, value, resolve, style, shift)
                place = file.span(key)[0] + shift, file.span(value)[1] + shift
                mapping.entries.append(Entry(mapping, key.value, tree, place))
        return mapping
    if isinstance(node, ast.List | ast.Tuple):
        return Listing([from_python(file, n, resolve, style, shift) for n in node.elts], span)
    if isinstance(node, ast.Constant):
        return Scalar(node.value, span)
    resolved = resolve(node)
    if isinstance(resolved, ast.expr):
        return from_python(file, resolved, resolve, style, shift)
    return Scalar(resolved, span)


def from_call(file: File, call: ast.Call, resolve: Resolve) -> Mapping:
    """The tree of a call's keywords."""
    mapping = Mapping("call", file.span(call))
    for keyword in call.keywords:
        if keyword.arg is None:
            mapping.is_open = True
            continue
        value = from_python(file, keyword.value, resolve)
        mapping.entries.append(Entry(mapping, keyword.arg, value, file.span(keyword)))
    return mapping
