"""What programs print and write: numbers on lines of the same words, and checkpoints below their folders."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoint.errors import Refused, Unreadable
from fsdp_migrate.verify.compare import Difference, close
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.values import beyond

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?![\w])")
_COSTS = re.compile(
    r"(?:\b|_)(sec(ond)?s?|m?s|minutes?|hours?|time|elapsed|took|eta|mem(ory)?|[kmg]i?b|throughput|speed|tflops|mfu)\b"
    r"|/s\b|per (sec|minute|hour|day)|it/s|s/it|\d(ms|s|mib|gib|mb|gb)\b|\d:\d\d|\d{4}-\d\d-\d\d|/\w+/|0x",
    re.IGNORECASE,
)
"""What differs from run to run: times, memory, addresses and paths. These lines are left out."""
_PARAMETERS = re.compile(r"param|numel|element|weight|model size", re.IGNORECASE)
_LINES, _SHOWN = 100_000, 160
_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".tar"}
_LIMIT = 2 << 30


@dataclass(frozen=True)
class Printed:
    """A line in which the programs print other numbers: no part of the verdict, which is about training."""

    rank: int
    words: str
    text: str
    cause: str

    def __str__(self) -> str:
        return f"printed on rank {self.rank}: {self.text}; cause: {self.cause or 'not known'}"


def printed(original: Run, migrated: Run, tolerance: float) -> list[Printed]:
    """Each line, on the first rank that has it, with other numbers beyond the tolerance and one in the last digit.

    Lines are the same by their words; one that a program prints more often is left out.
    """
    befores, afters = ([_lines(text) for text in _texts(run)] for run in (original, migrated))
    found: dict[str, Printed] = {}
    for rank, (lines, others) in enumerate(zip(befores, afters, strict=False)):
        for words, told in lines.items():
            twins = others.get(words, [])
            if words in found or len(told) != len(twins):
                continue
            # Ranks that print into one file do so in any order.
            for (numbers, text), (news, new) in zip(sorted(told), sorted(twins), strict=True):
                same = [_close(a, b, tolerance) for a, b in zip(numbers, news, strict=True)]
                if not all(same):
                    place = same.index(False)
                    shares = [own[words][0][0][place] for own in befores if words in own]
                    shares = shares if len(shares) == len(original.ranks) > 1 else [numbers[place]]
                    cause = _share(words, shares, news[place], len(original.ranks))
                    found[words] = Printed(rank, words, f"{text!r} against {new!r}", cause)
                    break
    return [*found.values()]


def _share(words: str, before: list[str], after: str, ranks: int) -> str:
    """Why a number is another one: all ranks', or one's, was of its own part of the parameters, and now is of the whole."""
    olds, new = [abs(float(number)) for number in before], abs(float(after))
    of_parameters = _PARAMETERS.search(words) or "." not in before[0] + after
    if len(olds) == 1:
        parts = (count for count in range(2, ranks + 1) if ranks % count == 0)
        counts = any(_near(olds[0] * count, new) for count in parts)
    else:
        counts = _near(sum(olds), new)
        if _near(math.hypot(*olds), new):
            return "a norm of this rank's part of the parameters under FSDP1, of the whole now"
    if not (counts and of_parameters):
        return ""
    return "a count or sum over this rank's part of the parameters under FSDP1, over the whole now"


def _near(one: float, other: float) -> bool:
    # FSDP1 fills its flat parameters up.
    return abs(one - other) <= 0.02 * max(one, other)


def _texts(run: Run) -> list[str]:
    apart = [rank.output for rank in run.ranks]
    return apart if any(apart) else [run.output]


def _lines(text: str) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """The numbers and the text of each line that has numbers, by its words."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for line in text.splitlines()[:_LINES]:
        numbers = tuple(_NUMBER.findall(line))
        if numbers and not _COSTS.search(line):
            words = _NUMBER.sub("#", line).strip()[:_SHOWN]
            found.setdefault(words, []).append((numbers, line.strip()[:_SHOWN]))
    return found


def _close(one: str, other: str, tolerance: float) -> bool:
    a, b = float(one), float(other)
    digits = max(_unit(one), _unit(other))
    return abs(a - b) <= max(tolerance * max(abs(a), abs(b)), digits if "." in one + other else 0.0)


def _unit(number: str) -> float:
    """One in the last digit."""
    mantissa, _, exponent = number.lower().partition("e")
    places = len(mantissa.partition(".")[2])
    return 1.001 * 10.0 ** (int(exponent or 0) - places)


def checkpoints(root: Path, before: set[Path]) -> dict[str, Path]:
    """The checkpoints below a folder that were not there before: folders of DCP, and files."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.name == ".metadata" and name not in before:
            found[str(name.parent)] = path.parent
        elif path.suffix in _SUFFIXES and name not in before and path.is_file():
            found[str(name)] = path
    return found


def files(root: Path) -> set[Path]:
    """The files below a folder, relative to it."""
    return {path.relative_to(root) for path in root.rglob("*")}


def compare(
    one: dict[str, Path], other: dict[str, Path], step: int, tolerance: float, trained: float
) -> tuple[int, list[Difference], list[str]]:
    """Compare checkpoints of one name after the last step; no nearer than the `trained` parameters are.

    Returns how many both wrote, the first place of each that differs, and what could not be compared.
    """
    both = [name for name in one if name in other]
    odd = sorted(one.keys() ^ other.keys())
    notes = [f"only one program wrote {odd[0]} ({len(odd)} such checkpoints)"] if odd else []
    differences = []
    for name in both:
        try:
            text = next(_odd(one[name], other[name], tolerance, trained), "")
        except (Unreadable, Refused, OSError) as error:
            notes.append(f"{name}: {error}")
            continue
        if text:
            differences.append(Difference(step, 6, -1, f"checkpoint {name}", text))
    return len(both), differences, notes


def _odd(one: Path, other: Path, tolerance: float, trained: float) -> Iterator[str]:
    """The places that differ, in words."""
    import torch

    from fsdp_migrate.checkpoint.parts import Parts
    from fsdp_migrate.checkpoint.sources import open_checkpoint
    from fsdp_migrate.checkpoint.trees import leaves, shown

    opened = [open_checkpoint(path) for path in (one, other)]
    if any(checkpoint.kind == "local" or checkpoint.refused for checkpoint in opened):
        raise Refused("it holds one rank's own numbers, in another layout")
    found, twins = (dict(leaves(checkpoint.tree)) for checkpoint in opened)
    for place in dict.fromkeys([*found, *twins]):
        if place not in found or place not in twins:
            yield f"{shown(place)} is in one of them only"
            continue
        a, b = found[place], twins[place]
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            if a.shape != b.shape:
                yield f"{shown(place)} has shape {list(a.shape)} against {list(b.shape)}"
            elif a.nbytes <= _LIMIT:
                a, b = (value.load() if isinstance(value, Parts) else value for value in (a, b))
                if (most := beyond(a, b, tolerance, trained)) is not None:
                    yield f"{shown(place)} by up to {most:.3g}"
        elif isinstance(a, (int, float)) and isinstance(b, (int, float)):
            if not _COSTS.search(shown(place)) and not close(float(a), float(b), tolerance):
                yield f"{shown(place)} is {a} against {b}"
