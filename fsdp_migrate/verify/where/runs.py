"""Both programs once more, line by line."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from fsdp_migrate.verify import launch, processes
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.where import traces
from fsdp_migrate.verify.where.lines import MOST, Line
from fsdp_migrate.verify.where.mapping import Mapping
from fsdp_migrate.verify.where.rules import with_rules
from fsdp_migrate.verify.where.search import Noise, Search
from fsdp_migrate.verify.where.traces import Trace
from fsdp_migrate.verify.where.weights import add_up

TOLERANCE = 1e-4
"""Relative, of numbers that are computed: less is rounding."""


def look(
    before: Program,
    after: Program,
    again: Callable[[], Program],
    folder: Path,
    how: Options,
    recordings: tuple[Recording, Recording],
) -> list[Line]:
    """Run both programs line by line, below `folder`, and find the lines that differ.

    If there are any, the original runs once more, from the copy that `again` makes: what differs between two runs of
    one program, as times do, is not reported.
    """
    one = _follow(before, folder, how, recordings[0])
    other = _follow(after, folder, how, recordings[1])
    if any(trace.limited for trace in (*one.values(), *other.values())):
        how.progress.stage("lines were followed up to a limit: what comes later is not compared")
    mapping = Mapping(before, after)
    found = compare(mapping, one, other)
    if found:
        twin = again()
        second = _follow(twin, folder / "again", how, recordings[0])
        noise = differing(Mapping(before, twin), one, second)
        if noise:
            found = compare(mapping, one, other, noise)
    return with_rules(found, before.root, how.form)


def compare(
    mapping: Mapping, one: dict[int, Trace], other: dict[int, Trace], noise: Noise = frozenset()
) -> list[Line]:
    """The lines that differ on any rank, each with the first rank that it differs on."""
    found: dict[tuple[str, int], tuple[int, Line]] = {}
    for rank in sorted(one.keys() & other.keys()):
        search = Search(mapping, rank, TOLERANCE, noise)
        search.run(one[rank], other[rank])
        for place, line in search.found.items():
            found.setdefault(place, line)
    ordered = sorted(found.values(), key=lambda line: line[0])
    return [line for _, line in ordered][:MOST]


def differing(mapping: Mapping, one: dict[int, Trace], other: dict[int, Trace]) -> Noise:
    """What differs between two runs of one program."""
    noise: set[tuple[str, int, str]] = set()
    for rank in one.keys() & other.keys():
        search = Search(mapping, rank, TOLERANCE)
        search.run(one[rank], other[rank])
        noise |= search.noise
    return frozenset(noise)


def _follow(program: Program, folder: Path, how: Options, recording: Recording) -> dict[int, Trace]:
    """Run a program, to its failure if it fails, and read the traces of its ranks."""
    place = folder / program.name
    records = place / "records"
    for name in ("records", "logs"):
        (place / name).mkdir(parents=True)
    launcher = launch.choose(how.launcher, program.script)
    with contextlib.suppress(OSError):
        processes.run(
            launch.command(program, how, launcher, place / "logs"),
            program.folder,
            launch.environment(program, how.device, records, recording),
            place / "output",
            how.timeout,
            lambda: traces.ended(records, how.ranks),
        )
    found = traces.read(records)
    add_up(found)
    return found
