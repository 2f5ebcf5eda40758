"""Streams and events where everything happens at once."""

from __future__ import annotations

import time
from typing import Any


class Stream:
    """A `torch.cuda.Stream` whose work is always done."""

    device_index = 0
    cuda_stream = 0
    priority = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exception: Any) -> None: ...


class Event:
    """A `torch.cuda.Event` that takes the time of the CPU."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._time = 0.0

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds, as CUDA's."""
        return (end_event._time - self._time) * 1000


DEFAULT = Stream()


class StreamContext:
    """`with torch.cuda.stream(stream)`."""

    def __init__(self, stream: Any = None) -> None:
        self.stream = stream

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: Any) -> None: ...
