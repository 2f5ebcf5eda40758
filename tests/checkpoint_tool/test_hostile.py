"""Checkpoints of other people: archives and indices that want more memory, or other files, than they may."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from .conftest import Run


def _archive(path: Path, change: Callable[[zipfile.ZipFile, str, bytes], None], kind: int) -> None:
    torch.save({"a": torch.ones(2)}, "good.pt")
    with zipfile.ZipFile("good.pt") as good, zipfile.ZipFile(path, "w", kind) as archive:
        for name in good.namelist():
            change(archive, name, good.read(name))


def _bomb(path: Path) -> None:
    """A pickle of 64 MB in as many kB."""
    grown = lambda archive, name, data: archive.writestr(  # noqa: E731
        name, data + b"\0" * (1 << 26) * name.endswith("data.pkl")
    )
    _archive(path, grown, zipfile.ZIP_DEFLATED)


def _outside(path: Path) -> None:
    up = lambda archive, name, data: archive.writestr(f"../../{name}", data)  # noqa: E731
    _archive(path, up, zipfile.ZIP_STORED)


def _safetensors(path: Path, entry: object, data: bytes = b"\0" * 4) -> None:
    header = json.dumps({"a": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)


def _huge(path: Path) -> None:
    _safetensors(path, {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 4]})


def _negative(path: Path) -> None:
    _safetensors(path, {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]})


ATTACKS = {f.__name__: f for f in (_bomb, _outside, _huge, _negative)}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_archive_gets_one_line(run: Run, name: str) -> None:
    ATTACKS[name](Path("evil.pt"))
    for arguments in (("inspect", "evil.pt"), ("convert", "evil.pt", "out")):
        result = run(*arguments)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert result.err.startswith("error: evil.pt")
        assert not Path("out").exists()
