"""What `checkpoint inspect` prints, for a person and for a program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from fsdp_migrate import __version__
from fsdp_migrate.checkpoint.survey import Section, Survey
from fsdp_migrate.views.terminal import paint, printable

VERSION = 1
"""Of the JSON: raised when a field changes its meaning or is removed."""

_KINDS = {
    "full": "FULL, whole tensors",
    "dcp": "SHARDED, a DCP folder",
    "shards": "SHARDED, one file a rank",
    "local": "LOCAL, each rank's own numbers",
}


def lines(survey: Survey, path: str) -> Iterator[str]:
    """The lines for one checkpoint."""
    checkpoint = survey.checkpoint
    files = len(checkpoint.files)
    spread = f", {files} files" if files > 1 else ""
    name = paint(printable(path), "stdout", bold=True)
    form = "" if checkpoint.kind == "dcp" else f" ({checkpoint.format}{spread})"
    yield f"{name}: {_KINDS[checkpoint.kind]}{form}"
    width = max((len(_name(section)) for section in survey.sections), default=0)
    for section in survey.sections:
        yield f"  {_name(section):<{width}}  {_amount(section)}"
    if survey.others:
        yield f"  also: {printable(', '.join(survey.others))}"
    for problem in survey.problems:
        word = paint(problem.name, "stdout", fg="yellow" if problem.convertible else "red")
        yield f"  {word}: {printable(problem.message)}; {problem.advice}"
    if survey.loads:
        yield paint(f"  loads as it is: {_loaders(survey)}", "stdout", fg="green")
    elif survey.convertible:
        command = f"fsdp-migrate checkpoint convert {printable(path)} DST"
        yield paint(f"  to be converted: {command}", "stdout", fg="yellow")
    else:
        yield paint("  cannot be converted here", "stdout", fg="red")


def _loaders(survey: Survey) -> str:
    """The functions of torch.distributed.checkpoint.state_dict that load it."""
    if survey.checkpoint.kind == "dcp":
        return "get_state_dict, torch.distributed.checkpoint.load, set_state_dict"
    roles = dict.fromkeys(s.role for s in survey.sections if s.role != "other")
    functions = " and ".join(f"set_{role}_state_dict" for role in roles)
    return f"{functions} with StateDictOptions(full_state_dict=True)"


def _name(section: Section) -> str:
    return printable(section.key) or section.role


def _amount(section: Section) -> str:
    noun = "tensor" if section.tensors == 1 else "tensors"
    unit = "parameters" if section.role == "model" else "elements"
    return f"{section.tensors:,} {noun}, {section.elements:,} {unit}, {size(section.bytes)}" + (
        f", {', '.join(section.dtypes)}" if section.dtypes else ""
    )


def size(count: float) -> str:
    """Bytes, for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def as_json(surveys: Sequence[tuple[str, Survey]], errors: Sequence[tuple[str, str]]) -> str:
    """The same for programs; docs/checkpoints.md has the fields."""
    document = {
        "version": VERSION,
        "tool": f"fsdp-migrate {__version__}",
        "checkpoints": [_document(path, survey) for path, survey in surveys],
        "errors": [{"path": path, "message": message} for path, message in errors],
    }
    return json.dumps(document, indent=2)


def _document(path: str, survey: Survey) -> dict[str, Any]:
    checkpoint, sections = survey.checkpoint, survey.sections
    return {
        "path": path,
        "kind": checkpoint.kind,
        "format": checkpoint.format,
        "ranks": checkpoint.ranks,
        "files": [str(file) for file in checkpoint.files],
        "loads": survey.loads,
        "convertible": survey.convertible,
        "tensors": sum(section.tensors for section in sections),
        "parameters": sum(s.elements for s in sections if s.role == "model"),
        "bytes": sum(section.bytes for section in sections),
        "sections": [asdict(section) for section in sections],
        "others": list(survey.others),
        "problems": [asdict(problem) for problem in survey.problems],
    }
