"""`checkpoint convert`: what is written is the same, comes whole or not at all, and what is unsure is refused."""

import io
import itertools
import os
import signal
import subprocess
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from fsdp_migrate.checkpoint.parts import Part, covers, in_parts
from fsdp_migrate.checkpoint.ranks import joined

from .conftest import Run

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().flatten().view(torch.uint8)) if tensor.numel() else b""


def same(one: Any, other: Any) -> bool:
    """Bit by bit, in types and order."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(same, one, other))
    return one == other or one != one


def zoo() -> dict[str, Any]:
    """Every dtype, and every way in which a tensor may lie in its storage."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 2, (5, 8), generator=generator)
    whole = torch.randn(6, 8, generator=generator)
    tensors = {str(dtype): noise.to(dtype) for dtype in DTYPES}
    tensors |= {
        "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "transposed": whole.t(),
        "view": whole[2:4, 1:3],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": nn.Parameter(torch.ones(3)),
    }
    settings = {"lr": 0.1, "betas": (0.9, 0.99), "names": ["a", "b"], "none": None, "flag": True}
    return {"model": tensors, "settings": settings, "epoch": 3, "best": float("nan")}


def test_every_dtype_and_layout_stays_as_it_is(run: Run) -> None:
    saved = zoo()
    torch.save(saved, "a.pt")
    steps = [("a.pt", "b"), ("b", "c.pt"), ("a.pt", "d.pt"), ("b", "e")]
    for source, target in steps:
        result = run("convert", source, target)
        assert (result.code, result.err) == (0, ""), (source, target)
    for file in ("c.pt", "d.pt"):
        assert same(torch.load(file, weights_only=True), saved)
    for folder in ("b", "e"):  # by torch's own converter
        dcp_to_torch_save(folder, f"{folder}.pth")
        assert same(torch.load(f"{folder}.pth", weights_only=False), saved)
    assert sorted(os.listdir()) == sorted(["a.pt", "b", "b.pth", "c.pt", "d.pt", "e", "e.pth"])


def test_ties_stay_and_versions_of_modules_too(run: Run) -> None:
    model = nn.Sequential(nn.Embedding(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 7, bias=False))
    model[2].weight = model[0].weight
    state = model.state_dict(prefix="_orig_mod.")
    torch.save(state, "a.pt")
    assert run("convert", "a.pt", "b.pt").code == 0
    found = torch.load("b.pt", weights_only=True)
    assert found["0.weight"].data_ptr() == found["2.weight"].data_ptr()
    assert type(found) is OrderedDict
    assert found._metadata["1"] == {"version": 2}
    model.load_state_dict(found)


NAMES = {
    "fsdp": ("_fsdp_wrapped_module.layer._fsdp_wrapped_module.weight", "layer.weight"),
    "old-fsdp": ("_fpw_module.weight", "weight"),
    "checkpoint": ("0._checkpoint_wrapped_module.weight", "0.weight"),
    "compile": ("_orig_mod.module_list.weight", "module_list.weight"),
    "all": ("_orig_mod._fsdp_wrapped_module._checkpoint_wrapped_module.w", "w"),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("to", ["dcp", "full"])
def test_wrapper_names_go_everywhere(run: Run, name: str, to: str) -> None:
    before, after = NAMES[name]
    weight, average = torch.randn(2, 3), torch.randn(2, 3)
    groups = [{"lr": 0.1, "params": [before]}]
    optimizer = {"state": {before: {"exp_avg": average}}, "param_groups": groups}
    torch.save({"model": {before: weight}, "optimizer": optimizer}, "a.pt")
    assert run("inspect", "a.pt").code == 1
    assert run("convert", "a.pt", "b", "--to", to).code == 0
    assert run("inspect", "b").code == 0
    run("convert", "b", "c.pt")
    found = torch.load("c.pt", weights_only=True)
    assert same(found["model"], {after: weight})
    assert same(found["optimizer"]["state"], {after: {"exp_avg": average}})
    assert found["optimizer"]["param_groups"] == [{"lr": 0.1, "params": [after]}]


def test_names_that_become_the_same_are_refused(run: Run) -> None:
    torch.save({"_orig_mod.weight": torch.ones(2), "weight": torch.zeros(2)}, "a.pt")
    result = run("convert", "a.pt", "b.pt")
    assert result.code == 1
    assert "two names become weight" in result.err
    assert os.listdir() == ["a.pt"]


@pytest.mark.filterwarnings("ignore")
def test_what_exists_is_not_overwritten(run: Run) -> None:
    torch.save({"a": torch.ones(2)}, "a.pt")
    Path("folder").mkdir()
    os.symlink("nowhere", "link.pt")
    before = Path("a.pt").read_bytes()
    for target, reason in [
        ("a.pt", "exists"),
        ("folder", "exists"),
        ("link.pt", "exists"),
        ("nowhere/b.pt", "cannot be written"),
        ("b.safetensors", "are read, not written"),
    ]:
        result = run("convert", "a.pt", target)
        assert (result.code, result.err.count("\n")) == (2, 1), target
        assert reason in result.err, target
    assert Path("a.pt").read_bytes() == before
    assert sorted(os.listdir()) == ["a.pt", "folder", "link.pt"]


@pytest.mark.filterwarnings("ignore")
def test_a_folder_is_not_converted_into_itself(run: Run) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id="src")
    result = run("convert", "src", "src/new")
    assert result.code == 2
    assert "is inside of the source" in result.err
    assert sorted(os.listdir("src")) == [".metadata", "__0_0.distcp"]


@pytest.mark.parametrize("to", ["full", "dcp"])
def test_a_killed_conversion_leaves_nothing_whole(run: Run, tmp_path: Path, to: str) -> None:
    torch.save({f"w{i}": torch.full((100,), float(i)) for i in range(8)}, "a.pt")
    child = os.fork()
    if child == 0:
        _stall_at_the_sixth_tensor(tmp_path / "half")
        run("convert", "a.pt", "out", "--to", to)
        os._exit(0)
    deadline = time.monotonic() + 30
    while not Path("half").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    (rest,) = (name for name in os.listdir() if name.endswith(".tmp"))
    assert rest.startswith(".out.")
    assert run("inspect", f"{rest}/out").code == 2
    assert not Path("out").exists()
    assert run("convert", "a.pt", "out", "--to", to).code == 0


def _stall_at_the_sixth_tensor(mark: Path) -> None:
    """DCP saves each tensor by itself; of a file that is written in one call, half gets to the disk."""
    save, count = torch.save, itertools.count(1)

    def stall(value: Any, file: Any) -> None:
        if isinstance(value, dict):
            whole = io.BytesIO()
            save(value, whole)
            file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
            file.flush()
        elif next(count) < 6:
            save(value, file)
            return
        mark.touch()
        time.sleep(60)

    torch.save = stall


def test_a_disk_that_is_too_small(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("fsdp_migrate.checkpoint.convert.shutil.disk_usage", lambda path: usage)
    torch.save({"w": torch.ones(5)}, "a.pt")
    result = run("convert", "a.pt", "out")
    assert result.code == 2
    assert result.err == "error: out: does not fit: 20 bytes needed, 10 free\n"


def test_only_what_is_there(run: Run) -> None:
    torch.save({"model": {"w": torch.ones(2)}, "epoch": 3}, "a.pt")
    assert run("convert", "a.pt", "b.pt", "--only", "model").code == 0
    assert list(torch.load("b.pt", weights_only=True)) == ["model"]
    result = run("convert", "a.pt", "c.pt", "--only", "net")
    assert result.code == 2
    assert "the checkpoint has model, epoch" in result.err


@pytest.mark.parametrize(
    ("shape", "boxes", "whole"),
    [
        ((4, 6), [((0, 0), (4, 6))], True),
        ((4, 6), [((0, 0), (2, 6)), ((2, 0), (2, 6))], True),
        ((4, 6), [((0, 0), (2, 3)), ((2, 0), (2, 3)), ((0, 3), (4, 3))], True),
        ((4, 6), [((0, 0), (2, 6)), ((1, 0), (2, 6))], False),  # overlap
        ((4, 6), [((0, 0), (2, 6))], False),
        ((4, 6), [((0, 0), (2, 3)), ((0, 0), (2, 3)), ((0, 3), (4, 3))], False),
        ((4, 6), [((0, 0), (2, 6)), ((3, 0), (2, 6))], False),  # beyond the end
        ((4,), [((0, 0), (4, 1))], False),
        ((), [((), ())], True),
        ((0, 3), [], True),
        ((1,), [((0,), (1,)), ((1,), (0,))], True),
    ],
)
def test_whether_parts_make_a_whole(shape: Any, boxes: Any, whole: bool) -> None:
    assert covers(shape, boxes) is whole


def test_parts_are_joined_where_they_belong(run: Run) -> None:
    torch.save({"a": torch.ones(2, 2), "b": torch.zeros(2, 1)}, "a.pt")
    from fsdp_migrate.checkpoint.sources import open_checkpoint

    parts = open_checkpoint(Path("a.pt")).tree
    boxes = {"a": ((0, 1), (2, 2)), "b": ((0, 0), (2, 1))}
    found = tuple(Part(box, lambda name=name: parts[name]) for name, box in boxes.items())
    assert in_parts((2, 3), torch.float32, found).load().tolist() == [[0, 1, 1], [0, 1, 1]]


def test_files_of_two_saves_are_not_joined() -> None:
    """Two files of an earlier save of four ranks lie beside those of two ranks."""
    trees = {}
    for rank, (ranks, start, size) in enumerate([(2, 0, 2), (2, 2, 2), (4, 2, 1), (4, 3, 1)]):
        part = Part(((start,), (size,)), lambda: torch.ones(1))
        trees[Path(f"{rank}.pt")] = {"w": in_parts((4,), torch.float32, [part], rank, ranks)}
    assert "some files are of 2 ranks, others of 4" in str(joined(trees)[-1])
    assert joined(dict(list(trees.items())[:2]))[-1] is None


MEMORY = """
import threading
from pathlib import Path
import torch
from fsdp_migrate.checkpoint.convert import convert

def held():  # of its own: pages of mapped files are not, as the system takes them back
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024

def watch():
    while not done.wait(0.001):
        seen.append(held())

small = Path("small.pt")
torch.save({"w": torch.ones(3)}, small)
for to in ("dcp", "full"):
    convert(small, Path(f"warm-{to}"), to)
for source, target, to in (("big.pt", "big", "dcp"), ("big", "again.pt", "full")):
    before, seen, done = held(), [], threading.Event()
    watcher = threading.Thread(target=watch)
    watcher.start()
    convert(Path(source), Path(target), to)
    done.set()
    watcher.join()
    print(max(seen) - before)
before = held()
whole = torch.load("big.pt", weights_only=True)
print(held() - before)
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measured as Linux tells it")
def test_one_tensor_is_in_memory_at_a_time(tmp_path: Path) -> None:
    """Twenty tensors of 4 MiB; loading all at once takes what the measurement must see."""
    torch.save({f"w{i}": torch.full((1 << 20,), float(i)) for i in range(20)}, tmp_path / "big.pt")
    done = subprocess.run(
        [sys.executable, "-P", "-c", MEMORY],
        # So that memory that is freed is given back at once.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": str(1 << 20)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    to_dcp, to_full, whole = map(float, done.stdout.split())
    assert max(to_dcp, to_full) < 4 * 4  # one, and the copies by which DCP's loader reads it
    assert whole > 15 * 4


@pytest.mark.parametrize("several", [False, True])
def test_numbers_become_names_where_the_sizes_leave_one_way(run: Run, several: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    # Frozen it has no state, and the next weight has its size.
    model[1].bias.requires_grad_(not several)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(torch.randn(5, 3)).square().mean().backward()
    optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "a.pt")
    result = run("convert", "a.pt", "b.pt", "--only", "optimizer", "--names-from", "model.pt")
    if several:
        assert (result.code, Path("b.pt").exists()) == (1, False)
        assert "the shapes leave several ways" in result.err
        return
    found = torch.load("b.pt", weights_only=True)
    expected = {n: optimizer.state[p] for n, p in model.named_parameters()}
    assert same(found["state"], expected)
    assert found["param_groups"][0]["params"] == list(expected)
