"""What Accelerate and transformers themselves make of each shape, before and after; and a model that they train."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .shapes import SHAPES, Shape

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "comparison.md"
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
        theirs = f"what it writes does not load: `{peer[:70]}`"
    elif isinstance(peer, dict) and isinstance(before, dict) and _meaning(peer) != _meaning(before):
        changed = [key for key, value in _meaning(before).items() if peer.get(key) != value]
        other = {key: peer[key] for key in (changed or peer) if key in peer}
        theirs = "another meaning: " + ", ".join(f"{key} {value}" for key, value in other.items())
    elif isinstance(peer, dict) and peer.get("version", 2) == 1:
        theirs = "stays version 1"
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
        ours = f"reported: *{shape.says}*" if shape.says else "left as it is"
    return f"| {shape.title} | {theirs} | {ours} |"
