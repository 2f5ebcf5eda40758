"""What to do after a run of `verify`, as a list of steps."""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class NextSteps:
    """What follows from a result.

    Attributes:
        state: what holds now, in sentences; may be empty.
        steps: what to do, in order: sentences.
    """

    state: str = ""
    steps: tuple[str, ...] = ()

    def texts(self) -> Iterator[str]:
        """The same as lines: a single step on the line of the state, several below it."""
        if len(self.steps) == 1:
            step = self.steps[0]
            yield f"{self.state} Next: {step[0].lower()}{step[1:]}".lstrip()
        elif self.steps:
            yield f"{self.state} Next:".lstrip()
            for number, step in enumerate(self.steps, 1):
                yield f"  {number}. {step}"
