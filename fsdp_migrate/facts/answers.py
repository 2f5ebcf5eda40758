"""Answers of a search that may lead back to where it began."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Answers(Generic[Answer]):
    """What a search has found, so that it looks for nothing twice.

    An answer that used a provisional one holds for that search alone: another one, which begins elsewhere, may find more.

    Args:
        nothing: the provisional answer to a question that leads back to itself; it adds nothing to what else is found.
    """

    def __init__(self, nothing: Answer) -> None:
        self._nothing = nothing
        self._known: dict[Hashable, Answer] = {}
        # The questions that are being answered, each for the sake of the one before, with their places.
        self._open: dict[Hashable, int] = {}
        # Answers that used a provisional one, with the place of the first question that it was for.
        self._provisional: dict[Hashable, tuple[Answer, int]] = {}
        # The first place whose provisional answer the current question has used.
        self._used = 0

    @property
    def depth(self) -> int:
        """How many questions are being answered."""
        return len(self._open)

    def of(self, question: Hashable, find: Callable[[], Answer]) -> Answer:
        """The answer to a question, which `find` looks for if it is not known."""
        if question in self._known:
            return self._known[question]
        if question in self._open:
            self._used = min(self._used, self._open[question])
            return self._nothing
        if question in self._provisional:
            answer, place = self._provisional[question]
            self._used = min(self._used, place)
            return answer
        return self._found(question, find)

    def unfinished(self) -> None:
        """Says that the search ends here before it has an answer: nothing that rests on it is kept."""
        self._used = -1

    def _found(self, question: Hashable, find: Callable[[], Answer]) -> Answer:
        place = len(self._open)
        around = self._used
        self._open[question] = self._used = place
        try:
            answer = find()
        finally:
            del self._open[question]
            used = self._used
            self._used = around
        kept = self._provisional.items()
        if (
            self._provisional
        ):  # those for this question are not provisional any more, and may be wrong
            self._provisional = {each: one for each, one in kept if one[1] < place and self._open}
        if used >= place:
            self._known[question] = answer
        elif self._open:
            self._provisional[question] = answer, used
            self._used = min(around, used)
        return answer
