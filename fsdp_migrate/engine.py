"""One run: files are read, analysed together, and every construct gets its finding and its edits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.discover import Discovered, mentions_fsdp
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source, parse_problem, read_source

if TYPE_CHECKING:
    from fsdp_migrate.index.module import Module

Progress = Callable[[int, int, str], None]


def analyse(
    files: Discovered | Sequence[Path],
    options: Options | None = None,
    progress: Progress | None = None,
) -> Report:
    """Analyses files together and says what becomes of every FSDP1 construct in them.

    Nothing is written. A file that cannot be read or parsed is an error of the report, and the others go on.
    """
    started = time.perf_counter()
    paths = files.files if isinstance(files, Discovered) else list(files)
    report = Report(files=len(paths))
    if isinstance(files, Discovered):
        report.errors += files.problems
    sources: list[Source] = []
    for path in paths:
        source = read_source(path)
        if isinstance(source, Source):
            sources.append(source)
        elif _concerns_fsdp(path):
            report.errors.append(source)
    _analyse(sources, options or Options(), report, progress)
    report.seconds = time.perf_counter() - started
    return report


def analyse_source(source: Source, options: Options | None = None) -> Report:
    """Analyses one source on its own, such as standard input."""
    started = time.perf_counter()
    report = Report(files=1)
    _analyse([source], options or Options(), report, None)
    report.seconds = time.perf_counter() - started
    return report


def _analyse(
    sources: Sequence[Source], options: Options, report: Report, progress: Progress | None
) -> None:
    candidates = [source for source in sources if mentions_fsdp(source.data)]
    report.candidates = len(candidates)
    if candidates:
        # Nothing below is imported for a project without FSDP: LibCST alone takes longer to load than such a run.
        from fsdp_migrate.migration import migrate

        migrate(dict(_modules(sources, report, progress)), options, report)
    report.findings.sort()
    report.errors.sort()


def _modules(
    sources: Sequence[Source], report: Report, progress: Progress | None
) -> Iterator[tuple[Module, Source]]:
    """The parsed files, those that do not mention FSDP as well: models and values may pass through them."""
    from fsdp_migrate.index.module import Module

    for done, source in enumerate(sources):
        if progress is not None:
            progress(done, len(sources), source.shown)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the user's strings
                name = module_name(source.path)
                yield Module(source.path, source.shown, name, source.text), source
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            problem = parse_problem(source)
            if problem is not None and mentions_fsdp(source.data):
                report.errors.append(problem)
    if progress is not None:
        progress(len(sources), len(sources), "")


def _concerns_fsdp(path: Path) -> bool:
    """Whether a file that cannot be read as Python could have held FSDP1: others are nobody's concern here."""
    try:
        return mentions_fsdp(path.read_bytes())
    except OSError:
        return True


def module_name(path: Path) -> str:
    """The dotted form of a file's whole path. Imports are resolved by its end, from the nearest possible root."""
    absolute = path.absolute()
    parts = (
        absolute.parts[1:-1]
        if absolute.name == "__init__.py"
        else absolute.with_suffix("").parts[1:]
    )
    return ".".join(parts)
