"""The mode `node` of the bootstrap: one node, from `hello` to `stopped`."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from .channel import CHANNEL_FD, SPEC_FD, Channel, read_spec
from .load import enter, node_class

if TYPE_CHECKING:
    from .._node import NodeDeclaration
    from .node import Node

# A callback that runs on so long after `stop` is interrupted, and again at
# this interval, in case the node caught it.
INTERRUPT_AFTER_S = 1.0
INTERRUPT_AGAIN_S = 0.25
# Unknown to the runtime, and above what libraries use.
INTERRUPT_SIGNAL = signal.SIGRTMAX
# How often the control thread looks after links and repeated errors.
TICK_S = 1.0


def main(mode: str) -> NoReturn:
    """Run the node that the spec on descriptor 4 describes, and end the process."""
    faulthandler.enable()
    channel = Channel(CHANNEL_FD)
    spec = read_spec(SPEC_FD)
    channel.send("hello", protocol=spec["protocol"], build=_build_id(spec["build"]), pid=os.getpid())
    host = Host(channel, spec)
    threading.Thread(target=host.control, name="tatolab-control", daemon=True).start()
    end(0 if host.run() else 1)


def end(code: int) -> NoReturn:
    """End the process without waiting for threads the node left behind."""
    import atexit

    try:
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _build_id(spec_build: str) -> str:
    """The build that this package was lent by; that of the spec when it runs from its sources."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_lend", "build_id")
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return spec_build


class Host:
    """The main thread runs the node's callbacks, the control thread listens."""

    def __init__(self, channel: Channel, spec: dict[str, Any]) -> None:
        self.channel = channel
        self.spec = spec
        self._start = threading.Event()
        self._stop = threading.Event()
        self._node: Node | None = None
        self._lock = threading.Lock()
        self._early: list[tuple[dict[str, Any], int | None]] = []  # before there was a node

    # Main thread

    def run(self) -> bool:
        """Load the node, wait for `start`, run it to its end; False if it failed."""
        declaration = self._load()
        if declaration is None:
            return False
        from .node import Node

        node = Node(self.channel, self.spec, declaration, self._stop)
        signal.signal(INTERRUPT_SIGNAL, node.interrupt)
        with self._lock:
            self._node = node
            for message, fd in self._early:
                node.handle(message, fd)
        self.channel.send("loaded")
        self._start.wait()
        return node.run()

    def _load(self) -> NodeDeclaration | None:
        from .report import describe

        try:
            enter(self.spec["snapshot"], self.spec["project"])
            return node_class(self.spec["type"])
        except BaseException as error:
            from .._compile.errors import user_traceback

            self.channel.send("failed", phase="load", message=describe(error), traceback=user_traceback(error))
            return None

    # Control thread

    def control(self) -> None:
        """Handle the runtime's messages until it is gone."""
        import select

        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLIN)
        tick = time.monotonic() + TICK_S
        while True:
            readable = poll.poll(max(0.0, tick - time.monotonic()) * 1000)
            if time.monotonic() >= tick:
                tick = time.monotonic() + TICK_S
                if self._node is not None:
                    self._node.tick()
            if not readable:
                continue
            received = self.channel.receive()
            if received is None:
                os._exit(1)  # the runtime is gone, and with it whoever would look after us
            try:
                self._obey(*received)
            except Exception as error:
                # A node that no longer listens could only be killed.
                sys.excepthook(type(error), error, error.__traceback__)

    def _obey(self, message: dict[str, Any], fd: int | None) -> None:
        kind = message.get("kind")
        if kind == "start":
            self._start.set()
        elif kind == "stop":
            self._stop_node()
        else:
            self._pass_on(message, fd)

    def _pass_on(self, message: dict[str, Any], fd: int | None) -> None:
        with self._lock:
            if self._node is None:
                self._early.append((message, fd))
                return
        self._node.handle(message, fd)

    def _stop_node(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        if not self._start.is_set() or self._node is None:
            # Nothing of the node has run: there is nothing to tear down.
            self.channel.send("stopping")
            self.channel.send("stopped")
            end(0)
        self._node.stop()
        threading.Thread(target=self._interrupt, name="tatolab-interrupt", daemon=True).start()

    def _interrupt(self) -> None:
        node = self._node
        if node is None:
            return
        wait = INTERRUPT_AFTER_S
        main_thread = threading.main_thread().ident
        while not node.callbacks_ended.wait(wait) and main_thread is not None:
            signal.pthread_kill(main_thread, INTERRUPT_SIGNAL)
            wait = INTERRUPT_AGAIN_S
