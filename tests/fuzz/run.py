"""What the tool makes of programs at random, `make fuzz`, or of other people's files: ``python -m fuzz.run [FOLDER...]``.

In ``tests/``. A file is read as it is where it mentions FSDP, and with an FSDP1 program at its end.
"""

import argparse
import platform
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any

from fsdp_migrate.discover import mentions_fsdp

from .checks import FORMS, wrong
from .grammar import parses, program

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


def of_seed(seed: int) -> tuple[str, list[str], Counter[str]]:
    """What is wrong with a program at random in any form, and what it counts as."""
    data = program(Random(seed))
    counts: Counter[str] = Counter(bytes=len(data))
    started = time.process_time()
    found = [f"{form}: {each}" for form in FORMS for each in wrong(data, form, counts)]
    counts["ms"] = round(1000 * (time.process_time() - started))
    return f"seed {seed}", found, counts


def of_file(path: Path, added: bool) -> tuple[str, list[str], Counter[str]]:
    """The same of a file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        return str(path), [], Counter({f"not read: {error.strerror}": 1})
    texts = {"as it is": data} if mentions_fsdp(data) else {}
    if added:
        texts["as user code"] = data + PROGRAM
    texts = {name: text for name, text in texts.items() if parses(text)}
    found = [f"{n}, {f}: {w}" for n, text in texts.items() for f in FORMS for w in wrong(text, f)]
    return str(path), found, Counter(texts.keys() or ["without FSDP, or does not parse"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--as-they-are", action="store_true", help="adds no program to files")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has the next one")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true", help="prints the first program instead")
    given = parser.parse_args()
    if given.show:
        sys.stdout.buffer.write(program(Random(given.seed)))
        return 0
    work: Any = of_seed
    items: Any = range(given.seed, given.seed + given.programs)
    if given.paths:
        work = partial(of_file, added=not given.as_they_are)
        items = sorted(f for path in given.paths for f in path.rglob("*.py") if f.is_file())
    total: Counter[str] = Counter()
    slowest = 0
    with Pool(given.jobs) as pool:
        for name, found, counts in pool.imap(work, items, chunksize=10):
            total += counts
            total["failed"] += bool(found)
            slowest = max(slowest, counts["ms"])
            for each in found:
                print(f"{name}: {each}", flush=True)
    what = f"{len(items):,} files" if given.paths else f"seeds {items[0]} to {items[-1]}"
    print(f"Python {platform.python_version()}, {what}: {total['failed']} failed")
    print(", ".join(f"{name} {total[name]:,}" for name in sorted(total)))
    print(f"the slowest program took {slowest / 1000:.1f} s with all of its checks")
    return bool(total["failed"])


if __name__ == "__main__":
    sys.exit(main())
