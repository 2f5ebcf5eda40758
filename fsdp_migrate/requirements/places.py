"""The files that declare what programs need: at and above their folders, up to the root of the repository."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

KINDS = {
    "requirements": re.compile(r".*(?:requirements|constraints).*\.(?:txt|in)", re.IGNORECASE),
    "toml": re.compile(r"pyproject\.toml|Pipfile"),
    "cfg": re.compile(r"setup\.cfg"),
    "python": re.compile(r"setup\.py"),
    "conda": re.compile(r"(?:env|environment|conda|meta)(?:[._-].*)?\.ya?ml", re.IGNORECASE),
    "docker": re.compile(r"(?:Docker|Container)file(?:[._-].*)?|.*\.dockerfile", re.IGNORECASE),
    "readme": re.compile(r"(?:README|INSTALL)(?:\.(?:md|rst|txt))?", re.IGNORECASE),
    "lock": re.compile(r"(?:poetry|uv|pdm|Pipfile)\.lock|pylock(?:\..+)?\.toml"),
}
"""What a file's name says of how it is written."""
LISTS = re.compile(r"requirements|constraints|reqs", re.IGNORECASE)
# Folders of a project that hold such files and no program.
_BESIDE = re.compile(
    r"(?:requirements|constraints|reqs|\.?docker|dockerfiles|\.devcontainer|conda|conda[._-]recipe|recipe"
    r"|environments?|envs?|deps|dependencies)",
    re.IGNORECASE,
)
_INCLUDED = re.compile(r"^[ \t]*(?:-r|-c|--requirement|--constraint)[ \t=]*([^\s#]+)", re.MULTILINE)


def kind_of(file: str) -> str | None:
    """The kind of a file by its name and its folder; None if it declares nothing."""
    folder, name = os.path.split(file)
    for kind, pattern in KINDS.items():
        if pattern.fullmatch(name):
            return kind
    is_list = LISTS.fullmatch(os.path.basename(folder)) and name.endswith((".txt", ".in"))
    if is_list:
        return "requirements"
    return None


def declaring(
    programs: Iterable[str], given: Sequence[str], is_excluded: Callable[[str], bool]
) -> dict[str, str]:
    """The files that declare what some programs need, with their kinds.

    Args:
        programs: the files that use FSDP1, as absolute paths.
        given: the paths of the run: without a repository no folder above them is looked at.
        is_excluded: whether the settings leave a file out.
    """
    folders: dict[str, None] = {}
    for folder in sorted({os.path.dirname(program) for program in programs}):
        folders |= dict.fromkeys(_upwards(folder, given))
    found: dict[str, str] = {}
    for folder in folders:
        for file in files_in(folder):
            kind = kind_of(file)
            if kind == "readme" and os.path.dirname(file) != folder:  # of one image, perhaps
                continue
            if kind is not None and not is_excluded(file):
                found[file] = kind
                found |= _included(file, kind, is_excluded)
    return dict(sorted(found.items()))


def _upwards(folder: str, given: Sequence[str]) -> Iterator[str]:
    """A folder and those above it: up to the repository's root, or the folder that is given."""
    above = [folder]
    while not os.path.exists(os.path.join(above[-1], ".git")):
        parent = os.path.dirname(above[-1])
        if parent == above[-1]:  # in no repository
            inside = [each for each in above if any(_is_below(each, path) for path in given)]
            return iter(inside or [folder])
        above.append(parent)
    return iter(above)


def _is_below(folder: str, path: str) -> bool:
    return os.path.isdir(path) and (folder == path or folder.startswith(os.path.join(path, "")))


def files_in(folder: str) -> Iterator[str]:
    """The files of a folder, and those of folders in it that hold no program."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if os.path.isfile(entry.path):  # a link to itself is none: entry.is_file() raises
            yield entry.path
        elif _BESIDE.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            for below, folders, names in os.walk(entry.path):
                folders.sort()
                for name in sorted(names):
                    yield os.path.join(below, name)


def _included(file: str, kind: str, is_excluded: Callable[[str], bool]) -> dict[str, str]:
    """The files that a list of requirements includes, whatever they are called."""
    if kind != "requirements":
        return {}
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as stream:
            names = _INCLUDED.findall(stream.read())
    except OSError:
        return {}
    paths = [os.path.normpath(os.path.join(os.path.dirname(file), name)) for name in names]
    return {path: kind for path in paths if os.path.isfile(path) and not is_excluded(path)}
