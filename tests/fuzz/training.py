"""Runs training programs at random on two ranks, as they are and migrated: ``python -m fuzz.training``, in ``tests/``.

Each runs three times: under FSDP1, on the bridge, and in place. What it returns must be the same, or a finding by hand or the
runtime says what is not. A program that fails, or does not end, costs that program alone: the next one has new ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: FSDP1 runs on the CPU here
import torch
from behaviour.ranks import run_tasks
from forked import LOST
from fsdp1 import fsdp1_on_cpu
from launch import results_in

from fsdp_migrate.engine import analyse_source
from fsdp_migrate.findings import Action
from fsdp_migrate.runtime import changed
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from .training_programs import Program, program

FORMS = ("bridge", "auto")
_TOGETHER = 10  # programs whose results are read before the next ones run


def migrated(source: str, form: str) -> tuple[str, list[str]]:
    """A program after its migration, and what the findings say to do by hand, or that ranks clip by their own norms."""
    given = Source(Path("/nowhere/train.py"), "train.py", source.encode())
    report = analyse_source(given, Options(form))
    assert not report.errors, report.errors
    said = {f.code for f in report.findings if f.action is Action.MANUAL or f.code == "FSDP302"}
    after = report.changes[0].after.decode()
    return after.replace('"cuda"', '"cpu"'), sorted(said)


def run(source: str, limit: int) -> dict[str, Any]:
    """What a program returns, and the codes of the runtime's warnings."""
    names: dict[str, Any] = {}
    changed._SAID.clear()
    signal.alarm(limit)  # ends the process wherever it waits, and so the other one's connection
    try:
        exec(compile(source, "<program>", "exec"), names)
        with contextlib.redirect_stdout(None), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = names["main"]()
            return {"out": out, "said": sorted({each["code"] for each in changed.said()})}
    finally:
        signal.alarm(0)
        names.clear()


def results(seeds: range, limit: int) -> dict[str, list[dict[str, Any]]]:
    """What both ranks wrote of each seed's programs, by ``SEED.FORM``."""
    tasks = []
    for seed in seeds:
        source = program(Random(seed)).source
        texts = {"original": source, **{form: migrated(source, form)[0] for form in FORMS}}
        tasks += [(f"{seed}.{form}", partial(run, text, limit)) for form, text in texts.items()]
    with tempfile.TemporaryDirectory() as name:
        run_tasks(2, Path(name), tasks)
        return results_in(Path(name))


def judge(given: Program, original: list[dict[str, Any]], found: list[dict[str, Any]]) -> str:
    """`equal`, `close`, how the original fails, or how the migrated program differs."""
    errors = [last_line(rank["error"]) for rank in original if "error" in rank]
    if failed := [error for error in errors if LOST not in error]:
        return f"the original fails{' on one rank' * (len(failed) < 2)}: {failed[0][:80]}"
    if errors or len(original) < 2:
        return "the original does not end"
    if len(found) < 2:
        return "the migrated program does not end"
    if failed := [last_line(rank["error"]) for rank in found if "error" in rank]:
        return f"the migrated program fails: {failed[0][:300]}"
    pairs = [(one["out"], other["out"]) for one, other in zip(original, found, strict=True)]
    if all(one == other for one, other in pairs):
        return "equal"
    for one, other in pairs:
        if not _close(one, other, given.tolerance):
            return f"{one} and {other}"
    return "close"


def last_line(error: str) -> str:
    return error.strip().splitlines()[-1]


def _close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_close(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        same = math.isnan(one) and math.isnan(other)
        return same or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next one")
    parser.add_argument("--limit", type=int, default=60, help="seconds for one run of a program")
    parser.add_argument(
        "--show", action="store_true", help="prints the first program, its forms and its results"
    )
    given = parser.parse_args()
    fsdp1_on_cpu()
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    seeds = range(given.seed, given.seed + (1 if given.show else given.programs))
    if given.show:
        source = program(Random(given.seed)).source
        print(source, *(f"# {form}\n{migrated(source, form)[0]}" for form in FORMS), sep="\n")
        print(json.dumps(results(seeds, given.limit), indent=1))
        return 0
    started = time.monotonic()
    counts: Counter[str] = Counter()
    for first in seeds[::_TOGETHER]:
        some = seeds[first - seeds.start :][:_TOGETHER]
        found = results(some, given.limit)
        for seed in some:
            drawn = program(Random(seed))
            original = found.get(f"{seed}.original", [])
            for form in FORMS:
                ranks = found.get(f"{seed}.{form}", [])
                verdict = judge(drawn, original, ranks)
                by_runtime = {code for rank in ranks for code in rank.get("said", ())}
                said = sorted(by_runtime | {*migrated(drawn.source, form)[1]})
                known = verdict in ("equal", "close") or verdict.startswith("the original")
                if known or said:
                    counts[f"{form}: {verdict if known else 'said ' + ' '.join(said)}"] += 1
                    continue
                counts[f"{form}: differs"] += 1
                print(f"seed {seed}, {form}: {verdict}", flush=True)
    wrong = sum(counts[f"{form}: differs"] for form in FORMS)
    seconds = time.monotonic() - started
    print(
        f"torch {torch.__version__}, two ranks, seeds {seeds.start} to {seeds.stop - 1}, {seconds:.0f} s: {wrong} differences"
    )
    print(*(f"{counts[name]:5} {name}" for name in sorted(counts)), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
