"""What `checkpoint inspect` prints, for a person and for a program."""

from collections.abc import Iterator
from typing import Any

import click

from fsdp_migrate.checkpoint.sources import Checkpoint
from fsdp_migrate.checkpoint.survey import problems, sections
from fsdp_migrate.views.terminal import printable
from fsdp_migrate.views.text import counted

_KINDS = {
    "full": "FULL, whole tensors",
    "dcp": "SHARDED, a DCP folder",
    "shards": "SHARDED, one file a rank",
    "local": "LOCAL, each rank's own numbers",
}


def document(checkpoint: Checkpoint, path: str) -> dict[str, Any]:
    """All that is known of a checkpoint; docs/checkpoints.md has the fields."""
    parts = sections(checkpoint.tree)
    found = list(problems(checkpoint))
    keys = {part.key for part in parts}
    return {
        "path": path,
        **{name: getattr(checkpoint, name) for name in ("kind", "format", "ranks")},
        "files": [str(file) for file in checkpoint.files],
        "loads": not found,
        "convertible": all(problem.convertible for problem in found),
        "tensors": sum(part.tensors for part in parts),
        "parameters": sum(part.elements for part in parts if part.role == "model"),
        "bytes": sum(part.bytes for part in parts),
        "sections": [part._asdict() for part in parts],
        "others": [str(k) for k in checkpoint.tree if "" not in keys and str(k) not in keys],
        "problems": [problem._asdict() for problem in found],
    }


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The same for a person."""
    path = printable(found["path"])
    files = len(found["files"])
    spread = ""
    if files > 1:
        spread = f", {files} files"
    if found["kind"] == "dcp":
        form = ""
    else:
        form = f" ({found['format']}{spread})"
    yield f"{click.style(path, bold=True)}: {_KINDS[found['kind']]}{form}"
    names = [printable(part["key"]) or part["role"] for part in found["sections"]]
    width = max(map(len, names), default=0)
    for name, part in zip(names, found["sections"], strict=True):
        yield f"  {name:<{width}}  {_amount(**part)}"
    if found["others"]:
        yield f"  also: {printable(', '.join(found['others']))}"
    for problem in found["problems"]:
        color = "red"
        if problem["convertible"]:
            color = "yellow"
        word = click.style(problem["name"], fg=color)
        yield f"  {word}: {printable(problem['message'])}; {problem['advice']}"
    if found["loads"]:
        yield click.style(f"  loads as it is: {_loaders(found)}", fg="green")
    elif found["convertible"]:
        command = f"fsdp-migrate checkpoint convert {path} DST"
        yield click.style(f"  to be converted: {command}", fg="yellow")
    else:
        yield click.style("  cannot be converted here", fg="red")


def _loaders(found: dict[str, Any]) -> str:
    """The functions of torch.distributed.checkpoint.state_dict that load it."""
    if found["kind"] == "dcp":
        return "get_state_dict, torch.distributed.checkpoint.load, set_state_dict"
    roles = dict.fromkeys([part["role"] for part in found["sections"] if part["role"] != "other"])
    functions = " and ".join(f"set_{role}_state_dict" for role in roles)
    return f"{functions} with StateDictOptions(full_state_dict=True)"


def _amount(role: str, tensors: int, elements: int, bytes: int, dtypes: Any, **_: Any) -> str:
    if role == "model":
        unit = "parameters"
    else:
        unit = "elements"
    return ", ".join((counted(tensors, "tensor"), f"{elements:,} {unit}", size(bytes), *dtypes))


def size(count: float) -> str:
    """Bytes, for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            if unit == "B":
                return f"{count:.0f} {unit}"
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
