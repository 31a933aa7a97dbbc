"""One node at work: its links, and when its callbacks are called."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from .. import log
from .._compile.errors import user_traceback
from .._config import build_config
from .._gl import PictureLostError
from .._node import process_takes_context
from ..clock import monotonic_now_ns
from .context import Context, FullContext
from .links import Links
from .report import ErrorReports, describe
from .scheduling import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from .._node import NodeDeclaration
    from .channel import Channel

# The shortest interval of a continuous node.
MIN_INTERVAL_S = 100e-6
# The runtime allows 5 s from `stopping` to the end of the process. So long of it
# teardown waits for a stop() that was called while start() ran.
STOP_LIMIT_S = 4.0


_MAIN = threading.main_thread().ident


class NodeInterrupted(BaseException):
    """Raised in a callback that runs on after the node was told to stop."""


class Node:
    """Callbacks run in the main thread, all else is called from the control thread."""

    def __init__(
        self, channel: Channel, spec: dict[str, Any], declaration: NodeDeclaration, stopping: threading.Event
    ) -> None:
        self.callbacks_ended = threading.Event()
        self._channel = channel
        self._spec = spec
        self._declaration = declaration
        self._stopping = stopping
        self._paused = False
        self._told_paused = False
        self._started = False
        self._stop_claimed = False
        self._stop_returned = threading.Event()
        self._lock = threading.Lock()
        self._in_callback = ""  # the one that runs in the main thread
        self._process_takes_context = process_takes_context(declaration.cls)
        self._news = threading.Event()  # stop, pause or resume came
        self._errors = ErrorReports(self._send_error)
        self._links = Links(channel, spec)
        self._context = Context(self, spec, self._links)
        self._full = FullContext(self, spec, self._links)
        self._object: Any = None
        log._set_sink(self._send_log)  # pyright: ignore[reportPrivateUsage]
        # A forked child (multiprocessing) has no channel, but the node's output.
        os.register_at_fork(after_in_child=lambda: log._set_sink(_print_log))  # pyright: ignore[reportPrivateUsage]

    # What the contexts ask

    def is_paused(self) -> bool:
        return self._paused

    def should_process(self) -> bool:
        return not self._paused and not self._stopping.is_set()

    # Control thread

    def handle(self, message: dict[str, Any], fd: int | None) -> None:
        """Handle any message but `start` and `stop`."""
        kind = message.get("kind")
        if kind == "link" and fd is not None:
            self._links.add(message, fd)
            return
        if kind == "graphics":
            self._links.pictures.switchboard.answered(message, fd)
            return
        if fd is not None:
            os.close(fd)
        if kind == "unlink":
            self._links.remove(message["id"], retire=message.get("retire", False))
            self._channel.send("unlinked", id=message["id"])
        elif kind in ("pause", "resume"):
            self._paused = kind == "pause"
            self._wake()

    def stop(self) -> None:
        """Let the main thread go on to the end, now that `stopping` is set."""
        self._wake()
        if self._in_callback == "start" and self._claim_stop():
            # The node's own loop runs in the main thread, inside start(): only
            # stop() can end it. In a thread, so that the channel is still read.
            threading.Thread(target=self._call_stop, name="tatolab-stop", daemon=True).start()

    def interrupt(self, *_: object) -> None:
        """Signal handler, in the main thread: end the callback that runs."""
        if self._in_callback and self._stopping.is_set() and not self.callbacks_ended.is_set():
            raise NodeInterrupted

    def tick(self) -> None:
        """Look after what nobody waits for: links that ended, errors that repeat."""
        self._links.report_gone()
        self._errors.tick()

    def _wake(self) -> None:
        self._news.set()
        self._links.wake()

    # Main thread

    def run(self) -> bool:
        """From `setup` to `teardown`; False if the node could not be set up."""
        error = self._guard("setup", self._set_up, report=False)
        if error is not None and not isinstance(error, NodeInterrupted):
            self._channel.send("failed", phase="setup", message=describe(error), traceback=user_traceback(error))
            return False
        if error is None and not self._stopping.is_set():
            refused = schedule(self._declaration.scheduling)
            if refused:
                self._send_log("warn", refused, {})
            self._links.open()
            self._channel.send("ready")
            self._links.await_readers(self._stopping)
            modes = {"reactive": self._reactive, "continuous": self._continuous, "manual": self._manual}
            modes[self._declaration.mode]()
        self.callbacks_ended.set()
        self._channel.send("stopping")
        if error is None:  # else setup was interrupted: there is nothing whole to tear down
            if self._started:
                if self._claim_stop():
                    self._call_stop()
                elif not self._stop_returned.wait(STOP_LIMIT_S):
                    self._send_log("warn", f"stop ran on for {STOP_LIMIT_S:g} s and is not waited for", {})
            self._call("teardown", self._full)
        self._errors.tick(final=True)
        self._links.close()
        self._channel.send("stopped")
        return True

    def _set_up(self) -> None:
        where = f'config of node "{self._spec["node"]}"'
        cls = self._declaration.cls
        if self._declaration.takes_config:
            self._object = cls(config=build_config(self._declaration, self._spec["config"] or {}, where))
        else:
            self._object = cls()
        setup = getattr(self._object, "setup", None)
        if setup is not None:
            setup(self._full)

    def _reactive(self) -> None:
        # At an arrival; again while unread bags remain and the last call read
        # one; otherwise at the next arrival.
        seen = 0
        read_one = False
        while self._keep_on():
            arrived = self._links.arrived()
            if arrived == seen and not (read_one and self._links.has_data()):
                self._links.wait(seen)
                continue
            seen = arrived
            before = self._links.reads
            self._process()
            read_one = self._links.reads != before

    def _continuous(self) -> None:
        interval = max(self._declaration.interval_ms / 1000, MIN_INTERVAL_S)
        due = time.monotonic()
        while self._keep_on():
            wait = due - time.monotonic()
            if wait > 0 and self._news.wait(wait):
                self._news.clear()
                continue
            self._process()
            # Keep to the grid; calls that were missed are not made up for.
            late = max(0.0, time.monotonic() - due)
            due += interval * (1 + int(late / interval))

    def _manual(self) -> None:
        self._started = True
        self._call("start", self._full)
        while self._keep_on():
            self._news.wait()
            self._news.clear()

    def _keep_on(self) -> bool:
        """Act on pause and resume, waiting while paused; False once the node is to stop."""
        while not self._stopping.is_set():
            if self._paused != self._told_paused:
                self._told_paused = self._paused
                self._call("on_pause" if self._told_paused else "on_resume", self._context)
                continue
            if not self._paused or self._declaration.mode == "manual":
                return True
            self._news.wait()
            self._news.clear()
        return False

    def _process(self) -> None:
        if self._process_takes_context:
            self._guard("process", self._object.process, self._context)
        else:
            self._guard("process", self._object.process)

    def _call(self, callback: str, context: Any) -> None:
        function = getattr(self._object, callback, None)
        if function is not None:
            self._guard(callback, function, context)

    def _guard(
        self, callback: str, function: Callable[..., Any], *args: Any, report: bool = True
    ) -> BaseException | None:
        """Call the node's code. What it raises is reported, and returned."""
        main = threading.get_ident() == _MAIN
        try:
            if main:
                self._in_callback = callback
            function(*args)
        except NodeInterrupted as interruption:
            self._in_callback = ""
            self._send_log("warn", f"{callback} ran on after stop and was interrupted", {})
            return interruption
        except PictureLostError as error:
            # Its next call has the next picture; what ended is told elsewhere.
            self._send_log("debug", f"{callback}: {error}", {})
            return error
        except BaseException as error:  # SystemExit too: a callback does not end the node
            if main:
                self._in_callback = ""
            if report:
                self._errors.report(callback, error)
            return error
        finally:
            if main:
                self._in_callback = ""
        return None

    def _claim_stop(self) -> bool:
        """True for the one that is to call the node's stop()."""
        with self._lock:
            claimed, self._stop_claimed = not self._stop_claimed, True
        return claimed

    def _call_stop(self) -> None:
        try:
            self._call("stop", self._full)
        finally:
            self._stop_returned.set()

    def _send_error(self, phase: str, message: str, traceback: str) -> None:
        self._channel.send("error", phase=phase, message=message, traceback=traceback)

    def _send_log(self, level: str, message: str, fields: dict[str, Any]) -> None:
        self._channel.send_log(level, message, fields, monotonic_now_ns())


def _print_log(level: str, message: str, fields: dict[str, Any]) -> None:
    shown = " ".join([message, *(f"{key}={value!r}" for key, value in fields.items())])
    print(shown, file=sys.stderr if level in ("warn", "error") else sys.stdout, flush=True)
