"""The same work on many items, spread over forked processes where that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Item = TypeVar("Item")
Result = TypeVar("Result")

ENOUGH = 8  # items for a process: for fewer, it costs more than it saves


def in_processes(work: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> list[Result]:
    """The result for each item, in order; raises EOFError if a process dies.

    The processes are forks: they share what is in memory, and only results travel. Where the system has no fork, or
    there is little to do, this process does all the work.
    """
    jobs = min(jobs, len(items) // ENOUGH)
    if jobs < 2:
        return [work(item) for item in items]
    import multiprocessing

    if "fork" not in multiprocessing.get_all_start_methods():
        return [work(item) for item in items]
    context = multiprocessing.get_context("fork")

    def share(first: int, last: int, answer: Connection) -> None:
        answer.send([work(item) for item in items[first:last]])

    # Neighbours stay together: files of one folder look into the same others.
    bounds = [len(items) * number // jobs for number in range(jobs + 1)]
    answers = []
    for first, last in pairwise(bounds):
        mine, theirs = context.Pipe(duplex=False)
        context.Process(target=share, args=(first, last, theirs), daemon=True).start()
        theirs.close()
        answers.append(mine)
    return [result for answer in answers for result in answer.recv()]
