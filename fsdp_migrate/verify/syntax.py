"""Places in the code of a program: the calls that clip, and the branches that only some ranks take."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fsdp_migrate.verify import clipping
from fsdp_migrate.verify.causes import Cause
from fsdp_migrate.verify.verdict import Verdict

_CLIPS = re.compile(r"clip_grad_(norm|value)_?|clip_grads_with_norm_")
_BACKWARD = re.compile(r"backward")
_OF_SOME_RANKS = re.compile(r"rank|is_(\w+_)?main|main_process|master|primary", re.IGNORECASE)
_SAVES = re.compile(r"save|state_dict")
_WIDTH = 60


@dataclass(frozen=True)
class Place:
    """A line of a file, which is named relative to the program's folder."""

    file: str
    line: int
    text: str

    @property
    def name(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.line}"

    def __str__(self) -> str:
        return f"{self.name}: `{self.text}`"


def clipped_at(
    verdict: Verdict, before: Path, after: Path, original_of: Callable[[str], str]
) -> Cause | None:
    """The cause; where one program alone clips, with the line of the call, and where the other program needs it.

    Args:
        original_of: for a `file:line` of the migrated program the place that a reader can look at.
    """
    cause = verdict.cause
    first = verdict.first
    if cause is None or cause.name != "clipping" or first is None or first.what != "gradient norm":
        return cause
    alone = clipping.by_one(first.step - 1, verdict.original, verdict.migrated)
    if alone is None:
        return cause
    if alone["name"] != "original":
        calls = _calls(after, verdict.migrated.ranks[0].files, _CLIPS)
        named = " and ".join(original_of(call.name) for call in calls)
        if not named:
            return cause
        return replace(cause, advice=f"Remove the call at {named} from the migrated program.")
    call = f"torch.nn.utils.clip_grad_norm_(model.parameters(), {alone['limit']})"
    advice = ""
    if clips := _calls(before, verdict.original.ranks[0].files, _CLIPS):
        advice = f"The original clips at {clips[0]}. "
    missing = ""
    backwards = _calls(after, verdict.migrated.ranks[0].files, _BACKWARD)
    if len(backwards) == 1:
        missing = f" after {original_of(backwards[0].name)}: `{backwards[0].text}`"
    return replace(cause, advice=f"{advice}Call {call} in the migrated program{missing}.")


def branch_of_some_ranks(root: Path, frames: Sequence[tuple[str, int]]) -> Place | None:
    """The `if` on a rank that the innermost of some frames is in; None if there is none.

    Args:
        frames: files relative to `root` with a line, the outermost first.
    """
    for name, line in reversed(frames):
        inner = None
        for node in ast.walk(_tree(root / name)):
            if not isinstance(node, ast.If) or not _OF_SOME_RANKS.search(ast.unparse(node.test)):
                continue
            body = [*node.body, *node.orelse]
            if any(each.lineno <= line <= (each.end_lineno or 0) for each in body):
                inner = Place(name, node.lineno, f"if {ast.unparse(node.test)}:")
        if inner is not None:
            return inner
    return None


def saves(root: Path, name: str, line: int) -> bool:
    """Whether a line saves something, or collects what is saved."""
    return any(map(_SAVES.search, _lines(root / name)[line - 1 : line]))


def _calls(root: Path, files: Sequence[str], function: re.Pattern[str]) -> list[Place]:
    return [place for name in files for place in _calls_of(root, name, function)]


def _calls_of(root: Path, name: str, function: re.Pattern[str]) -> Iterator[Place]:
    lines = _lines(root / name)
    for node in ast.walk(_tree(root / name)):
        if not isinstance(node, ast.Call):
            continue
        if function.fullmatch(ast.unparse(node.func).rpartition(".")[2]):
            yield Place(name, node.lineno, lines[node.lineno - 1].strip()[:_WIDTH])


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, ValueError, SyntaxError):
        return ast.Module([], [])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return []
