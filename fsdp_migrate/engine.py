"""One run: files are read, each is analysed, and every FSDP1 construct gets its finding and its edits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.discover import Discovered, mentions_fsdp, takes_parameters, uses_accelerate
from fsdp_migrate.findings import Action, Problem
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options
from fsdp_migrate.source import (
    CONFIGURATIONS,
    MARK,
    TOO_MUCH,
    Folders,
    Source,
    is_test,
    parse_problem,
    read_source,
    shown_path,
    source_from_bytes,
)
from fsdp_migrate.vendor import copies, package_at

if TYPE_CHECKING:
    from fsdp_migrate.facts.file import File
    from fsdp_migrate.migration import Outcome

Watch = Callable[[Sequence[Any]], Iterable[Any]]


def analyse(
    files: Discovered | Sequence[Path], options: Options | None = None, watch: Watch = iter
) -> Report:
    """Analyses files together and reports every FSDP1 construct in them, and as errors what cannot be read or parsed.

    `watch` gives out the files that mention FSDP, one after the other, and may tell how far that is.
    """
    started = time.perf_counter()
    if isinstance(files, Discovered):
        found = files
    else:
        found = Discovered(list(files))
    options = options or Options()
    folders = Folders()
    paths = found.files
    report = Report(files=len(paths), errors=list(found.problems), passed=list(found.passed))
    sources: list[Source] = []
    around: list[Path] = []
    data: dict[str, bytes] = {}
    for path in paths:
        content = found.contents.get(path)
        source = _source_if_concerned(path, around, data, folders, content)
        if isinstance(source, Source):
            sources.append(source)
        elif source is not None:
            report.errors.append(source)
    if sources:
        for path in around:
            source = source_from_bytes(path, shown_path(path), data[str(path)], folders)
            if isinstance(source, Source):
                sources += [source]
        sources.sort(key=lambda source: source.path)
        if options.vendor is not None:
            own = [source.path for source in sources if source.ending not in CONFIGURATIONS]
            package = package_at(options.vendor, own, [p for p in paths if p.suffix == ".py"])
            sources = [replace(source, runtime=package) for source in sources]
        paths = [p for p in (*paths, *found.others()) if p.suffix not in CONFIGURATIONS]
        paths = [p for p in paths if not folders.is_copy(p.parent)]
    _analyse(sources, paths, data, options, report, watch, partial(parse_file, folders=folders))
    report.seconds = time.perf_counter() - started
    return report


def analyse_source(source: Source, options: Options | None = None) -> Report:
    """Analyses one source on its own, of whose imports nothing is known."""
    started = time.perf_counter()
    report = Report(files=1)
    if mentions_fsdp(source.data, source.path.name):
        sources = [source]
    else:
        sources = []
    _analyse(sources, (), {}, options or Options(), report)
    report.seconds = time.perf_counter() - started
    return report


def _source_if_concerned(
    path: Path,
    around: list[Path],
    known: dict[str, bytes],
    folders: Folders,
    content: bytes | None = None,
) -> Source | Problem | None:
    """A file that mentions FSDP, or why it cannot be used; None for any other: it goes to `around` if it may be concerned."""
    data = content
    if data is None:
        try:
            with open(path, "rb") as stream:
                data = stream.read()
        except OSError:
            return read_source(path)
    if data.startswith(MARK.encode()):
        return None
    if path.suffix not in CONFIGURATIONS:
        known[str(path)] = data
    if not mentions_fsdp(data, path.name):
        takes = path.suffix == ".py" and takes_parameters(data)
        if (takes or uses_accelerate(data, path.name)) and not is_test(str(path)):
            around.append(path)
        return None
    return source_from_bytes(path, shown_path(path), data, folders)


def _analyse(
    sources: Sequence[Source],
    paths: Sequence[Path],
    data: dict[str, bytes],
    options: Options,
    report: Report,
    watch: Watch = iter,
    read: Callable[[Path], File | None] | None = None,
) -> None:
    report.candidates = len(sources)
    report.form = options.form
    report.target = options.target_torch
    if sources:
        # Nothing below is imported for a project without FSDP.
        from fsdp_migrate.facts.program import Program
        from fsdp_migrate.migration import migrate

        settings = [source for source in sources if source.ending in CONFIGURATIONS]
        sources = [source for source in sources if source.ending not in CONFIGURATIONS]
        files = list(_files(sources, report))
        configured = _configurations(settings, options, [*data, *paths])
        is_set = any(outcome.sets_fsdp for outcome in configured)

        for _, source in files:
            report.findings += [each for each in source.apart if options.takes(each.code)]
        data |= {str(source.path): source.data for source in sources}
        parsed = [file for file, _ in files]
        goes_on = options.form == "torch"
        is_too_old = any(outcome.is_too_old for outcome in configured)
        rewritten = [each.action for outcome in configured for each in outcome.findings]
        program = Program(
            parsed,
            paths,
            read or parse_file,
            is_set,
            data,
            goes_on,
            is_too_old,
            is_raised=Action.REWRITE in rewritten,
        )

        def work(each: tuple[File, Source]) -> Outcome:
            return migrate(*each, program, options)

        if options.jobs > 1:
            from fsdp_migrate.jobs import in_processes

            outcomes = in_processes(work, files, options.jobs)
        else:
            outcomes = [work(each) for each in watch(files)]
        _collect([*outcomes, *configured], options, report)
        _note_programs([source for _, source in files], outcomes, report)
        if not options.only_checks:
            _vendor([source for _, source in files], outcomes, report)
    report.findings.sort()
    report.errors.sort()
    report.passed.sort()


def _configurations(
    sources: Sequence[Source], options: Options, files: Iterable[Path | str]
) -> list[Outcome]:
    if not sources:
        return []
    from fsdp_migrate.configuration_file import migrate_file
    from fsdp_migrate.pins import Pins

    pins = Pins([*files, *[source.path for source in sources]])
    return [migrate_file(source, options, pins) for source in sources]


def _collect(outcomes: Sequence[Outcome], options: Options, report: Report) -> None:
    """Adds what was decided to the report; a check leaves out what is migrated already, unless that is asked for."""
    report.on_bridge = not any(
        outcome.of_torch or _is_rewritten_again(outcome, options) for outcome in outcomes
    )
    for outcome in outcomes:
        # A file that names no FSDP1 itself works on models that other files make.
        if outcome.of_torch is None:
            listed = not report.on_bridge
        else:
            listed = outcome.of_torch
        listed = listed or _is_rewritten_again(outcome, options)
        listed = listed or options.bridge or not options.only_checks
        report.findings += [
            finding for finding in outcome.findings if listed or finding.action is Action.MANUAL
        ]
        report.errors += outcome.errors
        report.passed += outcome.passed
        if outcome.change is not None:
            report.changes.append(outcome.change)


def _is_rewritten_again(outcome: Outcome, options: Options) -> bool:
    """Whether the form torch rewrites what an earlier run wrote in another form."""
    rewrites = Action.REWRITE in [finding.action for finding in outcome.findings]
    return options.form == "torch" and rewrites


def _note_programs(sources: Iterable[Source], outcomes: Iterable[Outcome], report: Report) -> None:
    """Notes which files use torch's FSDP1, and whether one of them imports the runtime from where it is installed."""
    for source, outcome in zip(sources, outcomes, strict=True):
        if outcome.of_torch:
            report.programs.append(source.path)
            is_installed = (source.runtime or source.package).folder is None
            report.imports_runtime |= outcome.imports_runtime and is_installed


def _vendor(sources: Iterable[Source], outcomes: Iterable[Outcome], report: Report) -> None:
    """Brings the copies of the runtime up to date that the files import."""
    for source, outcome in zip(sources, outcomes, strict=True):
        folder = (source.runtime or source.package).folder
        if folder and folder not in report.vendored and "fsdp_migrate" in outcome.after:
            report.vendored.append(folder)
            report.changes += copies(folder)


def _files(sources: Sequence[Source], report: Report) -> Iterator[tuple[File, Source]]:
    for source in sources:
        file = _file(source)
        report.errors += source.problems
        if file is not None:
            yield file, source
        else:
            report.errors.append(parse_problem(source) or Problem(source.shown, 0, TOO_MUCH))


def parse_file(path: Path, folders: Folders | None = None) -> File | None:
    """A file that a name leads into; None if it cannot be read or parsed."""
    source = read_source(path, folders)
    if isinstance(source, Source):
        return _file(source)
    return None


def _file(source: Source) -> File | None:
    from fsdp_migrate.facts.file import File

    try:
        return File(source.path, source.shown, source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
