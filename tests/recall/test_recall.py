"""Tests of the lists in rows/, and of how benchmarks/recall.py counts."""

import csv
import importlib.util
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(model):
    model = FSDP(model)
    with FSDP.summon_full_params(
        model
    ):
        pass
    print(model._all_handles)
    print("done")
"""
TRUE = [(5, "constructor"), (7, "summon"), (10, "private-part")]


@pytest.fixture
def recall(monkeypatch):
    file = HERE.parent.parent / "benchmarks" / "recall.py"
    spec = importlib.util.spec_from_file_location("recall", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "recall", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", sorted(HERE.glob("rows/*.csv")), ids=lambda file: file.name)
def test_each_row_says_what_happens_and_how_it_was_shown(file):
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    if file.name.startswith("revisions"):
        assert all(re.fullmatch(r"[0-9a-f]{40}", row["revision"]) for row in rows)
        return
    effects = {"fine"} if file.name.endswith(".fine.csv") else {"breaks", "changes", "kept"}
    for row in rows:
        assert row["effect"] in effects, row
        assert int(row["line"]) > 0, row
        assert all(row[column] for column in ("path", "what", "shown")), row
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row["cause"]), row
    assert len({(row["path"], row["line"], row["cause"]) for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("true", "fine", "status", "says"),
    [
        (TRUE, [], 0, ["recall 1.000: 3 of 3", "1.000: 1 right, 0 wrong, 0 not judged"]),
        ([*TRUE, (11, "unseen")], [], 1, ["missed: unseen: demo/train.py:11", "unseen: 0 of 1"]),
        (TRUE[:2], [(10, "alike")], 1, ["false alarm: demo/train.py:10", "0 right, 1 wrong"]),
        (TRUE[:2], [], 0, ["not judged: demo/train.py:10"]),
    ],
)
def test_rows_are_counted(recall, true, fine, status, says, tmp_path, monkeypatch, capsys):
    (tmp_path / "rows").mkdir()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "train.py").write_text(PROGRAM, "utf-8")
    for name, effect, rows in (("demo", "breaks", true), ("demo.fine", "fine", fine)):
        lines = [f"train.py,{line},{effect},{cause},it does,read" for line, cause in rows]
        header = "path,line,effect,cause,what,shown"
        (tmp_path / "rows" / f"{name}.csv").write_text("\n".join([header, *lines]), "utf-8")
    monkeypatch.setattr(recall, "ROWS", tmp_path / "rows")
    monkeypatch.setattr(sys, "argv", ["recall", str(tmp_path)])
    assert recall.main() == status
    out = capsys.readouterr().out
    assert [text for text in says if text not in out] == []
