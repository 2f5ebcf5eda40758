"""What Accelerate and transformers themselves make of each shape, before and after; and a model that they train."""

import json
import os
import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import exit_code

from .shapes import SHAPES, Shape

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "comparison.md"
TORCH = pytest.importorskip("torch").__version__.partition("+")[0]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has the libraries: this one, or a new one that borrows this one's torch."""
    if find_spec("accelerate") and find_spec("transformers"):
        return sys.executable
    folder = tmp_path_factory.mktemp("libraries")
    venv.create(folder, with_pip=True)
    made = folder / "bin" / "python"
    site = next(folder.glob("lib/python*/site-packages"))
    borrowed = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "borrowed.pth").write_text(f"import site; site.addsitedir({borrowed!r})\n")
    (folder / "constraints.txt").write_text(f"torch=={TORCH}\n")
    wanted = ["accelerate==1.15.*", "transformers==5.23.*"]
    pip = [made, "-m", "pip", "install", "-q", "-c", folder / "constraints.txt", *wanted]
    subprocess.run(pip, check=True)
    return str(made)


@pytest.fixture(scope="session")
def meanings(python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the libraries say of each shape: `before`, `after`, and `peer` for `accelerate to-fsdp2`."""
    folder = tmp_path_factory.mktemp("shapes")
    for side in ("before", "after"):
        (folder / side).mkdir()
        for number, shape in enumerate(SHAPES):
            text = shape.after if side == "after" and shape.after is not None else shape.before
            (folder / side / f"{number:02}.{shape.ending}").write_text(text)
    command = [python, str(HERE / "libraries.py"), str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    for number, shape in enumerate(SHAPES):
        converted = folder / "peer" / f"{number:02}.{shape.ending}"
        found[f"{number:02}"]["text"] = converted.read_text() if converted.exists() else ""
    return {shape.title: found[f"{number:02}"] for number, shape in enumerate(SHAPES)}


def _meaning(said: Any) -> Any:
    return {key: value for key, value in said.items() if key != "version"}


@pytest.mark.parametrize("shape", [s for s in SHAPES if s.after], ids=lambda shape: shape.title)
def test_it_means_the_same_to_the_library(shape: Shape, meanings: dict[str, Any]) -> None:
    before, after = meanings[shape.title]["before"], meanings[shape.title]["after"]
    if isinstance(before, str):  # several documents, a list, axolotl's: nothing that they can read
        assert after == before
        return
    assert _meaning(after) == _meaning(before)
    assert after.get("version", 2) == 2


def test_the_page_says_what_the_peer_makes_of_them(meanings: dict[str, Any]) -> None:
    """If this fails, the test has written the page anew: read the difference."""
    rows = [_row(shape, meanings[shape.title]) for shape in SHAPES if shape.ending != "py"]
    table = "\n".join(["| shape | `accelerate to-fsdp2` | fsdp-migrate |", "|---|---|---|", *rows])
    page = PAGE.read_text("utf-8")
    made = re.sub(r"\| shape \|.*?\n(?=\n)", lambda _: table + "\n", page, flags=re.DOTALL)
    if made != page:
        PAGE.write_text(made, "utf-8")
    assert made == page


def _row(shape: Shape, said: dict[str, Any]) -> str:
    before, peer = said["before"], said.get("peer")
    if said["fails"]:
        theirs = f"stops: `{said['fails'].split(':')[0]}`"
    elif isinstance(peer, str) and peer != before:
        theirs = f"does not load: `{peer.split(': ', 1)[-1].split('. ')[0].replace('`', '')}`"
    elif isinstance(peer, dict) and isinstance(before, dict) and _meaning(peer) != _meaning(before):
        changed = [key for key, value in _meaning(before).items() if peer.get(key) != value]
        other = {key: peer[key] for key in (changed or peer) if key in peer}
        theirs = "another meaning: " + ", ".join(f"{key} {value}" for key, value in other.items())
    elif isinstance(peer, dict) and peer.get("version", 2) == 1:
        theirs = "still version 1"
    else:
        theirs = "the same meaning" if isinstance(peer, dict) else "not its format: not compared"
    comments, left = (
        len(re.findall(r"(?:^|\s)#", text, re.M)) for text in (shape.before, said["text"])
    )
    if comments > left and not said["fails"]:
        theirs += f"; {comments - left} of {comments} comments lost"
    if shape.after is not None:
        ours = "the same meaning" if isinstance(before, dict) else "each section translated"
    else:
        ours = f"reported: *{shape.says}*" if shape.says else "not changed"
    return f"| {shape.title} | {theirs} | {ours} |"


CONFIGURATION = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: GPT2Block
  fsdp_sharding_strategy: FULL_SHARD  # what changes
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: false
  fsdp_use_orig_params: true
  fsdp_cpu_ram_efficient_loading: false
  fsdp_sync_module_states: false
mixed_precision: 'no'
num_machines: 1
num_processes: 2
"""


@pytest.mark.parametrize(
    ("strategy", "wrapper"),
    [
        ("FULL_SHARD", "FSDPModule"),
        ("SHARD_GRAD_OP", "FSDPModule"),
        ("NO_SHARD", "DistributedDataParallel"),
    ],
)
def test_a_model_trains_the_same_with_the_migrated_configuration(
    strategy: str, wrapper: str, python: str, tmp_path: Path
) -> None:
    before, after = tmp_path / "before.yaml", tmp_path / "after.yaml"
    for file in (before, after):
        file.write_text(CONFIGURATION.replace("FULL_SHARD", strategy))
    assert exit_code([str(after), "--allow-dirty"]) == 0
    (first, second), (old, new) = zip(trained(python, before), trained(python, after), strict=True)
    assert "FullyShardedDataParallel" in first
    assert wrapper in second
    assert len(old) == 5
    assert new == pytest.approx(old, rel=1e-6)


def trained(python: str, configuration: Path) -> tuple[list[str], list[float]]:
    """The classes of the model that Accelerate made, and the losses of a run on two ranks."""
    command = [python, "-m", "accelerate.commands.accelerate_cli", "launch"]
    command += ["--config_file", str(configuration), str(HERE / "programs" / "train.py")]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    (classes,) = (line[1:] for line in lines if line[:1] == ["classes"])
    return classes, [float(line[1]) for line in lines if line[:1] == ["loss"]]
