"""What is done with a requirement of torch that allows a release too old for the migrated code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsdp_migrate.requirements import releases
from fsdp_migrate.requirements.declared import Declared, Read

_BY_HAND = {
    "image": (
        "This image has a torch older than {torch}, but the migrated code needs {torch}. Use one with torch {torch} or "
        "newer."
    ),
    "lock": (
        "This file locks a torch older than {torch}, but the migrated code needs {torch}. Raise torch where the project "
        "asks for it, and lock again."
    ),
    "readme": (
        "This text speaks of a torch older than {torch}, but the migrated code needs {torch}. Name torch {torch}."
    ),
}
_CONDA = (
    "This requirement excludes torch {torch}, which the migrated code needs. Take torch from conda-forge or pip: "
    "PyTorch's own channel ends with torch 2.5."
)
_COMPILED = (
    "This is older than torch {torch}, which the migrated code needs. Raise torch in the files that this one is compiled "
    "from, and compile it again."
)
_PINNED = "This requirement excludes torch {torch}, which the migrated code needs. Write torch>={torch}{others}."
_OLDER = (
    "This requirement allows a torch older than {torch}, but the migrated code needs {torch}. Write "
    "torch>={torch}{others}."
)
_BUILT = (
    "This release belongs to a torch older than {torch}, but the migrated code needs {torch}. Write the release that "
    "belongs to torch {torch}."
)


class Decision(NamedTuple):
    """What the finding says, and what is written in place of the requirement: nothing if it is by hand."""

    message: str
    raised: str = ""


# Where the least release is FSDP2's own.
_REASON = ". `fully_shard` is public since torch 2.6, but before 2.8 it ignores `reshard_after_forward` of the root"


def decide(
    asked: Declared, said: Read, target: Sequence[int], *, may_write: bool
) -> Decision | None:
    """The decision about a requirement of torch; None where nothing has to be done.

    A lowest release is raised where nothing else in the file holds torch at an older one. An exact release is a choice of the
    project's, with what is built for it and tested with it: a person raises it.

    Args:
        said: all that the file says.
        may_write: whether the file may be changed.
    """
    torch = releases.written(target)
    if not releases.allows_older(asked.versions, target):
        return None
    allows = releases.allows(asked.versions, target)
    if allows and not releases.is_bounded(asked.versions):
        return None
    if asked.writer in _BY_HAND:
        return Decision(_BY_HAND[asked.writer].format(torch=torch))
    if said.compiled:
        return Decision(_COMPILED.format(torch=torch))
    if asked.writer == "conda":
        if allows:
            message = _OLDER
        else:
            message = _CONDA
        return Decision(message.format(torch=torch, others=""))
    hindrance = _hindrance(said, target)
    raised = releases.raised(asked.text, target)
    if allows and may_write and asked.is_literal and not hindrance and raised != asked.text:
        return Decision(
            f"Raised to {raised}: migrated code is written for torch {torch} or newer{_REASON}.",
            raised,
        )
    if allows:
        message = _OLDER
    else:
        message = _PINNED
    return Decision(message.format(torch=torch, others=hindrance))


def built_for_another(said: Read, target: Sequence[int]) -> list[tuple[Declared, Decision]]:
    """The packages of a file without torch that bring an older one."""
    decision = Decision(_BUILT.format(torch=releases.written(target)))
    return [(each, decision) for each in releases.bound_to_another(said.declared, target)]


def _hindrance(said: Read, target: Sequence[int]) -> str:
    """What else in a file has to follow torch."""
    bound = releases.bound_to_another(said.declared, target)
    if bound:
        names = ", ".join(dict.fromkeys([each.shown for each in bound]))
        return f", and raise {names} to the release that belongs to it"
    if said.index:
        return f", from an index that has it: {said.index} is for one release of CUDA"
    return ""
