"""Several nodes, which one machine plays: each runs `verify`, and their records meet in a folder."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import exit_code
from fsdp_migrate.verify import ProgramFailed, Unverifiable
from fsdp_migrate.verify.nodes import Nodes

PROGRAMS = Path(__file__).parent / "programs"


def test_nodes_wait_for_each_other_and_tell_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "process-1.json").write_text("{}")
    one, other = (Nodes(2, number, "host:1", "run", tmp_path) for number in range(2))
    one.check()
    one.share("original", tmp_path / "mine")
    with pytest.raises(Unverifiable, match="is of an earlier run: give another --rdzv-id"):
        one.check()
    with pytest.raises(ProgramFailed, match="no records of node-1 appeared"):
        one.meet("original", 0)
    other.share("original", tmp_path / "mine")
    assert [len(list(place.iterdir())) for place in one.meet("original", 5)] == [1, 1]
    one.share("migrated", tmp_path / "mine")
    other.share("migrated", tmp_path / "mine", "rank 1 raised ValueError")
    with pytest.raises(ProgramFailed, match="failed: on node-1, rank 1 raised ValueError"):
        one.meet("migrated", 5)


def test_several_nodes_need_a_place_to_meet(capsys: pytest.CaptureFixture[str]) -> None:
    script = str(PROGRAMS / "original.py")
    assert exit_code(["verify", script, "--nnodes", "2", "--node-rank", "0"]) == 2
    told = capsys.readouterr().err
    assert "--nnodes needs --node-rank, --rdzv-endpoint and --records" in told


@pytest.mark.thorough
def test_two_nodes_end_to_end(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        *("-c", "from fsdp_migrate.cli import main; main()"),
        *("verify", str(PROGRAMS / "original.py"), "--migrated", str(PROGRAMS / "migrated.py")),
        *("--nproc", "1", "--device", "cpu", "--launcher", "torchrun", "--nnodes", "2"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--records", str(tmp_path)),
        *("--json", str(tmp_path / "verdict.json")),
    ]
    nodes = [
        subprocess.Popen(
            [*command, "--node-rank", str(number), "--", "--steps", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            text=True,
        )
        for number in range(2)
    ]
    texts = [node.communicate(timeout=300)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], texts
    # The next step, on standard error, comes behind the verdict.
    verdict, following = texts[0].splitlines()[-2:]
    assert verdict.startswith("same: 2 losses on 2 ranks")
    assert following.startswith("Next: ")
    assert "node 1: same: 2 losses on 2 ranks" in texts[1]
    data = json.loads((tmp_path / "verdict.json").read_text())
    assert (data["ranks"], len(data["original"]["losses"]), data["notes"]) == (2, 2, [])
