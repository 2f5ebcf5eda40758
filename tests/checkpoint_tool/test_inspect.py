"""`checkpoint inspect`: what it says of names, optimizers and formats, and of what is no checkpoint."""

import os
import pickle
import subprocess
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from fsdp_migrate.cli import exit_code

from .conftest import Run


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def problems(run: Run, path: str, *arguments: str) -> list[str]:
    result = run("inspect", path, "--format", "json", *arguments)
    (found,) = result.document["checkpoints"]
    assert result.code == (1 if found["problems"] else 0)
    return [problem["name"] for problem in found["problems"]]


def test_a_plain_state_dict_loads_as_it_is(run: Run) -> None:
    torch.save(model().state_dict(), "a.pt")
    result = run("inspect", "a.pt")
    assert (result.code, result.err) == (0, "")
    assert result.text.splitlines() == [
        "a.pt: FULL, whole tensors (torch zip)",
        "  model  9 tensors, 43 parameters, 176 B, float32, int64",
        "  loads as it is: set_model_state_dict with StateDictOptions(full_state_dict=True)",
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("_fsdp_wrapped_module.0.weight", ["wrapper-names"]),
        ("0._fsdp_wrapped_module._checkpoint_wrapped_module.weight", ["wrapper-names"]),
        ("_orig_mod.0.weight", ["wrapper-names"]),
        ("_fsdp_wrapped_module._flat_param", ["flat-parameter", "wrapper-names"]),
        ("flat_param_0", ["flat-parameter"]),
        ("module.0.weight", []),
        ("module_list.0.weight", []),
        ("0.flat_parameters.weight", []),
    ],
)
def test_names(run: Run, name: str, problem: list[str]) -> None:
    torch.save({name: torch.ones(2, 3)}, "a.pt")
    assert problems(run, "a.pt") == problem


def test_sections_of_a_nested_checkpoint(run: Run) -> None:
    m = model()
    optimizer = torch.optim.Adam(m.parameters())
    m(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    saved = {"net": m.state_dict(), "optim": optimizer.state_dict(), "epoch": 1, "best": 0.5}
    saved["rng"] = torch.get_rng_state()
    torch.save(saved, "a.pt")
    result = run("inspect", "a.pt")
    assert result.text.splitlines()[1:5] == [
        "  net    9 tensors, 43 parameters, 176 B, float32, int64",
        "  optim  18 tensors, 74 elements, 296 B, float32",
        "  rng    1 tensor, 5,056 elements, 4.9 KiB, uint8",
        "  also: epoch, best",
    ]
    assert "numbered-parameters: optim numbers its parameters" in result.text
    assert result.code == 1


def test_safetensors_are_read_by_their_package(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.safetensors").write_bytes(b"tensors")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    result = run("inspect", "a.safetensors")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "a.safetensors: is of safetensors: install safetensors to read it" in result.err
    package = ModuleType("safetensors")
    package.SafetensorError, package.torch = ValueError, ModuleType("safetensors.torch")
    package.torch.load_file = lambda path: {"weight": torch.ones(2, 3, dtype=torch.bfloat16)}
    monkeypatch.setitem(sys.modules, "safetensors", package)
    monkeypatch.setitem(sys.modules, "safetensors.torch", package.torch)
    result = run("inspect", "a.safetensors")
    assert result.code == 0
    assert "1 tensor, 6 parameters, 12 B, bfloat16" in result.text


def test_files_in_pieces(run: Run) -> None:
    Path("hf").mkdir()
    torch.save({"a": torch.ones(2, 2)}, "hf/pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.ones(2, 2)}, "hf/pytorch_model-00002-of-00002.bin")
    for path in ("hf", "hf/pytorch_model-00002-of-00002.bin"):
        result = run("inspect", path)
        assert result.code == 2
        assert "is one of several files of a model" in result.err


def test_a_file_that_is_the_only_piece_is_whole(run: Run) -> None:
    torch.save(model().state_dict(), "consolidated.00-of-01.pth")
    assert problems(run, "consolidated.00-of-01.pth") == []


def test_checkpoints_of_several_epochs_are_not_one(run: Run) -> None:
    for epoch in (1, 2):
        torch.save(model().state_dict(), f"epoch_{epoch}.pt")
    assert problems(run, "epoch_1.pt") == []
    result = run("inspect", ".")
    assert result.code == 2
    assert "holds several checkpoints: name one, as epoch_1.pt or epoch_2.pt" in result.err


def test_the_json_has_what_is_documented(run: Run) -> None:
    torch.save({"_orig_mod.weight": torch.ones(2, 2)}, "a.pt")
    result = run("inspect", "a.pt", "missing.pt", "--format", "json")
    assert result.code == 2
    document = result.document
    assert document.keys() == {"version", "tool", "checkpoints", "errors"}
    assert document["version"] == 1
    assert document["errors"] == [{"path": "missing.pt", "message": "does not exist"}]
    (found,) = document["checkpoints"]
    assert set(found) == {
        "path", "kind", "format", "ranks", "files", "loads", "convertible", "tensors", "parameters",
        "bytes", "sections", "others", "problems",
    }  # fmt: skip
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    assert all(f"`{field}`" in page for field in found)


def _zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "dear reader")


def _cut(path: Path) -> None:
    torch.save(model().state_dict(), path)
    path.write_bytes(path.read_bytes()[:-500])


def _legacy(path: Path) -> None:
    torch.save(model().state_dict(), path, _use_new_zipfile_serialization=False)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("nothing")


def _empty_metadata(path: Path) -> None:
    path.mkdir()
    (path / ".metadata").write_bytes(b"")


def _short_storage(path: Path) -> None:
    """A tensor that claims more than its storage has: reading it would read other bytes."""
    torch.save({"a": torch.ones(4, 4)}, path)
    data = path.read_bytes()
    shape = b"K\x04K\x04\x86"  # the size (4, 4) in the pickle
    assert data.count(shape) == 1
    path.write_bytes(data.replace(shape, b"K\x09K\x04\x86"))


DAMAGE = {
    "empty": (lambda path: path.write_bytes(b""), "is no checkpoint"),
    "text": (lambda path: path.write_text("import torch\n" * 9), "is no checkpoint"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps({"a": 1})), "is no checkpoint"),
    "zip": (_zip, "is damaged, or not of torch.save"),
    "cut": (_cut, "is damaged or cut off"),
    "legacy": (_legacy, "neither of torch.save since torch 1.6"),
    "folder": (_folder, "holds no checkpoint"),
    "metadata": (_empty_metadata, "its pickle is damaged"),
    "no-tensor": (lambda path: torch.save({"epoch": 3}, path), "holds no tensor"),
    "script": (lambda path: torch.jit.save(torch.jit.script(model()), path), "TorchScript"),
    "storage": (_short_storage, "is damaged"),
    "list": (lambda path: torch.save([torch.ones(2)], path), "holds no state dict"),
    "pipe": (os.mkfifo, "is neither a file nor a folder"),
    "missing": (lambda path: None, "does not exist"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_no_checkpoint_gets_one_line(run: Run, tmp_path: Path, name: str) -> None:
    make, message = DAMAGE[name]
    make(tmp_path / "bad.pt")
    torch.save(model().state_dict(), "good.pth")
    result = run("inspect", "bad.pt", "good.pth")
    assert result.code == 2
    assert result.err.count("\n") == 1
    assert result.err.startswith("error: bad.pt")
    assert message in result.err
    assert "good.pth: FULL" in result.text
    assert run("convert", "bad.pt", "out").code == 2
    assert not Path("out").exists()


def test_every_cut_of_a_file_gets_one_line(run: Run) -> None:
    torch.save(OrderedDict(a=torch.ones(3), b=torch.ones(2)), "a.pt")
    whole = Path("a.pt").read_bytes()
    for length in range(1, len(whole), 37):
        Path("cut.bin").write_bytes(whole[:length])
        result = run("inspect", "cut.bin")
        assert (result.code, result.err.count("\n")) == (2, 1), length


class Evil:
    """Unpickled, it creates a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return exec, (f"open({str(self.file)!r}, 'w')",)


def _evil_zip(path: Path, evil: Evil) -> None:
    torch.save({"a": torch.ones(2), "b": evil}, path)


def _evil_metadata(path: Path, evil: Evil) -> None:
    path.mkdir()
    (path / ".metadata").write_bytes(pickle.dumps(evil))


@pytest.mark.filterwarnings("ignore")
def _evil_item(path: Path, evil: Evil) -> None:
    dcp.save({"a": torch.ones(2), "b": evil}, checkpoint_id=path)


EVIL = {f.__name__: f for f in (_evil_zip, _evil_metadata, _evil_item)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EVIL)
def test_no_pickle_is_executed(run: Run, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "executed"
    EVIL[name](tmp_path / "evil.pt", Evil(trace))
    for arguments in (("inspect", "evil.pt"), ("convert", "evil.pt", "out")):
        result = run(*arguments)
        assert result.code == 2
        assert result.err.count("\n") == 1
        assert "asks for builtins.exec" in result.err
    assert not trace.exists()
    pickle.loads(pickle.dumps(Evil(trace)))
    assert trace.exists()  # else the test would see nothing either


CHANGES = {
    # BUILD, which sets attributes, on a class that stands in for one of torch's
    "class": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(N}X\x04\x00\x00\x00loadK\x01s\x86b.",
    "counter": b"\x80\x02ccollections\nCounter\nN}X\x06\x00\x00\x00updateK\x01s\x86b.",
    "getattr": b"\x80\x02c__builtin__\ngetattr\nctorch\nSize\nX\x05\x00\x00\x00__mro\x86R.",
    "eval": b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.",
    "dotted": b"\x80\x04\x8c\x05torch\x8c\x13serialization.os.sy\x93.",
    "extension": b"\x80\x02\x82\x01.",
    "counters": b"\x80\x02ccollections\nCounter\n)R}X\x06\x00\x00\x00updateK\x01sb.",
    "function": b"\x80\x02ctorch._utils\n_rebuild_parameter\n}X\x04\x00\x00\x00loadK\x01sb.",
    "from-type": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(ctorch\nSize\nNK\x01\x85NtR.",
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_pickle_cannot_reach_beyond_the_stand_ins(run: Run, name: str) -> None:
    Path("dcp").mkdir()
    Path("dcp/.metadata").write_bytes(CHANGES[name])
    result = run("inspect", "dcp")
    assert (result.code, result.err.count("\n")) == (2, 1)
    torch.save({"a": torch.ones(2)}, "a.pt")
    assert run("inspect", "a.pt").code == 0  # nothing was changed


def test_without_torch_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert exit_code(["checkpoint", "inspect", "a.pt"]) == 2
    assert capsys.readouterr().err == (
        "Error: checkpoint needs torch: pip install 'fsdp-migrate[runtime]'\n"
    )


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from fsdp_migrate.cli import exit_code\n"
        "for a in ([], ['inspect'], ['convert']): exit_code(['checkpoint', *a, '--help'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--only" in done.stdout
