"""A program with a breach of the contract planted at each of many places: each is found at its line, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsdp_migrate.codemods.registry import CONTRACT
from fsdp_migrate.engine import analyse
from fsdp_migrate.settings import Options

PROGRAM = Path(__file__).parent / "program"
CODES = {rule.code for module in CONTRACT for rule in module.RULES}


@dataclass(frozen=True)
class Fault:
    """A part of a file that becomes another, which breaks a rule.

    Attributes:
        at: a part of the line that the finding is about.
    """

    code: str
    file: str
    good: str
    bad: str
    at: str


FAULTS = [
    Fault(
        "FSDP701",
        "sharding.py",
        """\
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **kwargs)
""",
        """\
    fully_shard(model.head, **kwargs)
    fully_shard(model.head, **kwargs)  # again
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=reshard, **kwargs)
""",
        "# again",
    ),
    Fault(
        "FSDP702",
        "distill.py",
        "    for layer in model.layers:\n        fully_shard(layer)\n",
        "",
        "    fully_shard(model)",
    ),
    Fault(
        "FSDP703",
        "train.py",
        """\
    shard(model, "FULL_SHARD", ranks)
    shard(average, "FULL_SHARD", ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
""",
        """\
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    shard(model, "FULL_SHARD", ranks)
    shard(average, "FULL_SHARD", ranks)
""",
        "optimizer = ",
    ),
    Fault(
        "FSDP704",
        "train.py",
        "loss = model(torch.randn(8, 16))",
        "loss = model.forward(torch.randn(8, 16))",
        "model.forward(",
    ),
    Fault(
        "FSDP705",
        "checkpoint.py",
        "state = get_model_state_dict(model, options=FULL)",
        "state = model.state_dict()",
        "torch.save(",
    ),
    Fault("FSDP706", "train.py", "{norm.item():.3f}", "{norm:.3f}", "{norm:.3f}"),
    Fault(
        "FSDP707",
        "sharding.py",
        "fully_shard(model, reshard_after_forward=reshard,",
        "fully_shard(model, reshard_after_forward=True,",
        "reshard_after_forward=True",
    ),
    Fault(
        "FSDP708",
        "sharding.py",
        '    "SHARD_GRAD_OP": False,\n',
        '    "SHARD_GRAD_OP": False,\n    "NO_SHARD": False,\n',
        '"NO_SHARD"',
    ),
    Fault("FSDP709", "sharding.py", "OffloadPolicy()", "CPUOffload(True)", "CPUOffload(True)"),
    Fault(
        "FSDP710",
        "train.py",
        "set_requires_gradient_sync(micro == 1)",
        "set_requires_gradient_sync(False)",
        "set_requires_gradient_sync(False)",
    ),
    Fault(
        "FSDP711",
        "train.py",
        'if os.path.exists("first.pt"):',
        'if rank == 0 and os.path.exists("first.pt"):',
        'model.load_state_dict(torch.load("first.pt"))',
    ),
    Fault(
        "FSDP712",
        "sharding.py",
        "    reshard = RESHARD[strategy]\n",
        "    reshard = RESHARD[strategy]\n    fully_shard(model.layers)\n",
        "fully_shard(model.layers)",
    ),
    Fault(
        "FSDP713",
        "train.py",
        "print(isinstance(model, FSDPModule))",
        "print(isinstance(model, FSDP))",
        "isinstance(model, FSDP)",
    ),
    Fault(
        "FSDP714",
        "checkpoint.py",
        "    shapes = [parameter.shape for parameter in model.parameters(recurse=False)]\n",
        "    shapes = [value.shape for value in model.state_dict().values()]\n",
        "model.state_dict().values()",
    ),
    Fault(
        "FSDP715",
        "distill.py",
        "set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))",
        "model.load_state_dict(state)",
        "model.load_state_dict(state)",
    ),
    Fault(
        "FSDP716",
        "train.py",
        "    sample = torch.randn(4, 16)\n",
        "    sample = torch.randn(4, 16)\n    best = copy.deepcopy(model)\n",
        "best = copy.deepcopy(model)",
    ),
    Fault(
        "FSDP717",
        "train.py",
        "    with torch.no_grad():\n        loss = model(sample)",
        "    if dist.get_rank() != 0:\n        return\n    with torch.no_grad():\n        loss = model(sample)",
        "        loss = model(sample)",
    ),
    Fault(
        "FSDP718",
        "large.py",
        """\
    model.to_empty(device="cpu")
    for layer in model:
        layer.reset_parameters()
""",
        "",
        "model = nn.Sequential(",
    ),
]
IMPORTS = {  # what a fault needs, in its file
    "FSDP709": ("import OffloadPolicy, fully_shard", "import CPUOffload, fully_shard"),
    "FSDP713": ("import FSDPModule", "import FullyShardedDataParallel as FSDP"),
}
each = pytest.mark.parametrize("fault", FAULTS, ids=[fault.code for fault in FAULTS])


def planted(faults: Iterable[Fault], folder: Path) -> set[tuple[str, str, int]]:
    """Writes the program with some faults into a folder, and returns where they stand: code, file and line."""
    texts = {path.name: path.read_text() for path in PROGRAM.glob("*.py")}
    faults = list(faults)
    for fault in faults:
        changes = [(fault.good, fault.bad)]
        if fault.code in IMPORTS:
            changes.append(IMPORTS[fault.code])
        for before, after in changes:
            assert texts[fault.file].count(before) == 1, fault
            texts[fault.file] = texts[fault.file].replace(before, after)
    for name, text in texts.items():
        (folder / name).write_text(text)
    expected = set()
    for fault in faults:
        lines = texts[fault.file].splitlines()
        (line,) = [number for number, text in enumerate(lines, 1) if fault.at in text]
        expected.add((fault.code, fault.file, line))
    return expected


def found(folder: Path, *, fsdp2: bool = True) -> set[tuple[str, str, int]]:
    report = analyse(sorted(folder.glob("*.py")), Options(fsdp2=fsdp2))
    assert not report.errors
    return {
        (finding.code, Path(finding.path).name, finding.line)
        for finding in report.findings
        if finding.code in CODES
    }


def test_every_rule_has_a_fault() -> None:
    assert [fault.code for fault in FAULTS] == sorted(CODES)


def test_nothing_is_said_of_the_program_itself(tmp_path: Path) -> None:
    planted([], tmp_path)
    assert analyse(sorted(tmp_path.glob("*.py")), Options(fsdp2=True)).findings == []


def test_all_faults_are_found_where_they_stand(tmp_path: Path) -> None:
    assert planted(FAULTS, tmp_path) == found(tmp_path)


def test_nothing_is_looked_for_unless_asked(tmp_path: Path) -> None:
    planted(FAULTS, tmp_path)
    assert not found(tmp_path, fsdp2=False)


@each
def test_a_fault_alone(fault: Fault, tmp_path: Path) -> None:
    assert planted([fault], tmp_path) == found(tmp_path)


@each
def test_without_a_fault_the_others_stay(fault: Fault, tmp_path: Path) -> None:
    others = [other for other in FAULTS if other is not fault]
    assert planted(others, tmp_path) == found(tmp_path)
