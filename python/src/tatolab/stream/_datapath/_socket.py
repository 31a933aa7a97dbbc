"""Messages on a link's socket."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any, Final, cast

from ._shared import DataPathError

MAX_MESSAGE: Final = 4096
_MAX_FDS: Final = 8

Message = dict[str, Any]


def own_socket(link: socket.socket | int) -> socket.socket:
    """Takes over a link's socket, an object or a descriptor."""
    sock = link if isinstance(link, socket.socket) else socket.socket(fileno=link)
    sock.setblocking(False)
    return sock


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Sends without ever waiting; OSError if it cannot."""
    socket.send_fds(sock, [json.dumps(message).encode()], list(fds), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[Message, list[int]] | None:
    """Takes one datagram without waiting.

    Returns None when there is none, and raises EOFError when the peer is gone.
    The descriptors are the caller's to close.
    """
    flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE, _MAX_FDS, flags)
            break
        except BlockingIOError:
            return None
        except ConnectionResetError:
            continue  # told once, by a peer that had not read all, before what it sent last
        except ConnectionError:
            raise EOFError from None
    if not data:
        close_all(fds)
        raise EOFError
    try:
        message: object = json.loads(data)
        if not isinstance(message, dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        close_all(fds)
        raise DataPathError(f"cannot read a link message: {error}") from None
    return cast(Message, message), fds


def close_all(fds: Sequence[int]) -> None:
    """Closes descriptors."""
    for fd in fds:
        os.close(fd)
