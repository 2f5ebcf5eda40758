"""What FSDP1 wrote on two ranks, converted and loaded into FSDP2: every tensor and the next losses are the same."""

import shutil
from pathlib import Path

import pytest
import torch

from .cases import CASES, name_of
from .conftest import Run, Written

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(("source", "to", "whole"), CASES)
def test_fsdp2_loads_the_conversion(written: Written, source: str, to: str, whole: str) -> None:
    name = name_of(source, to)
    assert isinstance(written.results[0][f"{name}-changes"], list), written.results[0]
    for result in written.results:
        assert result[name].get("different") == [], result[name]
        flavour = "flat" if "flat" in whole else "orig"
        if whole.startswith("full"):
            assert result[name]["losses"] == result["continued"][flavour]


def test_a_shared_step_goes_wrong_if_it_is_not_converted(written: Written) -> None:
    """Loaded as it is, the file trains on to other losses: the warning is about something real."""
    for result in written.results:
        first, second, _ = result["as it is"]["losses"]
        assert result["as it is"]["different"] == []
        assert first == result["continued"]["flat"][0]
        assert second != result["continued"]["flat"][1]


KINDS = {
    "full-orig.pt": (0, "full", []),
    "full-flat.pt": (1, "full", ["shared-step"]),
    "dcp-orig": (0, "dcp", []),
    "dcp-flat": (0, "dcp", []),
    "ranks-orig": (1, "shards", ["rank-files"]),
    "ranks-orig/model_rank0.pt": (1, "shards", ["rank-files"]),
    "ranks-flat": (1, "shards", ["rank-files", "shared-step"]),
    "ranks-mesh": (1, "shards", ["rank-files"]),
    "ranks-fsdp2": (1, "shards", ["rank-files"]),
    "local-flat": (1, "local", ["flat-parameter"]),
    "local-orig": (1, "local", ["flat-parameter"]),
    "optimizer-orig": (1, "local", ["local-shards", "numbered-parameters"]),
    "optimizer-flat": (1, "local", ["local-shards", "numbered-parameters"]),
    "half-orig": (1, "shards", ["local-shards", "numbered-parameters"]),
    "half-flat": (1, "shards", ["rank-files", "numbered-parameters"]),
    "numbered.pt": (1, "full", ["numbered-parameters"]),
    "fsdp2.pt": (0, "full", []),
}


@pytest.mark.parametrize("name", KINDS)
def test_inspect_says_what_it_is(written: Written, run: Run, name: str) -> None:
    code, kind, problems = KINDS[name]
    result = run("inspect", written.folder / name, "--format", "json")
    (found,) = result.document["checkpoints"]
    assert (result.code, found["kind"]) == (code, kind)
    assert [problem["name"] for problem in found["problems"]] == problems
    assert found["loads"] == (code == 0)


LOCAL = ("local-flat", "local-orig", "optimizer-orig", "optimizer-flat", "half-orig")


@pytest.mark.parametrize("name", [*LOCAL, "half-flat"])
def test_local_is_refused_with_the_way_out(written: Written, run: Run, name: str) -> None:
    result = run("convert", written.folder / name, "out")
    assert result.code == 1
    assert ("FSDP1 on as many ranks" if name in LOCAL else "--names-from MODEL") in result.err
    assert not Path("out").exists()


@pytest.mark.parametrize("name", ["ranks-orig", "ranks-mesh"])
def test_a_missing_rank_is_told(written: Written, run: Run, tmp_path: Path, name: str) -> None:
    shutil.copytree(written.folder / name, tmp_path / "half")
    (tmp_path / "half" / "model_rank1.pt").unlink()
    inspected = run("inspect", "half")
    assert inspected.code == 1
    assert "the files of ranks 1 are missing (1 of 2 ranks are there)" in inspected.text
    converted = run("convert", "half", "out")
    assert converted.code == 1
    assert "ranks 1 are missing" in converted.err
    assert not Path("out").exists()


def test_a_damaged_rank_is_told(written: Written, run: Run, tmp_path: Path) -> None:
    shutil.copytree(written.folder / "ranks-orig", tmp_path / "damaged")
    file = tmp_path / "damaged" / "model_rank1.pt"
    file.write_bytes(file.read_bytes()[:-2000])
    result = run("convert", "damaged", "out")
    assert result.code == 1
    assert "model_rank1.pt is damaged or cut off" in result.err


@pytest.mark.parametrize(
    ("name", "bytes_left", "message"),
    [
        ("__1_0.distcp", None, "dcp/.metadata: needs the file __1_0.distcp, which is missing"),
        ("__1_0.distcp", -100, "dcp/__1_0.distcp: is cut off: 100 bytes are missing"),
        (".metadata", None, "dcp: has .distcp files but no .metadata"),
    ],
)
def test_a_dcp_folder_that_is_not_whole_is_told(
    written: Written, run: Run, tmp_path: Path, name: str, bytes_left: int | None, message: str
) -> None:
    shutil.copytree(written.folder / "dcp-orig", tmp_path / "dcp")
    file = tmp_path / "dcp" / name
    if bytes_left is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:bytes_left])
    result = run("inspect", "dcp", written.folder / "full-orig.pt")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.startswith(f"error: {message}")
    assert "full-orig.pt" in result.text, "the others go on"


def test_an_optimizers_shards_are_joined_by_shapes_of_a_model(written: Written, run: Run) -> None:
    folder, whole = written.folder, written.folder / "full-orig.pt"
    result = run("convert", folder / "optimizer-orig", "out.pt", "--names-from", whole)
    assert result.code == 0, result.err
    assert "from 2 files" in result.text
    found, expected = torch.load("out.pt"), torch.load(whole)["optimizer"]
    assert found["state"].keys() == expected["state"].keys()
    for name, state in expected["state"].items():
        assert all(torch.equal(found["state"][name][key], value) for key, value in state.items())
    names = [group["params"] for group in found["param_groups"]]
    assert list(map(sorted, names)) == [sorted(g["params"]) for g in expected["param_groups"]]


@pytest.mark.parametrize("how", ["units", "a rank is missing", "another model"])
def test_shards_of_an_optimizer_that_do_not_fit(
    written: Written, run: Run, tmp_path: Path, how: str
) -> None:
    shards = written.folder / f"optimizer-{'flat' if how == 'units' else 'orig'}"
    shutil.copytree(shards, tmp_path / "shards")
    model = torch.load(written.folder / "full-orig.pt")["model"]
    if how == "a rank is missing":
        (tmp_path / "shards" / "model_rank1.pt").unlink()
    if how == "another model":
        model = {name: value[:1] for name, value in model.items()}
    torch.save(model, tmp_path / "model.pt")
    result = run("convert", "shards", "out", "--names-from", "model.pt")
    assert result.code == 1
    assert "do not add up to the model's parameters" in result.err
    assert not Path("out").exists()


@pytest.mark.parametrize("source", ["dcp-flat", "ranks-flat", "half-orig", "half-flat"])
def test_only_a_part(written: Written, run: Run, source: str) -> None:
    assert run("convert", written.folder / source, "model.pt", "--only", "model").code == 0
    whole = torch.load(written.folder / "full-flat.pt", weights_only=True)["model"]
    found = torch.load("model.pt", weights_only=True)
    assert list(found) == ["model"]
    assert found["model"].keys() == whole.keys()
    assert all(torch.equal(found["model"][name], whole[name]) for name in whole)
