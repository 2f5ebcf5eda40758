"""The runtime copied into a project (`--vendor DIR`), for programs that run where fsdp-migrate is not installed.

Which copy a program imports, its source knows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.facts.names import RUNTIME
from fsdp_migrate.report import Change
from fsdp_migrate.source import MARK, Package, is_copy
from fsdp_migrate.version import __version__

_HEADER = (
    f"{MARK} {__version__}: a copy of its module runtime/%s, licence in LICENSE.\n"
    "# Do not edit: `fsdp-migrate PATH --vendor DIR` brings it up to date.\n"
)


def package_at(folder: Path, files: Iterable[Path], others: Iterable[Path] = ()) -> Package:
    """The package that a folder is to files with FSDP; raises Unusable where it cannot be one.

    It is named from the outermost folder above it that one of these files is imported from: a script's own, or the one
    around a package. Else one of the `others` of the run tells that its package is installed.
    """
    roots, more = _roots(files), _roots(others)
    above = [p for p in folder.parents if p in roots]
    above = above or [p for p in folder.parents if p in more][:1]
    if roots and not above:
        places = ", ".join(sorted(map(str, roots)))
        inside = [p for p in folder.parents if (p / "__init__.py").exists()]
        too = f", or name its package as well: {inside[-1]}" if inside else ""
        raise Unusable(
            f"--vendor {folder}: no program of this run could import it; choose one in {places}{too}"
        )
    parts = folder.relative_to(above[-1]).parts if above else (folder.name,)
    if not all(part.isidentifier() for part in parts):
        raise Unusable(f"--vendor {folder}: {'.'.join(parts)} is no name that can be imported")
    if folder.exists() and not is_copy(folder) and (folder.is_file() or any(folder.iterdir())):
        raise Unusable(
            f"--vendor {folder}: exists and holds something else than a copy of the runtime"
        )
    return Package(".".join(parts), folder)


def _roots(files: Iterable[Path]) -> set[Path]:
    """The folders that files are imported from."""
    return {next(p for p in file.parents if not (p / "__init__.py").exists()) for file in files}


def copies(folder: Path, programs: Iterable[str]) -> list[Change]:
    """What brings a copy up to date: the modules that the programs use, as texts, and those that it has already."""
    source = runtime_folder()
    homes = _homes(source)
    wanted = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    for text in programs:
        names = set(_names(text))
        wanted |= {homes.get(name, name) for name in (homes if "*" in names else names)}
    needed = _closure(source, {name for name in wanted if (source / f"{name}.py").is_file()})
    if not needed:
        return []
    files = {f"{name}.py": (source / f"{name}.py").read_text("utf-8") for name in sorted(needed)}
    files["__init__.py"] = _entrance((source / "__init__.py").read_text("utf-8"), needed)
    contents = {name: _HEADER % name + text for name, text in files.items()}
    contents["LICENSE"] = _licence(source)
    return [change for name, text in contents.items() if (change := _change(folder / name, text))]


def _change(path: Path, text: str) -> Change | None:
    before = path.read_bytes() if path.exists() else b""
    after = text.encode()
    return Change(path, before, after) if before != after else None


def runtime_folder() -> Path:
    """Where the installed runtime is; it is looked up, not imported, since it needs torch."""
    from importlib import util

    spec = util.find_spec(RUNTIME)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).resolve().parent


def _licence(source: Path) -> str:
    checkout = source.parent / "LICENSE"
    if checkout.is_file():
        return checkout.read_text("utf-8")
    from importlib import metadata

    text = metadata.distribution("fsdp-migrate").read_text("licenses/LICENSE")
    assert text, "the wheel holds the licence"
    return text


def _names(text: str) -> Iterator[str]:
    """The names that a program takes of the runtime, its modules among them; `*` for all."""
    from fsdp_migrate.facts.file import parsed

    nodes = list(ast.walk(parsed(text)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(RUNTIME):
            yield from (alias.name for alias in node.names)
    for path in re.findall(rf"\b{re.escape(RUNTIME)}((?:\.\w+)+)", text):
        yield from path.split(".")
    if re.search(
        r"\bfrom fsdp_migrate import runtime\b|\bfsdp_migrate\.runtime(\.\w+)*\s+as\b", text
    ):
        yield from (node.attr for node in nodes if isinstance(node, ast.Attribute))


def _homes(source: Path) -> dict[str, str]:
    """The runtime's public names, and the module that each is from."""
    tree = ast.parse((source / "__init__.py").read_text("utf-8"))
    return {
        alias.name: node.module or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }


def _closure(source: Path, modules: set[str]) -> set[str]:
    """Modules, and those that they import, inside functions too."""
    pending, found = list(modules), set(modules)
    while pending:
        tree = ast.parse((source / f"{pending.pop()}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                new = {node.module} if node.module else {alias.name for alias in node.names}
                pending += new - found
                found |= new
    return found


def _entrance(text: str, modules: set[str]) -> str:
    """The runtime's `__init__.py` with the names of some of its modules."""
    lines, tree = text.splitlines(keepends=True), ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level]
    kept = {a.name for node in imports for a in node.names if (node.module or a.name) in modules}
    for node in reversed(tree.body):
        where = slice(node.lineno - 1, node.end_lineno)
        if isinstance(node, ast.Assign):
            public = [f'    "{name}",\n' for name in ast.literal_eval(node.value) if name in kept]
            lines[where] = ["__all__ = [\n", *public, "]\n"]
        elif isinstance(node, ast.ImportFrom) and node.level:
            names = [alias.name for alias in node.names if alias.name in kept]
            if not names:
                lines[where] = []
            elif not node.module:
                lines[where] = [f"from . import {', '.join(names)}\n"]
    return "".join(lines)
