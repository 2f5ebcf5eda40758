"""`fsdp-migrate verify`."""

import json
import time
from pathlib import Path
from typing import IO, Any

import click

from fsdp_migrate.configured import Configured
from fsdp_migrate.settings import FORMS
from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.main import verify
from fsdp_migrate.verify.nodes import Nodes
from fsdp_migrate.verify.options import TIMEOUT, Progress
from fsdp_migrate.verify.page import render
from fsdp_migrate.verify.processes import Interrupted, interruptible
from fsdp_migrate.verify.show import markdown, markdown_of_failure, say_next, show
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.views.terminal import columns, is_terminal, say, wrapped

_PROGRAM = click.Path(exists=True, path_type=Path)
_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
# Opened before the programs run: a path that cannot be written is said at once.
_FILE = click.File("w", encoding="utf-8", lazy=False)


@click.command(
    "verify",
    cls=Configured,
    short_help="Run a program before and after its migration, and compare.",
)
@click.option(
    "--migrated",
    type=_PROGRAM,
    help="The program after its migration. Without it, the tool migrates a temporary copy.",
)
@click.option(
    "--form",
    type=click.Choice([*FORMS]),
    default="auto",
    help="How the copy is migrated: the --form of `fsdp-migrate`.",
)
@click.argument("script", type=_PROGRAM)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--entry", type=_PATH, help="The script to run, if SCRIPT is the folder of a repository."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    type=_PATH,
    help="A path that the program only reads, such as data/. It is linked into the copies, and not copied.",
)
@click.option("--nproc", "ranks", type=click.IntRange(min=1), default=2, help="Ranks.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="auto: CUDA if there is a device for each rank, else the CPU.",
)
@click.option(
    "--launcher",
    type=click.Choice(["auto", "torchrun", "python"]),
    default="auto",
    help="auto: python if the script starts its own processes, else torchrun.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=TIMEOUT,
    help="The time limit of each run, in seconds.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help="The largest relative difference of losses and gradient norms; 0 requires equal bits.  "
    "[default: 1e-6, or one unit of the loss's dtype]",
)
@click.option(
    "--canonical/--no-canonical",
    default=None,
    help="Compute sums over ranks and norms in a fixed order, in fp64, in both programs.  [default: on the CPU]",
)
@click.option(
    "--align-init",
    is_flag=True,
    help="Start the migrated program with the initial values of the original.",
)
@click.option(
    "--emulate/--no-emulate",
    default=None,
    help="Run CUDA code on the CPU.  [default: on if the machine has no GPU and the program uses CUDA without checking for it]",
)
@click.option(
    "--repeat/--no-repeat",
    default=None,
    help="Run the original twice, to see whether it is deterministic.  [default: on if the programs differ]",
)
@click.option(
    "--where/--no-where",
    default=None,
    help="Run both once more, to find the lines at which they differ.  [default: on if the programs differ]",
)
@click.option("--quick", is_flag=True, help="Stop at the first difference.")
@click.option(
    "--side-by-side/--one-by-one",
    default=None,
    help="Run both programs at once.  [default: on if there are enough CPU cores and memory for both]",
)
@click.option("--nnodes", type=click.IntRange(min=1), default=1, help="Nodes.")
@click.option("--node-rank", type=click.IntRange(min=0), help="This node's number, from 0.")
@click.option("--rdzv-endpoint", help="host:port of the rendezvous, as for torchrun.")
@click.option("--rdzv-id", default="verify", help="A name for this run.")
@click.option("--records", type=_FOLDER, help="A folder that all nodes share, for their records.")
@click.option(
    "--json",
    "json_file",
    type=_FILE,
    help="Write the result to this file; - for standard output, and nothing else there.",
)
@click.option(
    "--report",
    type=_FILE,
    help="Write an HTML page with the curves, the figures and the diff to this file.",
)
@click.option(
    "--summary",
    type=click.File("a", encoding="utf-8", lazy=False),
    help="Append the result as Markdown to this file, as to $GITHUB_STEP_SUMMARY.",
)
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also show what is never compared, the arithmetic, all lines that differ, and each call of `like_fsdp1` without the "
    "switches that had no effect.",
)
@click.pass_context
def verify_command(
    context: click.Context,
    /,
    script: Path,
    migrated: Path | None,
    nnodes: int,
    node_rank: int | None,
    rdzv_endpoint: str | None,
    rdzv_id: str,
    records: Path | None,
    json_file: IO[str] | None,
    report: IO[str] | None,
    summary: IO[str] | None,
    verbose: bool,
    **options: Any,
) -> None:
    """Run SCRIPT before and after its migration and compare every loss and gradient norm.

    SCRIPT is a file, or the folder of a repository together with --entry. Both programs run on
    temporary copies, unedited; ARGUMENTS after -- are theirs. Exits with 0 if they train the same,
    1 if they differ, 2 for wrong usage or if nothing is proved, 3 if one of them fails, 130 or 143 if
    it is interrupted.
    """
    name = (options["entry"] or script).name
    nodes = None
    if nnodes > 1:
        if node_rank is None or rdzv_endpoint is None or records is None:
            raise Unverifiable("--nnodes needs --node-rank, --rdzv-endpoint and --records")
        nodes = Nodes(nnodes, node_rank, rdzv_endpoint, rdzv_id, records)
    progress = _Progress()
    try:
        with interruptible():
            verdict = verify(script, migrated, nodes=nodes, progress=progress, **options)
    except Interrupted as interrupt:
        progress.leave_line()
        say(f"fsdp-migrate verify: {interrupt}; nothing is left running", err=True)
        context.exit(interrupt.status)
    except ProgramFailed as failure:
        progress.leave_line()
        say("\n".join([failure.details, *failure.before]), err=True)
        message = wrapped(f"fsdp-migrate verify: {failure}", columns(err=True))
        say(message, err=True, fg="red", bold=True)
        say_next(failure.next)
        if summary is not None:
            summary.write(markdown_of_failure(failure, name))
        context.exit(3)
    if verdict.equal:
        code = 0
    else:
        code = 1
    if nodes is not None and nodes.number > 0:
        # All nodes know the result; the first one reports it.
        say(f"node {nodes.number}: {verdict.line()}", err=True)
        context.exit(code)
    page = _write(verdict, name, json_file, report, summary)
    on_stdout = any(file and file.name == "<stdout>" for file in (json_file, report))
    show(verdict, err=on_stdout, verbose=verbose, page=page)
    context.exit(code)


def _write(
    verdict: Verdict,
    name: str,
    json_file: IO[str] | None,
    report: IO[str] | None,
    summary: IO[str] | None,
) -> Path | None:
    """Write the reports that were asked for; returns where the page is."""
    if json_file is not None:
        json_file.write(f"{json.dumps(verdict.to_json(), indent=2, allow_nan=False)}\n")
    if summary is not None:
        summary.write(markdown(verdict, name))
    if report is None:
        return None
    report.write(render(verdict, name))
    report.flush()
    if report.name == "<stdout>":
        return None
    return Path(report.name)


class _Progress(Progress):
    """A line for each stage, and on a terminal one that says how far it is."""

    def __init__(self) -> None:
        self._terminal = is_terminal()
        self._begun = time.monotonic()
        self._is_on_line = False

    def leave_line(self) -> None:
        """What is printed next begins on a line of its own: the terminal may have written ^C to this one."""
        if self._is_on_line:
            click.echo(err=True)
            self._is_on_line = False

    def stage(self, text: str) -> None:
        self._clear()
        say(text, err=True, dim=True)

    def now(self, text: str) -> None:
        if self._terminal:
            self._clear()
            seconds = f"{time.monotonic() - self._begun:.0f} s"
            click.echo(f"{text or 'starting'}, {seconds}", nl=False, err=True)
            self._is_on_line = True

    def _clear(self) -> None:
        if self._terminal:
            click.echo(b"\r\x1b[K", nl=False, err=True)
            self._is_on_line = False
