"""The control channel, from the node's end: docs/node-protocol.md."""

from __future__ import annotations

import errno
import json
import math
import os
import socket
import threading
from typing import Any

PROTOCOL = 1
CHANNEL_FD = 3
SPEC_FD = 4
MAX_MESSAGE = 64 << 10
CUT = "… (cut)"


def read_spec(fd: int) -> dict[str, Any]:
    """The spec this process was started with; closes the descriptor."""
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        spec: dict[str, Any] = json.loads(os.pread(file.fileno(), size, 0))
    if spec["protocol"] != PROTOCOL:
        raise RuntimeError(f"the runtime speaks node protocol {spec['protocol']}, this package {PROTOCOL}")
    return spec


class Channel:
    """Sends from any thread, receives from one."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(True)
        self._lock = threading.Lock()
        self._dropped = 0
        # A forked child (multiprocessing) is not the node: its death must not
        # keep the channel open, and its log goes nowhere.
        os.register_at_fork(after_in_child=self.abandon)

    def fileno(self) -> int:
        """The descriptor, to poll."""
        return self._socket.fileno()

    def send(self, kind: str, fd: int | None = None, **fields: Any) -> None:
        """Send a message, waiting while the runtime's queue is full."""
        self._send(kind, fields, fd, 0)

    def send_log(self, level: str, message: str, fields: dict[str, Any], time_ns: int) -> None:
        """Send a log record; one that finds the queue full is dropped and counted."""
        if self._dropped:
            lost = self._dropped
            record = _record(
                "warn", f"{lost} log records were lost: they came faster than they were taken", {}, time_ns
            )
            if not self._send("log", record, None, socket.MSG_DONTWAIT):
                self._dropped += 1
                return
            self._dropped -= lost
        if not self._send("log", _record(level, message, fields, time_ns), None, socket.MSG_DONTWAIT):
            self._dropped += 1

    def _send(self, kind: str, fields: dict[str, Any], fd: int | None, flags: int) -> bool:
        data = _encode({"kind": kind, **fields})
        with self._lock:
            try:
                if fd is None:
                    self._socket.send(data, flags | socket.MSG_NOSIGNAL)
                else:
                    socket.send_fds(self._socket, [data], [fd], flags | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return False
            except ConnectionError:
                pass  # the runtime is gone: receive says so and ends the process
            except OSError as error:
                if self._socket.fileno() >= 0:  # else it was abandoned
                    _not_sent(kind, fields, error)
        return True

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """The next message and its descriptor, which is the caller's; None at the end."""
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE, 4, socket.MSG_CMSG_CLOEXEC)
        except OSError as error:
            if error.errno == errno.EBADF:
                os.write(2, b"the node closed descriptors that are not its own: that of the runtime is gone\n")
            return None
        for extra in fds[1:]:
            os.close(extra)
        if not data:
            return None
        return json.loads(data), fds[0] if fds else None

    def abandon(self) -> None:
        """Close this process's copy of the channel."""
        self._lock = threading.Lock()
        self._socket.close()


def _not_sent(kind: str, fields: dict[str, Any], error: OSError) -> None:
    """Tell, on the other way to the stream's log, that a message could not be sent.

    Unless it was a report, the runtime would wait for it: the process fails, and is started again.
    """
    report = kind in ("log", "error")
    why = f"cannot send {kind}: {error.strerror}"
    os.write(2, (f"{fields.get('message', '')} ({why})\n" if report else why + "\n").encode())
    if not report:
        os._exit(1)


def _record(level: str, message: str, fields: dict[str, Any], time_ns: int) -> dict[str, Any]:
    record: dict[str, Any] = {"level": level, "message": message, "time_ns": time_ns}
    if fields:
        record["fields"] = fields
    return record


def _encode(message: dict[str, Any]) -> bytes:
    data = _json(message)
    while len(data) > MAX_MESSAGE:
        texts = [key for key in ("message", "traceback") if len(message.get(key, "")) > 2 * len(CUT)]
        if not texts:
            message = {**message, "fields": {"cut": "the fields are larger than a record may be"}}
            data = _json(message)
            continue
        longest = max(texts, key=lambda key: len(message[key]))
        # An escape may take six bytes for a character; cutting more than is
        # over ends the loop soon.
        keep = max(0, len(message[longest]) - (len(data) - MAX_MESSAGE) - 64)
        if len(data) > 2 * MAX_MESSAGE:
            keep = min(keep, MAX_MESSAGE // 2)
        message = {**message, longest: message[longest][:keep] + CUT}
        data = _json(message)
    return data


def _json(message: dict[str, Any]) -> bytes:
    try:
        return json.dumps(message, allow_nan=False, default=_shown, skipkeys=True).encode()
    except (ValueError, RecursionError):  # NaN, or fields that contain themselves
        fields = {str(key): _safe(value) for key, value in message.get("fields", {}).items()}
        return json.dumps({**message, "fields": fields}, allow_nan=False).encode()


def _safe(value: Any) -> Any:
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _shown(value)


def _shown(value: Any) -> Any:
    item = getattr(value, "item", None)  # a numpy scalar
    if callable(item) and getattr(value, "ndim", None) == 0:
        return item()
    try:
        return repr(value)[:1000]
    except Exception:
        return f"<{type(value).__name__}>"
