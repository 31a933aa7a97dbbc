"""The reading end."""

from __future__ import annotations

import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, cast

from ._native import BagBase, BellBase, FrameBase, InboxBase, LinkBase, Lock
from ._shared import (
    ENTRY_BAG,
    ENTRY_COUNT,
    ENTRY_SIZE,
    HISTOGRAM_SIZE,
    MASK,
    MAX_BAG,
    MAX_HELD,
    MAX_INLINE,
    MAX_OWNER,
    MAX_SLOTS,
    PAGE_CELLS,
    PAGE_CURSOR,
    PAGE_DROPPED,
    PAGE_HISTOGRAM,
    PAGE_LAST_READ,
    PAGE_LEFT,
    PAGE_MAGIC,
    PAGE_PROFILE,
    PAGE_RECEIVED,
    PAGE_SIZE,
    PAGE_START,
    PAGE_TIMESTAMP,
    PAGE_WAITING,
    PATIENCE,
    RGBA,
    RING_ENTRIES,
    RING_FIRST,
    RING_FORMAT,
    RING_MAGIC,
    RING_MOVED,
    RING_NEWEST,
    RING_OWNER,
    RING_SLOT_SIZE,
    RING_SLOTS,
    RING_STAMPS,
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
    fourcc_name,
    make_fence,
    make_shared,
    map_shared,
    quiet,
    ring,
)
from ._socket import close_all, own_socket, receive, send

Profile = Literal["newest", "ordered"]

_ENTRY: Final = struct.Struct("24Q")
_RECENT: Final = 32
"""How many pictures of a link can still be asked for after their bag was read."""

# Bounds against a producer that floods its link: how many messages one look at
# a socket takes, and how many generations may wait for a reader. A socket holds
# fewer than these while the reader is stopped.
_MESSAGES_PER_LOOK: Final = 64
_MAX_GENERATIONS: Final = 512


_Fields = tuple[int, ...]
"""The words of an entry."""


class FrameGoneError(DataPathError):
    """The picture is not there any more: newer ones took its place."""


class UnknownSurfaceError(DataPathError):
    """No bag read lately names this picture."""


class TooManyHeldError(DataPathError):
    """Eight pictures of the link are held already."""


class Gone(NamedTuple):
    """A link whose producer has ended."""

    id: int
    why: str
    """Empty: the peer died or closed the link."""


class Frame(FrameBase):
    """A picture that is held: its memory neither changes nor goes.

    It is held until nothing refers to ``memory``, which is read-only, or to any
    view of it. ``sequence`` and ``timestamp_ns`` are those of its bag.
    """

    __slots__ = ("__weakref__",)

    @property
    def surface(self) -> Surface:
        """What it is."""
        return _surface(self._entry)

    @property
    def surface_id(self) -> str:
        """The name by which bags know it."""
        return f"{self._generation.owner}#{self._entry[6]}"

    @property
    def pool(self) -> Mapping:
        """What the memory is a part of, for a helper process of this node to map."""
        return cast(Mapping, self._generation.pool)

    @property
    def pool_at(self) -> int:
        """Where in the pool the memory begins, in bytes."""
        return (self._entry[1] - 1) * self._generation.slot_size


class Bag(BagBase):
    """What ``Input.read`` returns: its ``data``, ``sequence``, ``timestamp_ns``.

    ``frame`` is its picture, if the read was to hold it and there is one.
    """

    __slots__ = ()

    @property
    def link(self) -> str:
        """The name of the link it came by."""
        return self._link.name

    @property
    def link_id(self) -> int:
        """The id of the link it came by."""
        return self._link.id

    @property
    def surface_id(self) -> str | None:
        """The name of its picture, None without one."""
        entry = self._entry
        return f"{self._generation.owner}#{entry[6]}" if entry[7] else None

    @property
    def surface(self) -> Surface | None:
        """What its picture is, None without one."""
        entry = self._entry
        return _surface(entry) if entry[7] else None


def _surface(entry: _Fields) -> Surface:
    planes = tuple((entry[13 + 2 * i], entry[14 + 2 * i]) for i in range(entry[12]))
    return Surface(fourcc_name(entry[8]), entry[9], entry[10], planes, entry[5], entry[11])


class _Generation:
    """One ring with its pool."""

    def __init__(self, fds: Sequence[int]) -> None:
        if not 1 <= len(fds) <= 2:
            raise DataPathError(f"a generation came with {len(fds)} descriptors")
        memory = map_shared(fds[0], "ring")
        words = memory.words
        if memory.size < 8 * RING_STAMPS + ENTRY_COUNT * ENTRY_SIZE or words[0] != RING_MAGIC:
            raise DataPathError(f"this is no ring of data path version {VERSION}")
        slots, slot_size, owner = words[RING_SLOTS], words[RING_SLOT_SIZE], words[RING_OWNER]
        first = words[RING_FIRST]
        if slots > MAX_SLOTS or slot_size > 1 << 40 or owner > MAX_OWNER or first == 0:
            raise DataPathError("the header of a ring makes no sense")
        entries = entries_at(slots)
        if words[RING_ENTRIES] != entries or memory.size < entries + ENTRY_COUNT * ENTRY_SIZE:
            raise DataPathError("a ring is smaller than its header says")
        pool: Mapping | None = None
        if slots:
            if len(fds) < 2:
                raise DataPathError(f"a generation of {slots} slots came without a pool")
            pool = map_shared(fds[1], "pool")
            if pool.size < slots * slot_size:
                raise DataPathError("a pool is smaller than its ring says")
            pool.keep(fds[1])
        self.ring: Final = memory
        self.words: Final = words
        self.pool: Final = pool
        self.entries: Final = entries
        self.slots: Final = slots
        self.slot_size: Final = slot_size
        self.format: Final = words[RING_FORMAT]
        at = 8 * RING_OWNER + 8
        self.owner: Final = bytes(memory.bytes[at : at + owner]).decode("utf-8", "replace")


def _let_go(link: _Link, cell: int) -> None:
    """Empties a cell once the last view of its frame is gone.

    Runs wherever that happens, locks held or not.
    """
    if not link.inert:
        link.page.words[PAGE_CELLS + cell] = 0


class _Link(LinkBase):
    """One producer."""

    def __init__(self, input: Input, id: int, name: str, sock: socket.socket) -> None:
        self.id: Final = id
        self.name: Final = name
        self.ordered: Final = input.profile == "ordered"
        self.waiter: Final = input.waiter
        self.fence: Final = input.waiter.fence
        self.sock: Final = sock
        self.page_fd, self.page = make_shared("tatolab-page", PAGE_SIZE)
        self.page.words[PAGE_PROFILE] = int(self.ordered)
        self.page.words[0] = PAGE_MAGIC
        # The figures of the link stand in its page, and nowhere else.
        self.bind(self.page.address, self.ordered)
        self.next: list[_Generation] = []
        self.recent: dict[int, tuple[_Generation, _Fields]] = {}  # by surface number
        self.held: weakref.WeakValueDictionary[int, Frame] = weakref.WeakValueDictionary()
        self.eof = False
        self.why = ""
        self.reported = False  # by take_gone

    @property
    def last(self) -> int:
        """The last sequence dealt with."""
        return self.page.words[PAGE_CURSOR]

    @property
    def start(self) -> int:
        """Bags up to this sequence are not the link's."""
        return self.page.words[PAGE_START]

    @property
    def received(self) -> int:
        """How many bags ``read`` returned."""
        return self.page.words[PAGE_RECEIVED]

    @property
    def dropped(self) -> int:
        """How many bags it did not."""
        return self.page.words[PAGE_DROPPED]

    def go(self, generation: _Generation | None) -> None:
        """Reads in this generation from now on."""
        if generation is None:
            self.enter()
            return
        pool = generation.pool
        self.enter(
            generation,
            generation.ring.address,
            pool.address if pool else 0,
            generation.entries,
            generation.slots,
            generation.slot_size,
        )

    # --- the socket ----------------------------------------------------

    def service(self) -> None:
        """Reads what the socket has."""
        for _ in range(_MESSAGES_PER_LOOK):
            if self.eof:
                return
            try:
                got = receive(self.sock)
                if got is None:
                    return
                message, fds = got
                try:
                    kind = message.get("kind")
                    if kind == "generation":
                        self.adopt(message.get("start"), fds)
                    elif kind == "refused":
                        raise DataPathError(str(message.get("why")))
                finally:
                    close_all(fds)
            except EOFError:
                self.end("")
            except (DataPathError, OSError) as error:
                self.end(str(error))

    def end(self, why: str) -> None:
        """Closes the socket; what has been published can still be read."""
        if not self.eof:
            self.eof = True
            self.why = why
            self.waiter.ended = True
            self.waiter.changed()
            self.sock.close()

    def adopt(self, start: object, fds: Sequence[int]) -> None:
        """Maps a generation the producer sent."""
        generation = _Generation(fds)
        if self.generation is not None:
            if len(self.next) == _MAX_GENERATIONS:
                raise DataPathError(f"{_MAX_GENERATIONS} generations wait to be read")
            self.next.append(generation)
            return
        if not isinstance(start, int) or not 0 <= start <= MASK:
            raise DataPathError("the first generation of a link came without its start")
        self.page.words[PAGE_CURSOR] = start
        self.page.words[PAGE_START] = start
        self.go(generation)

    def settle(self) -> None:
        """Goes on to the next generation if it is time to."""
        while self.generation is not None:
            moved = self.generation.words[RING_MOVED]
            if not moved:
                return
            if not self.next:
                self.service()  # it was sent before moved was set
                if not self.next:
                    return
            if self.last + 1 < moved and (self.ordered or self.next[0].words[RING_NEWEST] < moved):
                return
            self.go(self.next.pop(0))

    def unread(self) -> int:
        """How many bags the present generation has that were not dealt with."""
        generation = self.generation
        if generation is None:
            self.service()  # whoever only reads must come by its first one too
            generation = self.generation
            if generation is None:
                return 0
        if generation.words[RING_MOVED]:
            self.settle()
            generation = cast(_Generation, self.generation)
        return max(0, generation.words[RING_NEWEST] - self.last)

    def arrived(self) -> int:
        """How many bags the link has brought so far, read or not."""
        return self.unread() + self.last - self.start

    # --- reading -------------------------------------------------------

    def drop(self, count: int) -> None:
        """Counts bags that were not received."""
        page = self.page.words
        page[PAGE_DROPPED] = (page[PAGE_DROPPED] + count) & MASK

    def advance(self, to: int) -> None:
        """Moves the cursor."""
        self.page.words[PAGE_CURSOR] = to

    def read(self, hold: bool) -> Bag | None:
        """Takes the next bag, and holds its picture if it is to."""
        window = WINDOW
        failures = 0
        page = self.page.words
        while failures < PATIENCE:
            generation = self.generation
            if generation is None:
                if not self.unread():
                    return None
                generation = cast(_Generation, self.generation)
            words = generation.words
            if words[RING_MOVED]:
                self.settle()
                generation = cast(_Generation, self.generation)
                words = generation.words
            sequence = words[RING_NEWEST]
            last = page[PAGE_CURSOR]
            unread = sequence - last
            if unread <= 0:
                return None
            if self.ordered:
                if unread > window:
                    self.drop(unread - window)
                    last = sequence - window
                    self.advance(last)
                sequence = last + 1
            at = generation.entries + sequence % ENTRY_COUNT * ENTRY_SIZE
            word = at >> 3
            data = b""
            whole = words[word] == sequence
            if whole:
                if not STRONG:
                    self.fence()
                view = generation.ring.bytes
                entry = _ENTRY.unpack_from(view, at)
                length = entry[2]
                if length <= MAX_INLINE:
                    data = bytes(view[at + ENTRY_BAG : at + ENTRY_BAG + length])
                if not STRONG:
                    self.fence()
                whole = words[word] == sequence
                if whole:
                    slot = entry[1]
                    if (slot or entry[5] or length > MAX_INLINE or entry[7]) and not _sensible(entry, generation):
                        self.end(f"entry {sequence} of its producer makes no sense")
                        self.forsake()
                        return None
                    bag = Bag(self, generation, entry, data)
                    if slot and (length > MAX_INLINE or (hold and entry[7])):
                        try:
                            whole = self.fetch(bag, generation, entry, hold)
                        except TooManyHeldError:
                            # This one is lost.
                            self.drop(sequence - last)
                            self.advance(sequence)
                            continue
                    if whole:
                        self.count(generation, entry)
                        return bag
            failures += 1
            if failures >= 2:
                window = max(1, window // 2)
        self.end(f"its producer never finishes an entry: {PATIENCE} looks failed")
        self.forsake()
        return None

    def forsake(self) -> None:
        """Gives up what a broken producer has published: it cannot be read."""
        unread = self.unread()
        if unread:
            self.drop(unread)
            self.advance(self.last + unread)

    def fetch(self, bag: Bag, generation: _Generation, entry: _Fields, hold: bool) -> bool:
        """Gets from the slot what of the bag stands there, if it still does."""
        cell = self.claim(generation, entry)
        if cell < 0:
            return False
        if entry[2] > MAX_INLINE:
            start = (entry[1] - 1) * generation.slot_size + entry[3]
            bag.data = bytes(cast(Mapping, generation.pool).bytes[start : start + entry[2]])
        if hold and entry[7]:
            bag.frame = self.hold(generation, entry, cell)
        else:
            self.page.words[PAGE_CELLS + cell] = 0
        return True

    def claim(self, generation: _Generation, entry: _Fields) -> int:
        """Claims an entry's slot: the cell, or -1 if the slot is another's."""
        page = self.page.words
        cell = 0
        # Any thread may empty a cell; they are filled under the waiter's lock.
        while page[PAGE_CELLS + cell]:
            cell += 1
            if cell == MAX_HELD:
                raise TooManyHeldError(f"{MAX_HELD} pictures of {self.name} are held already: let one go")
        slot = entry[1]
        page[PAGE_CELLS + cell] = slot
        self.fence()
        if generation.words[RING_STAMPS + slot - 1] == entry[0]:
            return cell
        page[PAGE_CELLS + cell] = 0
        return -1

    def hold(self, generation: _Generation, entry: _Fields, cell: int) -> Frame:
        """Makes the frame of an entry whose slot is in a cell."""
        pool = cast(Mapping, generation.pool)
        # Views may outlive the Frame, so the memory itself is watched.
        array = pool.watch((entry[1] - 1) * generation.slot_size, entry[5], _let_go, self, cell)
        frame = Frame(generation, entry, memoryview(array).toreadonly().cast("B"))
        self.held[entry[6]] = frame
        return frame

    def count(self, generation: _Generation, entry: _Fields) -> None:
        """Accounts for a bag that is returned."""
        sequence = entry[0]
        page = self.page.words
        skipped = sequence - page[PAGE_CURSOR] - 1
        if skipped:
            page[PAGE_DROPPED] = (page[PAGE_DROPPED] + skipped) & MASK
        page[PAGE_RECEIVED] = (page[PAGE_RECEIVED] + 1) & MASK
        page[PAGE_CURSOR] = sequence
        if entry[7]:
            recent = self.recent
            recent[entry[6]] = generation, entry
            if len(recent) > _RECENT:
                del recent[next(iter(recent))]
        now = time.monotonic_ns()
        page[PAGE_LAST_READ] = now
        page[PAGE_TIMESTAMP] = entry[4]
        micro = (now - entry[4]) >> 10
        if micro < 4:
            counter = max(0, micro)
        else:
            octave = micro.bit_length() - 1
            counter = min(4 * (octave - 1) + (micro >> (octave - 2) & 3), HISTOGRAM_SIZE - 1)
        page[PAGE_HISTOGRAM + counter] += 1

    def leave(self) -> None:
        """Closes the link for good. Frames held from it stay good."""
        self.service()  # generations that are on their way count
        if self.generation is not None:
            newest = max(self.last, *(g.words[RING_NEWEST] for g in (self.generation, *self.next)))
            self.drop(newest - self.last)
            self.advance(newest)
            self.go(None)
            self.next.clear()
        self.page.words[PAGE_LEFT] = 1
        self.recent.clear()
        self.forget()
        self.end("")
        os.close(self.page_fd)

    def after_fork(self) -> None:
        """Makes the child's copy inert."""
        self.inert = True
        self.go(None)
        self.next.clear()
        self.end("")
        os.close(self.page_fd)


def _sensible(entry: _Fields, generation: _Generation) -> bool:
    """Whether an entry's numbers fit its generation."""
    size, slot, length, pixels, planes = generation.slot_size, entry[1], entry[2], entry[5], entry[12]
    if slot > generation.slots or length > MAX_BAG or pixels > size or planes > 4:
        return False
    if not slot and (length > MAX_INLINE or pixels):
        return False
    if length > MAX_INLINE and entry[3] + length > size:
        return False
    if max(entry[9], entry[10]) > 0x7FFFFFFF or (entry[7] and not pixels):
        return False
    return not slot or all(word <= pixels for word in entry[13 : 13 + 2 * planes])


class Waiter(BellBase, Forked):
    """What the inputs of one process wait on together.

    One thread waits and reads; any thread may add and remove links, and wake.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.fence: Final = make_fence()
        self.links: list[_Link] = []
        self.bind(self.lock, self.links)
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll: select.poll | None = None  # of all links, until one comes or goes
        self._polled: dict[int, _Link] = {}
        self.ended = False
        """Set when a link ends: ``take_gone`` of its input has something. The caller's to reset."""
        self._armed = False  # C polls what there is
        self._closed = False
        close_in_child(self)

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def wake(self) -> None:
        """Makes the present ``wait``, or else the next, return."""
        ring(self.wake_fd)

    def _arrived(self) -> int:
        with self.lock:
            return self.before + sum(link.arrived() for link in self.links)

    def _has_data(self) -> bool:
        with self.lock:
            return any(link.unread() for link in self.links)

    def changed(self) -> None:
        """A link came or went: what is polled is not what there is."""
        self._poll = None
        self._armed = False
        self.arm([])

    def forget(self, link: _Link) -> None:
        """Takes a link that was left off the list."""
        if link in self.links:
            self.links.remove(link)
            self.changed()
            self.before += link.last - link.start

    def _news(self, seen: int | None) -> bool:
        if any(link.eof and not link.reported for link in self.links):
            return True
        if seen is None:
            return any(link.unread() for link in self.links)
        return self._arrived() > seen

    def _wait(self, timeout: float | None, seen: int | None) -> None:
        milliseconds = None if timeout is None else max(0, -int(-timeout * 1000 // 1))
        with self.lock:
            if self._closed:
                return
            self.token = token = self.token + 1
            for link in self.links:
                link.page.words[PAGE_WAITING] = token
            self.fence()
            news = self._news(seen)
            poll = self._poll
            if poll is None:
                self._polled = {link.sock.fileno(): link for link in self.links if not link.eof}
                poll = self._poll = select.poll()
                for fd in (self.wake_fd, *self._polled):
                    poll.register(fd, select.POLLIN)
            if not self._armed and not any(link.eof and not link.reported for link in self.links):
                self.arm([self.wake_fd, *self._polled])
                self._armed = True
            polled = self._polled
        events: list[tuple[int, int]] = []
        try:
            if not news:
                events = poll.poll(milliseconds)
        finally:
            with self.lock:
                if not self._closed:
                    for link in self.links:
                        link.page.words[PAGE_WAITING] = 0
                    for fd, _ in events:
                        if fd == self.wake_fd:
                            quiet(fd)
                        elif (link := polled[fd]) in self.links:
                            link.service()

    def _look_after(self) -> None:
        """Ends a wait whose sockets have something, or whose links have changed."""
        with self.lock:
            if self._closed:
                return
            quiet(self.wake_fd)
            for link in list(self.links):
                link.page.words[PAGE_WAITING] = 0
                link.service()

    def close(self) -> None:
        """Leaves all links. Call it from the thread that waits."""
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.changed()
            for link in self.links:
                link.leave()
            self.links.clear()
            os.close(self.wake_fd)
            self.wake_fd = -1

    def after_fork(self) -> None:
        """Makes the child's copy inert. The parent's peers see nothing of it."""
        self.lock = Lock()
        self._closed = True
        self.changed()
        for link in self.links:
            link.after_fork()
        self.links.clear()
        if self.wake_fd >= 0:
            os.close(self.wake_fd)
            self.wake_fd = -1


class Input(InboxBase):
    """The reading end of a port: any number of links.

    ``formats`` are those it can use, the preferred first; none asks for bags
    alone. A producer that makes none of them is read all the same: look at
    ``Frame.surface``.
    """

    def __init__(self, waiter: Waiter, profile: Profile = "newest", formats: Sequence[str] = (RGBA,)) -> None:
        self.waiter: Final = waiter
        self.profile: Final[Profile] = profile
        self._formats = [name for name in formats if fourcc(name)]
        self._links: list[_Link] = []
        self.bind(waiter.lock, self._links)

    def add_link(self, id: int, name: str, link: socket.socket | int, formats: Sequence[str] = ()) -> int:
        """Takes one end of a link's socket pair, which it owns from now on.

        ``formats`` are listed before those of the input. Returns a descriptor
        of the link's page, for figures: the caller's to close.
        """
        sock = own_socket(link)
        waiter = self.waiter
        with waiter.lock:
            if waiter.closed or any(other.id == id for other in self._links):
                sock.close()
                why = "the input is closed" if waiter.closed else f"{id} is there already"
                raise DataPathError(f"cannot add link {name}: {why}")
            joined = _Link(self, id, name, sock)
            wanted = [*formats, *self._formats]
            hello = {"kind": "hello", "version": VERSION, "profile": self.profile, "formats": wanted}
            try:
                send(sock, hello, [joined.page_fd, waiter.wake_fd])
            except (BrokenPipeError, ConnectionError):
                joined.end("")  # reported like any other end
            page = os.dup(joined.page_fd)
            self._links.append(joined)
            waiter.links.append(joined)
            waiter.changed()
            waiter.wake()  # a wait must poll the new socket too
            return page

    def remove_link(self, id: int) -> None:
        """Leaves a link; what it has not read counts as dropped."""
        with self.waiter.lock:
            for link in self._links:
                if link.id == id:
                    self._leave(link)
                    return

    def _leave(self, link: _Link) -> None:
        link.leave()
        self._links.remove(link)
        self.waiter.forget(link)
        self.waiter.wake()

    def take_gone(self) -> list[Gone]:
        """The links whose producer has gone, each once.

        What they published can still be read; after that they are removed.
        """
        gone: list[Gone] = []
        with self.waiter.lock:
            for link in self._links:
                if link.eof and not link.reported:
                    link.reported = True
                    gone.append(Gone(link.id, link.why))
            self._reap()
        return gone

    def _reap(self) -> None:
        """Removes links that have ended and have nothing left to read."""
        for link in [link for link in self._links if link.reported]:
            if not link.unread():
                self._leave(link)
        self.ending = any(link.reported for link in self._links)

    @property
    def link_names(self) -> tuple[str, ...]:
        """The names of its links, in the order they came."""
        with self.waiter.lock:
            return tuple(link.name for link in self._links)

    def has_data(self) -> bool:
        """Whether ``read`` would find a bag."""
        with self.waiter.lock:
            return any(link.unread() for link in self._links)

    def _read(self, hold: bool, link: str | None) -> Bag | None:
        with self.waiter.lock:
            links = self._links
            count = len(links)
            for step in range(count):
                at = (self.next + step) % count
                if link is not None and links[at].name != link:
                    continue
                bag = links[at].read(hold)
                if bag is not None:
                    if link is None:
                        self.next = at + 1
                    return bag
            self._reap()
        return None

    def frame(self, surface_id: str) -> Frame:
        """Holds the picture of a bag that was read lately.

        Raises UnknownSurfaceError, FrameGoneError or TooManyHeldError.
        """
        owner, _, digits = surface_id.rpartition("#")
        number = int(digits) if digits.isdecimal() else -1
        with self.waiter.lock:
            for link in self._links:
                known = link.recent.get(number) or link.recall(number)
                if known is None or known[0].owner != owner:
                    continue
                generation, entry = known
                held = link.held.get(number) or link.pinned(number)
                if held is not None and held.surface_id == surface_id:
                    return held
                cell = link.claim(generation, entry)
                if cell < 0:
                    raise FrameGoneError(f"{surface_id} is gone: newer pictures took its place before it was asked for")
                return link.hold(generation, entry, cell)
        raise UnknownSurfaceError(f"{surface_id!r} names no picture of a bag that was read here lately")
