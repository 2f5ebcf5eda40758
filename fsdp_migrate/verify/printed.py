"""Numbers that both programs print: an evaluation's result is often nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.records import Run

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?(?![\w])")
COSTS = re.compile(
    r"(?:\b|_)(sec(ond)?s?|m?s|minutes?|hours?|time|elapsed|took|eta|mem(ory)?|[kmg]i?b|throughput|speed|tflops|mfu)\b"
    r"|/s\b|per sec|it/s|s/it|\d(ms|s|mib|gib|mb|gb)\b|\d:\d\d|\d{4}-\d\d-\d\d|/\w+/|0x",
    re.IGNORECASE,
)
"""What differs from run to run: times, memory, addresses and paths. These lines are left out."""
_LINES, _SHOWN = 100_000, 160


def differences(original: Run, migrated: Run, tolerance: float) -> Iterator[Difference]:
    """The first line of each rank that has other numbers, beyond the tolerance and one in the last digit that was
    printed.

    Lines are the same by their words; one that a program prints more often is left out.
    """
    texts = zip(_texts(original), _texts(migrated), strict=False)
    for rank, (one, other) in enumerate(texts):
        lines, others = _lines(one), _lines(other)
        for words, found in lines.items():
            twins = others.get(words, [])
            if len(found) != len(twins):
                continue
            # Ranks that print into one file do so in any order.
            for a, b in zip(sorted(found), sorted(twins), strict=True):
                if not all(_close(x, y, tolerance) for x, y in zip(a[0], b[0], strict=True)):
                    text = f"{a[1]!r} against {b[1]!r}"
                    yield Difference(original.steps + 1, 6, rank, f"printed {words!r}", text)
                    break


def _texts(run: Run) -> list[str]:
    apart = [rank.output for rank in run.ranks]
    return apart if any(apart) else [run.output]


def _lines(text: str) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """The numbers and the text of each line that has numbers, by its words."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for line in text.splitlines()[:_LINES]:
        numbers = tuple(_NUMBER.findall(line))
        if numbers and not COSTS.search(line):
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
