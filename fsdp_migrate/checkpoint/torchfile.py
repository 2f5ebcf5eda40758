"""The files of `torch.save`: the zip format, and the one before torch 1.6. Nothing is read but their index."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path
from typing import IO, Any, Literal

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.pickles import read_pickle
from fsdp_migrate.checkpoint.tensors import Storage

_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C
_PICKLED_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_LOCAL_HEADER = struct.Struct("<26xHH")


class View(io.RawIOBase):
    """A part of a file that reads as a file of its own: the items of a `.distcp` file are such."""

    def __init__(self, path: Path, start: int = 0, length: int | None = None) -> None:
        super().__init__()
        self._file = path.open("rb")
        self.path, self.start = path, start
        rest = os.fstat(self._file.fileno()).st_size - start
        self.length = rest if length is None else length
        if rest < self.length:
            self._file.close()
            raise Unreadable(f"is cut off: {self.length - rest} bytes are missing", path)
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; positions count from the start of the part."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.length}[whence]
        if base + offset < 0:
            raise OSError("a position before the file's start")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, as far as the part goes."""
        room = max(min(len(buffer), self.length - self._at), 0)
        self._file.seek(self.start + self._at)
        count = self._file.readinto(memoryview(buffer)[:room])
        self._at += count
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


Format = Literal["torch zip", "torch legacy"]


def format_of(head: bytes) -> Format | None:
    """What the first bytes say; None for what `torch.save` did not write."""
    if head.startswith(_ZIP):
        return "torch zip"
    return "torch legacy" if _PICKLED_MAGIC in head[:16] else None


def read_torch(view: View, trust: bool = False) -> Any:
    """The object of `torch.save`, its tensors still on disk.

    Raises:
        Unreadable: what `torch.save` did not write, or a damaged file, or a pickle that asks for more.
    """
    head = view.read(16) or b""
    view.seek(0)
    found = format_of(head)
    if found == "torch zip":
        return _read_zip(view, trust)
    if found == "torch legacy":
        return _read_legacy(view, trust)
    raise Unreadable("no file of torch.save")


def _read_zip(view: View, trust: bool) -> Any:
    return _Zip(view).read(trust)


class _Zip:
    """The archive that torch.save writes: a pickle, and each storage as a record of its own."""

    def __init__(self, view: View) -> None:
        self.view = view
        try:
            archive = zipfile.ZipFile(view)
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
            raise Unreadable("is damaged or cut off: a zip archive without its end") from None
        self.entries = {info.filename: info for info in archive.infolist()}
        pickled = [n for n in self.entries if n.endswith("/data.pkl") and n.count("/") == 1]
        if len(pickled) != 1:
            raise Unreadable("is a zip archive that torch.save did not write")
        self.folder = pickled[0][: -len("data.pkl")]
        if any(name.startswith(f"{self.folder}code/") for name in self.entries):
            raise Unreadable("is a TorchScript program, not a state dict")
        self._storages: dict[str, Storage] = {}

    def read(self, trust: bool) -> Any:
        """What was saved."""
        order = f"{self.folder}byteorder"
        if order in self.entries and self._content(order) != b"little":
            raise Unreadable("was written on a machine of the other byte order")
        pickled = io.BytesIO(self._content(f"{self.folder}data.pkl"))
        return read_pickle(pickled, self._storage, trust)

    def _storage(self, key: str, nbytes: int) -> Storage:
        if key not in self._storages:
            start, size = self._place(f"{self.folder}data/{key}", nbytes)
            self._storages[key] = Storage(self.view.path, size, self.view.start + start)
        return self._storages[key]

    def _content(self, name: str) -> bytes:
        start, size = self._place(name)
        self.view.seek(start)
        return bytes(self.view.read(size) or b"")

    def _place(self, name: str, least: int = 0) -> tuple[int, int]:
        """Where a record begins, and its size: the header in front of it has names of any length."""
        info = self.entries.get(name)
        if info is None:
            raise Unreadable(f"is damaged: its record {name} is missing")
        self.view.seek(info.header_offset)
        header = self.view.read(_LOCAL_HEADER.size) or b""
        if len(header) < _LOCAL_HEADER.size:
            raise Unreadable("is damaged: an entry lies outside of the file")
        start = info.header_offset + _LOCAL_HEADER.size + sum(_LOCAL_HEADER.unpack(header))
        size = info.file_size
        is_cut = start + size > self.view.length or size < least
        if info.compress_type != zipfile.ZIP_STORED or is_cut:
            raise Unreadable(f"is damaged: its record {name} is not as torch.save writes it")
        return start, size


def _read_legacy(view: View, trust: bool) -> Any:
    """Four pickles (magic number, version, system, the object), the keys, then each storage with its length."""
    stream: IO[bytes] = io.BufferedReader(view)
    if read_pickle(stream, trust=trust) != _MAGIC:
        raise Unreadable("no file of torch.save")
    read_pickle(stream, trust=trust)
    system = read_pickle(stream, trust=trust)
    if isinstance(system, dict) and not system.get("little_endian", True):
        raise Unreadable("was written on a machine of the other byte order")
    storages: dict[str, Storage] = {}

    def find(key: str, nbytes: int) -> Storage:
        return storages.setdefault(key, Storage(view.path, nbytes))

    tree = read_pickle(stream, find, trust)
    keys = read_pickle(stream, trust=trust)
    at = stream.tell()
    for key in keys if isinstance(keys, list) else []:
        if key not in storages:
            raise Unreadable("is damaged: a storage is not of any tensor")
        storage = storages[key]
        if at + 8 + storage.nbytes > view.length:
            break
        view.seek(at)
        count = int.from_bytes(view.read(8) or b"", "little")
        if storage.nbytes not in [count * itemsize for itemsize in (1, 2, 4, 8, 16)]:
            raise Unreadable("is damaged: a storage has not the size that its tensors need")
        storage.start = view.start + at + 8
        at += 8 + storage.nbytes
    if any(storage.start < 0 for storage in storages.values()):
        raise Unreadable("is damaged or cut off: tensors' bytes are missing")
    return tree
