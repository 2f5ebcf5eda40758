"""The same start for both programs: generators that begin at random, Python's, numpy's and torch's, get a fixed seed.

torch's is another one on each rank, as it would be by chance: what forgets to synchronise must still show.
"""

import os
import random
import sys
from multiprocessing import process
from typing import Any

from . import imports
from .patch import Method, around

SEED = 20_240_716
"""Of the first rank; no program is likely to choose it."""


def install() -> None:
    """Seed `random` now, and numpy's and torch's generators when the program imports them."""
    random.seed(SEED)
    rank = int(os.environ.get("RANK") or 0)
    imports.after("numpy", lambda numpy: numpy.random.seed(SEED))
    imports.after("torch", lambda torch: _seed(torch, rank))
    _seed_spawned(os.getpid())


def _seed(torch: Any, rank: int) -> None:
    torch.default_generator.manual_seed(SEED + rank)
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(SEED + rank)  # kept until CUDA is initialised


def _seed_spawned(pid: int) -> None:
    """Seed what `mp.spawn` starts, too; a forked child continues its parent's numbers."""

    def bootstrap(begin: Method, self: Any, *args: Any, **kwargs: Any) -> Any:
        torch = sys.modules.get("torch")
        if os.getpid() == pid and torch is not None and torch.initial_seed() == SEED:
            _seed(torch, self._identity[0] - 1)
        return begin(self, *args, **kwargs)

    around(process.BaseProcess, "_bootstrap", bootstrap)
