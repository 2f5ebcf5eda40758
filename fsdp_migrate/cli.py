"""The command line. Each command builds its options, asks for one report and hands it to the views.

What costs time to import (the engine, the rules, `verify`) is imported where it is used.
"""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from fsdp_migrate.configured import Configured, project
from fsdp_migrate.exit_codes import BROKEN_PIPE, DONE, INTERRUPTED, USAGE
from fsdp_migrate.settings import DEFAULT_FORM, FORMS, STDIN, split_codes
from fsdp_migrate.version import __version__

F = TypeVar("F", bound=Callable[..., Any])


# The commands that are imported only when used, with their modules.
_LATE = {"checkpoint": "checkpoint.command", "verify": "verify.command"}


class Commands(click.Group):
    """The commands: `migrate` needs no name."""

    ignore_unknown_options = True  # `fsdp-migrate --diff PATH`: the option belongs to `migrate`

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands, those that are imported late among them."""
        return sorted([*super().list_commands(ctx), *_LATE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name."""
        if cmd_name not in _LATE:
            return super().get_command(ctx, cmd_name)
        gc.enable()  # they work for long
        module = import_module(f"fsdp_migrate.{_LATE[cmd_name]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """What a shell proposes for the first word: commands, and the options and paths of `migrate`."""
        own = click.Context(migrate, ctx)
        found = [*super().shell_complete(ctx, incomplete), *migrate.shell_complete(own, incomplete)]
        # Bash forgets all other proposals where one is for files.
        return found or [CompletionItem(incomplete, type="file")]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; anything else is the first argument of `migrate`."""
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known:
            from difflib import get_close_matches

            close = get_close_matches(name, known, 1, cutoff=0.7)
            # `fsdp-migrate chekc .` must not rewrite the folder.
            if close and not name.startswith("-") and not os.path.exists(name):
                raise click.UsageError(
                    f"no command or file is called {name!r}; {close[0]!r} is one"
                )
            args = ["migrate", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "show_default": True,
    },
)
@click.version_option(__version__, message="fsdp-migrate %(version)s")
def cli() -> None:
    """Rewrite PyTorch FSDP1 programs for FSDP2 (fully_shard), and verify that they train the same.

    `fsdp-migrate PATH...` is `fsdp-migrate migrate PATH...`.

    \b
    Exit codes:
      0  done, nothing needs you
      1  a use of torch's FSDP1 or something that needs you remains (check, migrate --check),
         the runs differ (verify), or a checkpoint does not load or cannot be converted
      2  wrong usage, an input that cannot be read, or nothing is proved (verify)
      3  a program that verify ran has failed
      130 or 143  interrupted
    """


def _release(ctx: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """A release of torch as numbers."""
    parts = text.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text} is not a release such as 2.8", ctx, option)
    release = tuple(int(part) for part in parts)
    if release < (2, 8):
        raise click.BadParameter(f"{text} is too old: programs need torch 2.8", ctx, option)
    return release


def _codes(ctx: click.Context, option: click.Parameter, values: Sequence[str]) -> frozenset[str]:
    return split_codes(values)


def _complete_code(
    ctx: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The rules that a shell proposes for the beginning of a code, after a comma as well."""
    from fsdp_migrate.codemods.registry import all_rules

    before, comma, begun = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{rule.code}", help=rule.name)
        for rule in all_rules()
        if rule.code.startswith(begun.upper())
    ]


def _shared(command: F) -> F:
    """The arguments that `migrate` and `check` have in common."""
    decorators = [
        click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path()),
        click.option(
            "--select",
            multiple=True,
            metavar="CODES",
            callback=_codes,
            shell_complete=_complete_code,
            help="Use only these rules, as in FSDP002,FSDP5; FSDP5 is all that begin with it.",
        ),
        click.option(
            "--ignore",
            multiple=True,
            metavar="CODES",
            callback=_codes,
            shell_complete=_complete_code,
            help="Use all rules except these.",
        ),
        click.option(
            "--exclude",
            multiple=True,
            metavar="GLOB",
            help="Skip these files; patterns as in .gitignore.",
        ),
        click.option(
            "--format",
            "output",
            type=click.Choice(["text", "json", "sarif", "github", "gitlab", "junit"]),
            default="text",
        ),
        click.option(
            "--form",
            type=click.Choice([*FORMS]),
            default=DEFAULT_FORM,
            help="; ".join(f"{form}: {text}" for form, text in FORMS.items()) + ".",
        ),
        click.option(
            "--target-torch",
            default="2.8",
            metavar="X.Y",
            callback=_release,
            help="The oldest torch release that the program must run with.",
        ),
        click.option(
            "--report",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Also write the report to this file: .html, .md for a pull request, .sarif, .xml for JUnit, or JSON.",
        ),
        click.option(
            "--verified",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            metavar="FILE",
            help="A result of `verify --json`, which the report in Markdown shows.",
        ),
        click.option(
            "--jobs",
            type=click.IntRange(min=1),
            default=1,
            metavar="N",
            help="Analyse files in up to this many processes.",
        ),
        click.option(
            "--stdin-filename",
            type=click.Path(dir_okay=False),
            default=STDIN,
            metavar="FILE",
            help="The file name for the program that `-` reads: imports and settings are looked up from there.",
        ),
        click.option(
            "--statistics",
            is_flag=True,
            help="Print the number of findings for each rule, instead of a list.",
        ),
        click.option(
            "-q",
            "--quiet",
            is_flag=True,
            help="Print only findings and errors, each finding on its own line.",
        ),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            help="Print every finding, also imports and references, and what was read.",
        ),
    ]
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


@cli.command(cls=Configured)
@_shared
@click.option(
    "--diff",
    is_flag=True,
    help="Print a diff for `git apply` in the root of the repository, and write nothing.",
)
@click.option(
    "--check",
    is_flag=True,
    help="List findings and write nothing; exit 1 if any remain, like check.",
)
@click.option(
    "--vendor",
    metavar="DIR",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Copy fsdp_migrate.runtime into this folder of the program, and import it from there.",
)
@click.option(
    "--mark",
    is_flag=True,
    help="Mark each finding that a later run cannot make again by a comment, which check lists until you remove it.",
)
@click.option("--allow-dirty", is_flag=True, help="Also write files that have uncommitted changes.")
@click.pass_context
def migrate(ctx: click.Context, /, **arguments: Any) -> None:
    """Rewrite files and folders in place.

    With `-` as PATH the program comes from standard input, and goes to standard output.
    """
    from fsdp_migrate.run import Request, run

    ctx.exit(run(Request(**arguments, stdin=_stdin(ctx)), project(ctx)))


@cli.command(cls=Configured)
@_shared
@click.option(
    "--bridge",
    is_flag=True,
    help="Also list what uses FSDP1's interface through fsdp_migrate.runtime.",
)
@click.option(
    "--baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Leave out the findings listed in this file.",
)
@click.option(
    "--write-baseline",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write all current findings to this file, for --baseline, and exit 0.",
)
@click.option("--watch", is_flag=True, help="Check again after each change of a file.")
@click.pass_context
def check(ctx: click.Context, /, *, watch: bool, **arguments: Any) -> None:
    """List each use of torch's FSDP1, and how it is handled.

    A program whose imports come from fsdp_migrate.runtime is already migrated; --bridge also lists its uses.
    """
    from fsdp_migrate.run import Request, run

    if watch and ("-" in arguments["paths"] or arguments["write_baseline"]):
        raise click.UsageError("--watch checks files again: not with - or --write-baseline")
    request = Request(**arguments, check=True, only_checks=True, stdin=_stdin(ctx))
    if watch:
        from fsdp_migrate.watch import watch as check_again

        check_again(request, project(ctx))
    ctx.exit(run(request, project(ctx)))


def _stdin(ctx: click.Context) -> bytes | None:
    """The program on standard input, if `-` asks for it."""
    if "-" not in ctx.params["paths"]:
        return None
    return sys.stdin.buffer.read()


@cli.command()
@click.argument("code", metavar="CODE_OR_NAME", shell_complete=_complete_code)
def explain(code: str) -> None:
    """Explain a rule, with examples."""
    from fsdp_migrate.codemods.registry import rule_for, rule_named, unknown
    from fsdp_migrate.views.pages import for_terminal
    from fsdp_migrate.views.terminal import columns, say

    rule = rule_for(code) or rule_named(code)
    if rule is None:
        raise click.ClickException(unknown(code))
    say(for_terminal(rule.page.rstrip(), columns()))


@cli.command()
def rules() -> None:
    """List all rules."""
    from fsdp_migrate.codemods.registry import all_rules
    from fsdp_migrate.views.terminal import columns, say, wrapped

    width = max(len(rule.name) for rule in all_rules())
    for rule in all_rules():
        start = f"{rule.code}  {rule.name:{width}}  "
        line = wrapped(rule.summary, columns(), start, " " * len(start))
        say(line.replace(rule.code, click.style(rule.code, bold=True), 1))


def main() -> None:
    """The console script, and what a shell asks of it to complete a line."""
    variable = "_FSDP_MIGRATE_COMPLETE"
    if variable in os.environ:
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(cli, {}, "fsdp-migrate", variable, os.environ[variable]))
    if isinstance(sys.stdout, TextIOWrapper):  # what its encoding lacks is escaped, never fatal
        sys.stdout.reconfigure(errors="backslashreplace")
    gc.disable()  # syntax trees are many objects, all in use to the end: to search them doubles the time
    code = exit_code(sys.argv[1:])
    gc.freeze()  # the end of the process would search them, too
    sys.exit(code)


def exit_code(arguments: Sequence[str]) -> int:
    """Runs a command line. An error of the tool itself is a 2, since 1 means findings."""
    try:
        with cli.make_context("fsdp-migrate", list(arguments)) as context:
            cli.invoke(context)
        return DONE
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return USAGE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough, as in `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception:  # the traceback is what a report of the error needs
        import traceback

        traceback.print_exc()
        click.echo("fsdp-migrate: internal error; please report it with the lines above", err=True)
        return USAGE
