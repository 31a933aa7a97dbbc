"""Shared memory, its layouts and the fence. See docs/data-path.md."""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final, NamedTuple

VERSION: Final = 1

# Limits of the protocol.
MAX_INLINE: Final = 4096
MAX_BAG: Final = 64 << 20
MAX_PIXELS: Final = 1 << 30
MAX_HELD: Final = 8
MAX_PENDING: Final = 16
MAX_SLOTS: Final = (1 << 16) - 1
MAX_OWNER: Final = 240
WINDOW: Final = 16
MARGIN: Final = 2
PATIENCE: Final = 10_000

# Ring: indices of 64-bit words, unless named otherwise.
RING_MAGIC: Final = 0x31474E4952544154
RING_FIRST: Final = 1
RING_SLOTS: Final = 2
RING_SLOT_SIZE: Final = 3
RING_FORMAT: Final = 4
RING_ENTRIES: Final = 5
RING_NEWEST: Final = 8
RING_MOVED: Final = 16
RING_TIMESTAMP: Final = 24
RING_REFUSED: Final = 25
RING_TOUCHED: Final = 26
RING_OWNER: Final = 32
RING_STAMPS: Final = 512
ENTRY_COUNT: Final = 64
ENTRY_SIZE: Final = 4288
ENTRY_BAG: Final = 192  # bytes
ENTRY_FIELDS: Final = struct.Struct("23Q")  # all after the sequence

# Page: indices of words.
PAGE_MAGIC: Final = 0x3145474150544154
PAGE_SIZE: Final = 4096
PAGE_WAITING: Final = 1
PAGE_CURSOR: Final = 2
PAGE_RECEIVED: Final = 3
PAGE_DROPPED: Final = 4
PAGE_START: Final = 5
PAGE_LAST_READ: Final = 6
PAGE_PROFILE: Final = 7
PAGE_CELLS: Final = 8
PAGE_TIMESTAMP: Final = 16
PAGE_LEFT: Final = 17
PAGE_HISTOGRAM: Final = 128
HISTOGRAM_SIZE: Final = 128

NO_PICTURE: Final = 0
IN_SLOT: Final = 1
OWNER_RESIDENT: Final = 2

MASK: Final = (1 << 64) - 1

RGBA: Final = "AB24"
"""Red, green, blue, alpha, a byte each, in this order in memory."""

RESIDENT: Final = "TLRS"
"""A picture that stays with its owner; the slot names it."""

SRGB: Final = 1 | 13 << 8 | 0 << 16 | 2 << 24
"""Full-range RGB, primaries of BT.709, sRGB transfer (ITU-T H.273 code points)."""


class DataPathError(Exception):
    """Something the data path cannot do; the message says what and why."""


class Surface(NamedTuple):
    """What a picture is: its format, extent and planes."""

    format: str
    width: int
    height: int
    planes: tuple[tuple[int, int], ...]
    """Offset and stride of each plane, in bytes."""
    size: int
    """Bytes of all planes together."""
    colour: int = SRGB
    """Primaries, transfer, matrix, range: a byte each from the lowest."""

    @classmethod
    def packed(cls, width: int, height: int, bytes_per_pixel: int = 4, format: str = RGBA) -> Surface:
        """Describes a picture of one plane without padding."""
        stride = width * bytes_per_pixel
        return cls(format, width, height, ((0, stride),), stride * height)


def fourcc(name: str) -> int:
    """The number of a format's name, 0 for the empty one."""
    if not name:
        return 0
    code = name.encode("ascii")
    if len(code) != 4:
        raise ValueError(f"format {name!r} is no fourcc: it has {len(code)} characters, not 4")
    return int.from_bytes(code, "little")


def fourcc_name(number: int) -> str:
    """The name of a format's number."""
    return number.to_bytes(8, "little")[:4].decode("latin-1") if number else ""


# --- fence -----------------------------------------------------------------

STRONG: Final = platform.machine() in ("x86_64", "amd64")
"""Whether the processor keeps loads in order and stores in order."""

_libc = ctypes.CDLL(None, use_errno=True)

_SYS_MEMBARRIER: Final = {"aarch64": 283, "riscv64": 283, "loongarch64": 283, "ppc64le": 365, "s390x": 356}
_MEMBARRIER_CMD_GLOBAL_EXPEDITED: Final = 2


def make_fence() -> Callable[[], None]:
    """Returns a full memory barrier, for calls that never overlap.

    On x86-64 it is a private lock, taken and let go: two ``lock``-prefixed
    instructions. Elsewhere it is membarrier(2). docs/data-path.md argues both.
    """
    if STRONG:
        lock = threading.Lock()
        acquire, release = lock.acquire, lock.release

        def lock_fence() -> None:
            acquire(False)
            release()

        return lock_fence

    number = _SYS_MEMBARRIER.get(platform.machine())
    if number is None:
        raise DataPathError(f"cannot share memory: no memory barrier is known for {platform.machine()}")
    syscall = _libc.syscall

    def membarrier_fence() -> None:
        if syscall(number, _MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) != 0:
            raise DataPathError(f"cannot share memory: membarrier: {os.strerror(ctypes.get_errno())}")

    membarrier_fence()
    return membarrier_fence


# --- maps ------------------------------------------------------------------

_PROT_READ: Final = 1
_PROT_WRITE: Final = 2
_MAP_SHARED: Final = 1
_MAP_PRIVATE: Final = 2
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_F_ADD_SEALS: Final = 1033
_F_GET_SEALS: Final = 1034
_F_SEAL_SEAL: Final = 1
_F_SEAL_SHRINK: Final = 2
_F_SEAL_GROW: Final = 4
_F_SEAL_FUTURE_WRITE: Final = 16

_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_munmap = _libc.munmap
_munmap.restype = ctypes.c_int
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_FAILED: Final = ctypes.c_void_p(-1).value


def _map(address: int | None, fd: int, size: int, prot: int, flags: int) -> int:
    got = _mmap(address, size, prot, flags | _MAP_NORESERVE, fd, 0)
    if got is None or got == _FAILED:
        raise DataPathError(f"cannot map {size} bytes: {os.strerror(ctypes.get_errno())}")
    return int(got)


class Mapping:
    """A map of a memfd, unmapped when nothing refers to it or its views."""

    __slots__ = ("__weakref__", "_fd", "address", "bytes", "size", "words")

    def __init__(self, fd: int, size: int, *, writable: bool) -> None:
        prot = _PROT_READ | _PROT_WRITE if writable else _PROT_READ
        self.address: Final = _map(None, fd, size, prot, _MAP_SHARED)
        self.size: Final = size
        array = (ctypes.c_ubyte * size).from_address(self.address)
        # At exit threads may still be at work: the kernel unmaps then.
        weakref.finalize(array, _munmap, self.address, size).atexit = False
        view = memoryview(array).cast("B")
        if not writable:
            view = view.toreadonly()
        self.bytes: Final = view
        # An item of a view of format Q is loaded and stored at once.
        self.words: Final = view[: size & ~7].cast("Q")
        self._fd = -1

    def keep(self, fd: int) -> None:
        """Keeps a descriptor of the memfd, for another process to map it too."""
        self._fd = os.dup(fd)
        weakref.finalize(self, os.close, self._fd).atexit = False

    def fileno(self) -> int:
        """The descriptor that was kept."""
        if self._fd < 0:
            raise DataPathError("the descriptor of this map was not kept")
        return self._fd

    def make_private(self, fd: int) -> None:
        """Swaps the map for a private one: stores show to nobody from now on."""
        _map(self.address, fd, self.size, _PROT_READ | _PROT_WRITE, _MAP_PRIVATE | _MAP_FIXED)

    def watch(self, start: int, size: int, gone: Callable[..., None], *arguments: object) -> Any:
        """An object over a part of the map, which it keeps alive.

        When neither it nor any view of it is left, ``gone`` is called, wherever
        that is and whatever locks are held there.
        """
        kind: Any = _watched.get(size)
        if kind is None:
            if len(_watched) >= 64:
                _watched.clear()
            kind = _watched[size] = type("Watched", (ctypes.c_ubyte * size,), {"__del__": _tell})
        array: Any = kind.from_address(self.address + start)
        array.watch = self, gone, arguments
        return array


_watched: dict[int, Any] = {}
"""Array types by size. A type of our own can have ``__del__``, which costs a third of weakref.finalize."""


def _tell(array: Any) -> None:
    _, gone, arguments = array.watch
    gone(*arguments)


def make_shared(name: str, size: int) -> tuple[int, Mapping]:
    """Makes a memfd that from now on only the returned map can write."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        mapping = Mapping(fd, size, writable=True)
        fcntl.fcntl(fd, _F_ADD_SEALS, _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_FUTURE_WRITE | _F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd, mapping


def map_shared(fd: int, what: str) -> Mapping:
    """Maps what a peer made, read-only."""
    try:
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
    except OSError as error:
        raise DataPathError(f"cannot map a {what}: it is no sealed memfd: {error.strerror}") from None
    if not seals & _F_SEAL_SHRINK:
        # Its maker could make any later load fault.
        raise DataPathError(f"cannot map a {what}: it is not sealed against shrinking")
    size = os.fstat(fd).st_size
    if size <= 0:
        raise DataPathError(f"cannot map a {what}: it is empty")
    return Mapping(fd, size, writable=False)


def entries_at(slots: int) -> int:
    """Offset in bytes of the entries behind the stamps."""
    return (8 * RING_STAMPS + 8 * slots + 4095) // 4096 * 4096


def power_above(number: int) -> int:
    """The power of two at or above number."""
    return 1 << max(0, number - 1).bit_length()


def ring(eventfd: int) -> None:
    """Adds one to an eventfd."""
    try:
        os.eventfd_write(eventfd, 1)
    except OSError:
        return  # full, so it rings already; or closed


def quiet(eventfd: int) -> None:
    """Empties an eventfd."""
    try:
        os.eventfd_read(eventfd)
    except OSError:
        return  # empty; or closed


# --- fork ------------------------------------------------------------------


class Forked:
    """Something whose copy in a forked child must be closed and inert."""

    def after_fork(self) -> None:
        """Runs in the child."""
        raise NotImplementedError


_inherited: weakref.WeakSet[Forked] = weakref.WeakSet()


def close_in_child(item: Forked) -> None:
    """Has ``item.after_fork()`` called in every child forked from now on."""
    _inherited.add(item)


def _after_fork() -> None:
    for item in list(_inherited):
        item.after_fork()


os.register_at_fork(after_in_child=_after_fork)
