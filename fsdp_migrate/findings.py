"""What the analysis says about a program: findings, and errors that kept it from a file. Outputs are views of them."""

from enum import Enum
from typing import NamedTuple


class Action(str, Enum):
    """How a construct is handled."""

    REWRITE = "rewrite"
    """Plain PyTorch takes its place."""
    RUNTIME = "runtime"
    """The runtime serves it: the code as it is on the bridge, or a call of a helper."""
    MANUAL = "manual"
    """A person must look: it raises under FSDP2, or its numbers change. The message says why and what to do."""


class Severity(str, Enum):
    """What a program does under FSDP2 where nobody acts on a finding, the worst first."""

    SILENT = "silent"
    """It trains, saves or prints something else, without an error."""
    RAISES = "raises"
    """It stops with an error."""
    PRINTS = "prints"
    """Only what it prints changes."""


ASSUMPTION = "FSDP003"
"""The rule of what `--form torch` takes for granted."""

IN_AUTO = "If this does not hold, use `--form auto`, which keeps FSDP1's behaviour."
"""How the message of most assumptions ends."""

HAPPENS = {
    Severity.SILENT: "trains, saves or returns something else, without an error",
    Severity.RAISES: "stops with an error",
    Severity.PRINTS: "only printed text changes, or a setting or comment is out of date",
}
"""What a program does that has findings of each severity."""


class Finding(NamedTuple):
    """One FSDP1 construct and how it is handled.

    Attributes:
        path: the file, relative to the current folder where it lies below it, with forward slashes.
        line, column: of its start and its end, counted from 1, in characters; `end_column` is one past the last
            character.
        code: the rule, as in `FSDP002`.
        name: the rule's name, as in `fsdp1-constructor`.
        message: one sentence on what is done with the construct and why.
        construct: the construct itself in a few words, as in `FSDP(...)` or `limit_all_gathers=True`.
        severity: of a finding that needs the user, what happens where nobody acts on it; None of any other.
        still_fsdp1: whether nothing raises, but a setting makes another library go on with FSDP1.
        assumption: whether it is no edit, but what `--form torch` takes for granted.
    """

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    code: str
    name: str
    action: Action
    message: str
    construct: str
    severity: Severity | None = None
    still_fsdp1: bool = False
    assumption: bool = False


class Problem(NamedTuple):
    """An input that could not be read or a result that was refused; `line` is 0 where none can be named."""

    path: str
    line: int
    message: str
