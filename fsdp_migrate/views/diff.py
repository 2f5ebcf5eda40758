"""The unified diff that `git apply` takes: bytes in, bytes out.

Names are relative to the root of the repository, as in git's own diffs; elsewhere to the current folder.
"""

import difflib
import io
import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from fsdp_migrate import git
from fsdp_migrate.report import Change

_ESCAPES = {
    "\a": "a", "\b": "b", "\t": "t", "\n": "n", "\v": "v", "\f": "f", "\r": "r", '"': '"', "\\": "\\",
}  # fmt: skip


def render_diff(changes: Sequence[Change]) -> bytes:
    """All changes as one patch."""
    root = None
    if changes:
        root = git.toplevel(Path.cwd())
    return b"".join(_file_diff(change, root) for change in changes)


def _file_diff(change: Change, root: Path | None) -> bytes:
    name = _patch_name(change.path, root)
    old = quote_name(f"a/{name}")
    new = quote_name(f"b/{name}")
    # As git does it: a tab ends a name with spaces, lest its rest is taken for a time stamp.
    end = b""
    if b" " in old and not old.startswith(b'"'):
        end = b"\t"
    lines = [b"diff --git %b %b" % (old, new)]
    if change.is_new:
        lines += [b"new file mode 100644", b"--- /dev/null", b"+++ " + new + end]
    else:
        lines += [b"--- " + old + end, b"+++ " + new + end]
    before, after = [io.BytesIO(data).readlines() for data in (change.before, change.after)]
    body = difflib.diff_bytes(difflib.unified_diff, before, after)
    for line in list(body)[2:]:  # without its header; a lone carriage return ends no line
        lines.append(line.removesuffix(b"\n"))
        if not line.endswith(b"\n"):
            lines.append(b"\\ No newline at end of file")
    return b"\n".join(lines) + b"\n"


def _patch_name(path: Path, root: Path | None) -> str:
    file = os.path.abspath(path)
    for base in (root and os.path.realpath(root), os.getcwd()):
        for name in (os.path.realpath(file), file):
            if base and name.startswith(os.path.join(base, "")):
                return PurePath(os.path.relpath(name, base)).as_posix()
    return PurePath(file).as_posix().lstrip("/")


def quote_name(name: str) -> bytes:
    """A name as git writes it with core.quotePath off: quoted where a line could not hold it."""
    raw = os.fsencode(name)
    if not any(c in _ESCAPES or not c.isprintable() for c in name):
        return raw
    quoted = []
    for byte in raw:
        character = chr(byte)
        if character in _ESCAPES:
            quoted.append("\\" + _ESCAPES[character])
        elif 0x20 <= byte < 0x7F:
            quoted.append(character)
        else:
            quoted.append(f"\\{byte:03o}")
    return b'"' + "".join(quoted).encode("ascii") + b'"'
