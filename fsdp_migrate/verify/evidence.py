"""Whether the two runs prove anything: the original sharded a model, and the migrated files ran."""

from __future__ import annotations

from fsdp_migrate.verify.errors import Unverifiable
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.sources import Sources

_NAMED = 3
"""At most so many files in a message."""


def original(run: Run) -> None:
    """Raise `Unverifiable` if the original program sharded no model."""
    if not any(rank.sharded for rank in run.ranks):
        raise Unverifiable(
            "nothing is proved: the original program trained without FSDP. "
            "Do its arguments choose another strategy?"
        )


def migrated(run: Run, sources: Sources) -> list[str]:
    """The changed files that did not run, in one line.

    Raises:
        Unverifiable: a model of torch's FSDP1 was built, or no file that the migration changed ran.
    """
    for rank in run.ranks:
        if rank.fsdp1:
            raise Unverifiable(
                f"nothing is proved: the migrated program built a model of torch's FSDP1 at {rank.fsdp1}. "
                "Code outside the copied folder is not migrated: name the folder that has all of it with --root"
            )
    ran = {file for rank in run.ranks for file in rank.files}
    idle = [file for file in sources.changed if file not in ran]
    if not idle:
        return []
    named = ", ".join(idle[:_NAMED]) + (", …" if len(idle) > _NAMED else "")
    if len(idle) == len(sources.changed):
        raise Unverifiable(f"nothing is proved: the migrated program ran no changed file ({named})")
    return [f"changed, but not run: {named} ({len(idle)} of {len(sources.changed)} files)"]
