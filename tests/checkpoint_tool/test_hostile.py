"""Checkpoints of other people: archives and indices that want more memory, or other files, than they may."""

import os
import pickle
import stat
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from fsdp_migrate.checkpoint.errors import Unreadable
from fsdp_migrate.checkpoint.pickles import allowed
from fsdp_migrate.checkpoint.shards import ShardedTensor

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


def _linked(record: str) -> Callable[[Path], None]:
    """A record that is a symbolic link to another file, as `tar` and `unzip` would make it."""

    def link(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
        if not name.endswith(record):
            return archive.writestr(name, data)
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        return archive.writestr(info, str(Path("secret").absolute()))

    def make(path: Path) -> None:
        Path("secret").write_bytes(b"\x80\x02}q\x00." + b"\0" * 99)
        _archive(path, link, zipfile.ZIP_STORED)

    return make


def _pickled(pickled: bytes) -> Callable[[Path], None]:
    """An archive with a pickle of its own beside a storage of eight bytes."""

    def put(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
        archive.writestr(name, pickled if name.endswith("data.pkl") else data)

    return lambda path: _archive(path, put, zipfile.ZIP_STORED)


def _tensor(offset: bytes, shape: bytes) -> bytes:
    """The instructions that rebuild a tensor of one dimension over that storage."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
        b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ" + offset + shape + b"\x85"
        b"K\x01\x85\x89}tR"
    )


_NAME = b"X\x01\x00\x00\x00a"
_FAR = b"\x8a\x08" + (1 << 61).to_bytes(8, "little")

ATTACKS: dict[str, Callable[[Path], None]] = {
    **{f.__name__: f for f in (_bomb, _outside)},
    "link": _linked("data.pkl"),
    "offset": _pickled(b"\x80\x02}" + _NAME + _tensor(_FAR, b"K\x01") + b"s."),
    "offset-below": _pickled(b"\x80\x02}" + _NAME + _tensor(b"J\xff\xff\xff\xff", b"K\x01") + b"s."),
    "size": _pickled(b"\x80\x02}" + _NAME + _tensor(b"K\x00", _FAR) + b"s."),
    # Writes into the tensor, which is a map that must not be written to.
    "item": _pickled(b"\x80\x02}" + _NAME + _tensor(b"K\x00", b"K\x01") + b"K\x00K\x01ss."),
    "items": _pickled(b"\x80\x02}" + _NAME + _tensor(b"K\x00", b"K\x01") + b"(K\x00K\x01us."),
    "laughs": _pickled(b"\x80\x02}" + _NAME + b"]q\x000" + b"".join(
        b"]h" + bytes([n]) + b"ah" + bytes([n]) + b"aq" + bytes([n + 1]) + b"0" for n in range(60)
    ) + b"h\x3cs."),
    "list": _pickled(b"\x80\x02}" + _NAME + b"\x8e" + (1 << 62).to_bytes(8, "little") + b"s."),
}  # fmt: skip


def test_the_instructions_of_the_attacks_make_a_tensor(run: Run) -> None:
    """Else they would be refused for another reason."""
    _pickled(b"\x80\x02}" + _NAME + _tensor(b"K\x00", b"K\x02") + b"s.")(Path("a.pt"))
    assert "model  1 tensor, 2 parameters, 8 B" in run("inspect", "a.pt").text


@pytest.mark.parametrize("name", ATTACKS)
def test_an_archive_gets_one_line(run: Run, name: str) -> None:
    ATTACKS[name](Path("evil.pt"))
    for arguments in (("inspect", "evil.pt"), ("convert", "evil.pt", "out")):
        result = run(*arguments)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert result.err.startswith("error: evil.pt")
        assert not Path("out").exists()


def test_a_link_in_an_archive_is_not_followed(run: Run) -> None:
    """Its tensor has the bytes of the link itself."""
    _linked("data/0")(Path("evil.pt"))
    assert run("convert", "evil.pt", "out.pt").code == 0
    found = bytes(torch.load("out.pt", weights_only=True)["a"].view(torch.uint8))
    assert found == str(Path("secret").absolute()).encode()[: len(found)]


@pytest.mark.filterwarnings("ignore")
def test_links_in_a_folder(run: Run) -> None:
    """A link to a file is read, as caches have them; one to anything else is no file of the checkpoint."""
    dcp.save({"a": torch.ones(2)}, checkpoint_id="dcp")
    item = Path("dcp/__0_0.distcp")
    item.rename("elsewhere")
    item.symlink_to("../elsewhere")
    assert run("inspect", "dcp").code == 0
    os.mkfifo("pipe")
    for goal in ("../pipe", "/dev/zero", "__0_0.distcp", "nowhere"):
        item.unlink()
        item.symlink_to(goal)
        assert "needs the file __0_0.distcp, which is missing" in run("inspect", "dcp").err
    item.unlink()
    Path("dcp/.metadata").rename("metadata")
    for goal in ("../pipe", "/dev/zero", ".metadata"):
        Path("dcp/.metadata").symlink_to(goal)
        assert run("inspect", "dcp").code == 2
        Path("dcp/.metadata").unlink()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"relative_path": "../secret"}, "places an item outside of the folder"),
        ({"relative_path": "/etc/passwd"}, "places an item outside of the folder"),
        ({"offset": -1}, "places an item before the start"),
        ({"length": 1 << 62}, "is cut off"),
    ],
)
def test_an_index_that_leads_elsewhere(run: Run, change: dict[str, object], message: str) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id="dcp")
    Path("secret").write_bytes(Path("dcp/__0_0.distcp").read_bytes())
    index = Path("dcp/.metadata")
    metadata = pickle.loads(index.read_bytes())
    for place in metadata.storage_data:
        metadata.storage_data[place] = replace(metadata.storage_data[place], **change)
    index.write_bytes(pickle.dumps(metadata))
    for arguments in (("inspect", "dcp"), ("convert", "dcp", "out")):
        result = run(*arguments)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert message in result.err


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"ranks": 1 << 60},
        {"rank": -1},
        {"size": (-4,)},
        {"size": ("4",)},
        {"tensor": "no tensor"},
    ],
    ids=str,
)
def test_a_sharded_tensor_of_impossible_numbers(change: dict[str, Any]) -> None:
    told: dict[str, Any] = {"rank": 0, "ranks": 2, "size": (4,), "tensor": torch.ones(2)} | change
    place, shard, metadata, group = (
        allowed(f"torch.distributed.{name}")
        for name in ("ShardMetadata", "Shard", "ShardedTensorMetadata", "ProcessGroupState")
    )
    state = (
        [
            _noted(
                shard,
                metadata=_noted(place, shard_offsets=[0], shard_sizes=[2]),
                tensor=told["tensor"],
            )
        ],
        _noted(metadata, size=told["size"]),
        group(0, told["rank"], 0, told["ranks"]),
    )
    build = torch._tensor._rebuild_from_type_v2
    made = ShardedTensor, torch.float32, (4,), (1,), 0, torch.strided, "cpu", False
    if not change:
        assert build(torch._utils._rebuild_wrapper_subclass, ShardedTensor, made, state).ranks == 2
        return
    with pytest.raises(Unreadable, match=r"unknown form|size of its place"):
        build(torch._utils._rebuild_wrapper_subclass, ShardedTensor, made, state)


def _noted(kind: Any, **state: Any) -> Any:
    note = kind()
    note.__setstate__(state)
    return note


@pytest.mark.filterwarnings("ignore")
def test_an_item_in_an_empty_file(run: Run) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id="dcp")
    Path("dcp/__0_0.distcp").write_bytes(b"")
    index = Path("dcp/.metadata")
    metadata = pickle.loads(index.read_bytes())
    for place in metadata.storage_data:
        metadata.storage_data[place] = replace(metadata.storage_data[place], length=0)
    index.write_bytes(pickle.dumps(metadata))
    result = run("convert", "dcp", "out")
    assert (result.code, result.err.count("\n")) == (2, 1), result.err
    assert not Path("out").exists()
