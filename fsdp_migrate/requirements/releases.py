"""Releases of torch, and which of them a requirement allows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from packaging.specifiers import SpecifierSet

from fsdp_migrate.requirements.declared import Declared

# torchvision 0.16 belongs to torch 2.1, 0.23 to torch 2.8.
_TORCHVISION = 15
# Each release of these is built for one of torch, or asks for it exactly.
BUILT_FOR_ONE = frozenset({"torchtext", "torchaudio", "torchvision", "triton", "vllm", "xformers"})
_LOWER = re.compile(r"(\^|~=|>=|>)([ ]*)(\d[\w.]*)")


def written(release: Sequence[int]) -> str:
    """`2.8`."""
    return ".".join(map(str, release))


def allows_older(versions: SpecifierSet, target: Sequence[int]) -> bool:
    """Whether a requirement allows a release of torch below another one."""
    return any(versions.contains(release, prereleases=True) for release in _below(target))


def allows(versions: SpecifierSet, target: Sequence[int]) -> bool:
    """Whether a requirement allows a release of torch."""
    return versions.contains(written(target), prereleases=True)


def is_bounded(versions: SpecifierSet) -> bool:
    """Whether a requirement has a lowest release."""
    return not versions.contains("0.1", prereleases=True)


def raised(text: str, target: Sequence[int]) -> str:
    """A requirement whose lowest release is another one, written with as many numbers as before."""
    found = _LOWER.search(text)  # a release in a marker stands in quotes
    if found is None:
        return text
    numbers = [*target, 0, 0][: max(len(target), found[3].count(".") + 1)]
    if found[1] == ">":
        operator = ">="
    else:
        operator = found[1]
    lowest = f"{operator}{found[2]}{written(numbers)}"
    return f"{text[: found.start()]}{lowest}{text[found.end() :]}"


def bound_to_another(declared: Iterable[Declared], target: Sequence[int]) -> list[Declared]:
    """The packages that are asked for in a release which belongs to another torch, or may."""
    return [each for each in declared if _is_bound(each, target)]


def _is_bound(declared: Declared, target: Sequence[int]) -> bool:
    if declared.name not in BUILT_FOR_ONE:
        return False
    if declared.name == "torchvision":
        return not declared.versions.contains(f"0.{target[1] + _TORCHVISION}", prereleases=True)
    if declared.name == "torchaudio":
        return not allows(declared.versions, target)
    return any(each.operator in ("==", "===") for each in declared.versions)


def _below(target: Sequence[int]) -> Iterable[str]:
    """The releases of torch below one."""
    for major in range(1, target[0] + 1):
        minors = 14
        if major == target[0]:
            minors = target[1]
        for minor in range(minors):
            for micro in range(3):
                yield f"{major}.{minor}.{micro}"
