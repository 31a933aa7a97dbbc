"""Telling of callbacks that raise, without flooding the log."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from .._compile.errors import user_traceback

if TYPE_CHECKING:
    from collections.abc import Callable

# How often a repeated error is summed up, and how many are told apart.
SUMMARY_INTERVAL_S = 5.0
MAX_KINDS = 64


class _Kind:
    def __init__(self, now: float) -> None:
        self.since = now
        self.more = 0
        self.last = ""


class ErrorReports:
    """Sends the first of each kind of error in full, and counts its repeats.

    Errors are of one kind if the same exception was raised at the same place
    in the same callback, whatever its text.
    """

    def __init__(self, send: Callable[[str, str, str], None]) -> None:
        """`send` is given phase, message and traceback."""
        self._send = send
        self._kinds: dict[tuple[object, ...], _Kind] = {}
        self._lock = threading.Lock()

    def report(self, phase: str, error: BaseException) -> None:
        """Report that the callback `phase` raised `error`."""
        import traceback

        places = tuple((f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__, 32))
        key = (phase, type(error), places)
        message = describe(error)
        now = time.monotonic()
        with self._lock:
            kind = self._kinds.get(key)
            if kind is not None:
                kind.more += 1
                kind.last = message
                return
            if len(self._kinds) >= MAX_KINDS:
                self._sum_up(now, all_kinds=True)
            self._kinds[key] = _Kind(now)
        self._send(phase, message, user_traceback(error))

    def tick(self, *, final: bool = False) -> None:
        """Send the summaries that are due; all of them at the end."""
        with self._lock:
            self._sum_up(time.monotonic(), all_kinds=final)

    def _sum_up(self, now: float, *, all_kinds: bool) -> None:
        for key, kind in list(self._kinds.items()):
            past = now - kind.since
            if not all_kinds and past < SUMMARY_INTERVAL_S:
                continue
            if kind.more == 0:
                del self._kinds[key]  # it has ceased: the next one is told in full
                continue
            times = "once more" if kind.more == 1 else f"{kind.more} times more"
            self._send(str(key[0]), f"{kind.last} ({times} in the last {max(past, 0.1):.1f} s)", "")
            kind.since, kind.more = now, 0
            if all_kinds:
                del self._kinds[key]


def describe(error: BaseException) -> str:
    """`error` in one line, by its type and text."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
