"""Runs training programs at random on two ranks, as they are and migrated: ``python -m fuzz.training``, in ``tests/``.

One pair of forked ranks runs some programs, each three times: under FSDP1, with its imports swapped, and as plain as the
tool makes it. What a program returns must be the same, or a finding says by hand what is not. A pair that breaks down, or a
program that does not end, costs that program alone: the next pair goes on behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: FSDP1 runs on the CPU here
import torch
from forked import LOST, run_ranks
from fsdp1 import fsdp1_on_cpu

from fsdp_migrate.engine import analyse_source
from fsdp_migrate.findings import Action
from fsdp_migrate.settings import Options
from fsdp_migrate.source import Source

from .training_programs import Program, program

FORMS = ("bridge", "auto")
_PAIR = 10  # programs that one pair of ranks runs
_ALONE = 10  # seconds that a rank whose program failed waits for the other one


class Alone(Exception):
    """The other rank does not come: it waits in a collective, or has gone."""


def migrated(source: str, form: str) -> tuple[str, list[str]]:
    """A program after its migration, and what the findings say to do by hand, or that ranks clip by their own norms."""
    given = Source(Path("/nowhere/train.py"), "train.py", source.encode())
    report = analyse_source(given, Options(form))
    assert not report.errors, report.errors
    said = {f.code for f in report.findings if f.action is Action.MANUAL or f.code == "FSDP302"}
    after = report.changes[0].after.decode()
    return after.replace('"cuda"', '"cpu"'), sorted(said)  # see `run_all`


def run(source: str) -> dict[str, Any]:
    """What a program returns, or the error that it ends with."""
    names: dict[str, Any] = {}
    try:
        exec(compile(source, "<program>", "exec"), names)
        return {"out": json.loads(json.dumps(names["main"]()))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
    finally:
        names.clear()
        gc.collect()


def run_all(seeds: range, limit: int, folder: Path, rank: int) -> None:
    """What one rank of a pair does: runs the programs of some seeds and writes what each gives."""
    os.dup2(os.open(folder / f"{rank}.stderr", os.O_WRONLY | os.O_CREAT, 0o600), 2)
    warnings.simplefilter("ignore")
    fsdp1_on_cpu()
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    with contextlib.redirect_stdout(None):
        for seed in seeds:
            signal.alarm(
                limit
            )  # ends the process wherever it waits, and so the other one's connection
            source = program(Random(seed)).source
            result: dict[str, Any] = {"said": {}, "plain": False}
            for form in ("original", *FORMS):
                text = source
                if form != "original":
                    text, result["said"][form] = migrated(source, form)
                    result["plain"] = "fully_shard" in text
                result[form] = run(text)
                (folder / f"{seed}.{rank}.json").write_text(json.dumps(result))
                _meet(folder, f"{seed}.{form}", rank, failed="error" in result[form])
            signal.alarm(0)


def _meet(folder: Path, name: str, rank: int, failed: bool) -> None:
    """Waits for the other rank to be as far; by files, as its program may have left collectives unanswered.

    Raises:
        Alone: if the program failed here and the other rank goes on, or waits for this one.
    """
    (folder / f"{name}.{rank}.met").touch()
    start = time.monotonic()
    while not (folder / f"{name}.{1 - rank}.met").exists():
        if failed and time.monotonic() - start > _ALONE:
            raise Alone(name)
        time.sleep(0.002)


def results(seeds: range, limit: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """What both ranks wrote for each seed."""
    found = []
    start = seeds.start
    while start < seeds.stop:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run_ranks(2, folder, partial(run_all, range(start, seeds.stop), limit, folder))
            for seed in range(start, seeds.stop):
                files = [folder / f"{seed}.{rank}.json" for rank in range(2)]
                found.append(
                    (seed, [json.loads(f.read_text()) if f.exists() else {} for f in files])
                )
                start = seed + 1
                if not all(
                    (folder / f"{seed}.{FORMS[-1]}.{rank}.met").exists() for rank in range(2)
                ):
                    break
    return found


def judge(given: Program, ranks: list[dict[str, Any]], form: str) -> str:
    """`equal`, `close`, how the original fails, or how the migrated program differs."""
    errors = [str(rank.get("original", {}).get("error", "")) for rank in ranks]
    if failed := [error for error in errors if error and LOST not in error]:
        return f"the original fails{' on one rank' * (len(failed) < 2)}: {failed[0][:80]}"
    if any(errors) or not all(rank.get("original") for rank in ranks):
        return "the original does not end"
    verdicts = [_judged(given, rank["original"]["out"], rank.get(form)) for rank in ranks]
    return max(verdicts, key=lambda each: (each not in ("equal", "close"), each == "close", each))


def _judged(given: Program, expected: list[Any], found: dict[str, Any] | None) -> str:
    if found is None:
        return "the migrated program does not end"
    if "error" in found:
        return f"the migrated program fails: {found['error'][:300]}"
    out = found["out"]
    if expected == out:
        return "equal"
    if len(expected) != len(out):
        return f"{len(expected)} values, {len(out)} after"
    for index, (one, other) in enumerate(zip(expected, out, strict=True)):
        if not _close(one, other, given.tolerance):
            return f"value {index}: {one} and {other}"
    return "close"


def _close(one: Any, other: Any, tolerance: float) -> bool:
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return all(_close(a, b, tolerance) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        same = math.isnan(one) and math.isnan(other)
        return same or math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)


def slice_of(seeds: range, limit: int) -> tuple[Counter[str], list[str]]:
    """What a pair of ranks counts for some seeds, and a line for each difference that no finding speaks of."""
    counts: Counter[str] = Counter()
    lines = []
    for seed, ranks in results(seeds, limit):
        given = program(Random(seed))
        counts["programs"] += 1
        counts["plain"] += bool(ranks[0].get("plain"))
        for form in FORMS:
            verdict = judge(given, ranks, form)
            said = sorted({code for rank in ranks for code in rank.get("said", {}).get(form, ())})
            known = verdict in ("equal", "close") or verdict.startswith("the original")
            if known or said:
                counts[f"{form}: {verdict if known else 'said ' + ' '.join(said)}"] += 1
                continue
            counts[f"{form}: differs"] += 1
            lines.append(f"seed {seed}, {form}: {verdict}")
    return counts, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next one")
    parser.add_argument("--jobs", type=int, default=1, help="pairs of ranks at a time")
    parser.add_argument(
        "--limit", type=int, default=60, help="seconds for one program's three runs"
    )
    parser.add_argument(
        "--show",
        action="store_true",
        help="prints the first program, before and after, and what it gives",
    )
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + (1 if given.show else given.programs))
    if given.show:
        source = program(Random(given.seed)).source
        print(source, *(f"# {form}\n{migrated(source, form)[0]}" for form in FORMS), sep="\n")
        print(json.dumps(results(seeds, given.limit)[0][1], indent=1))
        return 0
    started = time.monotonic()
    total: Counter[str] = Counter()
    slices = [
        range(at, min(at + _PAIR, seeds.stop)) for at in range(seeds.start, seeds.stop, _PAIR)
    ]
    signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # of a time limit: what is done counts
    with (
        contextlib.suppress(KeyboardInterrupt),
        get_context("fork").Pool(
            given.jobs, signal.signal, (signal.SIGTERM, signal.SIG_DFL)
        ) as pool,
    ):
        for counts, lines in pool.imap(partial(slice_of, limit=given.limit), slices):
            total += counts
            print(*lines, sep="\n", end="\n" if lines else "", flush=True)
    seconds = time.monotonic() - started
    wrong = sum(total[f"{form}: differs"] for form in FORMS)
    print(
        f"torch {torch.__version__}, two ranks, seeds {seeds.start} to {seeds.stop - 1}, {seconds:.0f} s: {wrong} differences"
    )
    print(*(f"{total[name]:5} {name}" for name in sorted(total)), sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
