"""What a pickle holds of the classes of `torch.distributed`, none of which is imported to read one."""

from __future__ import annotations

import functools
from typing import Any

from fsdp_migrate.checkpoint.errors import Unreadable


class Note:
    """An object of `torch.distributed` as a pickle describes it: arguments of its class, and its state."""

    args: tuple[Any, ...]
    state: Any = None

    def __new__(cls, *args: Any) -> Note:
        """Keep the arguments."""
        self = object.__new__(cls)
        self.args = args
        return self

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = state[1]  # of a class with slots
        self.state = state

    def __getitem__(self, name: str) -> Any:
        if not isinstance(self.state, dict) or name not in self.state:
            raise Unreadable(f"an object {type(self).__name__} has no {name}")
        return self.state[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute, or `default`."""
        return self.state.get(name, default) if isinstance(self.state, dict) else default


@functools.cache
def note(name: str) -> type[Note]:
    """The kind of note for a class of that name."""
    return type(name, (Note,), {})
