"""The table of behaviours: ``python -m behaviour.page``, in ``tests/``, writes it.

What ``benchmarks/torch_suite.py`` has written at its end stays there.
"""

from itertools import groupby
from pathlib import Path

from . import areas
from .registry import BEHAVIOURS, Behaviour

PAGE = Path(__file__).parents[2] / "docs" / "results" / "fsdp1-behaviour.md"

TORCH_SUITE = "## PyTorch's own test files\n"

HEAD = """\
# FSDP1's behaviour, on the bridge and in place

What PyTorch's own tests of FSDP1 assert of its public interface, as {count} small programs of this project, and, under
Programs, what the tool makes of some. Each runs
on CPU and gloo over two ranks, {four} of them over four, with `torch.distributed.fsdp`, with `fsdp_migrate.runtime`, and
with a constructor that shards in place (`like_fsdp1`, `units`, `fully_shard`), and asserts its sentence; what it returns
(values, names, types, errors, warnings) must be the same for all, bit by bit where no tolerance is given. In place the
names of FSDP1's wrappers are left out of the comparison, as there are none. {cannot} cannot hold with FSDP2: the runtime
refuses them with an error, or the results differ, as the table says. On the bridge the {holds} others hold, in place
{in_place}; the rest is what depends on there being a wrapper. `tests/behaviour` runs them; this page is made from them.
"""


def render() -> str:
    behaviours = list(BEHAVIOURS.values())
    cannot = sum(1 for b in behaviours if b.cannot)
    four = sum(1 for b in behaviours if b.ranks == 4)
    count = len(behaviours)
    in_place = sum(1 for b in behaviours if not b.cannot and not b.in_place)
    head = HEAD.format(
        count=count, four=four, holds=count - cannot, cannot=cannot, in_place=in_place
    )
    parts = [head]
    for area, group in groupby(sorted(behaviours, key=lambda b: b.area), lambda b: b.area):
        rows = "".join(map(_row, group))
        parts.append(
            f"\n## {area}\n\n{_about(area)}\n\n| behaviour | on the bridge | in place |\n|---|---|---|\n{rows}"
        )
    return "".join([*parts, _of_torch_suite()])


def _of_torch_suite() -> str:
    _, title, tables = PAGE.read_text().partition(TORCH_SUITE)
    return f"\n{title}{tables}" if title else ""


def _about(area: str) -> str:
    return (getattr(areas, area.lower().replace(" ", "_")).__doc__ or "").strip()


def _row(behaviour: Behaviour) -> str:
    if not behaviour.cannot:
        near = f" (within {behaviour.tolerance:.0e})" if behaviour.tolerance else ""
        verdict = f"holds{near}{', four ranks' if behaviour.ranks == 4 else ''}"
    elif behaviour.refusal:
        verdict = f"cannot hold: {behaviour.cannot}; refused, naming {behaviour.refusal}"
    else:
        verdict = f"cannot hold: {behaviour.cannot}"
    in_place = f"does not hold: {behaviour.in_place}" if behaviour.in_place else "the same"
    return f"| {behaviour.sentence.replace('|', '/')} | {verdict} | {in_place} |\n"


if __name__ == "__main__":
    PAGE.write_text(render())
