"""Public training programs under `verify`, in each form of the migration.

    pip install -r benchmarks/real_programs.txt
    python benchmarks/real_programs.py FOLDER [--only NAME...] [--form FORM...] [--results FILE] [--page] [of verify]

FOLDER holds clones, or will: `--clone` fetches what it lacks. A program downloads nothing: what it would fetch is stood
in for (`standins/`), and an edit in a copy, where there is one, makes the model small or names what torch no longer has.
Each run adds a line of JSON to the results as soon as it is over, and is not made again; --page prints them as a table
and runs nothing. What came out is in docs/results/real-programs.md.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from by_hand import STANDINS, emulation, measured, torchrun

from fsdp_migrate.codemods.constructor import construction
from fsdp_migrate.discover import discover
from fsdp_migrate.engine import analyse
from fsdp_migrate.report import Report
from fsdp_migrate.settings import FORMS, Options

RANKS = 2  # of a run by hand, as of verify
# How findings name constructor calls: the others of this code are about assignments that go with a call.
CALLS = {
    construction.DIRECT,
    construction.SUBCLASS,
    construction.PARTIAL,
    construction.ENABLE_WRAP,
    construction.WRAP,
}

# Each clone's repository and commit: torchtune's and torchtitan's last before their FSDP2, a tutorial that has FSDP1.
CLONES = {
    "examples": ("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8"),
    "llama-cookbook": ("meta-llama/llama-cookbook", "0e0033518623d03ac5c1654bf04b7e480f7d5e5a"),
    "direct-preference-optimization": (
        "eric-mitchell/direct-preference-optimization",
        "f8b8c0f49dc92a430bae41585f9d467d3618fe2f",
    ),
    "Lumina-T2X": ("Alpha-VLLM/Lumina-T2X", "1c606962f95899da711633ee3a333d21c753e2d9"),
    "LLaMA2-Accessory": ("Alpha-VLLM/LLaMA2-Accessory", "3777c43940ddfb45d3bc1046b118ca4401747ee2"),
    "fms-fsdp": ("foundation-model-stack/fms-fsdp", "5a296afe42f9932f590783cb053fa0f9384e01fc"),
    "torchtune-before": ("pytorch/torchtune", "3955b339f360635c6473c31124361ef14748d0d5"),
    "torchtitan-before": ("pytorch/torchtitan", "ab5d91823f835e8688f381e3ff24706d7ae50cff"),
    "open_lm": ("mlfoundations/open_lm", "9bb92ef1689333534b7057942a20d18a46d1fa52"),
    "tutorials": ("pytorch/tutorials", "c53e7d4efc0e39e455c531d21ec7db28ba220214"),
}
TEXT = "*.py", "*.yaml", "*.toml", "*.json", "*.md", "*.rst"


def clone(name: str, folder: Path) -> None:
    """Fetch the text files of a repository at its commit, unless the folder is there; git says what it cannot."""
    if (folder / name).is_dir():
        return
    repository, commit = CLONES[name]
    url = f"https://github.com/{repository}"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / name
        commands = (
            ("clone", "--quiet", "--filter=blob:none", "--no-checkout", url, made),
            ("-C", made, "sparse-checkout", "set", "--no-cone", *TEXT),
            ("-C", made, "checkout", "--quiet", commit),
        )
        if not any(subprocess.run(["git", *each], check=False).returncode for each in commands):
            made.rename(folder / name)


class Edit(NamedTuple):
    """Text in a file of the program's folder, and what takes its place in a copy."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Real:
    """A program in a public repository.

    Attributes:
        shows: what it stands for, as the page says it.
        repository: its name, and that of the clone.
        folder, entry: where it is, below the clone.
        arguments: as short a run as it allows.
        paths: folders below `folder` that an installation would put on the path.
        edits: twenty lines at most.
        options: of `verify`.
        made: the program's text from that of `entry`, where a page has it in pieces.
        before: arguments of a run of the original, from whose checkpoint both programs go on.
    """

    shows: str
    repository: str
    folder: str
    entry: str
    arguments: tuple[str, ...]
    paths: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    options: tuple[str, ...] = ()
    made: Callable[[str], str] | None = None
    before: tuple[str, ...] = ()


def tutorial(text: str) -> str:
    """The program of the tutorial: its blocks of code, up to the one that starts it."""
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?: {4}.*\n| *\n)+)", text, re.MULTILINE)
    last = next(i for i, block in enumerate(blocks) if "__main__" in block)
    return "\n".join(textwrap.dedent(block) for block in blocks[: last + 1])


def resumed(real: Real, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Real:
    """The program in two runs: the original's first, with more arguments, and from its checkpoint on."""
    return replace(
        real,
        shows="the same, resumed from FSDP1's checkpoint",
        arguments=(*real.arguments, *after),
        before=(*real.arguments, *before),
    )


def dit(shows: str, repository: str, folder: str, *model: str) -> Real:
    """A diffusion transformer; all of them take the same arguments."""
    return Real(shows, repository, folder, "train.py", (*DIT, *model))


def fms(shows: str, strategy: str, *more: str) -> Real:
    return Real(
        shows,
        "fms-fsdp",
        "",
        "main_training_llama.py",
        (*FMS, f"--sharding_strategy={strategy}", *more),
        edits=(TINY_LLAMA,),
    )


def torchtune(shows: str, recipe: str, settings: str, model: str) -> Real:
    config = ("--config", f"recipes/configs/llama2/{settings}.yaml")
    named = (f"model._component_=torchtune.models.llama2.{model}", *TORCHTUNE)
    return Real(
        shows,
        "torchtune-before",
        "",
        f"recipes/{recipe}_distributed.py",
        (*config, *named),
        paths=(".",),
    )


T5 = ("--epochs", "1", "--batch-size", "4", "--test-batch-size", "4")
FLOAT32 = Edit("configs/training.py", "mixed_precision: bool=True", "mixed_precision: bool=False")
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
SMALL = "DiT_Llama_600M_patch2"
TINY_LLAMA = Edit(
    "fms_fsdp/utils/config_utils.py",
    '    if model_variant == "llama2_70b":\n',
    '    if model_variant == "tiny":\n'
    "        model_config = LLaMAConfig(\n"
    "            src_vocab_size=128, emb_dim=32, nheads=4, nlayers=3, max_expected_seq_len=64\n"
    "        )\n"
    '    elif model_variant == "llama2_70b":\n',
)
FMS = (
    *("--model_variant=tiny", "--use_dummy_dataset=True", "--vocab_size=128", "--seq_length=32"),
    *("--num_steps=24", "--batch_size=2", "--report_interval=6", "--checkpoint_interval=12"),
    *("--ckpt_load_path=out", "--ckpt_save_path=out", "--use_torch_compile=False"),
    *("--learning_rate=1e-2", "--mixed_precision=False"),
)
TORCHTUNE = (
    *("model.vocab_size=128", "model.num_layers=2", "model.num_heads=4", "model.embed_dim=32"),
    *("model.num_kv_heads=4", "model.max_seq_len=64", "tokenizer._component_=recipe.tokenizer"),
    *("tokenizer.path=none", "dataset._component_=recipe.dataset", "seed=1", "batch_size=2"),
    *("checkpointer._component_=recipe.Checkpointer", "epochs=2", "max_steps_per_epoch=2"),
    *("output_dir=out", "optimizer.lr=1e-2", "dtype=fp32", "optimizer.fused=False"),
    "gradient_accumulation_steps=2",
)
OPEN_LM = (
    *("--dataset-type", "synthetic", "--model", "open_lm_test_tiny", "--train-num-samples", "256"),
    *("--global-batch-size", "8", "--accum-freq", "2", "--epochs", "2", "--workers", "0"),
    *("--fsdp", "--fsdp-use-orig-params", "--grad-checkpointing", "--precision", "fp32"),
    *(
        "--attn-name",
        "torch_attn",
        "--ffn-type",
        "swiglu_torch",
        "--lr",
        "1e-2",
        "--warmup",
        "2",
        "--grad-clip-norm",
        "0.5",
    ),
    *("--logs", "out", "--name", "run"),
)
TITAN = "train_configs/debug_model.toml"
SMALL_TITAN = (
    Edit(
        "torchtrain/parallelisms/parallelize_llama.py",
        "import _pt2_selective_checkpoint_context_fn_gen, checkpoint",
        "import checkpoint",
    ),
    Edit(TITAN, "./torchtrain/datasets/tokenizer/tokenizer.model", "README.md"),
    Edit(TITAN, "batch_size = 8\nseq_len = 2048", "batch_size = 2\nseq_len = 64"),
    Edit(TITAN, "steps = 10", "steps = 4"),
    Edit(TITAN, "run_profiler = true", "run_profiler = false"),
)

PROGRAMS = {
    "t5": Real("T5, fine-tuning in bfloat16", "examples", "distributed/FSDP", "T5_training.py", T5),
    "t5-float32": Real(
        "the same in float32",
        "examples",
        "distributed/FSDP",
        "T5_training.py",
        T5,
        edits=(FLOAT32,),
    ),
    "llama-cookbook": Real(
        "Llama, fine-tuning",
        "llama-cookbook",
        "",
        "getting-started/finetuning/finetuning.py",
        LLAMA,
        paths=("src",),
    ),
    "dpo": Real(
        "DPO: a trainer class, a policy and a reference, accumulation",
        "direct-preference-optimization",
        "",
        "train.py",
        DPO,
    ),
    "flag-dit": dit(
        "diffusion, EMA, `no_sync`, a norm by hand", "Lumina-T2X", "Flag-DiT-ImageNet", SMALL
    ),
    "flag-dit-zero2": dit(
        "the same, SHARD_GRAD_OP",
        "Lumina-T2X",
        "Flag-DiT-ImageNet",
        SMALL,
        "--data_parallel",
        "sdp",
    ),
    "large-dit": dit("diffusion, EMA", "LLaMA2-Accessory", "Large-DiT-ImageNet", SMALL),
    "next-dit-mini": dit(
        "text to image, three sharded models",
        "Lumina-T2X",
        "lumina_next_t2i_mini",
        "NextDiT_2B_patch2",
    ),
    "fms-fsdp": fms("Llama, pretraining, checkpoints", "fsdp"),
    "fms-hsdp": fms("the same, HYBRID_SHARD within a node", "hsdp"),
    "fms-ac": fms(
        "the same, activation checkpointing",
        "fsdp",
        "--fsdp_activation_checkpointing=True",
        "--selective_checkpointing=1/2",
    ),
    "torchtune-full": torchtune(
        "full fine-tuning recipe, activation checkpointing", "full_finetune", "7B_full", "llama2"
    ),
    "torchtune-lora": torchtune("LoRA recipe", "lora_finetune", "7B_lora", "lora_llama2"),
    "torchtitan": Real(
        "Llama, pretraining with `enable_wrap` and a grad scaler",
        "torchtitan-before",
        "",
        "train.py",
        ("--job.config_file", TITAN),
        edits=SMALL_TITAN,
    ),
    "open-lm": Real(
        "pretraining, accumulation, clipping, activation checkpointing",
        "open_lm",
        "",
        "open_lm/main.py",
        OPEN_LM,
        paths=(".",),
        edits=(
            Edit(
                "open_lm/file_utils.py", "(f, map_location", "(f, weights_only=False, map_location"
            ),
        ),
    ),
    "mnist": Real(
        "the FSDP tutorial, as printed",
        "tutorials",
        "",
        "intermediate_source/FSDP_tutorial.rst",
        ("--epochs", "2", "--batch-size", "16", "--save-model"),
        options=("--align-init",),
        made=tutorial,
    ),
}
for name, before, after in (
    ("flag-dit", (), ("--max_steps", "6")),
    ("large-dit", (), ("--max_steps", "6")),
    ("fms-fsdp", (), ("--num_steps=36",)),
    ("fms-hsdp", (), ("--num_steps=36",)),
    ("torchtune-full", (), ("resume_from_checkpoint=True",)),
    ("torchtune-lora", (), ("resume_from_checkpoint=True",)),
    ("open-lm", (), ("--epochs", "3", "--resume", "latest")),
):
    PROGRAMS[f"{name}-resumed"] = resumed(PROGRAMS[name], before, after)


def edited(place: Path, real: Real, scratch: Path) -> Path:
    """The program's folder; a copy, where it has an edit, is made from a page, or gets a checkpoint.

    Raises SystemExit where the clone has not got the text to edit.
    """
    if real.made:
        (scratch / "program.py").write_text(
            real.made((place / real.entry).read_text("utf-8")), "utf-8"
        )
        return scratch
    if not real.edits and not real.before:
        return place / real.folder
    folder = scratch / (real.folder or real.repository)
    shutil.copytree(place / real.folder, folder, ignore=shutil.ignore_patterns(".git"))
    for path, before, after in real.edits:
        text = (folder / path).read_text("utf-8")
        if before not in text:
            raise SystemExit(f"{place / real.folder / path} has no line {before!r}")
        (folder / path).write_text(text.replace(before, after), "utf-8")
    return folder


def train(real: Real, folder: Path) -> None:
    """Run the original in its folder. Raises SystemExit where it fails."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = [emulation(Path(scratch), RANKS), STANDINS, *(folder / path for path in real.paths)]
        measured(torchrun(RANKS, real.entry, *real.before), folder, paths)


def migration(report: Report) -> dict[str, Any]:
    """What the tool does to a program's folder: constructor calls by form, findings by action, changed lines."""
    calls: Counter[str] = Counter()
    for finding in report.findings:
        if finding.code == construction.CONSTRUCTOR.code and finding.construct in CALLS:
            calls[finding.action.value] += 1
    lines = 0
    for change in report.changes:
        before, after = (text.decode().splitlines() for text in (change.before, change.after))
        lines += sum(line[0] in "+-" for line in difflib.unified_diff(before, after, n=0)) - 2
    actions = Counter(finding.action.value for finding in report.findings)
    by_hand = Counter(each.code for each in report.findings if each.action.value == "manual")
    return {"calls": calls, "lines": lines, "findings": actions, "by hand": by_hand}


def run(name: str, form: str, folder: Path, options: list[str]) -> dict[str, Any]:
    """One program in one form: what the migration does, and what `verify` says."""
    real = PROGRAMS[name]
    if real.before:
        train(real, folder)
    report = analyse(discover([folder], root=folder), Options(form))
    paths = [STANDINS, *(folder / path for path in real.paths), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, filter(None, paths)))}
    with tempfile.TemporaryDirectory() as scratch:
        verdict = Path(scratch) / "verdict.json"
        how = ["--form", form, "--device", "cpu", "--emulate", *options, "--json", str(verdict)]
        entry = "program.py" if real.made else real.entry
        command = [sys.executable, "-m", "fsdp_migrate", "verify", str(folder), "--entry", entry]
        command += [*how, *real.options, "--", *real.arguments]
        begun = time.monotonic()
        done = subprocess.run(
            command,
            env=environment,
            check=False,
            cwd="/",
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said = done.stdout.strip().splitlines()
        text = verdict.read_text("utf-8") if verdict.exists() else ""
    return {
        "program": name,
        "form": form,
        "status": done.returncode,
        "seconds": round(time.monotonic() - begun),
        "migration": migration(report),
        "last": said[-1] if said else "",
        "said": said[-60:],
        "verify": json.loads(text) if text else None,  # nothing where a program failed
    }


def runs_of(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """The runs that a file of results has, the last one of each program and form."""
    if not results.exists():
        return {}
    lines = map(json.loads, results.read_text("utf-8").splitlines())
    return {(line["program"], line["form"]): line for line in lines}


# Actions of findings, as the page names them.
ACTIONS = {"rewrite": "plain", "runtime": "runtime", "manual": "by hand"}


def by_action(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[key]} {name}" for key, name in ACTIONS.items() if key in counts)


def verdict_of(line: dict[str, Any]) -> str:
    """What `verify` found, in a cell."""
    found = line["verify"]
    if found is None:
        return str(line["last"]).removeprefix("fsdp-migrate verify: ")
    if not found["equal"]:
        causes = [f"{cause['title']}. {cause['advice']}" for cause in found["causes"][:1]]
        return "; ".join([line["last"], *causes])
    losses = max(map(len, found["original"]["losses"]), default=0)
    how = "bitwise equal" if found["bitwise"] else f"within {found['max_abs_loss_diff']:.1g}"
    norms, parameters = (
        "not compared" if apart is None else f"within {apart:.1g}" if apart else "equal"
        for apart in (found["max_rel_grad_norm_diff"], found["max_abs_param_diff"])
    )
    parts = [f"{losses} losses {how}", f"gradient norms {norms}", f"last parameters {parameters}"]
    printed = len(found["printed"])
    differ = f"{printed} printed line{' differs' if printed == 1 else 's differ'}"
    return ", ".join([*parts, differ] if printed else parts)


def page(runs: dict[tuple[str, str], dict[str, Any]]) -> str:
    """The runs as a table."""
    titles = "program", "form", "constructors", "lines", "findings", "verdict", "seconds", "memory"
    rows = [f"| {' | '.join(titles)} |", "|---|---|---|---:|---|---|---:|---:|"]
    for name in PROGRAMS:
        for form in FORMS:
            if line := runs.get((name, form)):
                made, found = line["migration"], line["verify"]
                both = [found[which] for which in ("original", "migrated")] if found else []
                peaks = [run["peak_memory_bytes"] for run in both]
                cells = [
                    f"{name}: {PROGRAMS[name].shows}",
                    form,
                    by_action(made["calls"]),
                    str(made["lines"]),
                    " ".join([by_action(made["findings"]), *made["by hand"]]),
                    verdict_of(line).replace("|", "\\|"),
                    ", ".join(f"{run['seconds']:.0f}" for run in both),
                    f"{peaks[1] / peaks[0]:.2f}" if peaks and peaks[0] else "",
                ]
                rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="clones by the name of the repository")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=[*PROGRAMS], metavar="NAME")
    parser.add_argument("--form", nargs="+", choices=FORMS, default=[*FORMS])
    parser.add_argument("--results", type=Path, default=Path("real_programs.jsonl"))
    parser.add_argument("--clone", action="store_true", help="fetch the clones that are missing")
    parser.add_argument("--page", action="store_true", help="print the table of the results alone")
    options, of_verify = parser.parse_known_args()
    if options.clone:
        options.folder.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            clone(PROGRAMS[name].repository, options.folder)
    for form in () if options.page else options.form:
        for name in options.only:
            place = options.folder.resolve() / PROGRAMS[name].repository
            if (name, form) in runs_of(options.results) or not place.is_dir():
                continue
            with tempfile.TemporaryDirectory() as scratch:
                folder = edited(place, PROGRAMS[name], Path(scratch))
                line = run(name, form, folder, of_verify)
            with options.results.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
            print(f"{name}, {form}: {line['last']}", file=sys.stderr)
    runs = runs_of(options.results)
    print(page(runs))
    return int(any(line["status"] for line in runs.values()))


if __name__ == "__main__":
    sys.exit(main())
