"""Diffs that `git apply` takes, for every kind of file and name."""

import codecs
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.report import Change
from fsdp_migrate.views.diff import quote_name, render_diff

LONG = b"".join(b"line %d\n" % number for number in range(60))
CONTENTS = {
    "lf": b"a\nFSDP(x)\nb\n",
    "crlf": b"a\r\nFSDP(x)\r\nb\r\n",
    "mixed": b"a\r\nFSDP(x)\nb\r",
    "bom": codecs.BOM_UTF8 + b"FSDP(x)\r\nb\r\n",
    "latin-1": "# coding: latin-1\ns = 'é'\nFSDP('é')\n".encode("latin-1"),
    "no final newline": b"a\nFSDP(x)",
    "no final newline, unchanged": b"FSDP(x)\na\nb\nc",
    "lone cr": b"a\rFSDP(x)\rb\nc\n",
    "form feed": b"a\n\x0c\nFSDP(x)\n\x1c\nb\n",
    "line separator": "a = '\u2028'\nFSDP('\u2028\x85')\n".encode(),
    "markup": b"y: Optional[int] = FSDP([red])\n",
    "two hunks": b"FSDP(x)\n" + LONG + b"FSDP(y)\n",
    "looks like a diff": b"--- a/x\n+++ b/x\n@@ -1 +1 @@\nFSDP(x)\n-- \n",
    "only line": b"FSDP",
}
NAMES = [
    "plain.py",
    "with space.py",
    "ünïcode.py",
    'quote".py',
    "back\\slash.py",
    "tab\t.py",
    "new\nline.py",
    "sub dir/a b.py",
    "sub/sub/x.py",
    "日本/語.py",
    "a/b/a.py",
    "[red].py",
]


def change(file: Path, before: bytes) -> Change:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(before)
    return Change(file, before, before.replace(b"FSDP", b"FSDP2"))


@pytest.mark.parametrize("kind", CONTENTS)
def test_contents(folder: Path, repository: Any, kind: str) -> None:
    one = change(folder / "x.py", CONTENTS[kind])
    repository.git("apply", stdin=render_diff([one]))
    assert one.path.read_bytes() == one.after


@pytest.mark.parametrize("where", ["root", "subfolder", "no repository"])
def test_names(
    folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The diff holds where the command was run, at the root of a repository or not."""
    here = folder / "pkg" if where == "subfolder" else folder
    here.mkdir(exist_ok=True)
    repository = request.getfixturevalue("repository")
    if where == "no repository":
        (folder / ".git").rename(folder / "gone")
    monkeypatch.chdir(here)
    changes = [change(here / name, b"a\nFSDP(x)\n") for name in [*NAMES, "pkg/pkg.py"]]
    diff = render_diff(changes)
    repository.git("apply", "--check", stdin=diff, folder=here)
    repository.git("apply", stdin=diff, folder=here)
    assert [one.path for one in changes if one.path.read_bytes() != one.after] == []


def test_a_folder_by_a_link(folder: Path, repository: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = change(folder / "real/x.py", b"FSDP(x)\n")
    (folder / "link").symlink_to("real")
    monkeypatch.chdir(folder / "link")
    diff = render_diff([Change(folder / "link/x.py", one.before, one.after)])
    repository.git("apply", stdin=diff, folder=folder / "link")
    assert one.path.read_bytes() == one.after


def test_as_git_writes_it(folder: Path, repository: Any) -> None:
    """Byte by byte what `git diff` says, but for the lines of object names and functions."""
    changes = [change(folder / name, CONTENTS["two hunks"]) for name in NAMES]
    repository.commit()
    ours = render_diff(sorted(changes, key=lambda one: one.path.relative_to(folder).as_posix()))
    repository.git("apply", stdin=ours)
    theirs = repository.git("-c", "core.quotePath=false", "diff")
    lines = [line for line in theirs.split(b"\n") if not line.startswith(b"index ")]
    lines = [b"@@".join(line.split(b"@@")[:2]) + b"@@" if b"@@" in line else line for line in lines]
    assert ours == b"\n".join(lines)


def test_outside_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = change(folder / "x.py", b"FSDP\n")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert render_diff([one]).startswith(b"diff --git a" + bytes(folder / "x.py"))


def test_no_change_is_no_diff() -> None:
    assert render_diff([]) == b""


def test_names_that_are_no_text() -> None:
    assert quote_name("a/caf\udce9.py") == b'"a/caf\\351.py"'
    assert quote_name("a/é.py") == "a/é.py".encode()
