"""`fsdp-migrate values`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fsdp_migrate.verify.errors import ProgramFailed, Unverifiable
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import TIMEOUT
from fsdp_migrate.verify.values import record

_PROGRAM = click.Path(exists=True, path_type=Path)


@click.command("values", short_help="Run a program and record what its FSDP1 constructs are given.")
@click.argument("script", type=_PROGRAM)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--output",
    default="run.json",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write, for `migrate --values`.",
)
@click.option(
    "--entry", type=click.Path(path_type=Path), help="The script, where SCRIPT is a folder."
)
@click.option(
    "--link", "links", multiple=True, type=click.Path(path_type=Path), help="As for verify."
)
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder that belongs to SCRIPT.  [default: its own]",
)
@click.option("--nproc", "ranks", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto")
@click.option(
    "--launcher",
    type=click.Choice([launcher.value for launcher in Launcher]),
    default=Launcher.AUTO.value,
    show_default=True,
)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT)
@click.pass_context
def values_command(
    context: click.Context, /, script: Path, output: Path, launcher: str, **options: Any
) -> None:
    """Run SCRIPT once, on a temporary copy, and record what each FSDP1 construct was given.

    `fsdp-migrate migrate --values FILE` then uses these values and writes plain PyTorch for this
    configuration. ARGUMENTS after -- are the program's. A few steps of training are enough.
    """
    try:
        found = record(script, output, launcher=Launcher(launcher), **options)
    except Unverifiable as error:
        click.echo(f"fsdp-migrate values: {error}", err=True)
        context.exit(2)
    except ProgramFailed as failure:
        click.echo(f"{failure.details}\nfsdp-migrate values: {failure}", err=True)
        context.exit(3)
    count = len(found.entries)
    click.echo(f"{output}: {count} FSDP1 constructs of {len(found.files)} files")
    click.echo(
        f"Next: `fsdp-migrate migrate PATH --values {output} --diff` shows what it makes plain."
    )
