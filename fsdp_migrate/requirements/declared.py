"""A package that a file asks for, and where the file says so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

# Where programs train; a requirement for another system asks for another torch.
_TRAINS = {
    "extra": "",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "sys_platform": "linux",
}
_TORCH = frozenset({"torch", "pytorch", "pytorch-gpu", "pytorch-cpu"})
# `pytorch/pytorch:2.1.0-cuda12.1-cudnn8-runtime`, `rocm/pytorch:rocm6.0_ubuntu22.04_py3.9_pytorch_2.1.1`
_IMAGE = re.compile(
    r"(?:\S*/)?[\w.-]*pytorch[\w.-]*:(?:v?([12]\.\d+(?:\.\d+)?)(?![\w.])\S*|\S*pytorch_?(\d+\.\d+(?:\.\d+)?)\S*)"
)
# `pytorch::pytorch=2.1=py3.10_0`, `pytorch >=2.0,<3`, `torch==2.1.2`
_CONDA = re.compile(r"(?:[\w./-]+::)?([A-Za-z][\w.-]*)(?:\[[^\]]*\])?[ ]*([=<>!~0-9^][^;#]*)?")


@dataclass(frozen=True)
class Declared:
    """A package that a file asks for.

    Attributes:
        name: its name, as packages are compared.
        versions: those that are allowed.
        start, end: where the file asks for it.
        text: how the file writes it.
        writer: whose notation that is: "pip", "poetry", "conda"; "image" for one of Docker's, "lock" in a lock file,
            "readme" in a text for people.
        is_literal: whether the file holds `text` as it is, so that it can be written there.
    """

    name: str
    versions: SpecifierSet
    start: int
    end: int
    text: str
    writer: str
    is_literal: bool = True

    @property
    def shown(self) -> str:
        """What a message calls it."""
        if self.writer == "poetry":
            return f'{self.name} = "{self.text}"'
        return self.text

    @property
    def is_torch(self) -> bool:
        """Whether it is torch, by the name of either registry."""
        return self.name in _TORCH


@dataclass(frozen=True)
class Read:
    """What a file says.

    Attributes:
        declared: the packages that it asks for.
        compiled: whether a tool has written it from other files.
        index: where it takes wheels for one release of CUDA from; empty if it does not.
        unread: why it cannot be read; empty if it can.
    """

    declared: tuple[Declared, ...] = ()
    compiled: bool = False
    index: str = ""
    unread: str = ""


def of_pip(text: str, start: int, *, is_literal: bool = True) -> Declared | None:
    """A requirement as pip writes it; None for anything else, and for another system than Linux."""
    try:
        found = Requirement(text)
    except InvalidRequirement:
        return None
    if found.marker is not None and not _is_for_linux(found.marker):
        return None
    name = canonicalize_name(found.name)
    allowed = _public(found.specifier)
    return Declared(name, allowed, start, start + len(text), text, "pip", is_literal)


def of_poetry(name: str, text: str, start: int) -> Declared | None:
    """The versions of an entry such as `torch = "^2.1"`, in a table of poetry's or in a Pipfile."""
    allowed = _allowed(_of_poetry(part.strip()) for part in text.split(","))
    if allowed is None:
        return None
    return Declared(canonicalize_name(name), allowed, start, start + len(text), text, "poetry")


def of_conda(text: str, start: int) -> Declared | None:
    """A match specification of conda; None for anything else."""
    found = _CONDA.fullmatch(text.strip())
    if found is None:
        return None
    versions = (found[2] or "").strip().partition(" ")[0]  # a build may stand behind
    allowed = _allowed(map(_of_conda, versions.split(",")))
    if allowed is None:
        return None
    name = canonicalize_name(found[1])
    return Declared(name, allowed, start, start + len(text), text, "conda", is_literal=False)


def of_image(text: str, start: int) -> Declared | None:
    """An image that is named after PyTorch and the release in it; None for any other."""
    found = _IMAGE.fullmatch(text)
    if found is None:
        allowed = None
    else:
        allowed = _allowed([f"=={found[1] or found[2]}"])
    if allowed is None:
        return None
    return Declared("torch", allowed, start, start + len(text), text, "image", is_literal=False)


def of_text(text: str, operator: str, release: str, start: int) -> Declared | None:
    """What a text for people says of torch; None where its operator is none of pip's."""
    allowed = _allowed([{"=": "==", ">": ">="}.get(operator, operator) + release])
    if allowed is None:
        return None
    return Declared("torch", allowed, start, start + len(text), text, "readme", is_literal=False)


def of_lock(version: str, start: int) -> Declared | None:
    """The torch of a lock file."""
    text = f"torch {version}"
    allowed = _allowed([f"=={version}"])
    if allowed is None:
        return None
    return Declared("torch", allowed, start, start + len(text), text, "lock", is_literal=False)


def _allowed(parts: Iterable[str]) -> SpecifierSet | None:
    """The versions that all parts allow; None if one of them cannot be read."""
    try:
        return _public(SpecifierSet(",".join(filter(None, parts))))
    except InvalidSpecifier:
        return None


def _is_for_linux(marker: Marker) -> bool:
    """Whether a marker can be true on Linux, with a Python that torch still supports."""
    pythons = [{"python_version": f"3.{n}", "python_full_version": f"3.{n}.9"} for n in (10, 12)]
    return any(marker.evaluate({**_TRAINS, **python}) for python in pythons)


def _public(versions: SpecifierSet) -> SpecifierSet:
    """Versions without what names a build of them, as `+cu118` does: a release is not compared with it."""
    return SpecifierSet(re.sub(r"\+[\w.]+", "", str(versions)))


def _of_poetry(part: str) -> str:
    """A part of poetry's versions as pip writes it."""
    if part in ("", "*"):
        return ""
    if part.startswith("^"):
        version = part[1:].strip()
        numbers = re.match(r"(?:0\.)*\d+", version)  # up to the first that is not 0, which stays
        if numbers is None:
            return part
        *zeros, last = numbers[0].split(".")
        return f">={version},<{'.'.join([*zeros, str(int(last) + 1)])}"
    if part.startswith("~") and not part.startswith("~="):
        version = part[1:].strip()
        return f">={version},=={'.'.join(version.split('.')[:2])}.*"
    if part[0] in "=<>!~":
        return part
    return f"=={part}"


def _of_conda(part: str) -> str:
    """A part of conda's versions as pip writes it; a build behind the version is left out."""
    found = re.fullmatch(r"(==|>=|<=|!=|~=|=|>|<)?([\w.+*!]+)(?:=.*)?", part)
    if found is None:
        return part
    operator = found[1] or "=="
    version = found[2].rstrip("*").rstrip(".")
    if operator == "=" or (operator == "==" and found[2].endswith("*")):
        return f"=={version}.*"
    return f"{operator}{version}"
