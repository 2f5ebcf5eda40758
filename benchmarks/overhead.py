"""What `verify` costs beside running both programs by hand, and how soon it shows a difference.

    python benchmarks/overhead.py FOLDER [--only NAME...] [--rounds N]

Three programs of `real_programs.py`, from the same folder of clones. A program is run as it is and migrated, both with
CUDA emulated and nothing else of `verify`, then under `verify`, in turns. Then its migrated program gets a mistake, and
`verify --quick` has to find it. Seconds are of the clock and of the processors, medians of the rounds: the clock's need
a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from by_hand import STANDINS, emulation, measured, torchrun
from programs import PROGRAMS, Edit
from real_programs import edited

RANKS = 2
# A mistake for each program's migrated side, in the text before its migration, and what `verify` should name.
MISTAKES = {
    "fms-fsdp": Edit(
        "fms_fsdp/utils/train_utils.py",
        "        optimizer.step()\n",
        "        if batch_idx == 12:\n"
        "            next(model.parameters()).grad.mul_(1.01)\n"
        "        optimizer.step()\n",
    ),
    "flag-dit": Edit("train.py", "scale_grad(model, args.grad_clip / grad_norm)", "pass"),
    "torchtune-full": Edit(
        "recipes/full_finetune_distributed.py",
        "loss = loss / self._gradient_accumulation_steps",
        "loss = loss / (self._gradient_accumulation_steps if self.global_step < 2 else 1)",
    ),
}


def migrated(folder: Path, copy: Path, mistake: Edit | None = None) -> Path:
    """A migrated copy of a program's folder, with a mistake."""
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
    if mistake:
        path, before, after = mistake
        text = (copy / path).read_text("utf-8")
        if before not in text:
            raise SystemExit(f"{folder / path} has no line {before!r}")
        (copy / path).write_text(text.replace(before, after), "utf-8")
    command = [sys.executable, "-m", "fsdp_migrate", "--allow-dirty", "."]
    done = subprocess.run(command, cwd=copy, check=False, capture_output=True, text=True)
    if done.returncode > 1:
        raise SystemExit(done.stderr)
    return copy


def row(name: str, place: Path, rounds: int, scratch: Path) -> str:
    """A program's row of the table."""
    real = PROGRAMS[name]
    folder = edited(place / real.repository, real, scratch)
    start = emulation(scratch, RANKS)
    verify = [sys.executable, "-m", "fsdp_migrate", "verify", str(folder), "--entry", real.entry]
    verify += ["--device", "cpu", "--emulate", "--one-by-one", "--nproc", str(RANKS)]
    command = torchrun(RANKS, real.entry, *real.arguments)
    by_hand, under = [], []
    for turn in range(rounds):
        both = []
        for side in ("original", "migrated"):
            copy = scratch / f"{turn}-{side}"
            if side == "original":
                shutil.copytree(folder, copy, ignore=shutil.ignore_patterns(".git"))
            else:
                migrated(folder, copy)
            paths = [start, STANDINS, *(copy / path for path in real.paths)]
            both.append(measured(command, copy, paths)[:2])
        by_hand.append([sum(parts) for parts in zip(*both, strict=True)])
        paths = [STANDINS, *(folder / path for path in real.paths)]
        under.append(
            measured([*verify, "--no-repeat", "--", *real.arguments], Path("/"), paths)[:2]
        )
    wrong = migrated(folder, scratch / "wrong", MISTAKES[name])
    quick = [*verify, "--migrated", str(wrong), "--quick", "--no-repeat", "--", *real.arguments]
    lines = measured(quick, Path("/"), paths, 1)[2].splitlines()
    shown = next((line for line in lines if " so far: " in line), "0 nothing")
    second, _, said = shown.partition(" ")
    end = lines[-1].partition(" ")[0]
    cells = [name]
    for which in (0, 1):
        hand, tool = (statistics.median(each[which] for each in all_) for all_ in (by_hand, under))
        cells += [f"{hand:.0f}", f"{tool:.0f}", f"{tool / hand:.2f}"]
    return f"| {' | '.join([*cells, said.removeprefix('so far: '), second, end])} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="clones by the name of the repository")
    parser.add_argument("--only", nargs="+", choices=MISTAKES, default=[*MISTAKES], metavar="NAME")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    titles = (
        "program",
        "by hand, s",
        "verify, s",
        "ratio",
        "by hand, CPU s",
        "verify, CPU s",
        "ratio",
        "first difference of the wrong program",
        "shown after, s",
        "ended after, s",
    )
    print(f"| {' | '.join(titles)} |\n|---{'|---:' * 6}|---|---:|---:|")
    for name in options.only:
        with tempfile.TemporaryDirectory() as scratch:
            print(row(name, options.folder.resolve(), options.rounds, Path(scratch)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
