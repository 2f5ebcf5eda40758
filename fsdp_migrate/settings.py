"""The settings of a run, and what the project's pyproject.toml says: the `[tool.fsdp-migrate]` tables."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.exit_codes import Unusable

TABLE = "[tool.fsdp-migrate]"
LISTS = ("exclude", "ignore", "select")
OPTIONS = (
    *("allow-dirty", "baseline", "bridge", "form", "format", "jobs", "mark", "quiet", "report"),
    *("statistics", "target-torch", "vendor", "verbose"),
)
"""The other options of `migrate` and `check` that a project can set; the command line wins."""
ONCE = ("check", "diff", "stdin-filename", "verified", "watch", "write-baseline")
"""Options that say what one run does, which only the command line takes."""
VERIFY = "verify"
"""The key of the table with the options of `verify`."""
KEYS = (*LISTS, *OPTIONS, VERIFY)
STDIN = "stdin.py"
"""The name of a program that comes from standard input, if none is given."""
FORMS = {
    "auto": "fully_shard on the model's own modules, with one line, like_fsdp1, that keeps FSDP1's behaviour",
    "bridge": "only imports change",
    "torch": "as auto without that line; each assumption is a finding",
}
"""What a program can become, for `--form`."""
DEFAULT_FORM = "auto"


@dataclass(frozen=True)
class Options:
    """What the analysis needs to know of a run; as the options of the command line are.

    `form` is a name of `FORMS`. With `only_checks` no edits are wanted, with `bridge` also findings of what is on the
    bridge already.
    """

    form: str = DEFAULT_FORM
    only_checks: bool = False
    bridge: bool = False
    target_torch: tuple[int, ...] = (2, 8)
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    jobs: int = 1
    vendor: Path | None = None

    @property
    def settles(self) -> bool:
        """Whether edits are made, to know what they leave behind: a check does so only for the final form, which is read."""
        return not self.only_checks or self.form == "torch"

    def takes(self, code: str) -> bool:
        """Whether a rule is selected, and not ignored; `FSDP5` is for all codes that begin with it."""
        is_selected = not self.select or code.startswith((*self.select,))
        return is_selected and not code.startswith((*self.ignore,))


@dataclass(frozen=True)
class Settings:
    """The settings of a project.

    Attributes:
        file: the pyproject.toml that they come from; None if there is none.
        root: its folder, which `exclude` and every path in it is relative to.
        options: the other options of `migrate` and `check`, by the names of the command line.
        verify: the options of `verify`, likewise.
    """

    file: Path | None = None
    root: Path = field(default_factory=Path.cwd)
    exclude: tuple[str, ...] = ()
    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    options: Mapping[str, object] = field(default_factory=dict)
    verify: Mapping[str, object] = field(default_factory=dict)


def load_settings(paths: Sequence[Path]) -> Settings:
    """Those of the nearest pyproject.toml with the table, up to the repository's root."""
    common = _common_folder(paths)
    for folder in (common, *common.parents):
        file = folder / "pyproject.toml"
        table = None
        if file.is_file():
            table = _read_table(file)
        if table is not None:
            return _checked(file, table)
        if (folder / ".git").exists():
            break
    return Settings()


def split_codes(values: Iterable[str]) -> frozenset[str]:
    """Rule codes from `FSDP002,fsdp105` and repeated options, in upper case."""
    codes = set[str]()
    for value in values:
        codes.update([code.strip().upper() for code in value.split(",")])
    return frozenset(codes - {""})


def _common_folder(paths: Sequence[Path]) -> Path:
    absolute = [os.path.abspath(path) for path in paths] or [os.getcwd()]
    try:
        common = Path(os.path.commonpath(absolute))
    except ValueError:  # two drives
        common = Path.cwd()
    if common.is_dir():
        return common
    return common.parent


def _tables(file: Path) -> dict[str, Any]:
    """What a pyproject.toml says of tools; raises OSError, ValueError or RecursionError if it cannot be read."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    tools = tomllib.loads(file.read_text("utf-8")).get("tool", {})
    if isinstance(tools, dict):
        return tools
    return {}


def _read_table(file: Path) -> dict[str, object] | None:
    try:
        tables = _tables(file)
    except (OSError, ValueError, RecursionError) as error:
        raise Unusable(f"{file}: cannot be read: {error}") from None
    for name in tables:
        if name != "fsdp-migrate" and name.lower().replace("_", "-") == "fsdp-migrate":
            raise Unusable(f"{file}: [tool.{name}] is not read: the table is {TABLE}")
    table = tables.get("fsdp-migrate")
    if table is not None and not isinstance(table, dict):
        raise Unusable(f"{file}: {TABLE} must be a table")
    return table


def _checked(file: Path, table: dict[str, object]) -> Settings:
    """The settings of a table, if all its keys are known."""
    for key in sorted(set(table) & set(ONCE)):
        raise Unusable(f"{file}: {key} says what one run does: give it on the command line")
    unknown = sorted(set(table) - set(KEYS))
    if unknown:
        names = ", ".join(unknown)
        raise Unusable(f"{file}: unknown key in {TABLE}: {names} (known: {', '.join(KEYS)})")
    lists: dict[str, list[str]] = {}
    for key in LISTS:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Unusable(f"{file}: {key} in {TABLE} must be a list of strings")
        lists[key] = value
    verify = table.get(VERIFY, {})
    if not isinstance(verify, dict):
        raise Unusable(f"{file}: {VERIFY} in {TABLE} must be a table")
    return Settings(
        file=file,
        root=file.parent,
        exclude=tuple(lists["exclude"]),
        select=split_codes(lists["select"]),
        ignore=split_codes(lists["ignore"]),
        options={key: table[key] for key in OPTIONS if key in table},
        verify=verify,
    )
