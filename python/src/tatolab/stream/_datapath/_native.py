"""The ordinary case in C, where it was built: ``core``, from core.c.

A method in C leaves what is not ordinary to the method of the same name with an
underscore before it, in Python, which can do all of it. Without ``core``
everything is done there, and the classes below stand in for those of C.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ._input import Bag
    from ._output import Slot
    from ._shared import Surface

_INTERFACE: Final = 6  # of core.c

PURE: Final = "TATOLAB_PURE_PYTHON"
"""Environment variable: anything but empty does without core."""

core: Any = None
if sys.version_info >= (3, 11) and not os.environ.get(PURE):  # the limited API it is built for
    try:
        from . import core as _core  # pyright: ignore

        core = _core if _core.INTERFACE == _INTERFACE else None
    except ImportError:
        core = None

NATIVE: Final[bool] = core is not None


class _Inbox:
    """The links of an input, which take turns."""

    next = 0
    ending = False
    """Links that have ended are read to their last bag."""

    def bind(self, lock: Any, links: list[Any]) -> None: ...

    def read(self, *, hold: bool = False, link: str | None = None) -> Bag | None:
        """The next bag, None if there is none. Links take turns.

        ``hold``: with its picture, held. ``link``: of the links of that name only.
        """
        return self._read(hold, link)

    def _read(self, hold: bool, link: str | None) -> Bag | None:
        raise NotImplementedError


class _Bell:
    """What the inputs of a process wait on together."""

    token: int = 0
    before: int = 0
    """Bags that links have brought which were left."""

    def bind(self, lock: Any, links: list[Any]) -> None: ...

    def arm(self, fds: list[int]) -> None: ...

    def arrived(self) -> int:
        """A number that grows with every bag that arrives at any input."""
        return self._arrived()

    def has_data(self) -> bool:
        """Whether any input has a bag."""
        return self._has_data()

    def wait(self, timeout: float | None = None, *, seen: int | None = None) -> None:
        """Returns once an input has a bag, a link has ended, ``wake`` was called, or
        ``timeout`` seconds have passed. It may return early.

        With ``seen``, bags that are merely unread do not count: only an arrival
        that takes ``arrived()`` beyond it does.
        """
        self._wait(timeout, seen)

    def _arrived(self) -> int:
        raise NotImplementedError

    def _has_data(self) -> bool:
        raise NotImplementedError

    def _wait(self, timeout: float | None, seen: int | None) -> None:
        raise NotImplementedError


class _Writer:
    """What an output publishes to."""

    sequence = 0
    """The sequence of the last publication, 0 before the first."""
    number = 0
    """That of the last picture made."""

    def bind(self, lock: Any, owner: str, number: int) -> None:
        self.number = number

    def serve(self, variants: list[tuple[Any, int, list[Any]]] | None) -> None: ...

    def describe(self, surface: Any, size: int, words: tuple[int, ...]) -> None: ...

    def acquire(self, surface: Surface, like: Slot | None = None) -> Slot:
        """Memory for a picture; what is in it is undefined.

        When nobody wants its format the memory is nobody's but the caller's.
        ``like`` is the same picture in another format: it gets the same number.
        """
        return self._acquire(surface, like)

    def publish(self, bag: bytes, timestamp_ns: int, slot: Slot | None = None, *more: Slot) -> int:
        """Gives a bag, and its picture, to every reader. Returns its sequence.

        ``more``: the same picture in other formats. Readers that asked for yet
        another get the bag alone. On an error nobody got the bag. Publishing a
        picture twice is one.
        """
        return self._publish(bag, timestamp_ns, slot, *more)

    def _acquire(self, surface: Surface, like: Slot | None = None) -> Slot:
        raise NotImplementedError

    def _publish(self, bag: bytes, timestamp_ns: int, slot: Slot | None, *more: Slot) -> int:
        raise NotImplementedError


class _Link:
    """One producer, at a reader."""

    inert = False
    generation: Any = None

    def bind(self, page: int, ordered: bool) -> None: ...

    def enter(self, generation: Any = None, *addresses: int) -> None:
        self.generation = generation

    def recall(self, number: int) -> Any:
        return None

    def pinned(self, number: int) -> Any:
        return None

    def forget(self) -> None: ...


class _Peer:
    """One reader, at a producer."""

    wake = 0
    ordered = False
    woken = 0

    def bind(self, page: int) -> None: ...


class _Pool:
    """The slots of an output's generation."""

    retired = 0

    def bind(self, *addresses: Any) -> None: ...


class _Bag:
    __slots__ = ("_entry", "_generation", "_link", "data", "frame", "sequence", "timestamp_ns")

    def __init__(self, link: Any, generation: Any, entry: tuple[int, ...], data: bytes) -> None:
        self._link = link
        self._generation = generation
        self._entry = entry
        self.data = data
        self.frame: Any = None
        self.sequence = entry[0]
        self.timestamp_ns = signed(entry[4])


class _Frame:
    __slots__ = ("_entry", "_generation", "memory", "sequence", "timestamp_ns")

    def __init__(self, generation: Any, entry: tuple[int, ...], memory: memoryview) -> None:
        self._generation = generation
        self._entry = entry
        self.memory = memory
        self.sequence = entry[0]
        self.timestamp_ns = signed(entry[4])


class _Slot:
    __slots__ = ("generation", "index", "memory", "number", "surface", "surface_id", "watched")

    def __init__(
        self, surface: Any, number: int, surface_id: str, memory: memoryview, generation: Any, index: int, watched: Any
    ) -> None:
        self.surface = surface
        self.number = number
        self.surface_id = surface_id
        self.memory = memory
        self.generation = generation
        self.index = index
        self.watched = watched


def signed(word: int) -> int:
    """A word that holds a signed number."""
    return word if word < 1 << 63 else word - (1 << 64)


if TYPE_CHECKING or not NATIVE:
    Lock = threading.RLock
    InboxBase, BellBase, WriterBase = _Inbox, _Bell, _Writer
    LinkBase, PeerBase, PoolBase = _Link, _Peer, _Pool
    BagBase, FrameBase, SlotBase = _Bag, _Frame, _Slot
else:
    Lock = core.Lock
    InboxBase, BellBase, WriterBase = core.Inbox, core.Bell, core.Writer
    LinkBase, PeerBase, PoolBase = core.Link, core.Peer, core.Pool
    BagBase, FrameBase, SlotBase = core.Bag, core.Frame, core.Slot
