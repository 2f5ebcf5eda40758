"""One run of one program: from its command to what it recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fsdp_migrate.verify import failures, launch, processes, records
from fsdp_migrate.verify.errors import ProgramFailed
from fsdp_migrate.verify.folders import Program
from fsdp_migrate.verify.options import Options, Recording

_PLAIN = Recording()


def run_program(
    program: Program,
    folder: Path,
    how: Options,
    recording: Recording = _PLAIN,
    look: Callable[[], bool] = lambda: False,
) -> records.Run:
    """Run one program and read its records; `folder` is for what the run needs and leaves, `look` as in `processes.run`."""
    place = folder / program.name
    for name in ("records", "logs"):
        (place / name).mkdir(parents=True)
    launcher = launch.choose(how.launcher, program.script)
    outcome = processes.run(
        launch.command(program, how, launcher, place / "logs"),
        program.folder,
        launch.environment(program, how.device, place / "records", recording),
        place / "output",
        how.timeout,
        look,
    )
    found = records.read_ranks(place / "records", outcome.stopped)
    if launcher == "torchrun":
        expected = how.ranks
    else:
        expected = 0
    scene = failures.Scene(program, outcome, place, expected, found)
    if outcome.stopped:
        return records.Run(found, outcome.seconds, scene.standard, stopped=True)
    try:
        failures.check(scene)
    except ProgramFailed as failure:
        if how.nodes is not None:
            how.nodes.share(program.name, place / "records", failure.reason)
        emulated = bool(recording.emulate)
        raise failures.with_cuda(failure, scene, how.device, emulated=emulated) from None
    if how.nodes is not None:
        how.nodes.share(program.name, place / "records")
        shared = how.nodes.meet(program.name, how.timeout)
        ranks = [rank for one in shared for rank in records.read_ranks(one)]
        found = sorted(ranks, key=lambda rank: rank.rank)
    told = [replace(rank, output=scene.printed(rank.rank)) for rank in found]
    return records.Run(told, outcome.seconds, scene.standard)
