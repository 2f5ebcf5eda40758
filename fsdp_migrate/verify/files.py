"""The files that both programs write below their folders, compared by what a reader gets.

A checkpoint is compared as `torch.load` returns it: names, kinds of values, types, shapes and numbers. A file of text is
compared as what is printed. Of all others only the bytes are known.
"""

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoint.errors import Incomplete, Refused, Unreadable
from fsdp_migrate.verify import outputs
from fsdp_migrate.verify.compare import FILES, Difference, close
from fsdp_migrate.verify.outputs import Printed
from fsdp_migrate.verify.sources import Sources
from fsdp_migrate.verify.values import beyond
from fsdp_migrate.views.text import counted

_SUFFIXES = {".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".tar"}
_LIMIT = 2 << 30
"""Bytes of a tensor that is compared."""
_TEXT = 16 << 20
"""Bytes of a file of text that is compared."""
_LEFT_OUT = {"__pycache__", ".git"}
_RANDOM = re.compile(r"\d{5,}|\d{4}-\d\d-\d\d|[0-9a-f]{8,}")
"""What of a name differs from run to run: dates, numbers of processes, identifiers."""

State = dict[Path, tuple[int, int]]
"""The size and the time of each file below a folder, by its path relative to it."""


@dataclass
class Compared:
    """What the comparison of the files found.

    Attributes:
        files: each file that was compared, with what is in it.
        differences: the first place of each checkpoint that differs.
        printed: the lines in which files of text differ.
        unread: what was not compared, and why.
    """

    files: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    printed: list[Printed] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def state(root: Path) -> State:
    """The files below a folder as they are now."""
    found = {}
    for path in root.rglob("*"):
        name = path.relative_to(root)
        if _LEFT_OUT.isdisjoint(name.parts) and path.is_file():
            status = path.stat()
            found[name] = status.st_size, status.st_mtime_ns
    return found


def written(root: Path, before: State) -> dict[str, Path]:
    """The files below a folder that were written since, by name; of a DCP checkpoint its folder."""
    new = [name for name, status in state(root).items() if before.get(name) != status]
    folders = {name.parent for name in new if name.name == ".metadata"}
    inside = [name for name in new if name.parent not in folders]
    return {name.as_posix(): root / name for name in sorted([*folders, *inside])}


def compare(
    one: Mapping[str, Path],
    other: Mapping[str, Path],
    step: int,
    tolerance: float,
    trained: float,
    sources: Sources | None = None,
) -> Compared:
    """Compare the files of one name after the last step; no nearer than the `trained` parameters are."""
    result = Compared()
    pairs, alone = _pairs(one, other)
    for name, which in alone:
        text = f"only the {which} program wrote it"
        if _is_checkpoint(Path(name)):
            result.differences.append(_difference(step, name, text))
        else:
            result.unread.append(f"{name}: {text}")
    for name, first, second in pairs:
        try:
            if first.is_dir() or _is_checkpoint(first):
                _compare_checkpoints(name, first, second, step, tolerance, trained, result)
            else:
                _compare_others(name, first, second, tolerance, sources, result)
        except (Unreadable, Refused, OSError) as error:
            if _same_bytes(first, second):
                result.files.append(f"{name} (the same bytes)")
            else:
                result.unread.append(f"{name}: {error}")
    return result


def _pairs(
    one: Mapping[str, Path], other: Mapping[str, Path]
) -> tuple[list[tuple[str, Path, Path]], list[tuple[str, str]]]:
    """The files that both wrote, and the names of those that only one did, with which.

    Names are the same up to dates and identifiers, if both have as many of such a name.
    """
    pairs = [(name, one[name], other[name]) for name in one if name in other]
    alone: list[tuple[str, str]] = []
    ones = _by_pattern(one, other)
    others = _by_pattern(other, one)
    for pattern in dict.fromkeys([*ones, *others]):
        names = ones.get(pattern, [])
        twins = others.get(pattern, [])
        if len(names) == len(twins):
            pairs += [
                (name, one[name], other[twin]) for name, twin in zip(names, twins, strict=True)
            ]
        else:
            alone += [(name, "original") for name in names]
            alone += [(name, "migrated") for name in twins]
    return pairs, alone


def _by_pattern(names: Iterable[str], known: Container[str]) -> dict[str, list[str]]:
    """The names that are not known, by what of them is the same in every run."""
    found: dict[str, list[str]] = {}
    for name in names:
        if name not in known:
            found.setdefault(_RANDOM.sub("*", name), []).append(name)
    return found


def _is_checkpoint(path: Path) -> bool:
    return path.suffix in _SUFFIXES or path.is_dir()


def _difference(step: int, name: str, text: str) -> Difference:
    return Difference(step, FILES, -1, f"checkpoint {name}", text)


def _compare_checkpoints(
    name: str, one: Path, other: Path, step: int, tolerance: float, trained: float, result: Compared
) -> None:
    from fsdp_migrate.checkpoint.sources import open_checkpoint

    found = open_checkpoint(one)
    twin = open_checkpoint(other)
    if found.refused:
        raise found.refused
    if isinstance(twin.refused, Incomplete):
        part = f"whole in the original, one rank's part of a sharded tensor in the migrated program: {twin.refused}"
        result.differences.append(_difference(step, name, part))
        result.files.append(name)
        return
    if twin.refused:
        raise twin.refused
    values, others = [_leaves(checkpoint.tree) for checkpoint in (found, twin)]
    text = next(_odd(values, others, tolerance, trained), "")
    if text:
        result.differences.append(_difference(step, name, text))
    held = [value for value in values.values() if _is_tensor(value)]
    large = [value for value in held if value.nbytes > _LIMIT]
    if large:
        size = f"larger than {_LIMIT >> 30} GiB"
        result.unread.append(f"{name}: the numbers of {counted(len(large), 'tensor')} {size}")
    result.files.append(
        f"{name} ({counted(len(held), 'tensor')}, {counted(len(values) - len(held), 'other value')})"
    )


def _compare_others(
    name: str, one: Path, other: Path, tolerance: float, sources: Sources | None, result: Compared
) -> None:
    texts = _text(one), _text(other)
    if texts[0] is not None and texts[1] is not None:
        result.printed += outputs.written(name, *texts, tolerance, sources)  # type: ignore[arg-type]
        lines = sum(map(len, outputs.by_words(texts[0]).values()))
        result.files.append(f"{name} ({counted(lines, 'line')})")
    elif _same_bytes(one, other):
        result.files.append(f"{name} (the same bytes)")
    else:
        result.unread.append(f"{name}: other bytes, of a form that is not known here")


def _text(path: Path) -> str | None:
    """The text of a file; None if it is none, or too long."""
    if path.stat().st_size > _TEXT:
        return None
    data = path.read_bytes()
    try:
        if b"\0" in data:
            return None
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _same_bytes(one: Path, other: Path) -> bool:
    if one.is_dir() or other.is_dir() or one.stat().st_size != other.stat().st_size:
        return False
    with one.open("rb") as first, other.open("rb") as second:
        while chunk := first.read(1 << 20):
            if chunk != second.read(1 << 20):
                return False
    return True


def _leaves(tree: Any) -> dict[Any, Any]:
    """Each value by its place, and each container that is empty."""
    from fsdp_migrate.checkpoint.trees import nodes, rebuilt

    containers = (Mapping, list, tuple)
    ordered = rebuilt(tree, _in_order)
    return {
        place: node
        for place, node in nodes(ordered)
        if not isinstance(node, containers) or not node
    }


def _in_order(place: tuple[Any, ...], node: Any) -> Any:
    """The names of a group's parameters in one order: a state is looked up by its name."""
    if place[-1:] == ("params",) and isinstance(node, list):
        if all(isinstance(name, str) for name in node):
            return sorted(node)
    return node


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _kind(value: Any) -> str:
    """What a reader gets, in words."""
    import torch

    from fsdp_migrate.checkpoint.parts import Parts

    if isinstance(value, Parts):
        return "a sharded tensor (DTensor or ShardedTensor)"
    if isinstance(value, torch.Tensor):
        return "a plain tensor"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "a number"
    return type(value).__name__


def _odd(
    found: dict[Any, Any], twins: dict[Any, Any], tolerance: float, trained: float
) -> Iterator[str]:
    """The places that differ, in words. What DCP has saved is in parts, whatever it was given."""
    from fsdp_migrate.checkpoint.trees import shown

    for place in dict.fromkeys([*found, *twins]):
        name = shown(place) or "what was saved"
        if place not in found or place not in twins:
            which = "migrated program's"
            if place in found:
                which = "original"
            yield f"{name} is in the {which} only"
            continue
        one = found[place]
        other = twins[place]
        kinds = _kind(one), _kind(other)
        if kinds[0] != kinds[1]:
            yield f"{name} is {kinds[0]} against {kinds[1]}"
        elif _is_tensor(one):
            yield from _odd_tensors(name, one, other, tolerance, trained)
        elif kinds[0] == "a number":
            if not outputs.names_a_cost(name) and not close(float(one), float(other), tolerance):
                yield f"{name} is {one} against {other}"
        elif isinstance(one, (str, bytes, bool)) and one != other:
            if not outputs.names_a_cost(name) and not _differs_by_run(str(one), str(other)):
                yield f"{name} is {str(one)[:60]!r} against {str(other)[:60]!r}"


def _odd_tensors(
    name: str, one: Any, other: Any, tolerance: float, trained: float
) -> Iterator[str]:
    from fsdp_migrate.checkpoint.parts import Parts

    if one.shape != other.shape:
        yield f"{name} has shape {list(one.shape)} against {list(other.shape)}"
    elif one.dtype != other.dtype:
        dtypes = f"{one.dtype} against {other.dtype}".replace("torch.", "")
        yield f"{name} is {dtypes}"
    elif one.nbytes <= _LIMIT:
        if isinstance(one, Parts):
            one = one.load()
        if isinstance(other, Parts):
            other = other.load()
        if (most := beyond(one, other, tolerance, trained)) is not None:
            yield f"{name} by up to {most:.3g}"


def _differs_by_run(one: str, other: str) -> bool:
    """Whether two texts differ only in what no two runs share: dates, paths and identifiers."""
    lines = [outputs.by_words(text).keys() for text in (one, other)]
    return lines[0] == lines[1] and any("…" in words for words in lines[0])
