"""A node's connection to the stream's `tatolab-gl`.

OpenGL is in a process of its own, since drivers crash and draws may never end. The protocol is in docs/pictures.md.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

PROTOCOL = 2
MAX_REQUEST = 160 << 10  # bytes
START_LIMIT = 20.0  # seconds, for the program to start and a driver to load on a busy machine
FIRST_PAUSE = 0.01  # seconds before a connection that came to nothing is asked for again, doubling
ANSWER_LIMIT = 15.0  # seconds; beyond its own limits for a compilation and a draw of somebody else
MOVE_RATE = 64 << 20  # bytes a second that moving a picture in or out is given besides


class Memory(Protocol):
    """Shared memory that pictures lie in; it goes when the object does."""

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def fileno(self) -> int:
        """The memfd."""
        ...


class PictureLostError(RuntimeError):
    """A picture went with tatolab-gl, or with the node that drew it: the next one will do."""


class DrawTimeoutError(RuntimeError):
    """What OpenGL was asked for took too long, and was ended."""


class Connection(NamedTuple):
    """What the runtime answers a node that asks for tatolab-gl."""

    id: int
    process: int
    """Counts the processes there were: what was given to one is gone with it."""
    fd: int


class Runtime(Protocol):
    """Whom a node asks."""

    def connect(self, limit: float) -> Connection:
        """A connection to tatolab-gl, which is started if it does not run.

        `RuntimeError` says why there is none.
        """
        ...

    def late(self, id: int) -> None:
        """Say that a connection is not answered."""
        ...


class Gl:
    """tatolab-gl as a node sees it: connected to when needed, again after its end."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._poll = select.poll()
        self._id = 0
        self._last_request = 0
        self._last_number = 0
        self._memories: dict[int, int] = {}  # id() of a memory to its number
        self._forget: list[int] = []
        self._drop: list[int] = []
        self.process = 0
        """Which tatolab-gl it is connected to, or was last; 0 before the first."""
        self.renderer = ""
        self.max_extent = 0
        me = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: (gl := me()) and gl._forked())

    def number(self) -> int:
        """A number for an effect that was not used before."""
        with self._lock:
            self._last_number += 1
            return self._last_number

    def drop(self, process: int, pictures: Sequence[int]) -> None:
        """Forget pictures, with the next request. Safe from finalizers."""
        if process == self.process:
            self._drop.extend(pictures)

    def start(self, process: int = 0) -> None:
        """Make sure that it is connected; to `process`, or a later one, if it is given."""
        with self._lock:
            if self._socket is not None:
                if self.process >= process and not any(
                    event & (select.POLLHUP | select.POLLERR) for _, event in self._poll.poll(0)
                ):
                    return
                self.close()
            until = time.monotonic() + START_LIMIT
            pause = FIRST_PAUSE
            while not self._connect(until):
                # It ended just now, for want of somebody connected or by a crash.
                if time.monotonic() > until:
                    raise RuntimeError("cannot connect to tatolab-gl: it ends before it says hello")
                time.sleep(pause)
                pause = min(2 * pause, 0.5)

    def _connect(self, until: float) -> bool:
        connection = self._runtime.connect(max(0.0, until - time.monotonic()))
        sock = socket.socket(fileno=connection.fd)
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        try:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                self._runtime.late(connection.id)
                raise RuntimeError(f"cannot connect to tatolab-gl: it did not answer for {START_LIMIT:g} s")
            data = _datagram(sock)
            if not data:
                sock.close()
                return False
            hello = json.loads(data)
            if hello.get("error"):
                raise RuntimeError(f"effects cannot run here: {hello['error']}")
            if hello.get("protocol") != PROTOCOL:
                raise RuntimeError(f"tatolab-gl speaks protocol {hello.get('protocol')}, this package {PROTOCOL}")
        except BaseException:
            sock.close()
            raise
        self._socket, self._poll, self._id = sock, poll, connection.id
        self.process = connection.process
        self._memories.clear()
        self._forget.clear()
        self._drop.clear()
        self.renderer = hello.get("renderer", "")
        self.max_extent = hello.get("max_extent", 0)
        return True

    def request(self, kind: str, doing: str, memfd: int | None = None, moved: int = 0, **fields: Any) -> dict[str, Any]:
        """Ask for something and return the answer; `moved` are the bytes of its pictures.

        A refusal raises `ValueError` with the words of tatolab-gl. If the draw
        of it does not end, `DrawTimeoutError`; if the end of tatolab-gl is not
        this node's doing, `PictureLostError`.
        """
        with self._lock:
            sock = self._socket
            if sock is None:
                raise PictureLostError(f"cannot {doing}: tatolab-gl has ended")
            while self._forget and kind != "forget":
                self.request("forget", doing, memory=self._forget.pop())
            self._last_request += 1
            # Exchanged in one step: finalizers may append at any moment.
            drop, self._drop = self._drop, []
            message = json.dumps({"id": self._last_request, "kind": kind, "drop": drop, **fields}).encode()
            if len(message) > MAX_REQUEST:
                raise ValueError(f"cannot {doing}: {len(message)} bytes, tatolab-gl takes {MAX_REQUEST}")
            try:
                if memfd is None:
                    sock.send(message, socket.MSG_NOSIGNAL)
                else:
                    socket.send_fds(sock, [message], [memfd], socket.MSG_NOSIGNAL)
            except OSError:
                self._gone(doing)
            answer = self._answer(sock, doing, ANSWER_LIMIT + moved / MOVE_RATE)
            if answer.get("ended"):
                self.close()
                raise DrawTimeoutError(f"cannot {doing}: {answer['error']}")
            if answer.get("lost"):
                raise PictureLostError(f"cannot {doing}: the node that drew its picture has ended")
            if answer.get("error"):
                raise ValueError(answer["error"])
            return answer

    def _answer(self, sock: socket.socket, doing: str, limit: float) -> dict[str, Any]:
        wanted = self._last_request
        until = time.monotonic() + limit
        while True:
            if not self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
                self._runtime.late(self._id)
                self.close()
                raise RuntimeError(f"cannot {doing}: tatolab-gl did not answer for {limit:.0f} s, and is ended")
            data = _datagram(sock)
            if not data:
                self._gone(doing)
            answer: dict[str, Any] = json.loads(data)
            if answer.get("id") == wanted:
                return answer
            # To a request that an exception broke off: nobody knows its pictures.
            self._drop.extend(answer[key] for key in ("picture", "source") if key in answer)

    def _gone(self, doing: str) -> NoReturn:
        self.close()
        raise PictureLostError(f"cannot {doing}: tatolab-gl has ended")

    def close(self) -> None:
        """Leave it."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def memory(self, memory: Memory, *, writable: bool, doing: str) -> int:
        """The number by which tatolab-gl knows `memory`, which it maps if it has not."""
        with self._lock:
            number = self._memories.get(id(memory))
            if number is None:
                number = self.number()
                self.request("memory", doing, memory.fileno(), memory=number, size=memory.size, writable=writable)
                self._memories[id(memory)] = number
                weakref.finalize(memory, self._memory_gone, self._id, id(memory), number).atexit = False
            return number

    def _memory_gone(self, connection: int, key: int, number: int) -> None:
        if connection == self._id and self._memories.get(key) == number:
            del self._memories[key]
            self._forget.append(number)

    def _forked(self) -> None:
        # The parent's connection is not the child's: only the descriptor is
        # closed, or tatolab-gl would not see its client's end.
        self._lock = threading.RLock()
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._runtime = _Child()


def _datagram(sock: socket.socket) -> bytes:
    """The next datagram; empty at the end of the connection, however it came."""
    try:
        return sock.recv(MAX_REQUEST)
    except OSError:
        return b""


class _Child:
    """What a forked child asks instead of the runtime."""

    def connect(self, limit: float) -> Connection:
        raise RuntimeError("effects run in the node's own process, not in one that it forked")

    def late(self, id: int) -> None: ...
