"""The known traps of a migration, each planted in what the tool writes: `verify` finds and names it.

A wrong program trains without an error, so that only the comparison can tell. Every fault changes a
few lines of the tool's own output, and faults of one program share one run of the original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fsdp_migrate.verify import migration, parameters, sources
from fsdp_migrate.verify.compare import compare
from fsdp_migrate.verify.folders import Program, copy_program
from fsdp_migrate.verify.launch import Launcher
from fsdp_migrate.verify.main import TOLERANCE, run_program
from fsdp_migrate.verify.records import Run
from fsdp_migrate.verify.verdict import Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked")]

PROGRAMS = Path(__file__).parent / "programs" / "traps"

ACCUMULATING = ("full.py", "--accumulate", "3")
CLIPPING = ("full.py", "--clip", "0.1")
MIXED = ("mixed.py", "--batch-norm")

OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)\n"
SUMMED = """\
    for unit in model.modules():
        if hasattr(unit, "set_gradient_divide_factor"):
            unit.set_gradient_divide_factor(1.0)
"""
CLIPPED = "            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)\n"
CLIPPED_APART = """\
            parts = [parameter.grad.to_local() for parameter in model.parameters()]
            torch._foreach_mul_(parts, args.clip / torch.nn.utils.get_total_norm(parts))
"""
NO_SYNC = "            with contextlib.nullcontext() if last else no_sync(model):\n"
NOT_RESET = """\
            if not last:
                model.set_requires_gradient_sync(False)
            with contextlib.nullcontext():
"""


@dataclass(frozen=True)
class Fault:
    """A trap: the program and its arguments, what is replaced, what differs first, the cause."""

    program: tuple[str, ...]
    edits: dict[str, str] = field(default_factory=dict)
    first: str = ""
    cause: str = ""


FAULTS = {
    "weights not synchronised": Fault(
        ACCUMULATING,
        {"        sync_module_states=True,\n": ""},
        "loss differs first at step 1 on rank 0: 0.5444085 against",
        "initial-weights",
    ),
    "not averaged": Fault(
        ACCUMULATING,
        {OPTIMIZER: SUMMED + OPTIMIZER},
        "gradient norm differs first at step 1: 0.92590815 against 1.8518163",
        "averaging",
    ),
    "optimizer before sharding": Fault(
        ACCUMULATING,
        {
            OPTIMIZER: "",
            "    model = shard_model(\n        Model(),\n": (
                f"    model = Model()\n{OPTIMIZER}    model = shard_model(\n        model,\n"
            ),
        },
        "gradient norm differs first at step 1: 0.92590815 against 0",
        "optimizer-before-sharding",
    ),
    "synchronised too early": Fault(
        ACCUMULATING,
        {"last = micro == args.accumulate - 1": "last = micro == 0"},
        "gradient norm differs first at step 1: 0.92590815 against 0.46561494",
        "accumulation",
    ),
    "synchronisation not switched on again": Fault(
        ACCUMULATING,
        {NO_SYNC: NOT_RESET},
        "gradient norm differs first at step 1: 0.92590815 against 0",
        "no-sync-not-reset",
    ),
    "clipped by a local norm": Fault(
        CLIPPING,
        {CLIPPED: CLIPPED_APART},
        "gradient norm differs first at step 1: 0.099999933 against 0.14142136",
        "local-clip",
    ),
    "buffers in single precision": Fault(
        MIXED,
        {"            buffer_dtype=torch.bfloat16,\n": ""},
        "loss differs first at step 1 on rank 0:",
        "buffer-dtype",
    ),
    "BatchNorm in bfloat16": Fault(
        MIXED,
        {"MixedPrecision(\n": "MixedPrecision(\n            _module_classes_to_ignore=(),\n"},
        "loss differs first at step 1 on rank 0:",
        "batch-norm-dtype",
    ),
}

Compared = Callable[[Fault], Verdict]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """Run a program with a fault against its original, which runs once for all faults."""
    originals: dict[tuple[str, ...], tuple[Program, Run]] = {}

    def run(name: str, fault: Fault) -> tuple[Program, Run]:
        script, *arguments = fault.program
        folder = tmp_path_factory.mktemp(name)
        program = copy_program(name, PROGRAMS / script, None, folder / "copy")
        if name == "migrated":
            migration.migrate(program.root)
            _plant(program.script, fault.edits)
        return program, run_program(program, Launcher.PYTHON, 2, arguments, "cpu", 120, folder)

    def do(fault: Fault) -> Verdict:
        if fault.program not in originals:
            originals[fault.program] = run("original", fault)
        before, one = originals[fault.program]
        after, other = run("migrated", fault)
        return Verdict(
            compare(one, other, TOLERANCE),
            TOLERANCE,
            "gloo",
            parameters.differences(one, other)[0],
            one,
            other,
            sources=sources.read(before, after),
        )

    return do


def _plant(script: Path, edits: dict[str, str]) -> None:
    text = script.read_text()
    for right, wrong in edits.items():
        assert text.count(right) == 1, f"{right!r} in\n{text}"
        text = text.replace(right, wrong)
    script.write_text(text)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str, compared: Compared) -> None:
    fault = FAULTS[name]
    result = compared(fault)
    assert not result.equal
    assert str(result.first).startswith(fault.first)
    assert result.causes[0].name == fault.cause, [cause.name for cause in result.causes]


@pytest.mark.parametrize("program", [ACCUMULATING, CLIPPING, MIXED], ids=" ".join)
def test_without_a_fault_the_programs_are_the_same(
    program: tuple[str, ...], compared: Compared
) -> None:
    result = compared(Fault(program))
    assert result.equal, result.line()
    assert result.bitwise
    assert result.causes == []
    assert (result.max_abs_param_diff or 0) < 1e-7
