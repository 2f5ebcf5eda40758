"""Public programs under `verify`, as they are: what they would download is stood in for (`standins/`).

    python benchmarks/real_programs.py NAME FOLDER [options of verify]

FOLDER is a clone, fetched by the user. The interpreter needs what the program imports: see docs/results/real-programs.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass
from pathlib import Path

STANDINS = Path(__file__).parent / "standins"


@dataclass(frozen=True)
class Real:
    """A program in a public repository.

    Attributes:
        folder, entry: where it is, below the clone.
        paths: folders of the clone that an installation would put on the path.
        arguments: as short a run as it allows.
        edit: a file of a copy, text in it and what takes its place.
    """

    folder: str
    entry: str
    arguments: tuple[str, ...]
    paths: tuple[str, ...] = ()
    edit: tuple[str, str, str] | None = None


T5 = ("--epochs", "1", "--batch-size", "4", "--test-batch-size", "4")
FLOAT32 = ("configs/training.py", "mixed_precision: bool=True", "mixed_precision: bool=False")
LLAMA = (
    *("--enable_fsdp", "--model_name", "none", "--num_epochs", "1", "--context_length", "64"),
    *("--batch_size_training", "2", "--max_train_step", "4", "--max_eval_step", "2"),
    *("--dist_checkpoint_root_folder", "out", "--dist_checkpoint_folder", "model"),
)
DPO = (
    *("model=pythia28", "datasets=[hh]", "loss=dpo", "loss.beta=0.1", "exp_name=dpo"),
    *("trainer=FSDPTrainer", "sample_during_eval=false", "gradient_accumulation_steps=2"),
    *("batch_size=8", "eval_batch_size=4", "n_eval_examples=4", "n_epochs=2"),
    *("lr=1e-3", "warmup_steps=2", "minimum_log_interval_secs=0", "local_run_dir=."),
)

DIT = (
    *("--data_path", "none", "--results_dir", "out", "--max_steps", "3", "--num_workers", "0"),
    *("--global_batch_size", "8", "--micro_batch_size", "2", "--precision", "fp32"),
    *("--lr", "1e-3", "--grad_clip", "0.05", "--model"),
)
SMALL = (*DIT, "DiT_Llama_600M_patch2")
ZERO2 = ("--data_parallel", "sdp")

PROGRAMS = {
    "t5": Real("distributed/FSDP", "T5_training.py", T5),
    "t5-float32": Real("distributed/FSDP", "T5_training.py", T5, edit=FLOAT32),
    "llama-cookbook": Real("", "getting-started/finetuning/finetuning.py", LLAMA, ("src",)),
    "dpo": Real("", "train.py", DPO),
    "flag-dit": Real("Flag-DiT-ImageNet", "train.py", SMALL),
    "flag-dit-zero2": Real("Flag-DiT-ImageNet", "train.py", (*SMALL, *ZERO2)),
    "large-dit": Real("Large-DiT-ImageNet", "train.py", SMALL),
    "next-dit-mini": Real("lumina_next_t2i_mini", "train.py", (*DIT, "NextDiT_2B_patch2")),
}

# The tutorial's text has its program in pieces.
TUTORIAL = "intermediate_source/FSDP_tutorial.rst"
MNIST = Real("", "FSDP_mnist.py", ("--epochs", "2", "--batch-size", "16", "--save-model"))
PROGRAMS["mnist"] = MNIST


def tutorial(text: str) -> str:
    """The program of the tutorial: its blocks of code, up to the one that starts it."""
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?: {4}.*\n| *\n)+)", text, re.MULTILINE)
    last = next(i for i, block in enumerate(blocks) if "__main__" in block)
    return "\n".join(textwrap.dedent(block) for block in blocks[: last + 1])


def edited(clone: Path, real: Real, edit: tuple[str, str, str], scratch: Path) -> Path:
    """A copy of the program's folder with the edit made, where the clone has it."""
    shutil.copytree(clone / real.folder, scratch / real.folder)
    path, before, after = edit
    file = scratch / real.folder / path
    text = file.read_text("utf-8")
    if before not in text:
        raise SystemExit(f"{path} of the clone has no line {before!r}")
    file.write_text(text.replace(before, after), "utf-8")
    return scratch


def command(name: str, clone: Path, options: list[str]) -> tuple[list[str], dict[str, str]]:
    """The one command, and its environment."""
    real = PROGRAMS[name]
    folder = clone / real.folder
    verify = [sys.executable, "-m", "fsdp_migrate", "verify", str(folder), "--entry", real.entry]
    how = ["--nproc", "2", "--device", "cpu", *options]
    paths = [STANDINS, *(clone / path for path in real.paths), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths)))}
    return [*verify, *how, "--", *real.arguments], environment


def main() -> int:
    """Runs one program; its exit status is verify's."""
    if len(sys.argv) < 3 or sys.argv[1] not in PROGRAMS:
        print(f"{__doc__}\nNAME is one of: {', '.join(PROGRAMS)}", file=sys.stderr)
        return 2
    name, clone = sys.argv[1], Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        edit = PROGRAMS[name].edit
        if edit:
            clone = edited(clone, PROGRAMS[name], edit, Path(scratch))
        if name == "mnist":
            text = (clone / TUTORIAL).read_text("utf-8")
            clone = Path(scratch)
            (clone / MNIST.entry).write_text(tutorial(text), "utf-8")
        return run(name, clone, sys.argv[3:])


def run(name: str, clone: Path, options: list[str]) -> int:
    """Runs verify."""
    arguments, environment = command(name, clone, options)
    return subprocess.run(arguments, env=environment, check=False, cwd="/").returncode


if __name__ == "__main__":
    sys.exit(main())
