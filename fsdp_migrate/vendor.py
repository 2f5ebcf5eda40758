"""The runtime copied into a project (`--vendor DIR`), for programs that run where fsdp-migrate is not installed.

Which copy a program imports, its source knows.
"""

from collections.abc import Iterable
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
    roots = _roots(files)
    more = _roots(others)
    above = [p for p in folder.parents if p in roots]
    above = above or [p for p in folder.parents if p in more][:1]
    if roots and not above:
        places = ", ".join(sorted(map(str, roots)))
        raise Unusable(
            f"--vendor {folder}: no program of this run could import it; choose one in {places}, or name its package as well"
        )
    if above:
        parts = folder.relative_to(above[-1]).parts
    else:
        parts = (folder.name,)
    if not all(part.isidentifier() for part in parts):
        raise Unusable(f"--vendor {folder}: {'.'.join(parts)} is no name that can be imported")
    if folder.exists() and not is_copy(folder) and (folder.is_file() or any(folder.iterdir())):
        raise Unusable(f"--vendor {folder}: exists, but is not a copy of fsdp_migrate.runtime")
    return Package(".".join(parts), folder)


def _roots(files: Iterable[Path]) -> set[Path]:
    """The folders that files are imported from."""
    return {next(p for p in file.parents if not (p / "__init__.py").exists()) for file in files}


def copies(folder: Path) -> list[Change]:
    """What makes a folder a copy of the installed runtime, or brings one up to date."""
    source = runtime_folder()
    contents = {file.name: file.read_text("utf-8") for file in sorted(source.glob("*.py"))}
    contents = {name: _HEADER % name + text for name, text in contents.items()}
    contents["LICENSE"] = _licence(source)
    files = {folder / name: text.encode() for name, text in contents.items()}
    changes = []
    for file, after in files.items():
        before = b""
        if file.exists():
            before = file.read_bytes()
        if after != before:
            changes.append(Change(file, before, after))
    return changes


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
