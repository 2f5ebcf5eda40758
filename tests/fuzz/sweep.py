"""Other people's files, as they are and with an FSDP1 program at their end: ``python -m fuzz.sweep FOLDER...``, in ``tests/``."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import Pool
from pathlib import Path

from fsdp_migrate.discover import mentions_fsdp

from .checks import FORMS, wrong
from .grammar import parses

# An import of each kind, a constructor that can become plain, and uses.
PROGRAM = b"""

import functools
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP  # FSDP1
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def build_sharded(config):
    model = Network(config)  # a network
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(model, auto_wrap_policy=policy, cpu_offload=CPUOffload(offload_params=True))
    if isinstance(model, FSDP):
        model.clip_grad_norm_(1.0)
    with model.no_sync():
        return model
"""


def one(path: Path, added: bool) -> tuple[Path, list[str], Counter[str]]:
    """What is wrong with one file in any form, and what it counts as."""
    counts: Counter[str] = Counter()
    try:
        data = path.read_bytes()
    except OSError as error:
        return path, [], Counter({f"not read: {error.strerror}": 1})
    if not added and not mentions_fsdp(data):
        return path, [], Counter({"without FSDP": 1})
    if not parses(data):
        return path, [], Counter({"does not parse": 1})
    found = []
    if mentions_fsdp(data):
        counts["as it is"] += 1
        found += [f"{form}: {each}" for form in FORMS for each in wrong(data, form)]
    if added and parses(data + PROGRAM):
        counts["as user code"] += 1
        found += [f"added, {f}: {each}" for f in FORMS for each in wrong(data + PROGRAM, f)]
    counts["failed"] += bool(found)
    return path, found, counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--as-they-are", action="store_true", help="adds no program")
    given = parser.parse_args()
    files = sorted(file for path in given.paths for file in path.rglob("*.py") if file.is_file())
    total: Counter[str] = Counter()
    start = time.monotonic()
    with Pool(given.jobs) as pool:
        work = partial(one, added=not given.as_they_are)
        for path, found, counts in pool.imap(work, files, chunksize=10):
            total += counts
            for each in found:
                print(f"{path}: {each}", flush=True)
    seconds = time.monotonic() - start
    print(
        f"Python {platform.python_version()}, {len(files):,} files, {seconds:.0f} s: {total['failed']} failed"
    )
    print(", ".join(f"{name} {total[name]:,}" for name in sorted(total)))
    return bool(total["failed"])


if __name__ == "__main__":
    sys.exit(main())
