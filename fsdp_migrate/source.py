"""A Python file as bytes and as text, without loss between the two.

Text is decoded as Python decodes it (byte-order mark, coding cookie) and line endings are never
translated, so that what no rule touches comes back byte by byte.
"""

from __future__ import annotations

import io
import os
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath

from fsdp_migrate.findings import Finding, Problem
from fsdp_migrate.vendor import INSTALLED, Package, package_of

# The endings of files that set FSDP without calling it.
CONFIGURATIONS = (".yaml", ".yml", ".json", ".sh")


@dataclass(frozen=True)
class Source:
    """One file, of Python or a configuration.

    Attributes:
        path: where it lies.
        shown: its name in findings and messages.
        data: its bytes.
        runtime: the package that it will import the runtime from; the one that it does import it from, if None.
    """

    path: Path
    shown: str
    data: bytes
    runtime: Package | None = None

    @cached_property
    def encoding(self) -> str:
        """The codec that Python uses; `utf-8-sig` where there is a byte-order mark."""
        return tokenize.detect_encoding(io.BytesIO(unix_lines(self.data)).readline)[0]

    @cached_property
    def decoded(self) -> str:
        """The content, without byte-order mark and with its own line endings."""
        return self.data.decode(self.encoding)

    @property
    def program(self) -> str:
        """The Python program that the file holds."""
        return self.decoded

    def written(self, program: str) -> str:
        """The file's content with another program: the inverse of `program`."""
        return program

    def placed(self, finding: Finding) -> Finding:
        """A finding about the program, at its place in the file."""
        return finding

    @property
    def problems(self) -> list[Problem]:
        """The parts of the file that are left out, and why."""
        return []

    @cached_property
    def package(self) -> Package:
        """The package that the file imports the runtime from."""
        found = package_of(self.path, self.program)
        same = found.spelled(found.unspelled(self.program)) == self.program
        return found if same else INSTALLED

    @cached_property
    def text(self) -> str:
        """The program as it is analysed: it imports the installed runtime, not a copy of it."""
        return self.package.unspelled(self.program)

    def encode(self, text: str) -> bytes:
        """The file with another text: in its encoding, with its byte-order mark and its copy of the runtime.

        Raises:
            ValueError: the text cannot be written so.
        """
        program = (self.runtime or self.package).spelled(text)
        return self.written(program).encode(self.encoding)


def shown_path(path: Path) -> str:
    """A path as messages show it: relative to the current folder if below it, with `/`."""
    absolute = os.path.abspath(path)
    here = os.path.join(os.getcwd(), "")
    return PurePath(absolute.removeprefix(here)).as_posix()


def unix_lines(data: bytes) -> bytes:
    """Lines that end as the tokenizer knows them: it takes a file with lone CR for a single line."""
    return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
