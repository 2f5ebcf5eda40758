"""Files that both programs write: compared by what a reader gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify import files

torch = pytest.importorskip("torch")
dist = torch.distributed
dcp = pytest.importorskip("torch.distributed.checkpoint")


@pytest.fixture(scope="module")
def sharded() -> Iterator[Any]:
    """Makes a DTensor of a tensor, on a mesh of this process alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    yield lambda tensor: distribute_tensor(tensor, mesh, [Shard(0)])
    dist.destroy_process_group()


def compared(folder: Path, *trees: dict[str, Any], trained: float = 0.0) -> files.Compared:
    """What the comparison says of two programs that write these files, each name with its content."""
    found = []
    for number, contents in enumerate(trees):
        root = folder / str(number)
        root.mkdir()
        (root / "there.txt").write_text("before")
        before = files.state(root)
        for name, content in contents.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_text(content)
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                torch.save(content, path)
        found.append(files.written(root, before))
    return files.compare(found[0], found[1], 2, 1e-6, trained)


def test_a_migrated_checkpoint_of_one_ranks_part_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.checkpoint import sources
    from fsdp_migrate.checkpoint.errors import Incomplete

    opened = sources.open_checkpoint

    def one_part(path: Path) -> sources.Checkpoint:
        found = opened(path)
        if path.parent.name == "1":
            return replace(
                found, refused=Incomplete("w is not whole: the files of ranks 1 are missing")
            )
        return found

    monkeypatch.setattr(sources, "open_checkpoint", one_part)
    found = compared(tmp_path, {"m.pt": ONES}, {"m.pt": ONES})
    assert found.unread == []
    (difference,) = found.differences
    assert str(difference) == (
        "checkpoint m.pt: whole in the original, one rank's part of a sharded tensor in the migrated program: "
        "w is not whole: the files of ranks 1 are missing"
    )


ONES = {"model": {"w": torch.ones(3)}, "step": 7, "seconds": 1.5, "name": "best", "groups": []}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, ""),
        ({"seconds": 9.5}, ""),
        ({"model": {"w": torch.ones(3) + 0.5}}, "model.w by up to 0.5"),
        ({"model": {"w": torch.ones(4)}}, "model.w has shape [3] against [4]"),
        ({"model": {"w": torch.ones(3).bfloat16()}}, "model.w is float32 against bfloat16"),
        ({"model": {"w": 1.0}}, "model.w is a plain tensor against a number"),
        ({"model": {}}, "model.w is in the original only"),
        ({"step": 8}, "step is 7 against 8"),
        ({"step": None}, "step is a number against NoneType"),
        ({"name": "last"}, "name is 'best' against 'last'"),
        ({"groups": [1]}, "groups is in the original only"),
    ],
)
def test_a_checkpoint_is_what_is_loaded(change: dict[str, Any], text: str, tmp_path: Path) -> None:
    found = compared(tmp_path, {"m.pt": ONES}, {"m.pt": ONES | change})
    assert [difference.text for difference in found.differences] == [text] * bool(text)
    assert found.files[0].startswith("m.pt (1 tensor")


@pytest.mark.parametrize(("others", "same"), [(["b", "c", "a"], True), (["b", "c", "d"], False)])
def test_parameters_of_a_group_have_no_order(others: list[str], same: bool, tmp_path: Path) -> None:
    def tree(names: list[str]) -> dict[str, Any]:
        return {"optim": {"state": {}, "param_groups": [{"lr": 0.1, "params": names}]}}

    found = compared(tmp_path, {"m.pt": tree(["a", "b", "c"])}, {"m.pt": tree(others)})
    assert (found.differences == []) == same


@pytest.mark.parametrize("shape", ["state", "optimizer", "alone"])
def test_a_dtensor_is_no_plain_tensor(shape: str, tmp_path: Path, sharded: Any) -> None:
    value = torch.ones(4, 2)

    def tree(held: Any) -> Any:
        nested = {"state": {0: {"exp_avg": held}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
        return {"state": {"model": {"w": held}}, "optimizer": nested, "alone": held}[shape]

    found = compared(tmp_path, {"m.pt": tree(value)}, {"m.pt": tree(sharded(value))})
    (difference,) = found.differences
    assert "is a plain tensor against a sharded tensor" in difference.text
    again = tmp_path / "again"
    again.mkdir()
    both = compared(again, *[{"m.pt": tree(sharded(value))}] * 2)
    assert both.differences == []


def test_dcp_reads_plain_tensors_and_dtensors_alike(tmp_path: Path, sharded: Any) -> None:
    def compare(name: str, *values: Any) -> files.Compared:
        folders = [tmp_path / f"{name} {number}" for number in range(len(values))]
        for folder, value in zip(folders, values, strict=True):
            dcp.save({"w": value}, checkpoint_id=folder)
        one, other = ({"m": folder} for folder in folders)
        return files.compare(one, other, 2, 1e-6, 0.0)

    value = torch.ones(4, 2)
    assert compare("same", value, sharded(value)).differences == []
    (difference,) = compare("other", value, sharded(value + 0.5)).differences
    assert difference.text == "w by up to 0.5"


@pytest.mark.parametrize(
    ("a", "b", "changed"),
    [
        ("a/m.pt", "b/m.pt", {"w": torch.zeros(2)}),
        ("run/0/deep/m.pt", "run/1/deep/m.pt", {"w": torch.zeros(2)}),
        ("m.pt", "last/m.pt", {"w": torch.zeros(3)}),
        ("log.txt", "eval/log.txt", "loss 2"),
        ("0/w.npy", "1/w.npy", b"\0\2"),
    ],
)
def test_files_of_one_name_in_other_folders_are_told_apart(
    a: str, b: str, changed: Any, tmp_path: Path
) -> None:
    content = {dict: {"w": torch.ones(2)}, str: "loss 1", bytes: b"\0\1"}[type(changed)]
    one = {a: content, b: content}
    found = compared(tmp_path, one, one | {b: changed})
    told = [difference.what.removeprefix("checkpoint ") for difference in found.differences]
    told += [line.place for line in found.printed]
    told += [text.partition(":")[0] for text in found.unread]
    assert told == [b]
    assert a in [text.split()[0] for text in found.files]


def test_a_checkpoint_that_only_one_program_wrote_is_a_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, {"m.pt": ONES, "notes.bin": b"x"}, {"notes.bin": b"x", "log": "a"})
    (difference,) = found.differences
    assert str(difference) == "checkpoint m.pt: only the original program wrote it"
    assert found.files == ["notes.bin (the same bytes)"]
    assert found.unread == ["log: only the migrated program wrote it"]


def test_names_with_dates_are_the_same_file(tmp_path: Path) -> None:
    one = {"run-20261127/m-3a4f9b22.pt": ONES, "m_step5.pt": ONES}
    other = {"run-20261128/m-99aa01cd.pt": ONES, "m_step6.pt": ONES}
    found = compared(tmp_path, one, other)
    assert [difference.what for difference in found.differences] == [
        "checkpoint m_step5.pt",
        "checkpoint m_step6.pt",
    ]
    assert [text.split()[0] for text in found.files] == ["run-20261127/m-3a4f9b22.pt"]


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("step,loss\n1,2.5\n", "step,loss\n1,2.5\n", ""),
        ("step,loss\n1,2.5\n", "step,loss\n1,2.7\n", "'1,2.5' against '1,2.7'"),
        ('{"time_taken": 3.5}', '{"time_taken": 8.5}', ""),
        ("done", "not done", "'done' against 'not done'"),
    ],
)
def test_text_is_compared_as_what_is_printed(
    one: str, other: str, text: str, tmp_path: Path
) -> None:
    found = compared(tmp_path, {"out/log.csv": one}, {"out/log.csv": other})
    assert [line.text for line in found.printed] == [text] * bool(text)
    assert all(str(line).startswith("written to out/log.csv: ") for line in found.printed)
    assert found.differences == []


def test_other_files_are_compared_by_their_bytes(tmp_path: Path) -> None:
    one = {"a.npy": b"\0\1", "b.npy": b"\0\1", "old.pt": b"\x80\x02"}
    found = compared(tmp_path, one, one | {"b.npy": b"\0\2", "old.pt": b"\x80\x03"})
    assert found.files == ["a.npy (the same bytes)"]
    assert found.unread[0] == "b.npy: other bytes, of a form that is not known here"
    assert found.unread[1].startswith("old.pt: is no checkpoint")
    assert found.differences == []


def test_a_file_that_was_there_counts_once_it_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("1")
    before = files.state(tmp_path)
    assert files.written(tmp_path, before) == {}
    (tmp_path / "m.txt").write_text("12")
    assert [*files.written(tmp_path, before)] == ["m.txt"]
