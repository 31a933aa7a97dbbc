"""Time as bags carry it: `CLOCK_MONOTONIC`, in nanoseconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def monotonic_now_ns() -> int:
    """Nanoseconds of `CLOCK_MONOTONIC`, the clock of every `timestamp_ns`."""
    return time.monotonic_ns()  # is CLOCK_MONOTONIC on Linux


class MonotonicTimer:
    """Calls a function at a fixed interval, in a thread of its own, until closed.

    Calls keep to the interval's grid; one that comes late is not made up for
    by calls in a row. An exception in the function ends the timer and is
    printed.
    """

    def __init__(self, interval_ns: int, callback: Callable[[], object], *, repeat: bool = True) -> None:
        if interval_ns <= 0:
            raise ValueError(f"the interval of a timer must be above 0 ns, not {interval_ns}")
        if not callable(callback):
            raise TypeError(f"a timer needs a function to call, not {callback!r}")
        self._interval_ns = interval_ns
        self._callback = callback
        self._repeat = repeat
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tatolab-timer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        due = monotonic_now_ns() + self._interval_ns
        while not self._closed.wait(max(0, due - monotonic_now_ns()) / 1e9):
            self._callback()
            if not self._repeat:
                return
            late = max(0, monotonic_now_ns() - due)
            due += self._interval_ns * (1 + late // self._interval_ns)

    def stop(self) -> None:
        """End the timer; returns once a call that is under way has ended."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    close = stop

    def __enter__(self) -> MonotonicTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_monotonic_timer(interval_ns: int, callback: Callable[[], object], *, repeat: bool = True) -> MonotonicTimer:
    """Call `callback` every `interval_ns` nanoseconds from a thread of its own."""
    return MonotonicTimer(interval_ns, callback, repeat=repeat)
