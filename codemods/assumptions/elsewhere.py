"""Where an assumption may not hold: places with words that it is about, in files that a model may come to."""

import ast
import re
from pathlib import Path

from fsdp_migrate.codemods.assumptions.lines import lines_of
from fsdp_migrate.codemods.assumptions.words import HINTS, WORDS, is_of_model
from fsdp_migrate.codemods.context import Context
from fsdp_migrate.facts.file import place_of
from fsdp_migrate.facts.program import Program
from fsdp_migrate.source import is_test, shown_path

# Code for an engine that shards by itself.
_OTHERS = re.compile(r"^\s*(?:from|import) megatron\b", re.MULTILINE)
# A docstring or another long string, a string, a comment.
_NO_CODE = re.compile(r"""("{3}|'{3})[^\0]*?\1|(["'])(?:\\.|(?!\2)[^\\\n])*\2|#[^\n]*""")
_OWNER = re.compile(r"(\w+)(?:\[[^\]]*\]|\([^()]*\))*$")
_ASKED = re.compile(r"(?:get|has)attr\(\s*(?:[\w.]*\.)?(\w+)")
_METHOD = re.compile(r"^[ \t]*def (\w+)\(", re.MULTILINE)
_MOST_NAMED = 2


def places(context: Context, name: str, sharding: ast.AST) -> list[str]:
    """The first place of some files that have words of an assumption, and no finding for them: `model.py:12`.

    Files that mention FSDP come first, and tests last: the same for all constructors of a program, which then have one
    message together. One more is found than a message names.
    """
    if name == "older_optimizers":
        return _optimizers_above(context, sharding)
    program = context.program
    paths = program.reach.of(context.file.path)
    found = list[str]()
    for path in sorted(paths, key=lambda path: (is_test(path), not program.mentions(path), path)):
        line = program.once(_open_line, path, name)
        if line:
            found.append(_shown(path, line))
        if len(found) > _MOST_NAMED:
            break
    return found


def _optimizers_above(context: Context, sharding: ast.AST) -> list[str]:
    """The line above a constructor where its function first gets an optimizer by name, if no finding is at that line."""
    file = context.file
    lines = context.program.once(lines_of, str(file.path))
    said = {place_of(line.node)[0] for line in lines if line.switch == "older_optimizers"}
    above = [
        name.lineno
        for name in file.of(ast.Name)
        if isinstance(name.ctx, ast.Store)
        and "optim" in name.id.lower()
        and name.lineno < place_of(sharding)[0]
        and file.function(name) is file.function(sharding)
    ]
    open_lines = [line for line in sorted(above) if line not in said]
    return [_shown(str(file.path), line) for line in open_lines[:1]]


def check(found: list[str]) -> str:
    """`Check for example `a.py:1`, `b.py:2`.`, if there are more; nothing without a place."""
    if not found:
        return ""
    shown = ", ".join(f"`{each}`" for each in found[:_MOST_NAMED])
    if len(found) > _MOST_NAMED:
        return f"Check for example {shown}."
    return f"Check {shown}."


def _shown(path: str, line: int) -> str:
    shown = shown_path(Path(path))
    if path.endswith(".ipynb"):
        return shown  # its cells have lines of their own
    return f"{shown}:{line}"


def _open_line(program: Program, path: str, name: str) -> int:
    """The line of the first words of an assumption in a file that no finding is about; 0 if there are none."""
    file = None
    if program.mentions(path):
        file = program.load(path)
    if file is None:
        text = program.reach.text(path)
    else:
        text = file.text
    words = _words(program, name, text)
    if file is not None and words:
        lines = program.once(lines_of, path)
        spans = [file.span(line.node) for line in lines if line.switch == name]
        words = [word for word in words if not _is_inside(word, spans)]
    if not words:
        return 0
    return text.count("\n", 0, words[0].end()) + 1


def _words(program: Program, name: str, text: str) -> list[re.Match[str]]:
    """The words of a text that an assumption is about."""
    pattern = WORDS.get(name, HINTS.get(name))
    if pattern is None or not re.search(pattern, text) or _OTHERS.search(text):
        return []
    code = program.once(_code, text)
    words = [word for word in re.finditer(pattern, code) if is_of_model(name, _before(code, word))]
    if name == "whole_in_apply":
        return [word for word in words if not _is_of_constructor(program, code, word)]
    return words


def _code(_: Program, text: str) -> str:
    """A text with blanks for its comments, and for strings that are more than a name."""
    return _NO_CODE.sub(_blank, text)


def _blank(found: re.Match[str]) -> str:
    if found[2] and " " not in found[0]:
        return found[0]
    return re.sub(r"[^\n]", " ", found[0])


def _before(text: str, word: re.Match[str]) -> str:
    """The name of what has an attribute: of `self.model.rank` and `getattr(self.model, name)`, `model`."""
    if asked := _ASKED.match(text, word.start()):
        return asked[1]
    start = text.rfind("\n", 0, word.start()) + 1
    owner = _OWNER.search(text[start : word.start()])
    return owner[1] if owner else ""


def _is_inside(word: re.Match[str], spans: list[tuple[int, int]]) -> bool:
    """Whether a word begins or ends in one of the places of a text."""
    return any(a <= word.start() < b or a < word.end() <= b for a, b in spans)


def _is_of_constructor(program: Program, text: str, word: re.Match[str]) -> bool:
    """Whether a class calls its own `apply` before it can be sharded: in its constructor, or in a method only called there."""
    if not word[0].startswith("self."):
        return False
    method = _method_at(text, word.start())
    if method == "__init__":
        return True
    calls = [*re.finditer(rf"\.{method}\(", text)]
    is_only_there = all(_method_at(text, call.start()) == "__init__" for call in calls)
    return bool(calls) and is_only_there and not program.has(rf"(?<!\bself)\.{method}\(")


def _method_at(text: str, position: int) -> str:
    """The name of the method that a position is in; empty where it is in none."""
    names = _METHOD.findall(text, 0, position)
    return names[-1] if names else ""
