"""`verify` on a folder proposes the scripts that it can run."""

from pathlib import Path

import pytest

from fsdp_migrate.cli import exit_code

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\ndef wrap(m): return FSDP(m)\n"
GUARD = "\nif __name__ == '__main__':\n    main()\n"
REPOSITORIES = {
    "one": ({"train.py": WRAP + GUARD, "tools/plot.py": "import x\n" + GUARD}, "--entry train.py"),
    "behind an import": (
        {
            "pkg/__init__.py": "",
            "pkg/wrapping.py": WRAP,
            "scripts/pretrain.py": "from pkg.wrapping import wrap\n" + GUARD,
            "tests/test_pretrain.py": "from pkg.wrapping import wrap\n" + GUARD,
        },
        "--entry scripts/pretrain.py",
    ),
    "several": (
        {"b.py": WRAP + "dist.init_process_group('gloo')\n", "sub/a.py": WRAP + GUARD},
        "--entry b.py or --entry sub/a.py",
    ),
    "many": (
        {f"run{number}.py": WRAP + GUARD for number in range(7)},
        "--entry run3.py or --entry run4.py (and 2 more)",
    ),
    "none": ({"lib.py": WRAP}, "name the script to run with --entry"),
}


@pytest.mark.parametrize("name", REPOSITORIES)
def test_a_folder_proposes_entries(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files, proposal = REPOSITORIES[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert exit_code(["verify", "."]) == 2
    assert capsys.readouterr().err.rstrip().endswith(proposal)
