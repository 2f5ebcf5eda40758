"""`check --fsdp2`: also what breaks FSDP2's own contract."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.settings import SettingsError, load_settings

Cli = Callable[..., Any]
PROGRAM = """\
import torch
from torch.distributed.fsdp import fully_shard

optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for layer in model.layers:
    fully_shard(layer)
fully_shard(model)
"""


@pytest.fixture
def program(folder: Path) -> Path:
    file = folder / "train.py"
    file.write_text(PROGRAM)
    return file


def test_says_nothing_of_fsdp2_unless_asked(real_cli: Cli, program: Path) -> None:
    done = real_cli("check", "train.py")
    assert (done.code, "FSDP7" in done.text) == (0, False)
    done = real_cli("check", "--fsdp2", "train.py")
    assert done.code == 1
    assert "train.py:4:13 FSDP703" in done.text
    assert program.read_text() == PROGRAM


def test_json_has_the_form_of_other_findings(real_cli: Cli, program: Path) -> None:
    done = real_cli("check", "--fsdp2", ".", "--format", "json")
    report = json.loads(done.text)
    (finding,) = report["findings"]
    assert (finding["code"], finding["name"]) == ("FSDP703", "optimizer-before-shards")
    assert (finding["line"], finding["action"]) == (4, "manual")
    assert report["summary"]["manual"] == 1


@pytest.mark.parametrize("options", [("--ignore", "FSDP703"), ("--select", "FSDP704")])
def test_codes_select_and_ignore(real_cli: Cli, program: Path, options: tuple[str, ...]) -> None:
    assert real_cli("check", "--fsdp2", ".", *options).code == 0


def test_a_comment_silences_a_line(real_cli: Cli, program: Path) -> None:
    silenced = PROGRAM.replace("lr=0.1)", "lr=0.1)  # fsdp-migrate: ignore[FSDP703]")
    program.write_text(silenced)
    assert real_cli("check", "--fsdp2", ".").code == 0
    program.write_text(silenced.replace("FSDP703", "FSDP704"))
    assert real_cli("check", "--fsdp2", ".").code == 1


def test_setting_is_for_check_alone(real_cli: Cli, folder: Path, program: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.fsdp-migrate]\nfsdp2 = true\n")
    assert real_cli("check", ".").code == 1
    assert real_cli(".", "--check").code == 0


def test_setting_must_be_true_or_false(folder: Path) -> None:
    (folder / "pyproject.toml").write_text('[tool.fsdp-migrate]\nfsdp2 = "yes"\n')
    with pytest.raises(SettingsError, match=r"fsdp2 in .* must be true or false"):
        load_settings([folder])


def test_option_is_for_check_alone(real_cli: Cli, program: Path) -> None:
    assert real_cli("migrate", "--fsdp2", ".").code == 2


def test_a_file_that_does_not_speak_of_fsdp(real_cli: Cli, folder: Path) -> None:
    (folder / "build.py").write_text(
        "from torch.distributed.fsdp import fully_shard\n\n\ndef shard(model):\n"
        "    for layer in model.layers:\n        fully_shard(layer)\n    fully_shard(model)\n"
    )
    (folder / "train.py").write_text(
        "from build import shard\nfrom model import Net\n\nmodel = Net()\nshard(model)\n"
        "loss = model.forward(batch)\n"
    )
    done = real_cli("check", "--fsdp2", ".")
    assert "train.py:6:8 FSDP704" in done.text
    assert done.text.count("FSDP7") == 1


def test_findings_of_fsdp1_stay(real_cli: Cli, program: Path) -> None:
    text = PROGRAM + "model2 = fsdp.FullyShardedDataParallel(other)\n"
    program.write_text(
        text.replace("import torch\n", "import torch\nimport torch.distributed.fsdp as fsdp\n")
    )
    codes = [
        f["code"] for f in json.loads(real_cli("check", ".", "--format", "json").text)["findings"]
    ]
    more = json.loads(real_cli("check", "--fsdp2", ".", "--format", "json").text)["findings"]
    assert codes == [f["code"] for f in more if f["code"] != "FSDP703"] != []


def test_rules_are_listed_and_explained(real_cli: Cli, folder: Path) -> None:
    assert "FSDP703  optimizer-before-shards" in real_cli("rules").text
    assert "an older one trains nothing" in real_cli("explain", "fsdp703").text
