"""One run of `migrate` or `check`: from a request to a report, then to views and files."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import click

from fsdp_migrate.discover import discover, discover_one
from fsdp_migrate.exit_codes import DONE, FINDINGS, USAGE
from fsdp_migrate.report import Report
from fsdp_migrate.settings import STDIN, Options, Settings
from fsdp_migrate.views import rendered, text
from fsdp_migrate.views.terminal import columns, say, with_progress, wrapped


@dataclass(frozen=True, kw_only=True)
class Request(Options):
    """The arguments of `migrate` and `check`; `only_checks` tells them apart.

    `stdin` is the program that `-` as path reads from standard input.
    """

    paths: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    output: str = "text"
    report: Path | None = None
    verified: Path | None = None
    diff: bool = False
    check: bool = False
    baseline: Path | None = None
    write_baseline: Path | None = None
    allow_dirty: bool = False
    mark: bool = False
    stdin: bytes | None = None
    stdin_filename: str = STDIN
    statistics: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def writes(self) -> bool:
        """Whether programs are rewritten: files in place, standard input to standard output."""
        return not (self.diff or self.check)


def run(request: Request, settings: Settings) -> int:
    """Carries out a run and returns the exit code."""
    _refuse_what_clashes(request)
    _known_codes(settings.select | settings.ignore, str(settings.root / "pyproject.toml"))
    _known_codes(request.select, "--select")
    _known_codes(request.ignore, "--ignore")
    select = request.select or settings.select
    ignore = request.ignore | settings.ignore
    report = _analyse(replace(request, select=select, ignore=ignore), settings)
    if request.verbose and not request.quiet:
        for line in text.render_run(report, settings.file):
            say(line, err=True)
    if request.write_baseline:
        return _begin(request.write_baseline, report)
    written = not request.writes or _write(request, report)
    if request.writes and request.stdin is not None and written:
        if report.changes:
            after = report.changes[0].after
        else:
            after = request.stdin
        click.echo(after, nl=False)
    _show(request, report, written)
    if request.report:
        _save(request, request.report, report)
    if report.errors:
        return USAGE
    if request.check and not report.is_done:
        return FINDINGS
    return DONE


def _refuse_what_clashes(request: Request) -> None:
    """Refuse options of which each wants standard output, or another input, for itself."""
    if request.output != "text":
        if request.diff:
            raise click.UsageError(
                f"--diff and --format {request.output} share standard output: use --report FILE"
            )
        if request.statistics:
            raise click.UsageError(
                f"--statistics counts in words: it takes no --format {request.output}"
            )
        if request.stdin is not None and request.writes:
            raise click.UsageError(
                f"- and --format {request.output} share standard output: use --report FILE"
            )
    if request.stdin is not None:
        if len(request.paths) > 1:
            raise click.UsageError("- is standard input: pass no other PATH with it")
        if request.vendor is not None:
            raise click.UsageError("- writes no files: --vendor needs the file itself")


def _known_codes(codes: frozenset[str], source: str) -> None:
    """Refuses a code that is not known: one with a slip would select nothing, in silence."""
    if codes:
        from fsdp_migrate.codemods.registry import all_rules, unknown

        for code in sorted(codes):
            if not any(rule.code.startswith(code) for rule in all_rules()):
                raise click.ClickException(f"{source}: {unknown(code)}")


def _analyse(request: Request, settings: Settings) -> Report:
    from fsdp_migrate.engine import analyse

    exclude = settings.exclude + request.exclude
    if request.stdin is None:
        found = discover([Path(path) for path in request.paths], exclude, settings.root)
    else:
        name = Path(request.stdin_filename)
        found = discover_one(name, request.stdin, exclude, settings.root)
    report = analyse(found, request, with_progress)
    if request.mark:
        from fsdp_migrate.marks import mark

        report.marked = mark(report, found, request)
    if report.programs and request.stdin is None:
        from fsdp_migrate.requirements.check import add_requirements

        add_requirements(report, found, request)
    if request.baseline and not request.write_baseline:
        from fsdp_migrate.baseline import pass_known

        pass_known(request.baseline, report)
    return report


def _write(request: Request, report: Report) -> bool:
    """Writes all changes, or none and the report says why."""
    if request.stdin is not None:
        return not report.errors
    if not report.changes:
        return True
    from fsdp_migrate.write import dirty_problems, write_changes

    if request.allow_dirty:
        problems = []
    else:
        problems = dirty_problems(report.changes)
    problems = problems or write_changes(report.changes)
    report.errors.extend(problems)
    report.wrote = not problems
    return report.wrote


def _show(request: Request, report: Report, written: bool) -> None:
    if request.quiet:
        passed = []
    else:
        passed = text.render_passed(report.passed)
    for line in (*text.render_problems(report.errors), *passed):
        say(line, err=True)
    if not written and request.stdin is None:
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
    # Where standard output holds a patch or a program, the words go elsewhere.
    is_taken = request.diff or (request.writes and request.stdin is not None)
    width = columns(err=is_taken)
    lines: list[str] = []
    if request.diff and report.changes and not request.quiet:
        lines.append("")  # between the diff and what is said of it
    if request.writes and written and request.stdin is None and not request.quiet:
        lines += text.render_changes(report)
    if request.statistics:
        lines += text.render_statistics(report)
    else:
        lines += _findings(request, report, width)
    if written and not request.quiet:
        lines.append(wrapped(text.summary(report), width))
        form = request.form
        if request.stdin is None:
            rewrites = request.only_checks or bool(report.changes)
            steps = text.next_steps(
                report, request.paths, form, is_list=request.check, rewrites=rewrites
            )
        else:
            steps = []
        lines += [_step(what, command, width) for what, command in steps]
    for line in lines:
        say(line, err=is_taken)


def _step(what: str, command: str, width: int) -> str:
    """What to do next; a command that does not fit behind it is below it, in one piece."""
    line = f"Next: {what}: `{command}`"
    if width and len(line) > width:
        return f"Next: {what}:\n    `{command}`"
    return line


def _findings(request: Request, report: Report, width: int) -> list[str]:
    """Those that were asked for: with `-v` or `-q` each on a line of its own, else each message once."""
    if request.verbose and not request.quiet:
        return text.render_findings(report.findings, width)
    shown = report.manual
    if request.check:
        shown = text.without_references(report.findings) or report.findings
    if request.quiet:
        return text.render_findings(shown, width)
    lines = text.render_grouped(shown, width)
    hidden = len(report.findings) - len(shown)
    if request.check and hidden:
        if lines:
            lines.append("")
        lines.append(f"-v also lists {text.counted(hidden, 'import')} and references.")
    return lines


def _begin(baseline: Path, report: Report) -> int:
    """Writes a baseline of what is found."""
    for line in text.render_problems(report.errors):
        say(line, err=True)
    from fsdp_migrate.baseline import write_baseline

    write_baseline(baseline, report)
    say(f"{len(report.findings)} findings are in the baseline {baseline}.")
    if report.errors:
        return USAGE
    return DONE


def _result(file: Path) -> dict[str, object]:
    """A result that `verify --json` has written."""
    try:
        result = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file}: cannot be read: {error}") from None
    if not isinstance(result, dict) or not {"equal", "line"} <= result.keys():
        raise click.ClickException(f"{file}: is no result of `fsdp-migrate verify --json`")
    return result


def _save(request: Request, file: Path, report: Report) -> None:
    kinds = {".html": "html", ".md": "markdown", ".sarif": "sarif", ".xml": "junit"}
    kind = kinds.get(file.suffix.lower(), "json")
    steps = text.next_steps(report, request.paths, request.form)
    verified = None
    if request.verified:
        verified = _result(request.verified)
    content = rendered(report, kind, steps, verified)
    try:
        file.write_text(content + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise click.ClickException(
            f"{file}: the report cannot be written: {error.strerror}"
        ) from None
