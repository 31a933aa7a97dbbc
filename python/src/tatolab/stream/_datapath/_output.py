"""The producing end."""

from __future__ import annotations

import contextlib
import operator
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from ._native import Lock, PeerBase, PoolBase, SlotBase, WriterBase
from ._shared import (
    ENTRY_BAG,
    ENTRY_COUNT,
    ENTRY_FIELDS,
    ENTRY_SIZE,
    IN_SLOT,
    MARGIN,
    MASK,
    MAX_BAG,
    MAX_HELD,
    MAX_INLINE,
    MAX_OWNER,
    MAX_PENDING,
    MAX_PIXELS,
    MAX_SLOTS,
    OWNER_RESIDENT,
    PAGE_CELLS,
    PAGE_CURSOR,
    PAGE_MAGIC,
    PAGE_RECEIVED,
    PAGE_SIZE,
    PAGE_WAITING,
    RESIDENT,
    RGBA,
    RING_ENTRIES,
    RING_FIRST,
    RING_FORMAT,
    RING_MAGIC,
    RING_MOVED,
    RING_NEWEST,
    RING_OWNER,
    RING_REFUSED,
    RING_SLOT_SIZE,
    RING_SLOTS,
    RING_STAMPS,
    RING_TIMESTAMP,
    RING_TOUCHED,
    STRONG,
    VERSION,
    WINDOW,
    DataPathError,
    Forked,
    Mapping,
    Surface,
    close_in_child,
    entries_at,
    fourcc,
    make_fence,
    make_shared,
    map_shared,
    power_above,
    quiet,
    ring,
)
from ._socket import Message, close_all, own_socket, receive, send

_MIN_LINKS: Final = 4
"""A pool is sized for this many links at least: untouched slots cost nothing."""

_NO_SURFACE: Final = (0,) * 18


class TooLargeError(DataPathError):
    """The bag is larger than 64 MiB; it was refused and counted."""


class End(NamedTuple):
    """The final account of a link: sent = received + dropped."""

    sent: int
    received: int
    dropped: int
    why: str
    """Why the link was ended, if not by the peer's death."""


class _Acquired:
    """What is to be known when the last view of a slot is gone."""

    __slots__ = ("published",)

    def __init__(self) -> None:
        self.published = False


class Slot(SlotBase):
    """Memory for one picture, to be filled and then published.

    After its publication the memory is the readers': it must not be written.
    It is used again when nothing refers to it, or to ``memory``, any more, and
    no reader has it.
    """

    # surface, surface_id (by which the bag names the picture), memory (its bytes,
    # writable); and the output's own: number, generation, index, watched.
    __slots__ = ("resident",)

    resident: object
    """What the slot's bytes only name: kept until the slot is used for another picture."""

    @property
    def published(self) -> bool:
        """Whether the picture has been published."""
        return self.watched.published


# What a slot is.
_UNTOUCHED: Final = 0
_FREE: Final = 1
_RETIRED: Final = 2
"""Its stamp was taken back; it may still be claimed."""
_BUSY: Final = 3
"""Acquired, or owed to somebody."""


class _Generation(PoolBase):
    """One ring with its pool."""

    def __init__(self, owner: bytes, format: int, first: int, links: int, slot_size: int, refused: int) -> None:
        self.slot_size: Final = slot_size
        self.links: Final = max(_MIN_LINKS, power_above(links))
        self.keep = 2
        self.slots = 0
        self.pool: Mapping | None = None
        self.pool_fd = -1
        if slot_size:
            if format != fourcc(RESIDENT):  # a slot of those stands for much more than its bytes
                self.keep = min(32, max(2, (1 << 20) // slot_size))
            self.slots = MAX_HELD * self.links + WINDOW + MARGIN + self.keep + MAX_PENDING
            if self.slots > MAX_SLOTS:
                raise DataPathError(f"{links} links are more than one output can serve")
            self.pool_fd, self.pool = make_shared("tatolab-pool", self.slots * slot_size)
        self.entries: Final = entries_at(self.slots)
        try:
            self.ring_fd, self.ring = make_shared("tatolab-ring", self.entries + ENTRY_COUNT * ENTRY_SIZE)
        except BaseException:
            self.close_fds()
            raise
        self.words: Final = self.ring.words
        self.first: Final = first
        words = self.words
        words[RING_FIRST] = first
        words[RING_SLOTS] = self.slots
        words[RING_SLOT_SIZE] = slot_size
        words[RING_FORMAT] = format
        words[RING_ENTRIES] = self.entries
        words[RING_NEWEST] = first - 1
        words[RING_REFUSED] = refused
        words[RING_OWNER] = len(owner)
        self.ring.bytes[8 * RING_OWNER + 8 : 8 * RING_OWNER + 8 + len(owner)] = owner
        words[0] = RING_MAGIC
        # Finalizers set a byte at any time.
        self.state: Final = bytearray(self.slots)
        self.mine: Final = bytearray(self.slots)  # 1: the producer still has views of its own
        self.residents: Final[dict[int, object]] = {}  # by slot
        # Those of the generations before, oldest first, each with its last sequence.
        self.before: list[tuple[int, dict[int, object]]] = []
        self.touched = 0
        self.retired = first - 1  # the last sequence whose slot was taken back
        pool_address = self.pool.address if self.pool is not None else 0
        state, mine = self.state, self.mine
        self.bind(self.ring.address, pool_address, self.entries, self.slots, slot_size, self.keep, state, mine)

    ring_fd = -1

    def take(self, links: Sequence[_Link]) -> int:
        """A slot nobody reads, -1 if there is none."""
        state, mine = self.state, self.mine
        index = state.find(_FREE)
        if index < 0 and state.find(_RETIRED) >= 0:
            # Their stamps were taken back before a fence passed since.
            claimed = _claimed(links)
            for slot in range(self.touched):
                if state[slot] == _RETIRED and not mine[slot] and slot not in claimed:
                    state[slot] = _FREE
            index = state.find(_FREE)
        if index < 0:
            if self.touched == self.slots:
                return -1
            index = self.touched
            self.touched += 1
            self.words[RING_TOUCHED] = self.touched
        state[index] = _BUSY
        return index

    def retire(self, sequence: int, ordered: Sequence[_Link]) -> None:
        """Takes back the stamps of what nobody is owed after ``sequence``."""
        limit = sequence - self.keep
        retired = self.retired
        if limit <= retired:
            return
        for link in ordered:
            owed = max(sequence - WINDOW - MARGIN, min(link.page.words[PAGE_CURSOR], sequence))
            if owed < limit:
                limit = owed
        words = self.words
        while retired < limit:
            retired += 1
            # The entry still says which slot: fewer than 64 are owed.
            slot = words[(self.entries + retired % ENTRY_COUNT * ENTRY_SIZE + 8) >> 3]
            if slot:
                words[RING_STAMPS + slot - 1] = 0
                self.state[slot - 1] = _RETIRED
        self.retired = retired

    def forget(self, sequence: int, links: Sequence[_Link]) -> None:
        """Lets go of what generations before name, but for what is owed after ``sequence`` or held."""
        owed = sequence - WINDOW - MARGIN  # after this one, at most: residents have a small ``keep``
        if not self.before or self.before[0][0] > owed:
            return
        # A cell does not say of which generation: one may be spared that need not.
        claimed = _claimed(links)
        for last, residents in self.before:
            if last <= owed:
                for slot in residents.keys() - claimed:
                    del residents[slot]
        self.before = [(last, residents) for last, residents in self.before if residents or last > owed]

    def supersede(self) -> None:
        """Ends the generation: nothing is written into its memory again.

        Whoever still draws into one of its slots does so privately.
        """
        if self.pool is not None:
            self.pool.make_private(self.pool_fd)
        self.close_fds()

    def close_fds(self) -> None:
        """Closes the descriptors; the maps go with the last reference."""
        for fd in (self.ring_fd, self.pool_fd):
            if fd >= 0:
                os.close(fd)
        self.ring_fd = self.pool_fd = -1


_Plan = tuple[_Generation, int, int, int, tuple[int, ...]]
"""Where an entry goes: slot, offset of a large bag, length of the pixels, surface words."""


class _Link(PeerBase):
    """One reader."""

    def __init__(self, id: int, sock: socket.socket) -> None:
        self.id: Final = id
        self.sock: Final = sock
        self.variant: _Variant | None = None
        self.page: Mapping = cast(Mapping, None)  # set with the variant
        self.wake = -1
        self.start: int | None = None
        self.why = ""

    def wake_up(self) -> None:
        """Wakes the reader if it waits. A fence was passed since the news."""
        token = self.page.words[PAGE_WAITING]
        if token and token != self.woken:
            self.woken = token
            ring(self.wake)


class _Variant:
    """The ring and pool of one format."""

    def __init__(self, format: str) -> None:
        self.format: Final = format
        self.generation: _Generation | None = None
        self.links: list[_Link] = []
        self.ordered: list[_Link] = []


def _claimed(links: Sequence[_Link]) -> set[int]:
    """The slots that readers hold."""
    cells = slice(PAGE_CELLS, PAGE_CELLS + MAX_HELD)
    return {cell - 1 for link in links for cell in link.page.words[cells]}


def _give_back(generation: _Generation, index: int, acquired: _Acquired) -> None:
    # Runs wherever the last view went, locks held or not.
    generation.mine[index] = 0
    if not acquired.published:
        generation.state[index] = _FREE


class Output(WriterBase, Forked):
    """An output: any thread may call any method, and none waits for a reader.

    ``undecided`` are formats of which ``decide`` will say whether it makes them:
    readers that list one are joined then.

    ``on_readers(count)``, ``on_generation(format, ring_fd)`` (the descriptor is
    the callee's to close) and ``on_gone(id, end)`` are called one at a time on
    a thread of the output's own.
    """

    def __init__(
        self,
        owner: str,
        formats: Sequence[str] = (RGBA,),
        *,
        undecided: Sequence[str] = (),
        on_readers: Callable[[int], None] | None = None,
        on_generation: Callable[[str, int], None] | None = None,
        on_gone: Callable[[int, End], None] | None = None,
    ) -> None:
        self.owner: Final = owner
        self._owner = owner.encode()
        if len(self._owner) > MAX_OWNER:
            raise DataPathError(f"output address {owner!r} is longer than {MAX_OWNER} bytes")
        self._formats = tuple(formats)
        self._undecided = tuple(undecided)
        self._waiting: list[tuple[_Link, dict[str, Any], list[int]]] = []  # whose formats are undecided
        self._on_readers = on_readers
        self._on_generation = on_generation
        self._on_gone = on_gone
        self._lock = Lock()
        self._fence = make_fence()
        self._variants: list[_Variant] = []
        self._links: dict[int, _Link] = {}
        self.bind(self._lock, owner, time.monotonic_ns() // 1000)
        self._described: Surface | None = None
        self._description: tuple[int, ...] = ()
        self._refused = 0
        self._readers = 0
        self._closed = False
        self._events: deque[Callable[[], None]] = deque()
        self._wake = -1
        self._thread: threading.Thread | None = None
        close_in_child(self)

    # --- links, from the control thread --------------------------------

    def add_link(self, id: int, link: socket.socket | int) -> None:
        """Takes one end of a link's socket pair, which it owns from now on."""
        sock = own_socket(link)
        with self._lock:
            if self._closed or id in self._links:
                sock.close()
                why = "it is closed" if self._closed else "it is there already"
                raise DataPathError(f"cannot add link {id} to {self.owner}: {why}")
            try:
                self._start()
            except (OSError, RuntimeError) as error:
                sock.close()
                raise DataPathError(
                    f"cannot add link {id} to {self.owner}: no thread to serve it: {error}; "
                    "this user or stream has as many processes and threads as it may"
                ) from None
            self._links[id] = _Link(id, sock)
            self._stir()

    def _start(self) -> None:
        """Starts the serving thread, with the first link."""
        if self._thread is not None:
            return
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        thread = threading.Thread(target=self._serve, name=f"links of {self.owner}", daemon=True)
        self._wake = wake
        try:
            thread.start()  # waits for the lock before it does anything
        except BaseException:
            self._wake = -1
            os.close(wake)
            raise
        self._thread = thread

    def remove_link(self, id: int, *, retire: bool = False) -> None:
        """Ends a link; one it does not know is gone already.

        With ``retire`` the readers that remain are moved to fresh memory before
        it returns: what the leaving reader has mapped shows nothing new.
        """
        with self._lock:
            link = self._links.get(id)
            if link is not None:
                self._drop(link)
            if retire:
                for variant in self._variants:
                    if variant.generation is not None:
                        self._renew(variant, variant.generation.slot_size)
            self._stir()

    @property
    def readers(self) -> int:
        """How many links read."""
        return self._readers

    @property
    def refused(self) -> int:
        """How many bags were refused for their size."""
        return self._refused

    @property
    def joining(self) -> int:
        """How many links there are whose reader has not joined yet."""
        with self._lock:
            return sum(link.variant is None for link in self._links.values())

    wanted: tuple[str, ...] = ()
    """The formats that readers asked for."""

    def decide(self, formats: Sequence[str]) -> None:
        """Says which formats it makes, and joins the readers that waited to know."""
        with self._lock:
            self._formats, self._undecided = tuple(formats), ()
            waiting, self._waiting = self._waiting, []
            for link, hello, fds in waiting:
                if self._links.get(link.id) is link:
                    self._greet(link, hello, fds)
                else:
                    close_all(fds)
            self._stir()

    def close(self) -> None:
        """Ends all links; waits for callbacks unless called from one."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.serve(None)
            for link in list(self._links.values()):
                self._drop(link)
            for _, _, fds in self._waiting:
                close_all(fds)
            self._waiting.clear()
            self._stir()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork(self) -> None:
        """Makes the child's copy inert. The parent's peers see nothing of it."""
        self._lock = Lock()
        self._closed = True
        self.serve(None)
        self._thread = None
        self._events.clear()
        for link in self._links.values():
            link.sock.close()
            if link.wake >= 0:
                os.close(link.wake)
        for variant in self._variants:
            if variant.generation is not None:
                # A slot the child still draws in must not show in the parent.
                variant.generation.supersede()
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1
        for _, _, fds in self._waiting:
            close_all(fds)
        self._waiting.clear()
        self._links.clear()
        self._variants.clear()
        self._readers = 0

    # --- publishing ----------------------------------------------------

    def _acquire(self, surface: Surface, like: Slot | None = None) -> Slot:
        size = surface.size
        if not 0 < size <= MAX_PIXELS:
            raise DataPathError(f"cannot make a picture of {size} bytes: the limit is {MAX_PIXELS}")
        with self._lock:
            if surface != self._described:
                self._described, self._description = surface, _describe(surface)
                self.describe(surface, size, self._description)
            if like is None:
                self.number += 1
            number = self.number if like is None else like.number
            surface_id = f"{self.owner}#{number}"
            for variant in self._variants:
                if variant.format == surface.format:
                    generation, index = self._claim(variant, size)
                    break
            else:
                return Slot(surface, number, surface_id, memoryview(bytearray(size)), None, -1, _Acquired())
        acquired = _Acquired()
        pool = cast(Mapping, generation.pool)
        # Views may outlive the Slot, so the memory itself is watched.
        array = pool.watch(index * generation.slot_size, size, _give_back, generation, index, acquired)
        generation.mine[index] = 1
        return Slot(surface, number, surface_id, memoryview(array).cast("B"), generation, index, acquired)

    def _claim(self, variant: _Variant, size: int) -> tuple[_Generation, int]:
        generation = variant.generation
        if generation is None or generation.slot_size < size:
            generation = self._renew(variant, max(4096, power_above(size)))
        index = generation.take(variant.links)
        if index < 0:
            raise DataPathError(
                f"no slot of {self.owner} is free: the node itself keeps more than {MAX_PENDING} of its pictures; "
                "let go of those, and of arrays of them, that it has no use for"
            )
        return generation, index

    def _publish(self, bag: bytes, timestamp_ns: int, slot: Slot | None, *more: Slot) -> int:
        slots = more if slot is None else (slot, *more)
        size = len(bag)
        timestamp = operator.index(timestamp_ns) & MASK
        with self._lock:
            if self._closed:
                raise DataPathError(f"cannot publish on {self.owner}: it is closed")
            if size > MAX_BAG:
                self._refused += 1
                for variant in self._variants:
                    if variant.generation is not None:
                        variant.generation.words[RING_REFUSED] = self._refused
                raise TooLargeError(f"cannot publish on {self.owner}: the bag has {size} bytes, the limit is {MAX_BAG}")
            for slot in slots:
                if slot.published:
                    raise DataPathError(
                        f"cannot publish {slot.surface_id} again: its memory is its readers' now; acquire another"
                    )
            # First everything that can fail, so that all variants get the
            # bag or none does: sequences have no holes.
            variants = self._variants
            plans: list[_Plan] = []
            try:
                for variant in variants:
                    picture = next((slot for slot in slots if slot.surface.format == variant.format), None)
                    plans.append(self._prepare(variant, bag, size, picture))
            except BaseException:
                for generation, index, _, _, _ in plans:
                    if index >= 0 and not any(generation is slot.generation and index == slot.index for slot in slots):
                        generation.state[index] = _FREE
                raise
            sequence = self.sequence = self.sequence + 1
            for slot in slots:
                slot.watched.published = True
                self._settle(slot, variants, plans)
            for variant, (generation, index, bag_at, pixels, surface) in zip(variants, plans, strict=True):
                words = generation.words
                at = generation.entries + sequence % ENTRY_COUNT * ENTRY_SIZE
                word = at >> 3
                words[word] = 0
                if not STRONG:
                    self._fence()
                memory = generation.ring.bytes
                ENTRY_FIELDS.pack_into(memory, at + 8, index + 1, size, bag_at, timestamp, pixels, *surface)
                if size <= MAX_INLINE:
                    memory[at + ENTRY_BAG : at + ENTRY_BAG + size] = bag
                if not STRONG:
                    self._fence()
                words[word] = sequence
                if index >= 0:
                    words[RING_STAMPS + index] = sequence
                if not STRONG:
                    self._fence()
                words[RING_NEWEST] = sequence
                words[RING_TIMESTAMP] = timestamp
                generation.retire(sequence, variant.ordered)
                generation.forget(sequence, variant.links)
            self._fence()
            for variant in variants:
                for link in variant.links:
                    link.wake_up()
            return sequence

    def _keep(self, slot: Slot) -> None:
        """Keeps what a slot names that C has published."""
        generation: _Generation = slot.generation
        _keep(slot, generation, slot.index)
        if generation.before:
            with self._lock:
                for variant in self._variants:
                    if variant.generation is generation:
                        generation.forget(self.sequence, variant.links)

    def _settle(self, slot: Slot, variants: Sequence[_Variant], plans: Sequence[_Plan]) -> None:
        """Retires the slot of a picture that had to be copied to another."""
        generation = slot.generation
        for variant, (used, index, _, _, _) in zip(variants, plans, strict=True):
            if variant.format == slot.surface.format:
                _keep(slot, used, index)
            if used is generation and index == slot.index:
                return
        if generation is not None:
            generation.state[slot.index] = _RETIRED  # its producer has views of it

    def _prepare(self, variant: _Variant, bag: bytes, size: int, slot: Slot | None) -> _Plan:
        """Puts picture and large bag in a slot of the variant."""
        pixels = 0
        surface = _NO_SURFACE
        if slot is not None:
            pixels = slot.surface.size
            described = slot.surface is self._described
            surface = (slot.number, *(self._description if described else _describe(slot.surface)))
        bag_at = 0
        need = pixels
        if size > MAX_INLINE:
            bag_at = (need + 63) & ~63
            need = bag_at + size
        generation = variant.generation
        if not need:
            return generation or self._renew(variant, 0), -1, 0, 0, surface
        in_place = slot is not None and slot.generation is generation
        if pixels and slot is not None and in_place and generation is not None and need <= generation.slot_size:
            index = slot.index
            pool = cast(Mapping, generation.pool).bytes
        else:
            generation, index = self._claim(variant, need)
            pool = cast(Mapping, generation.pool).bytes
            if pixels and slot is not None:
                # Drawn in memory that has been replaced, or was nobody's.
                start = index * generation.slot_size
                pool[start : start + pixels] = slot.memory
        if bag_at or size > MAX_INLINE:
            start = index * generation.slot_size + bag_at
            pool[start : start + size] = bag
        return generation, index, bag_at, pixels, surface

    # --- generations and links, under the lock -------------------------

    def _renew(self, variant: _Variant, slot_size: int) -> _Generation:
        """Gives a variant a fresh generation and sends its readers there."""
        generation = _Generation(
            self._owner, fourcc(variant.format), self.sequence + 1, len(variant.links), slot_size, self._refused
        )
        for link in variant.links:
            self._introduce(link, generation)
        before, variant.generation = variant.generation, generation
        if before is not None and variant.format == RESIDENT:
            generation.before = [*before.before, (self.sequence, before.residents)]
        self._reflect()
        tell = self._on_generation
        if tell is not None:
            copy, format = os.dup(generation.ring_fd), variant.format
            self._events.append(lambda: tell(format, copy))
            self._stir()
        if before is not None:
            before.words[RING_MOVED] = self.sequence + 1
            self._fence()
            for link in variant.links:
                link.wake_up()
            before.supersede()
        return generation

    def _reflect(self) -> None:
        """Shows the writer what there is to publish to."""
        variants = self._variants
        self.wanted = tuple(variant.format for variant in variants if variant.format)
        if self._closed or any(variant.generation is None for variant in variants):
            self.serve(None)
        else:
            self.serve([(variant.generation, fourcc(variant.format), variant.links) for variant in variants])

    def _introduce(self, link: _Link, generation: _Generation) -> None:
        """Sends a generation to a link that is on its variant's list."""
        message: Message = {"kind": "generation"}
        if link.start is None:
            # The newest bag is the first a late reader gets, if there is one.
            newest = generation.words[RING_NEWEST]
            link.start = message["start"] = newest - 1 if newest >= generation.first else newest
        fds = [generation.ring_fd] if generation.pool_fd < 0 else [generation.ring_fd, generation.pool_fd]
        try:
            send(link.sock, message, fds)
        except OSError as error:
            link.why = f"it does not take its descriptors: {error.strerror}"
            # The serving thread sees the end and drops the link; that it
            # counts until then is only careful.
            with contextlib.suppress(OSError):
                link.sock.shutdown(socket.SHUT_RDWR)

    def _drop(self, link: _Link) -> End:
        """Takes a link off all lists and closes it."""
        self._links.pop(link.id, None)
        end = End(0, 0, 0, link.why)
        variant = link.variant
        if variant is not None:
            link.variant = None
            variant.links.remove(link)
            if link.ordered:
                variant.ordered.remove(link)
            if link.start is not None:
                sent = self.sequence - link.start
                received = min(link.page.words[PAGE_RECEIVED], sent)
                end = End(sent, received, sent - received, link.why)
            if not variant.links:
                self._variants.remove(variant)
                if variant.generation is not None:
                    variant.generation.supersede()
                    variant.generation = None
                self._reflect()
            self._count(-1)
        if link.wake >= 0:
            os.close(link.wake)
            link.wake = -1
        link.sock.close()
        return end

    def _count(self, change: int) -> None:
        self._readers += change
        tell, count = self._on_readers, self._readers
        if tell is not None:
            self._events.append(lambda: tell(count))
            self._stir()

    # --- the serving thread --------------------------------------------

    def _stir(self) -> None:
        if self._wake >= 0:
            ring(self._wake)

    def _serve(self) -> None:
        """Says what happened, reads hellos, and sees links end."""
        wake = self._wake
        while True:
            while self._events:
                self._events.popleft()()
            poll = select.poll()
            poll.register(wake, select.POLLIN)
            with self._lock:
                if self._closed and not self._events:
                    self._wake = -1
                    os.close(wake)
                    return
                by_fd = {link.sock.fileno(): link for link in self._links.values()}
            for fd in by_fd:
                try:
                    poll.register(fd, select.POLLIN)
                except OSError:
                    continue
            if self._events:
                continue
            for fd, event in poll.poll():
                if fd == wake:
                    quiet(wake)
                elif event & select.POLLNVAL == 0:
                    self._hear(by_fd[fd])

    def _hear(self, link: _Link) -> None:
        with self._lock:
            if self._links.get(link.id) is not link:
                return
            try:
                got = receive(link.sock)
                if got is None:
                    return
                message, fds = got
                if message.get("kind") != "hello":
                    close_all(fds)
                elif any(name in self._undecided for name in _names(message)):
                    self._waiting.append((link, message, fds))
                else:
                    self._greet(link, message, fds)
                return
            except EOFError:
                pass
            except (DataPathError, OSError) as error:
                self._refuse(link, error)
            self._lose(link)

    def _refuse(self, link: _Link, error: Exception) -> None:
        link.why = str(error)
        with contextlib.suppress(OSError):
            send(link.sock, {"kind": "refused", "why": link.why})

    def _lose(self, link: _Link) -> None:
        """Drops a link of its own accord, and says so."""
        end = self._drop(link)
        tell = self._on_gone
        if tell is not None:
            self._events.append(lambda: tell(link.id, end))

    def _greet(self, link: _Link, hello: dict[str, Any], fds: list[int]) -> None:
        """Answers a hello, and closes what came with it."""
        try:
            self._join(link, hello, fds)
        except (DataPathError, OSError) as error:
            self._refuse(link, error)
            self._lose(link)
        finally:
            close_all(fds)

    def _join(self, link: _Link, hello: dict[str, Any], fds: list[int]) -> None:
        """Makes a reader of a link that has said hello."""
        if hello.get("version") != VERSION:
            raise DataPathError(f"the reader speaks data path version {hello.get('version')}, this output {VERSION}")
        profile = hello.get("profile")
        if profile not in ("newest", "ordered"):
            raise DataPathError(f"delivery profile {profile!r} is neither newest nor ordered")
        if len(fds) != 2 or link.variant is not None:
            raise DataPathError("a hello comes once, with a page and a wake-up")
        page = map_shared(fds[0], "link page")
        if page.size != PAGE_SIZE or page.words[0] != PAGE_MAGIC:
            raise DataPathError("what came as a link page is none")
        target = os.readlink(f"/proc/self/fd/{fds[1]}")
        if target != "anon_inode:[eventfd]" or os.get_blocking(fds[1]):
            # Writing to anything else might block.
            raise DataPathError(f"a wake-up must be a non-blocking eventfd, not {target}")
        link.page, link.wake, link.ordered = page, fds.pop(), profile == "ordered"
        link.bind(page.address)
        names = _names(hello)
        format = ""
        if names and self._formats:
            format = next((have for name in names for have in self._formats if have == name), self._formats[0])
        variant = next((variant for variant in self._variants if variant.format == format), None)
        if variant is None:
            variant = _Variant(format)
            self._variants.append(variant)
            self._reflect()
        link.variant = variant
        variant.links.append(link)
        if link.ordered:
            variant.ordered.append(link)
        self._count(1)
        generation = variant.generation
        if generation is not None:
            self._introduce(link, generation)
            if len(variant.links) > generation.links:
                # The pool may be too small for one more; nothing is published
                # in it any more, so that this does not matter.
                self._renew(variant, generation.slot_size)


def _names(hello: dict[str, Any]) -> list[object]:
    """The formats a hello lists."""
    wanted: object = hello.get("formats")
    return cast("list[object]", wanted) if isinstance(wanted, list) else []


def _keep(slot: Slot, generation: _Generation | None, index: int) -> None:
    """Keeps what a published slot names, instead of what the slot named before."""
    resident = getattr(slot, "resident", None)
    if resident is not None and generation is not None:
        generation.residents[index] = resident


def _describe(surface: Surface) -> tuple[int, ...]:
    """The words of an entry behind the surface number."""
    planes = surface.planes
    flat = [word for plane in planes for word in plane] + [0] * (8 - 2 * len(planes))
    return (
        OWNER_RESIDENT if surface.format == RESIDENT else IN_SLOT,
        fourcc(surface.format),
        surface.width,
        surface.height,
        surface.colour,
        len(planes),
        *flat,
        0,
        0,
        0,
    )
