"""`fsdp-migrate checkpoint`. torch is imported only when there is a checkpoint to read."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import click

from fsdp_migrate.exit_codes import DONE, FINDINGS, USAGE
from fsdp_migrate.findings import Problem
from fsdp_migrate.source import shown_path
from fsdp_migrate.version import __version__
from fsdp_migrate.views.terminal import printable, say
from fsdp_migrate.views.text import counted, render_problems

VERSION = 1
"""Of the JSON: raised when a field changes its meaning or is removed."""

_PATH = click.Path(path_type=Path)


@click.group("checkpoint", short_help="Inspect checkpoints, and convert them for FSDP2.")
def checkpoint_command() -> None:
    """Inspect checkpoints, and convert them for FSDP2. No GPU and no process group is needed."""


@checkpoint_command.command(
    "inspect", short_help="Show what a checkpoint is, and whether FSDP2 loads it as it is."
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=_PATH)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.pass_context
def inspect_command(context: click.Context, paths: tuple[Path, ...], form: str) -> None:
    """Say of each PATH what it is and whether an FSDP2 program can load it as it is.

    PATH is a file, a DCP folder, or a folder with the files of all ranks. Nothing but the index of a
    file is read. Exits with 0 if all load as they are, 1 if one needs a conversion, 2 if one cannot be read.
    """
    _need_torch()
    from fsdp_migrate.checkpoint.errors import Unreadable
    from fsdp_migrate.checkpoint.show import document, lines
    from fsdp_migrate.checkpoint.sources import open_checkpoint

    found: list[dict[str, Any]] = []
    errors = []
    for path in paths:
        try:
            found.append(document(open_checkpoint(path), shown_path(path)))
        except Unreadable as error:
            errors.append({"path": shown_path(error.path or path), "message": str(error)})
            _complain(**errors[-1])
            continue
        if form == "text":
            say("\n".join(lines(found[-1])))
    if form == "json":
        top = {"version": VERSION, "tool": f"fsdp-migrate {__version__}"}
        say(json.dumps(top | {"checkpoints": found, "errors": errors}, indent=2))
    if errors:
        context.exit(USAGE)
    if not all(checkpoint["loads"] for checkpoint in found):
        context.exit(FINDINGS)
    context.exit(DONE)


@checkpoint_command.command(
    "convert", short_help="Convert a checkpoint to a form that FSDP2 loads."
)
@click.argument("source", metavar="SRC", type=_PATH)
@click.argument("target", metavar="DST", type=_PATH)
@click.option(
    "--to",
    type=click.Choice(["dcp", "full"]),
    help="dcp: a folder that any number of ranks loads; full: one file of whole tensors.  "
    "[default: full if DST ends in .pt, .pth, .bin or .ckpt, else dcp]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="KEY",
    help="Take this entry of the checkpoint only, as `model`; may be given several times.",
)
@click.option(
    "--names-from",
    metavar="PATH",
    type=_PATH,
    help="The model's checkpoint: SRC is its optimizer.state_dict(), whole or the files of all ranks.",
)
@click.pass_context
def convert_command(context: click.Context, /, source: Path, target: Path, **wish: Any) -> None:
    """Write SRC to DST in a form that FSDP2 loads.

    One tensor is in memory at a time. DST appears only when it is whole. Exits with 0 if it is written, 1 if SRC
    cannot be converted, 2 if it cannot be read or DST cannot be written.
    """
    _need_torch()
    from fsdp_migrate.checkpoint.convert import convert
    from fsdp_migrate.checkpoint.errors import Misplaced, Refused, Unreadable
    from fsdp_migrate.checkpoint.show import size

    try:
        done = convert(source, target, **wish)
    except Unreadable as error:
        _complain(shown_path(error.path or source), str(error))
        context.exit(USAGE)
    except Refused as error:
        _complain(shown_path(source), str(error))
        context.exit(FINDINGS)
    except Misplaced as error:
        _complain(shown_path(target), str(error))
        context.exit(USAGE)
    except OSError as error:
        _complain(shown_path(target), f"cannot be written: {error.strerror}")
        context.exit(USAGE)
    for change in done.changes:
        say(f"  {printable(change)}")
    written = printable(shown_path(target))
    say(f"wrote {written}: {counted(done.tensors, 'tensor')}, {size(done.nbytes)}")
    context.exit(DONE)


def _complain(path: str, message: str) -> None:
    say(render_problems([Problem(path, 0, message)])[0], err=True)


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("checkpoint needs torch: pip install 'fsdp-migrate[runtime]'")
