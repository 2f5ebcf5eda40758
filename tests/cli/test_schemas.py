"""What `--format json` prints is what its schema says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..schemas import problems

Cli = Callable[..., Any]

FSDP1 = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
model = FSDP(model)
model.register_comm_hook(state, hook)
"""


@pytest.fixture
def project(folder: Path) -> Path:
    """A folder with findings of each kind, an error, a file that is passed over and an empty folder."""
    (folder / "a.py").write_text(FSDP1)
    (folder / "bridge.py").write_text(
        "from fsdp_migrate.runtime import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"
    )
    (folder / "bad.py").write_text("FSDP(\nif:\n")
    (folder / "empty").mkdir()
    return folder


@pytest.mark.parametrize("form", ["auto", "bridge", "torch"])
def test_every_report_is_valid(real_cli: Cli, project: Path, form: str) -> None:
    arguments = ("--form", form, "--format", "json", "--report", "report.json")
    for command in (("--check", "."), ("check", ".", "--bridge"), ("check", "empty")):
        document = json.loads(real_cli(*command, *arguments).out)
        assert problems(document, "report") == []
        assert document["form"] == form
        saved = json.loads((project / "report.json").read_text())
        assert {**saved, "summary": 0} == {**document, "summary": 0}
    assert document["passed"], "the empty folder"
    written = json.loads(real_cli("a.py", *arguments).out)
    assert problems(written, "report") == []


def test_the_schema_is_not_content_with_anything(real_cli: Cli, project: Path) -> None:
    document = json.loads(real_cli("check", ".", "--format", "json").out)
    assert problems({**document, "more": 1}, "report")
    del document["findings"][0]["column"]
    document["findings"][1]["action"] = "plain"
    (missing, other) = problems(document, "report")
    assert missing == "findings/0: 'column' is a required property"
    assert other.startswith("findings/1/action: 'plain' is not one of")
