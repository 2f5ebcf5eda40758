"""From a file to its source, or in one line why it cannot be used."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.findings import Problem
from fsdp_migrate.source import CONFIGURATIONS, Source, shown_path, unix_lines
from fsdp_migrate.syntax import parsed

# Python's parser ends with a MemoryError for either.
TOO_MUCH = "does not parse: nested too deeply, or too large for this machine's memory"


def read_source(path: Path) -> Source | Problem:
    """The file at `path`, or in one line why it cannot be used."""
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        return Problem(shown_path(path), 0, "is a folder, not a file")
    except OSError as error:
        return Problem(shown_path(path), 0, f"cannot be read: {error.strerror or error}")
    return source_from_bytes(path, shown_path(path), data)


def source_from_bytes(path: Path, shown: str, data: bytes) -> Source | Problem:
    """`data` as a source, or in one line why it cannot be one."""
    if path.suffix == ".ipynb":
        return _notebook(path, shown, data)
    source = Source(path, shown, data)
    if b"\0" in data:
        line = data.count(b"\n", 0, data.index(b"\0")) + 1
        return Problem(shown, line, "holds a NUL byte: not Python source")
    try:
        faithful = source.decoded.encode(source.encoding) == data
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return Problem(shown, line, _undecodable(source.encoding))
    except SyntaxError as error:  # a cookie that Python refuses, or a first line that is not UTF-8
        return _cookie_problem(source, str(error))
    except (LookupError, ValueError) as error:  # a codec, but not one for text
        return Problem(shown, 1, f"cannot be decoded: {error}")
    if not faithful:
        return Problem(
            shown, 1, f"cannot be written back unchanged in its encoding {source.encoding}"
        )
    return source


def _notebook(path: Path, shown: str, data: bytes) -> Source | Problem:
    from fsdp_migrate.notebooks import Notebook

    source = Notebook(path, shown, data)
    try:
        faithful = source.encode(source.text) == data
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError) as error:
        return Problem(
            shown, getattr(error, "lineno", 0), f"is no notebook that can be read: {error}"
        )
    return source if faithful else Problem(shown, 0, "is no notebook that can be written back")


def parse_problem(source: Source) -> Problem | None:
    """The line where Python gives up; None if the file parses, or is no Python."""
    if source.path.suffix in CONFIGURATIONS:
        return None
    try:
        parsed(source.text, source.shown)
    except SyntaxError as error:
        return Problem(source.shown, error.lineno or 0, f"does not parse: {_first_line(error.msg)}")
    except (RecursionError, MemoryError):
        return Problem(source.shown, 0, TOO_MUCH)
    except ValueError as error:
        return Problem(source.shown, 0, f"does not parse: {_first_line(str(error))}")
    return None


def _undecodable(encoding: str) -> str:
    if encoding in ("utf-8", "utf-8-sig"):
        return "is not UTF-8 and has no coding cookie that says otherwise"
    return f"is not {encoding}, whatever its coding cookie says"


def _cookie_problem(source: Source, reason: str) -> Problem:
    """`detect_encoding` raises one error for a bad cookie and for bad bytes in the first lines."""
    head = b"\n".join(unix_lines(source.data).split(b"\n", 2)[:2])
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem(source.shown, head.count(b"\n", 0, error.start) + 1, _undecodable("utf-8"))
    message = f"has a coding cookie that Python refuses: {_first_line(reason)}"
    return Problem(source.shown, 1, message)


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else "invalid syntax"
