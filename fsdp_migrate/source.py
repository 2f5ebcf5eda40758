"""A Python file as bytes and as text, without loss between the two, or in one line why it cannot be used.

Text is decoded as Python decodes it (byte-order mark, coding cookie) and line endings are never translated.
"""

from __future__ import annotations

import io
import os
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.findings import Finding, Problem

if TYPE_CHECKING:
    from fsdp_migrate.notebooks import Notebook

# The endings of files that set FSDP without calling it.
_SHELLS = (".sh", ".bash", ".zsh", ".slurm", ".sbatch")
CONFIGURATIONS = (".yaml", ".yml", ".json", *_SHELLS)
_SHEBANG = re.compile(rb"#!.*\b(?:ba|da|k|z)?sh\b")
# Python's parser ends with a MemoryError for either.
TOO_MUCH = "does not parse: nested too deeply, or too large for this machine's memory"
# The first words of each module of a copy of the runtime.
MARK = "# Vendored by fsdp-migrate"
_TEST = re.compile(r"(^|/)(tests?/|test_[^/]*\.py$|conftest\.py$)")
# What is in the folder of a whole project.
_MARKS = (".git", "pyproject.toml", "setup.cfg", "setup.py")
_IMPORTED = re.compile(r"[ \t]*(?:from|import)[ \t]+(\w[\w.]*)(?:[ \t]+import[ \t]+(\w+))?")


@dataclass(frozen=True)
class Package:
    """Where a program imports the runtime from: its dotted name, and its folder if it is a copy.

    The analysis knows the runtime by one name, `fsdp_migrate.runtime`. A program that has a copy of it is read as if it
    imported that name, and written with the name of its copy: `unspelled` and `spelled`.
    """

    name: str = RUNTIME
    folder: Path | None = None

    def spelled(self, text: str) -> str:
        """A program that imports `fsdp_migrate.runtime`, with the imports of this package."""
        if self.folder is None or "fsdp_migrate" not in text:
            return text
        parent, _, name = self.name.rpartition(".")
        if parent:
            statement = f"from {parent} import {name}"
        else:
            statement = f"import {name}"
        whole = re.compile(r"\bfrom fsdp_migrate import runtime\b(\s+as\s+\w+)?")
        text = whole.sub(lambda found: statement + (found[1] or " as runtime"), text)
        return re.sub(rf"\b{re.escape(RUNTIME)}\b", self.name, text)

    def unspelled(self, text: str) -> str:
        """The inverse of `spelled`."""
        if self.folder is None:
            return text
        parent, _, name = self.name.rpartition(".")
        if parent:
            whole = rf"\bfrom {re.escape(parent)} import {name}\b(?=\s+as\s)"
            text = re.sub(whole, "from fsdp_migrate import runtime", text)
        own = rf"(?<![\w.]){re.escape(self.name)}"
        inside = rf"{own}(?=\.\w|\s+(?:import|as)\b)|(?<=\bimport ){own}(?=[ \t]*(?:$|[,;#]))"
        return re.sub(inside, RUNTIME, text, flags=re.MULTILINE)


INSTALLED = Package()


class Folders:
    """The folders of a run, which its files share: what is in them, and which hold a copy of the runtime."""

    def __init__(self) -> None:
        self.is_copy = cache(is_copy)
        self._roots = cache(self._above)
        self._imported = cache(self._import)

    def package_of(self, path: Path, text: str) -> Package:
        """The copy that a file imports the runtime from, found by its mark; else the installed package."""
        if RUNTIME in text:
            return INSTALLED
        places = self._roots(os.fspath(path.parent))
        ends = (found.start() for found in re.finditer("import", text))
        starts = (max(text.rfind("\n", 0, end), text.rfind("\r", 0, end)) + 1 for end in ends)
        lines = (_IMPORTED.match(text, start) for start in starts)
        for module, member in dict.fromkeys([found.groups("") for found in lines if found]):
            first = module.partition(".")[0]
            for root, names in places:
                if first in names and (found := self._imported(root, module, member)):
                    return found
        return INSTALLED

    def _import(self, root: str, module: str, member: str) -> Package | None:
        """The copy that an import finds below a folder, by its longest name."""
        parts = module.split(".")
        if member:
            parts.append(member)
        for length in range(len(parts), 0, -1):
            folder = os.sep.join([root, *parts[:length]])
            if self.is_copy(folder):
                return Package(".".join(parts[:length]), Path(folder))
        return None

    def _above(self, folder: str) -> list[tuple[str, frozenset[str]]]:
        """A folder and those above it, up to the root of the repository, as far as they are there, with the names in them."""
        if not os.path.isdir(folder):
            return []
        names = frozenset(os.listdir(folder))
        above = os.path.dirname(folder)
        roots = [(folder, names)]
        if ".git" not in names and above != folder:
            roots += self._roots(above)
        return roots


def is_copy(folder: str | Path) -> bool:
    """Whether a folder holds a copy of the runtime."""
    try:
        with open(os.path.join(folder, "__init__.py"), "rb") as stream:
            return stream.read(len(MARK)) == MARK.encode()
    except OSError:
        return False


@dataclass(frozen=True)
class Source:
    """One file, `shown` under a name in messages: of Python, alone or in the cells of a notebook, or a configuration.

    `runtime` is the package that it will import the runtime from; None: the one that it does import it from.
    """

    path: Path
    shown: str
    data: bytes
    runtime: Package | None = None
    folders: Folders = field(default_factory=Folders, compare=False)

    @cached_property
    def ending(self) -> str:
        """The ending of the file's name; `.sh` for every shell script, which pre-commit knows by its first line."""
        suffix = self.path.suffix
        is_shell = suffix in _SHELLS or (suffix != ".py" and _SHEBANG.match(self.data))
        if is_shell:
            return ".sh"
        return suffix

    @cached_property
    def encoding(self) -> str:
        """The codec that Python uses; `utf-8-sig` where there is a byte-order mark."""
        # The tokenizer takes a file with lone CR for a single line.
        data = self.data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return tokenize.detect_encoding(io.BytesIO(data).readline)[0]

    @cached_property
    def decoded(self) -> str:
        """The content, without byte-order mark and with its own line endings."""
        return self.data.decode(self.encoding)

    @cached_property
    def notebook(self) -> Notebook | None:
        """The cells of a notebook; None for any other file."""
        if self.path.suffix != ".ipynb":
            return None
        from fsdp_migrate.notebooks import Notebook

        return Notebook(self.decoded)

    @property
    def program(self) -> str:
        """The Python program that the file holds."""
        if self.notebook:
            return self.notebook.program
        return self.decoded

    def placed(self, finding: Finding) -> Finding:
        """A finding about the program, at its place in the file."""
        if self.notebook:
            return self.notebook.placed(finding)
        return finding

    @property
    def problems(self) -> list[Problem]:
        """The parts of the file that are left out, and why."""
        if self.notebook:
            return self.notebook.problems(self.shown)
        return []

    @property
    def apart(self) -> Iterable[Finding]:
        """Findings about parts that are no part of the program."""
        if self.notebook:
            return self.notebook.apart(self.shown)
        return ()

    @cached_property
    def package(self) -> Package:
        """The package that the file imports the runtime from."""
        found = self.folders.package_of(self.path, self.program)
        same = found.spelled(found.unspelled(self.program)) == self.program
        if same:
            return found
        return INSTALLED

    @cached_property
    def text(self) -> str:
        """The program as it is analysed: it imports the installed runtime, not a copy of it."""
        return self.package.unspelled(self.program)

    def encode(self, text: str) -> bytes:
        """The file with another text, in its encoding, with its copy of the runtime; ValueError if that is impossible."""
        program = (self.runtime or self.package).spelled(text)
        if self.notebook:
            written = self.notebook.written(program)
        else:
            written = program
        return written.encode(self.encoding)


def shown_path(path: Path) -> str:
    """A path as messages show it: relative to the current folder if below it, with `/`."""
    absolute = os.path.abspath(path)
    here = os.path.join(os.getcwd(), "")
    return PurePath(absolute.removeprefix(here)).as_posix()


@cache
def is_test(path: str) -> bool:
    """Whether a file is a test, by its path in its project: the project itself may be below a folder `tests`."""
    return _TEST.search(path.removeprefix(_project(os.path.dirname(path)))) is not None


@cache
def _project(folder: str) -> str:
    """The folder of the project that a folder is in; empty if no file marks one."""
    if any(os.path.exists(os.path.join(folder, name)) for name in _MARKS):
        return folder
    above = os.path.dirname(folder)
    if above == folder:
        return ""
    return _project(above)


def read_source(path: Path, folders: Folders | None = None) -> Source | Problem:
    """The file at `path`, or in one line why it cannot be used."""
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        return Problem(shown_path(path), 0, "is a folder, not a file")
    except OSError as error:
        return Problem(shown_path(path), 0, f"cannot be read: {error.strerror or error}")
    return source_from_bytes(path, shown_path(path), data, folders)


def source_from_bytes(
    path: Path, shown: str, data: bytes, folders: Folders | None = None
) -> Source | Problem:
    """`data` as a source, or in one line why it cannot be one."""
    source = Source(path, shown, data, folders=folders or Folders())
    if path.suffix == ".ipynb":
        return _notebook(source)
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        return Problem(shown, line, "holds a NUL byte: not Python source")
    try:
        faithful = source.decoded.encode(source.encoding) == data
    except (SyntaxError, LookupError, ValueError) as error:  # bytes, a cookie or a codec
        at = 0
        if isinstance(error, UnicodeDecodeError):
            at = error.start
        line = data.count(b"\n", 0, at) + 1
        return Problem(shown, line, f"cannot be decoded: {_first_line(str(error))}")
    problem = f"cannot be written back unchanged in its encoding {source.encoding}"
    if faithful:
        return source
    return Problem(shown, 1, problem)


def _notebook(source: Source) -> Source | Problem:
    try:
        faithful = source.encode(source.text) == source.data
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        line = getattr(error, "lineno", 0)
        return Problem(source.shown, line, f"is no notebook that can be read: {error}")
    no_way_back = Problem(source.shown, 0, "is no notebook that can be written back")
    if faithful:
        return source
    return no_way_back


def parse_problem(source: Source) -> Problem | None:
    """The line where Python gives up; None if the file parses, or is no Python."""
    if source.ending in CONFIGURATIONS:
        return None
    from fsdp_migrate.facts.file import parsed

    try:
        parsed(source.text, source.shown)
    except SyntaxError as error:
        return Problem(source.shown, error.lineno or 0, f"does not parse: {_first_line(error.msg)}")
    except (RecursionError, MemoryError):
        return Problem(source.shown, 0, TOO_MUCH)
    except ValueError as error:
        return Problem(source.shown, 0, f"does not parse: {_first_line(str(error))}")
    return None


def _first_line(text: str) -> str:
    if text:
        return text.splitlines()[0]
    return "invalid syntax"
