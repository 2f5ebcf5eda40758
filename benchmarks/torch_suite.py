"""PyTorch's own tests of FSDP1 against torch's FSDP1, the bridge and in place: `python benchmarks/torch_suite.py FOLDER`.

FOLDER is `test/distributed/fsdp` of PyTorch's sources, which Debian's source package `pytorch` has, for one; they stay out
of this repository. Each file runs on the CPU over gloo as `torch_suite_file.py` says, and counts where a test passes with
FSDP1. What fails in another form runs there once more without the assertions of private parts. Results are kept: a run
that was ended goes on, and one line of them removed runs that test again. With `--write` the tables by file and by class of
failure take their place in docs/results/fsdp1-behaviour.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from torch_suite_file import FORMS, SKIPPED, preload, read, run_file

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results" / "fsdp1-behaviour.md"
TITLE = "## PyTorch's own test files\n"

HEAD = """
Test files of PyTorch {release} on the CPU over gloo, by `benchmarks/torch_suite.py` at commit {commit}: {files} of {every}.
Listed are those with a test that passes with torch's FSDP1 there. {passed} do; what needs CUDA does not count. Of these the
bridge passes {bridge}, and in place {in_place} pass; {bridge_skipped} and {in_place_skipped} where assertions of FSDP1's
private parts are skipped. The tests run as they stand: names that the tool rewrites, as `_fsdp_wrapped_module.layer`, stay.
No test of {without} passes there with FSDP1: they need CUDA.
"""

# A class of failure by what its error, its text or the line of the test has in it; the first that fits.
CLASSES = {
    "LOCAL_STATE_DICT, which FSDP2 does not have (FSDP334)": r"FSDP334|LOCAL_STATE_DICT",
    "ShardedTensor instead of DTensor (FSDP524)": r"FSDP524|ShardedTensor|local_shards|_use_dtensor",
    "communication hooks, which FSDP2 does not have (FSDP361)": r"FSDP361|_comm_hook",
    "gradients in low precision, which FSDP2 does not keep (FSDP216)": r"keep_low_precision_grads",
    "gradients inside of no_sync (FSDP311)": r"FSDP311",
    "private parts of FSDP1 (FSDP366)": (
        r"FSDP366|has no attribute '(?:_|params')|[Ff]lat_?[Pp]aram|\w\._[a-z]\w+|hooks_call_count"
    ),
    "refused, with another rule's code": r"fsdp-migrate explain",
    "takes too long": r"^takes too long",
    "ranks that run other units, whose gathers do not fit each other": r"Connection (?:reset|closed) by peer",
    "a model's own `module`, which in place comes first (FSDP005)": r"'Sequential' object has no attribute 'get_",
    "DTensors where the test wants flat shards": r"Comparing a DTensor|reshape sharded dimension",
    "types of gradients and of evaluations (FSDP216, FSDP217)": r"\d != torch\.float16|Expected fp32",
    "numbers differ": r"Tensor-likes are not|Scalars are not close",
    "counts of calls or units differ": r"Scalars are not equal|not greater than",
    "another error, or another text": r"assertRaises|not raised|not triggered|does not match",
}


def kind_of(result: dict[str, Any]) -> str:
    """The class of a failure."""
    said = " ".join(str(result.get(key, "")) for key in ("error", "message", "source"))
    said = said.partition("To execute this test")[0] + " " + str(result.get("source", ""))
    return next((name for name, how in CLASSES.items() if re.search(how, said)), "else")


def run(files: list[Path], kept: Path, seconds: float) -> None:
    """Runs what has no results yet, a file at a time, each in a process forked from this one."""
    preload()
    for file in files:
        _run_file(file, "fsdp1", kept, seconds, None)
        for form in FORMS[1:]:
            _run_file(file, form, kept, seconds, named(kept, file, "fsdp1", "passed"))
            again = named(kept, file, form, "failed")
            _run_file(file, f"{form}, {SKIPPED}", kept, seconds, again)


def _run_file(file: Path, form: str, kept: Path, seconds: float, wanted: list[str] | None) -> None:
    results = results_of(kept, file, form)
    done = {each["test"] for each in read(results)}
    has_all = "" in done if wanted is None else done >= {*wanted}
    if has_all:
        return
    child = os.fork()
    if child == 0:
        with results.with_suffix(".log").open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
            try:
                run_file(file.resolve(), form, results, seconds, wanted)
            finally:
                os._exit(0)
    os.waitpid(child, 0)


def results_of(kept: Path, file: Path, form: str) -> Path:
    """Where the results of a file are."""
    return kept / f"{file.stem}.{form}.jsonl"


def named(kept: Path, file: Path, form: str, outcome: str) -> list[str]:
    """The tests of a file with an outcome."""
    results = read(results_of(kept, file, form))
    return [each["test"] for each in results if each["test"] and each["outcome"] == outcome]


def tables(folder: Path, kept: Path, release: str) -> str:
    """The part of the page."""
    rows, total, failures = [], Counter[str](), {form: Counter[str]() for form in FORMS[1:]}
    without: list[str] = []
    every = sorted(folder.glob("test_*.py"))
    files = [file for file in every if _is_done(kept, file)]
    for file in files:
        passed = {form: len(named(kept, file, form, "passed")) for form in FORMS}
        total.update(passed)
        for form in FORMS[1:]:
            total[f"{form} skipped"] += len(named(kept, file, f"{form}, {SKIPPED}", "passed"))
            failed = [each for each in read(results_of(kept, file, form)) if _is_failure(each)]
            failures[form].update(kind_of(each) for each in failed)
        if not passed["fsdp1"]:
            without.append(file.stem)
        else:
            rows.append(f"| {file.name} | {' | '.join(str(passed[form]) for form in FORMS)} |\n")
    head = HEAD.format(
        release=release,
        commit=_commit(),
        files=len(files),
        every=len(every),
        passed=total["fsdp1"],
        bridge=total["bridge"],
        in_place=total["in place"],
        bridge_skipped=total["bridge"] + total["bridge skipped"],
        in_place_skipped=total["in place"] + total["in place skipped"],
        without=", ".join(without) or "none of them",
    )
    kinds = sorted({*failures["bridge"], *failures["in place"]}, key=[*CLASSES, "else"].index)
    classes = [
        f"| {kind} | {failures['bridge'][kind]} | {failures['in place'][kind]} |\n"
        for kind in kinds
    ]
    return "".join(
        (
            f"{TITLE}{head}\n| file | FSDP1 | on the bridge | in place |\n|---|---|---|---|\n",
            *rows,
            "\n| what fails | on the bridge | in place |\n|---|---|---|\n",
            *classes,
        )
    )


def _commit() -> str:
    """The commit of this repository, in short."""
    git = ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def _is_done(kept: Path, file: Path) -> bool:
    """Whether a file ran with FSDP1, and with the other forms if one of its tests passes there."""
    forms = FORMS if named(kept, file, "fsdp1", "passed") else FORMS[:1]
    return all(
        any(not each["test"] for each in read(results_of(kept, file, form))) for form in forms
    )


def _is_failure(result: dict[str, Any]) -> bool:
    return bool(result["test"]) and result["outcome"] == "failed"


def write(part: str, page: Path = PAGE) -> None:
    """Puts the tables at the end of the page, in the place of those there."""
    before = page.read_text().partition(TITLE)[0].rstrip("\n")
    page.write_text(f"{before}\n\n{part}")


def main() -> None:
    """Runs the suite, and prints or writes the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, default=Path("/tmp/torch-suite"))
    parser.add_argument("--seconds", type=float, default=90, help="for one test")
    parser.add_argument("--release", default="2.6", help="of the test files")
    parser.add_argument("--files", nargs="*", help="names, in the order to run them; else all")
    parser.add_argument("--only-tables", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/results")
    given = parser.parse_args()
    given.results.mkdir(parents=True, exist_ok=True)
    if not given.only_tables:
        files = [given.folder / name for name in given.files or ()]
        run(files or sorted(given.folder.glob("test_*.py")), given.results, given.seconds)
    part = tables(given.folder, given.results, given.release)
    if given.write:
        write(part)
    print(part)


if __name__ == "__main__":
    main()
