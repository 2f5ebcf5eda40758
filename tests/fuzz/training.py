"""Runs training programs at random on two ranks, as they are and migrated: ``python -m fuzz.training``, in ``tests/``.

Each runs under FSDP1 and in every form. What it returns must be the same, or a finding by hand or the runtime says what is not.
Where torch's form alone differs, it must need what its assumptions name (`switches`). A program that fails, or does not end,
costs that program alone: the next one has new ranks.
"""

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
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: FSDP1 runs on the CPU here
import torch
from behaviour.ranks import run_tasks
from forked import LOST
from fsdp1 import fsdp1_on_cpu
from launch import results_in

from fsdp_migrate.runtime import changed

from .announced import by_hand, refused, said_of_the_same
from .switches import ALL, migrated, named, under_switches
from .training_programs import Program, program

FORMS = ("bridge", "auto", "torch")
SAME = ("equal", "close")
_TOGETHER = 10  # programs whose results are read before the next ones run


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


Ranks = list[dict[str, Any]]


def results(texts: dict[str, str], limit: int) -> dict[str, Ranks]:
    """What both ranks wrote of each text, by its name: ``SEED.FORM``, or what stands for a form."""
    found: dict[str, Ranks] = {}
    # What the runtime changes in torch must not help those that run without it.
    alone = {name for name in texts if name.endswith((".original", ".torch"))}
    for names in (alone, texts.keys() - alone):
        tasks = [(name, partial(run, texts[name], limit)) for name in texts if name in names]
        with tempfile.TemporaryDirectory() as folder:
            run_tasks(2, Path(folder), tasks)
            found |= results_in(Path(folder))
    return found


def forms_of(seed: int) -> dict[str, str]:
    """The texts of a seed's program, by ``SEED.FORM``."""
    source = program(Random(seed)).source
    every = {"original": source, **{form: migrated(source, form) for form in FORMS}}
    return {f"{seed}.{form}": text for form, text in every.items()}


def differs_alone(given: Program, seed: int, found: dict[str, Ranks]) -> bool:
    """Whether a program does in torch's form neither what it did nor what it does in place."""
    verdict = judge(given, found, seed, "torch")
    if verdict in SAME or verdict.startswith("the original"):
        return False
    return not _does_as_in_place(given, seed, found, "torch")


def _does_as_in_place(given: Program, seed: int, found: dict[str, Ranks], form: str) -> bool:
    """Whether a program gives what it gives in place, or fails as it does there."""
    ends = [{*map(last_line, _errors(found.get(f"{seed}.{name}", [])))} for name in (form, "auto")]
    if any(ends):
        return ends[0] == ends[1]
    return judge(given, found, seed, form, "auto") in SAME


def needed(given: Program, seed: int, found: dict[str, Ranks]) -> list[str]:
    """The assumptions that do not hold for a program in torch's form, each with where its finding stands.

    None if it differs under all switches that findings name, too, or needs none of them. What it returns where it fails is
    for nobody to compare.
    """
    known = named(given.source)
    fails = bool(_errors(found.get(f"{seed}.torch", [])))
    holds = {
        name: (fails and not _errors(found.get(f"{seed}.{name}", [])))
        or judge(given, found, seed, name) in SAME
        or _does_as_in_place(given, seed, found, name)
        for name in (ALL, *known)
    }
    return [f"{name} {known[name]}" for name in known if holds[ALL] and not holds[name]]


def announced(
    given: Program, seed: int, form: str, found: dict[str, Ranks], *, is_alone: bool
) -> str:
    """What says that a program does not do in a form what it did: findings, or the runtime; empty if nothing does.

    Args:
        is_alone: whether it does in torch's form not what it does in place.
    """
    ranks = found.get(f"{seed}.{form}", [])
    errors = _errors(ranks)
    of_runtime = refused(given.source, form, errors, _errors(found.get(f"{seed}.auto", [])))
    if form == "torch" and is_alone:
        assumed = needed(given, seed, found)
        return ", ".join(assumed or by_hand(given.source, form, errors) or of_runtime)
    # What says that numbers change in torch's form as in place says it there.
    as_in_place = form == "torch" and not errors
    findings = by_hand(given.source, "auto" if as_in_place else form, errors)
    findings += of_runtime
    if as_in_place:
        in_place = found.get(f"{seed}.auto", [])
        codes = {code for rank in in_place for code in rank.get("said", ())}
        findings += said_of_the_same(given.source, codes)
    by_runtime = {code for rank in ranks for code in rank.get("said", ())}
    return " ".join(sorted(by_runtime | {*findings}))


def _errors(ranks: Ranks) -> list[str]:
    return [rank["error"] for rank in ranks if LOST not in rank.get("error", LOST)]


def judge(
    given: Program, results: dict[str, Ranks], seed: int, form: str, expected: str = "original"
) -> str:
    """`equal`, `close`, how the original fails, or how the migrated program differs."""
    original, found = results.get(f"{seed}.{expected}", []), results.get(f"{seed}.{form}", [])
    errors = [last_line(rank["error"]) for rank in original if "error" in rank]
    if failed := [error for error in errors if LOST not in error]:
        return f"the original fails{' on one rank' * (len(failed) < 2)}: {failed[0][:80]}"
    if errors or len(original) < 2:
        return "the original does not end"
    if len(found) < 2:
        return "the migrated program does not end"
    if failed := [last_line(rank["error"]) for rank in found if "error" in rank]:
        failed.sort(key=lambda error: LOST in error)  # what came of the other rank's error last
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
        print(*(f"# {name}\n{text}" for name, text in forms_of(given.seed).items()), sep="\n")
        print(json.dumps(results(forms_of(given.seed), given.limit), indent=1))
        return 0
    started = time.monotonic()
    counts: Counter[str] = Counter()
    for first in seeds[::_TOGETHER]:
        some = seeds[first - seeds.start :][:_TOGETHER]
        drawn = {seed: program(Random(seed)) for seed in some}
        found = results({k: v for seed in some for k, v in forms_of(seed).items()}, given.limit)
        alone = {s: drawn[s].source for s in some if differs_alone(drawn[s], s, found)}
        texts = {s: under_switches(source) for s, source in alone.items()}
        every = {f"{s}.{name}": text for s in alone for name, text in texts[s].items()}
        found |= results(every, given.limit) if every else {}
        for seed, form in product(some, FORMS):
            verdict = judge(drawn[seed], found, seed, form)
            said = verdict
            if not (verdict in SAME or verdict.startswith("the original")):
                said = announced(drawn[seed], seed, form, found, is_alone=seed in alone)
            counts[f"{form}: {said or 'differs'}"] += 1
            if not said:
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
