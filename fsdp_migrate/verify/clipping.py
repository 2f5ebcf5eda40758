"""Clip calls of two runs against each other: where no gradient reached a limit, nothing else shows that one is lost."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.verify.compare import Difference
from fsdp_migrate.verify.records import Run
from fsdp_migrate.views.text import counted

_NORM = re.compile(r"[-+.\de]+")
"""A limit of the usual norm."""
_MORE = 1.001
"""A norm may be above its limit by rounding."""


def differences(original: Run, migrated: Run) -> Iterator[Difference]:
    """The first step at which the programs clip with other limits, if no clip acted.

    Where one acted, the gradient norms tell whether both programs clip: one of them may do so without a call.
    """
    if _acted(original) or _acted(migrated):
        return
    for one, other in zip(original.ranks, migrated.ranks, strict=False):
        for step, (limits, others) in enumerate(zip(one.limits, other.limits, strict=False), 1):
            if set(limits) != set(others):
                text = f"{_words(limits)} against {_words(others)}, and no gradient reached it"
                yield Difference(step, 2, -1, "clipping", text)
                return


def by_one(step: int, original: Run, migrated: Run) -> dict[str, str] | None:
    """Which program alone clips at a step, counted from 0, and its limit; None if the other may clip without a call."""
    runs = {"original": original, "migrated program": migrated}
    limits = {name: run.ranks[0].limits[step : step + 1] for name, run in runs.items()}
    names = sorted(runs, key=lambda name: any(limits[name]))
    idle, clips = names
    if any(limits[idle]) or not any(limits[clips]):
        return None
    of_norms = [limit for limit in limits[clips][0] if _NORM.fullmatch(limit)]
    lowest = min(of_norms, key=float, default="inf")
    if runs[clips].grad_norms[step] <= _MORE * float(lowest) < runs[idle].grad_norms[step]:
        return {"name": clips, "other": idle, "limit": lowest}
    return None


def unproved(original: Run, migrated: Run) -> str:
    """What a run does not show in which clip calls changed no gradient; empty if one did, or there are none."""
    calls = _calls(original)
    if not calls or _acted(original) or _acted(migrated):
        return ""
    largest = ""
    if norms := [norm for norm in original.grad_norms if math.isfinite(norm)]:
        largest = f", and the largest gradient norm was {max(norms):.4g}"
    return (
        f"clipping: no gradient reached a limit in {counted(sum(calls.values()), 'call')} "
        f"({_words(calls)}{largest})"
    )


def told(original: Run, migrated: Run) -> str:
    """How often both programs clip, with which limits, and how often that changed gradients; empty without a call.

    Empty also where no gradient reached a limit, which `unproved` says.
    """
    runs = {"original": original, "migrated": migrated}
    if not any(map(_calls, runs.values())) or unproved(original, migrated):
        return ""
    texts = []
    for name, run in runs.items():
        if calls := _calls(run):
            acted = f"{_acted(run)} of {run.steps} steps clipped"
            number = counted(sum(calls.values()), "call")
            texts.append(f"{name} {number} with {_words(calls)}, {acted}")
        else:
            texts.append(f"{name} no calls")
    return f"clipping: {'; '.join(texts)}"


def to_json(run: Run) -> dict[str, Any]:
    """The calls of a run by their limit, and the number of steps whose gradients they changed."""
    return {"limits": dict(_calls(run)), "steps_clipped": _acted(run)}


def _calls(run: Run) -> Counter[str]:
    """How often the first rank clipped, by the limit."""
    if run.ranks:
        steps = run.ranks[0].limits
    else:
        steps = []
    return Counter([limit for limits in steps for limit in limits])


def _acted(run: Run) -> int:
    """How many steps had their gradients changed by a clip on any rank."""
    return sum(map(any, zip(*[rank.clipped for rank in run.ranks], strict=False)))


def _words(limits: Any) -> str:
    names = sorted(set(limits))
    if names:
        return f"limit {', '.join(names)}"
    return "no limit"
