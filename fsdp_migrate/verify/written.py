"""The checkpoints that both runs wrote below their folders, compared by content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.verify.compare import Difference, close
from fsdp_migrate.verify.parameters import beyond
from fsdp_migrate.verify.printed import COSTS
from fsdp_migrate.verify.verdict import Verdict

_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".tar"}
_LIMIT = 2 << 30


@dataclass(frozen=True)
class Written:
    """How many checkpoints are in both folders, the first place of each that differs, and what could not be compared."""

    compared: int
    differences: list[Difference]
    notes: list[str]


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


def compare(one: dict[str, Path], other: dict[str, Path], verdict: Verdict) -> Written:
    """Compare checkpoints of one name; no nearer than the trained parameters are, by the verdict."""
    step, tolerance = verdict.original.steps + 1, verdict.tolerance
    trained = verdict.max_abs_param_diff or 0.0
    both = [name for name in one if name in other]
    odd = sorted(one.keys() ^ other.keys())
    notes = [f"only one program wrote {odd[0]} ({len(odd)} such checkpoints)"] if odd else []
    differences = []
    for name in both:
        from fsdp_migrate.checkpoint.errors import Refused, Unreadable

        try:
            text = next(_odd(one[name], other[name], tolerance, trained), "")
        except (Unreadable, Refused, OSError) as error:
            notes.append(f"{name}: {error}")
            continue
        if text:
            differences.append(Difference(step, 7, -1, f"checkpoint {name}", text))
    return Written(len(both), differences, notes)


def _odd(one: Path, other: Path, tolerance: float, trained: float) -> Iterator[str]:
    """The places that differ, in words."""
    from fsdp_migrate.checkpoint.errors import Refused
    from fsdp_migrate.checkpoint.parts import is_tensor, nbytes
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
        if is_tensor(a) and is_tensor(b):
            if a.shape != b.shape:
                yield f"{shown(place)} has shape {list(a.shape)} against {list(b.shape)}"
            elif nbytes(a) <= _LIMIT:
                a, b = (value.load() if hasattr(value, "load") else value for value in (a, b))
                if (most := beyond(a, b, tolerance, trained)) is not None:
                    yield f"{shown(place)} by up to {most:.3g}"
        elif isinstance(a, (int, float)) and isinstance(b, (int, float)):
            if not COSTS.search(shown(place)) and not close(float(a), float(b), tolerance):
                yield f"{shown(place)} is {a} against {b}"
