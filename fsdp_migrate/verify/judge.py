"""Two recorded runs against each other, in everything that was recorded, and whether they prove anything."""

from __future__ import annotations

from fsdp_migrate.verify import causes, clipping, outputs, trained, values
from fsdp_migrate.verify.compare import compare, floor
from fsdp_migrate.verify.errors import Unverifiable
from fsdp_migrate.verify.options import Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.sources import Sources
from fsdp_migrate.verify.verdict import Verdict
from fsdp_migrate.views.text import counted

_NAMED = 3
"""At most so many files in a message."""


def check_original(run: Run) -> None:
    """Raise `Unverifiable` if the original program sharded no model."""
    if not any(rank.sharded for rank in run.ranks):
        raise Unverifiable(
            "nothing is proved: the original program trained without FSDP. "
            "Check whether its arguments select another strategy"
        )


def check_migrated(run: Run, changed: tuple[str, ...], *, is_own: bool = False) -> list[str]:
    """The changed files that did not run, in one line.

    Args:
        is_own: whether the user passed the migrated program.

    Raises:
        Unverifiable: a model of torch's FSDP1 was built, or no file that the migration changed ran.
    """
    way = (
        "Code outside the copied folder is not migrated: pass the folder that contains all of it as SCRIPT, "
        "and the script in it with --entry"
    )
    if is_own:
        way = "Is this the migrated program?"
    for rank in run.ranks:
        if rank.fsdp1:
            raise Unverifiable(
                f"nothing is proved: the migrated program created a model of torch's FSDP1 at {rank.fsdp1}. {way}"
            )
    ran = {file for rank in run.ranks for file in rank.files}
    idle = [file for file in changed if file not in ran]
    if not idle:
        return []
    named = ", ".join(idle[:_NAMED])
    if len(idle) > _NAMED:
        named += ", …"
    if len(idle) == len(changed):
        raise Unverifiable(
            f"nothing is proved: the migrated program did not run any changed file ({named})"
        )
    return [f"changed, but not run: {named} ({len(idle)} of {len(changed)} files)"]


def check_proof(verdict: Verdict) -> None:
    """Raise `Unverifiable` if two runs are equal only because they compute no numbers."""
    why = trained.unproved(verdict.original)
    if verdict.equal and why:
        raise Unverifiable(
            f"nothing is proved: {why}, in both programs. "
            "Use other arguments, such as a lower learning rate, with which the original program trains"
        )


def judge(
    original: Run,
    migrated: Run,
    tolerance: float | None,
    recording: Recording,
    sources: Sources | None = None,
) -> Verdict:
    """Compare first values, training, printed lines and last values.

    For the tolerance see `compare`; `sources` is the original's code, which says what a printed number is.
    """
    asked = tolerance
    if tolerance is None:
        tolerance = floor(original.dtypes[0])
    comparison = compare(original, migrated, asked)
    begins = values.first(original), values.first(migrated)
    ends = values.last(original), values.last(migrated)
    apart, unknown = values.last_differences(*ends)
    buffers, buffer, dtypes = values.buffers_difference(*ends)
    starts = values.first_differences(*begins, {*migrated.aligned}, tolerance)
    buffers_apart = values.odd_buffers(*ends, tolerance)
    lasts = trained.differences(
        comparison, (original, migrated), ends, apart, buffers_apart, tolerance
    )
    clips = clipping.differences(original, migrated)
    odd = sorted([*starts, *comparison.differences, *clips, *lasts])
    ranks = (*original.ranks, *migrated.ranks)
    notes = [*dict.fromkeys([text for rank in ranks for text in rank.problems])]
    untrained = "training: no optimizer took a step"
    if original.steps:
        untrained = ""
    lost = trained.not_numbers(original)
    unclipped = clipping.unproved(original, migrated)
    unstarted = ""
    problem = begins[0].problem or begins[1].problem
    if problem:
        unstarted = f"first values, because {problem}"
    parameters = None
    if not unknown:
        parameters = apart
    uncompared = (lost, unclipped, unstarted, unknown, _taken_over(migrated), untrained)
    return Verdict(
        **{**vars(comparison), "differences": odd},
        tolerance=tolerance,
        backend=original.ranks[0].backend,
        parameters=parameters,
        original=original,
        migrated=migrated,
        cause=causes.find(next(iter(odd), None), original, migrated, dtypes),
        uncompared=[note for note in uncompared if note],
        notes=notes,
        max_abs_buffer_diff=buffers,
        buffer=buffer,
        canonical=recording.canonical,
        emulated=bool(recording.emulate),
        printed=outputs.printed(original, migrated, tolerance, sources),
    )


def _taken_over(migrated: Run) -> str:
    names = migrated.aligned
    taken = counted(len(names), "first value")
    if names:
        return f"{taken} that the migrated program took over: {names[0]}, …"
    return ""
