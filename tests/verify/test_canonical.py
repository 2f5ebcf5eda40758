"""Canonical arithmetic: a sound migration is the same bit by bit, and a fault is a fault."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.verify import launch
from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.migrated import migrate
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.run import run_program

from ..forkserver import ForkServer
from .conftest import last_apart

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

RunProgram = Callable[..., Run]

CANONICAL = Recording(canonical=True)
CLIP = ("--optimizer", "Adam", "--lr", "0.01", "--clip", "0.05", "--steps", "3")


@pytest.mark.parametrize(
    ("ranks", "arguments"),
    [
        pytest.param(3, (*CLIP, "--bf16"), id="3 ranks, bf16"),
        pytest.param(3, CLIP, id="3 ranks", marks=pytest.mark.thorough),
        pytest.param(4, (*CLIP, "--bf16"), id="4 ranks, bf16", marks=pytest.mark.thorough),
    ],
)
def test_the_layout_does_not_show(ranks: int, arguments: tuple[str, ...], run: RunProgram) -> None:
    one = run("original", *arguments, ranks=ranks, recording=CANONICAL)
    other = run("migrated", *arguments, ranks=ranks, recording=CANONICAL)
    comparison = compare(one, other, 0)
    assert comparison.differences == []
    assert comparison.bitwise
    assert last_apart(one, other) == 0
    assert one.grad_norms[0] == pytest.approx(0.05, rel=1e-2), "it clips"


def test_without_it_the_layout_shows(run: RunProgram) -> None:
    one, other = (run(name, *CLIP, "--bf16", ranks=3) for name in ("original", "migrated"))
    assert last_apart(one, other) > 0


def test_the_program_calls_the_same_collectives(run: RunProgram) -> None:
    plain = run("migrated", "--steps", "3").ranks[0]
    canonical = run("migrated", "--steps", "3", recording=CANONICAL).ranks[0]
    assert plain.collectives == canonical.collectives
    assert plain.collective_bytes == canonical.collective_bytes
    whole = 17 * 8 + 17 + 17 * 5 + 5 + 3 * (2 * 17 + 52 * 17 + 52 + 17 * 52 + 17)
    volume = plain.collective_bytes["reduce_scatter"]
    assert 3 * 4 * whole <= volume < 3 * 4 * whole * 1.1, "of every parameter, with some padding"


UNITS = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils.checkpoint import checkpoint

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, memory):
        return x + self.key(memory) * self.value(memory)

class InPlace(Reader):
    def forward(self, x, memory):
        x += self.key(memory) * self.value(memory)
        return x

class Model(nn.Module):
    def __init__(self, reader, reentrant):
        super().__init__()
        self.encoder = nn.Linear(8, 16)
        self.readers = nn.ModuleList(reader() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x):
        memory = self.encoder(x)
        x = memory.detach().clone()
        for reader in self.readers:
            if self.reentrant:
                x = checkpoint(reader, x, memory, use_reentrant=True)
                x = checkpoint(reader, x, memory, use_reentrant=True)
            else:
                x = reader(x, memory)
        return x

def gradients(reader, reentrant, fsdp2):
    torch.manual_seed(0)
    model = Model(reader, reentrant).bfloat16()
    if fsdp2:
        for reader in model.readers:
            fully_shard(reader)
        fully_shard(model)
    else:
        policy = ModuleWrapPolicy({reader})
        cpu = torch.device("cpu")
        model = FSDP(model, auto_wrap_policy=policy, device_id=cpu, use_orig_params=True)
    torch.manual_seed(1)
    model(torch.randn(32, 8, dtype=torch.bfloat16)).square().mean().backward()
    sharded = (p for p in model.parameters() if not fsdp2 or hasattr(p, "full_tensor"))
    gradients = [p.grad for p in sharded if p.grad is not None]
    return [g.full_tensor() if fsdp2 else g for g in gradients]

for reader, reentrant in (Reader, False), (Reader, True), (InPlace, False):
    one = gradients(reader, reentrant, False)
    try:
        other = gradients(reader, reentrant, True)
    except RuntimeError as error:
        print("modified inplace" in str(error))
    else:
        complete = len(one) == len(other)
        print(complete and all(torch.equal(a.view(-1), b.view(-1)) for a, b in zip(one, other)))
"""


@pytest.mark.parametrize("canonical", [True, False])
def test_units_are_compared_as_they_run(
    canonical: bool, tmp_path: Path, fork_server: ForkServer
) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNITS)
    (tmp_path / "records").mkdir()
    program = copy("original", script, tmp_path / "copy")
    values = launch.environment(
        program, "cpu", tmp_path / "records", Recording(canonical=canonical)
    )
    output = tmp_path / "output"
    done = fork_server.run([sys.executable, str(script)], tmp_path, values, output, 60)
    assert done.status == 0, output.read_text()
    answers = [line for line in output.read_text().splitlines() if line in ("True", "False")]
    shared, reentrant, refused = answers
    assert shared == str(canonical), "what several units read gets the uses of each by themselves"
    assert reentrant == "False", "FSDP2 loses gradients of units that run twice"
    assert refused == "True", "FSDP2 refuses inputs that are changed in place"


BRANCHES = Path(__file__).parent / "branches" / "train.py"
MODELS, DTYPES, STEPS = 13, 2, 2


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Recording], Run]:
    """A run of the program in which several units read one tensor: the original, or migrated to a form."""

    def do(form: str, recording: Recording) -> Run:
        folder = tmp_path_factory.mktemp("branches")
        program = copy("original", BRANCHES, folder / "copy")
        if form:
            migrate(program.root, form)
        how = Options(launcher="torchrun", device="cpu", timeout=300)
        return run_program(program, folder, how, recording)

    return do


@pytest.mark.thorough
def test_units_behind_one_input_give_the_same_bits(
    branches: Callable[[str, Recording], Run],
) -> None:
    one = branches("", CANONICAL)
    for form in ("torch", "auto", "bridge"):
        other = branches(form, CANONICAL)
        assert [len(rank.losses) for rank in other.ranks] == [MODELS * DTYPES * STEPS] * 2
        verdict = judge(one, other, 0, CANONICAL)
        assert verdict.equal, f"{form}: {verdict.line()}"
        assert verdict.parameters is not None
        assert verdict.to_json()["clipping"]["migrated"]["limits"] == {
            "0.5": MODELS * DTYPES * STEPS
        }
