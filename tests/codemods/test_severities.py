"""What a finding says that happens is what its severity says."""

from pathlib import Path

import pytest

from fsdp_migrate.findings import Severity

from .programs import analysed

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SCALER = "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\n"
VERL = "from verl.trainer import config\n\n"
SILENT, RAISES = Severity.SILENT, Severity.RAISES
# By the program: the code, the severity, and whether FSDP1 goes on.
PROGRAMS = {
    f"{SCALER}{FSDP}m = FSDP(m, ignored_modules=[m.a])\ns = ShardedGradScaler()\n": ("FSDP351", RAISES, False),
    f"{SCALER}{FSDP}m = FSDP(m)\ns = ShardedGradScaler(**options)\n": ("FSDP351", RAISES, False),
    f"{SCALER}{FSDP}m = FSDP(m)\ns = ShardedGradScaler(process_group=g)\n": ("FSDP351", SILENT, False),
    f"{VERL}if config.strategy == 'fsdp':\n    check(config)\n": ("FSDP807", SILENT, False),
    f"{VERL}if config.strategy == 'fsdp' and x:\n    raise ValueError(x)\n": ("FSDP807", SILENT, False),
    f"{VERL}if config.strategy == 'fsdp':\n    pass\nelif x:\n    pass\nelse:\n    raise ValueError(x)\n": (
        "FSDP807",
        RAISES,
        False,
    ),
    f"{VERL}assert config.strategy == 'fsdp'\n": ("FSDP807", RAISES, False),
    f"{VERL}config.strategy = 'fsdp'\n": ("FSDP807", RAISES, True),
}  # fmt: skip


@pytest.mark.parametrize(("program", "expected"), PROGRAMS.items())
def test_severity(program: str, expected: tuple[str, Severity, bool], tmp_path: Path) -> None:
    findings = analysed(tmp_path, program, "torch").findings
    found = {(f.code, f.severity, f.still_fsdp1) for f in findings if f.code == expected[0]}
    assert found == {expected}


def test_a_patched_class_raises(tmp_path: Path) -> None:
    files = {
        "train.py": f"{FSDP}\nmodel = FSDP(model)\n",
        "test_train.py": "from unittest.mock import patch\n\nwith patch('train.FSDP'):\n    pass\n",
    }
    findings = analysed(tmp_path, files).findings
    assert {f.severity for f in findings if f.code == "FSDP010"} == {Severity.RAISES}


def test_an_optimizer_without_dtensors_raises(tmp_path: Path) -> None:
    text = "fsdp: full_shard\noptim: paged_adamw_8bit\nlearning_rate: 1.0\n"
    findings = analysed(tmp_path, {"settings.yaml": text}).findings
    found = {(f.severity, f.still_fsdp1) for f in findings if "paged" in f.construct}
    assert found == {(Severity.RAISES, False)}


@pytest.mark.parametrize(
    ("given", "words", "others"),
    [
        (
            "ignored_modules=[m.a]",
            "clip those in a second call",
            "With CPU offloading it raises without a backend for the CPU",
        ),
        (
            "cpu_offload=CPUOffload(True)",
            "With CPU offloading it raises without a backend for the CPU",
            "a second call",
        ),
    ],
)
def test_clipping_says_what_raises_here(
    given: str, words: str, others: str, tmp_path: Path
) -> None:
    program = f"{FSDP.replace('import ', 'import CPUOffload, ')}m = FSDP(m, {given})\nm.clip_grad_norm_(1.0)\n"
    found = [f for f in analysed(tmp_path, program, "torch").findings if f.code == "FSDP301"]
    assert [f.severity for f in found] == [Severity.RAISES]
    assert words in found[0].message
    assert others not in found[0].message
