"""One run of `migrate` or `check`: from a request to a report, then to views and files."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from fsdp_migrate.discover import discover
from fsdp_migrate.exit_codes import DONE, FINDINGS, USAGE
from fsdp_migrate.report import Report
from fsdp_migrate.settings import Options, Settings, load_settings
from fsdp_migrate.views import rendered, text
from fsdp_migrate.views.terminal import say, with_progress


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """The arguments of `migrate` and `check`; `only_checks` tells them apart."""

    paths: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    output: str = "text"
    report: Path | None = None
    diff: bool = False
    check: bool = False
    baseline: Path | None = None
    write_baseline: Path | None = None
    allow_dirty: bool = False

    @property
    def writes(self) -> bool:
        """Whether files are rewritten in place."""
        return not (self.diff or self.check)


def run(request: Request) -> int:
    """Carries out a run and returns the exit code."""
    if request.diff and request.output != "text":
        raise click.UsageError(
            f"--diff and --format {request.output} share standard output: use --report FILE"
        )
    paths = [Path(path) for path in request.paths]
    settings = load_settings(paths)
    _known_codes(settings.select | settings.ignore, str(settings.root / "pyproject.toml"))
    _known_codes(request.select, "--select")
    _known_codes(request.ignore, "--ignore")
    select, ignore = request.select or settings.select, request.ignore | settings.ignore
    report = _analyse(replace(request, select=select, ignore=ignore), paths, settings)
    if request.write_baseline:
        return _begin(request.write_baseline, report)
    written = not request.writes or _write(request, report)
    _show(request, report, written)
    if request.report:
        _save(request, request.report, report)
    if report.errors:
        return USAGE
    return FINDINGS if request.check and not report.is_done else DONE


def _known_codes(codes: frozenset[str], source: str) -> None:
    """Refuses a code that is not known: one with a slip would select nothing, in silence."""
    if codes:
        from fsdp_migrate.codemods.registry import rule_for, unknown

        for code in sorted(codes):
            if rule_for(code) is None:
                raise click.ClickException(f"{source}: {unknown(code)}")


def _analyse(request: Request, paths: list[Path], settings: Settings) -> Report:
    from fsdp_migrate.engine import analyse

    found = discover(paths, settings.exclude + request.exclude, settings.root)
    report = analyse(found, request, with_progress)
    baseline = request.baseline or settings.baseline
    if request.only_checks and baseline and not request.write_baseline:
        from fsdp_migrate.baseline import pass_known

        pass_known(baseline, report)
    return report


def _write(request: Request, report: Report) -> bool:
    """Writes all changes, or none and the report says why."""
    if not report.changes:
        return True
    from fsdp_migrate.write import dirty_problems, write_changes

    problems = [] if request.allow_dirty else dirty_problems(report.changes)
    problems = problems or write_changes(report.changes)
    report.errors.extend(problems)
    report.wrote = not problems
    return report.wrote


def _show(request: Request, report: Report, written: bool) -> None:
    for line in (*text.render_problems(report.errors), *text.render_passed(report.passed)):
        say(line, err=True)
    if not written:
        say("Nothing was written: the files of a program are migrated together.", err=True)
    if request.output != "text":
        say(rendered(report, request.output))
        return
    if request.diff:
        from fsdp_migrate.views.diff import render_diff

        click.echo(render_diff(report.changes), nl=False)
    _say(request, report, written)


def _say(request: Request, report: Report, written: bool) -> None:
    """The report in words: what was rewritten, the findings, the sum of them, and what to do next."""
    lines = text.render_changes(report) if request.writes and written else []
    findings = report.findings if request.check else report.manual
    lines += text.render_findings(findings)
    if written:
        lines.append(text.summary(report))
        steps = text.next_steps(report, request.paths, request.form)
        lines += (f"Next: {what}: `{command}`" for what, command in steps)
    for line in lines:
        say(line, err=request.diff)  # where standard output holds a patch, the words go elsewhere


def _begin(baseline: Path, report: Report) -> int:
    """Writes a baseline of what is found."""
    for line in text.render_problems(report.errors):
        say(line, err=True)
    from fsdp_migrate.baseline import write_baseline

    write_baseline(baseline, report)
    say(f"{len(report.findings)} findings are in the baseline {baseline}.")
    return USAGE if report.errors else DONE


def _save(request: Request, file: Path, report: Report) -> None:
    kinds = {".html": "html", ".md": "markdown", ".sarif": "sarif"}
    kind = kinds.get(file.suffix.lower(), "json")
    content = rendered(report, kind, text.next_steps(report, request.paths, request.form))
    try:
        file.write_text(content + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise click.ClickException(
            f"{file}: the report cannot be written: {error.strerror}"
        ) from None
