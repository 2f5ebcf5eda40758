"""The known traps of a migration, each planted in a program with FSDP2: `verify` finds and names it.

A wrong program trains without an error, so that only the comparison can tell. Every fault changes a
few lines, and faults of one program share one run of the original.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdp_migrate.verify.compare import TOLERANCE
from fsdp_migrate.verify.folders import copy
from fsdp_migrate.verify.judge import judge
from fsdp_migrate.verify.options import Options, Recording
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.run import run_program
from fsdp_migrate.verify.verdict import Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

NUMBER = r"\d+\.?\d*(?:e-?\d+)?"

PROGRAMS = Path(__file__).parent / "programs"

CANONICAL = Recording(canonical=True)  # as `verify` has it on a CPU

# The program's arguments.
ACCUMULATING = ("--accumulate", "3")
CLIPPING = ("--clip", "0.1")
MIXED = ("--low", "--batch-norm")

MODEL = "    model = Scaled(args.batch_norm)\n"
OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n"
SUMMED = """\
    for unit in (model, *model.blocks):
        unit.set_gradient_divide_factor(1.0)
        unit.set_force_sum_reduction_for_comms(True)
"""
BUFFERS = "        model.scale = model.scale.to(torch.bfloat16)\n"
BATCH_NORM = "            fully_shard(module, mp_policy=full)\n"
BATCH_NORM_LOW = """\
            module.running_mean = module.running_mean.to(torch.bfloat16)
            module.running_var = module.running_var.to(torch.bfloat16)
"""
CLIPPED = "            nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n"
CLIPPED_APART = """\
            parts = [parameter.grad.to_local() for parameter in model.parameters()]
            torch._foreach_mul_(parts, args.clip / nn.utils.get_total_norm(parts))
"""
SYNC = "            model.set_requires_gradient_sync(last)\n"
NOT_RESET = "            model.set_requires_gradient_sync(False)\n"


@dataclass(frozen=True)
class Fault:
    """A trap: the program's arguments, what is replaced, what differs first (and the numbers), the cause."""

    arguments: tuple[str, ...]
    edits: dict[str, str] = field(default_factory=dict)
    first: str = ""
    numbers: tuple[float, ...] = ()
    cause: str = ""


FAULTS = {
    "weights not synchronised": Fault(
        ACCUMULATING,
        {"        dist.broadcast(tensor.detach(), src=0)\n": "        tensor.detach()\n"},
        "first parameters differs first at the start: enter.weight: by up to",
        (0.618,),
        "initial-weights",
    ),
    "not averaged": Fault(
        ACCUMULATING,
        {OPTIMIZER: SUMMED + OPTIMIZER},
        "gradient norm differs first at step 1:",
        (0.99186193, 1.9837239),
        "averaging",
    ),
    "optimizer before sharding": Fault(
        ACCUMULATING,
        {OPTIMIZER: "", MODEL: MODEL + OPTIMIZER},
        "gradient norm differs first at step 1:",
        (0.99186193, 0),
        "optimizer-before-sharding",
    ),
    "synchronised too early": Fault(
        ACCUMULATING,
        {"last = micro == args.accumulate - 1": "last = micro == 0"},
        "gradient norm differs first at step 1:",
        (0.99186193, 0.50731175),
        "unknown",
    ),
    "synchronisation not switched on again": Fault(
        ACCUMULATING,
        {SYNC: NOT_RESET},
        "gradient norm differs first at step 1:",
        (0.99186193, 0),
        "no-sync-not-reset",
    ),
    "clipped by a local norm": Fault(
        CLIPPING,
        {CLIPPED: CLIPPED_APART},
        "gradient norm differs first at step 1:",
        (0.099999933, 0.14142136),
        "local-clip",
    ),
    "buffers in single precision": Fault(
        MIXED, {BUFFERS: ""}, "loss differs first at step 1 on rank 0:", cause="buffer-dtype"
    ),
    "BatchNorm in bfloat16": Fault(
        MIXED,
        {BATCH_NORM: BATCH_NORM_LOW},
        "precision differs first at the start on rank 0: middle.weight is used in float32 against bfloat16",
        cause="precision",
    ),
    "reduced in bfloat16": Fault(
        MIXED,
        {", reduce_dtype=torch.float32": ""},
        "precision differs first at the start on rank 0: the gradient of ",
        cause="precision",
    ),
}

Compared = Callable[[Fault], Verdict]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Run a program with a fault against its original, which runs once for all faults."""
    originals: dict[tuple[str, ...], Run] = {}

    def run(script: str, arguments: tuple[str, ...], edits: dict[str, str]) -> Run:
        folder = tmp_path_factory.mktemp(script)
        copied = copy(script, PROGRAMS / f"{script}.py", folder / "copy")
        _plant(copied.script, edits)
        how = Options(launcher="python", arguments=arguments, device="cpu", timeout=120)
        return run_program(copied, folder, how, CANONICAL)

    def do(fault: Fault) -> Verdict:
        if fault.arguments not in originals:
            originals[fault.arguments] = run("trap", fault.arguments, {})
        one = originals[fault.arguments]
        other = run("trap_migrated", fault.arguments, fault.edits)
        return judge(one, other, TOLERANCE, CANONICAL)

    return do


def _plant(script: Path, edits: dict[str, str]) -> None:
    text = script.read_text()
    for right, wrong in edits.items():
        assert text.count(right) == 1, f"{right!r} in\n{text}"
        text = text.replace(right, wrong)
    script.write_text(text)


# One of each cause is in every run.
EACH_CAUSE = (
    "weights not synchronised",
    "optimizer before sharding",
    "clipped by a local norm",
    "buffers in single precision",
)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.thorough] * (n not in EACH_CAUSE)) for n in FAULTS]
)
def test_a_fault_is_found_and_named(name: str, compared: Compared) -> None:
    fault = FAULTS[name]
    result = compared(fault)
    assert not result.equal
    first = str(result.first)
    assert first.startswith(fault.first)
    # The last digits of a norm in float32 are the processor's.
    numbers = [float(number) for number in re.findall(NUMBER, first.removeprefix(fault.first))]
    expected = list(fault.numbers)
    assert numbers[: len(expected)] == pytest.approx(expected, rel=1e-3)
    assert result.cause is not None
    assert result.cause.name == fault.cause


@pytest.mark.parametrize("arguments", [ACCUMULATING, CLIPPING, MIXED], ids=" ".join)
def test_without_a_fault_programs_are_alike(arguments: tuple[str, ...], compared: Compared) -> None:
    result = compared(Fault(arguments))
    assert result.equal, result.line()
    assert result.bitwise
    assert result.cause is None
    assert (result.max_abs_param_diff or 0) < 1e-7
