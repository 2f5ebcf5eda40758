"""Options that the command line does not give come from the project's pyproject.toml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fsdp_migrate.exit_codes import Unusable
from fsdp_migrate.settings import TABLE, VERIFY, Settings, load_settings

_OPPOSITE = {"quiet": "verbose", "verbose": "quiet"}


class Configured(click.Command):
    """A command whose options may be set in `[tool.fsdp-migrate]`; those of `verify` in a table of their own."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with the settings of the project that its first argument names."""
        settings = load_settings(_paths(ctx.params))
        own = settings.options
        if self.name == VERIFY:
            # It tries what `migrate` would do, unless its own table says otherwise.
            shared = {key: own[key] for key in ("form",) if key in own}
            own = {**shared, **settings.verify}
        if settings.file is not None:
            fill(ctx, own, settings.file)
        ctx.obj = settings
        return super().invoke(ctx)


def project(ctx: click.Context) -> Settings:
    """The settings of the project that a command works on."""
    settings: Settings = ctx.obj
    return settings


def fill(ctx: click.Context, table: Mapping[str, object], file: Path) -> None:
    """Give a command the options of a table that the command line leaves out."""
    known = {_name(each): each for each in ctx.command.params if isinstance(each, click.Option)}
    if ctx.command.name == VERIFY:
        unknown = sorted(set(table) - set(known))
        if unknown:
            raise Unusable(f"{file}: unknown key in {_shown(ctx)}: {', '.join(unknown)}")
    for key, value in table.items():
        option = known.get(key)
        if option is None or option.name is None:  # an option of the other command
            continue
        given = {option.name, _OPPOSITE.get(option.name, option.name)}
        if ParameterSource.COMMANDLINE in map(ctx.get_parameter_source, given):
            continue
        ctx.params[option.name] = _value(ctx, option, key, value, file)


def _paths(parameters: Mapping[str, Any]) -> list[Path]:
    """The paths that a command is about."""
    if "script" in parameters:
        return [parameters["script"]]
    paths = []
    for path in parameters["paths"]:
        if path == "-":
            path = parameters["stdin_filename"]
        paths.append(Path(path))
    return paths


def _name(option: click.Option) -> str:
    """An option's name as the command line has it, without its dashes."""
    longest = max(option.opts, key=len)
    return longest.removeprefix("--")


def _shown(ctx: click.Context) -> str:
    """The table that holds the options of a command."""
    if ctx.command.name == VERIFY:
        return f"[tool.fsdp-migrate.{VERIFY}]"
    return TABLE


_WORDS = {
    (bool,): "true or false",
    (int,): "a whole number",
    (int, float): "a number",
    (str,): "a string",
}


def _value(ctx: click.Context, option: click.Option, key: str, value: object, file: Path) -> Any:
    """A value as the command line would give it; paths are relative to the folder of pyproject.toml."""
    kind = _kind(option)
    if option.multiple and isinstance(value, list):
        items = value
    else:
        items = [value]
    if not all(type(item) in kind for item in items):  # a bool is an int to isinstance
        raise Unusable(f"{file}: {key} in {_shown(ctx)} must be {_WORDS[kind]}")
    if isinstance(option.type, click.Path | click.File):
        items = [os.path.join(file.parent, str(item)) for item in items]
    try:
        if option.multiple:
            return option.process_value(ctx, items)
        return option.process_value(ctx, items[0])
    except click.BadParameter as error:
        raise Unusable(f"{file}: {key} in {_shown(ctx)}: {error.message}") from None


def _kind(option: click.Option) -> tuple[type, ...]:
    """The types of TOML that an option takes."""
    if option.is_flag:
        return (bool,)
    if isinstance(option.type, click.IntRange):
        return (int,)
    if isinstance(option.type, click.FloatRange):
        return (int, float)
    return (str,)
