"""Makes programs at random and checks what the tool makes of each: ``python -m fuzz.run``, in ``tests/``; `make fuzz`."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections import Counter
from multiprocessing import Pool
from random import Random

from .checks import FORMS, wrong
from .grammar import program


def one(seed: int) -> tuple[int, list[str], Counter[str]]:
    """What is wrong with one program in any form, and what it counts as."""
    data = program(Random(seed))
    counts: Counter[str] = Counter(bytes=len(data))
    started = time.process_time()
    found = [f"{form}: {each}" for form in FORMS for each in wrong(data, form, counts)]
    counts["ms"] = round(1000 * (time.process_time() - started))
    return seed, found, counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="prints the first program instead")
    given = parser.parse_args()
    if given.show:
        sys.stdout.buffer.write(program(Random(given.seed)))
        return 0
    seeds = range(given.seed, given.seed + given.programs)
    total: Counter[str] = Counter()
    slowest = 0
    with Pool(given.jobs) as pool:
        for seed, found, counts in pool.imap(one, seeds, chunksize=20):
            total += counts
            total["failed"] += bool(found)
            slowest = max(slowest, counts["ms"])
            for each in found:
                print(f"seed {seed}: {each}", flush=True)
    python = platform.python_version()
    print(f"Python {python}, seeds {seeds[0]} to {seeds[-1]}: {total['failed']} programs failed")
    print(", ".join(f"{name} {total[name]:,}" for name in sorted(total)))
    print(f"the slowest program took {slowest / 1000:.1f} s with all of its checks")
    return bool(total["failed"])


if __name__ == "__main__":
    sys.exit(main())
