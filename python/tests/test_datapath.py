"""The Python ends of the data path, in one process. Every pair of languages, as
processes, is tested by datapath/stress_test.go."""

from __future__ import annotations

import gc
import itertools
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from tatolab.stream._datapath import (
    MAX_BAG,
    MAX_HELD,
    MAX_PENDING,
    RESIDENT,
    RGBA,
    DataPathError,
    End,
    Frame,
    FrameGoneError,
    Input,
    Output,
    Surface,
    TooLargeError,
    TooManyHeldError,
    UnknownSurfaceError,
    Waiter,
)
from tatolab.stream._datapath import _shared as layout
from tatolab.stream._datapath._socket import send

SMALL = Surface.packed(32, 32)
IDS = itertools.count(100)  # of links


class Rig:
    """An output and a waiter, and links between them."""

    def __init__(self, owner: str = "s/n/p", waiter: Waiter | None = None) -> None:
        self.ends: dict[int, End] = {}
        self.rings: list[int] = []
        self.output = Output(
            owner,
            on_generation=lambda format, fd: self.rings.append(fd),
            on_gone=lambda id, end: self.ends.__setitem__(id, end),
        )
        self.waiter = waiter or Waiter()

    def link(self, reader: Input, name: str = "link") -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        id = next(IDS)
        before = self.output.readers
        self.output.add_link(id, ours.detach())
        os.close(reader.add_link(id, name, theirs))
        eventually(lambda: self.output.readers == before + 1)
        return id

    def publish(self, bag: bytes = b"bag", picture: int | None = None, surface: Surface = SMALL) -> str | None:
        slot = None
        if picture is not None:
            slot = self.output.acquire(surface)
            slot.memory[:] = bytes([picture]) * surface.size
        self.output.publish(bag, time.monotonic_ns(), slot)
        return slot and slot.surface_id

    def close(self) -> None:
        self.waiter.close()
        self.output.close()
        for fd in self.rings:
            os.close(fd)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.001)


@pytest.fixture
def rig() -> Iterator[Rig]:
    fds = len(os.listdir("/proc/self/fd"))
    made = Rig()
    yield made
    made.close()
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= fds)
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("links of")])


def cells(reader: Input) -> list[int]:
    link = reader.waiter.links[0]
    return [cell for cell in link.page.words[layout.PAGE_CELLS : layout.PAGE_CELLS + MAX_HELD] if cell]


@pytest.mark.parametrize("size", [0, 4096, 4097, 100_000])
def test_bags_and_pictures(rig: Rig, size: int) -> None:
    reader = Input(rig.waiter, "ordered")
    rig.link(reader, "camera/video")
    rig.publish(b"x" * size)
    surface_id = rig.publish(b"y" * size, 7)
    rig.waiter.wait(5)
    bag = reader.read()
    assert bag and (bag.data, bag.link, bag.surface_id, bag.sequence) == (b"x" * size, "camera/video", None, 1)
    bag = reader.read(hold=True)
    assert bag and (bag.data, bag.surface_id, bag.surface) == (b"y" * size, surface_id, SMALL)
    assert bag.frame and bag.frame.surface_id == surface_id and bytes(bag.frame.memory) == b"\x07" * SMALL.size
    assert bag.frame.memory.readonly
    assert reader.read() is None


def test_a_picture_that_its_maker_keeps_stays(rig: Rig) -> None:
    reader = Input(rig.waiter)
    rig.link(reader)
    kept = []
    for value in range(3):
        kept.append(rig.output.acquire(SMALL))
        kept[-1].memory[:] = bytes([value]) * SMALL.size
        rig.output.publish(b"", 0, kept[-1])
    for value in range(10, 110):
        rig.publish(picture=value)
        bag = reader.read(hold=True)
        assert bag and bag.frame and bag.frame.memory[0] == value
    for value, slot in enumerate(kept):
        assert bytes(slot.memory) == bytes([value]) * SMALL.size


class Nanoseconds:
    """An integer that is no int, like those of numpy."""

    def __index__(self) -> int:
        return 7


def test_timestamps(rig: Rig) -> None:
    reader = Input(rig.waiter, "ordered")
    rig.link(reader)
    rig.output.publish(b"", Nanoseconds(), rig.output.acquire(SMALL))  # pyright: ignore[reportArgumentType]
    bag = reader.read()
    assert bag and (bag.sequence, bag.timestamp_ns) == (1, 7)
    for _ in range(200):
        for wrong in (1.5, "now", None):
            with pytest.raises(TypeError):
                rig.output.publish(b"", wrong, rig.output.acquire(SMALL))  # pyright: ignore[reportArgumentType]
    rig.publish(picture=1)
    bag = reader.read()
    assert bag and bag.sequence == 2, "a refused publication left a hole"


def test_a_frame_is_held_by_its_last_view(rig: Rig) -> None:
    reader = Input(rig.waiter)
    rig.link(reader)
    rig.publish(picture=1)
    bag = reader.read(hold=True)
    assert bag and bag.frame
    view = bag.frame.memory[10:20]
    del bag
    for value in range(2, 60):
        rig.publish(picture=value)
        reader.read(hold=True)
    assert bytes(view) == b"\x01" * 10
    assert len(cells(reader)) == 1
    del view
    assert not cells(reader)


def test_a_frame_outlives_link_input_and_producer(rig: Rig) -> None:
    reader = Input(rig.waiter)
    id = rig.link(reader)
    rig.publish(picture=9)
    bag = reader.read(hold=True)
    assert bag and bag.frame
    memory = bag.frame.memory
    del bag
    reader.remove_link(id)
    rig.output.close()
    gc.collect()
    assert bytes(memory) == b"\x09" * SMALL.size


def test_a_picture_is_claimed_after_its_bag_was_read(rig: Rig) -> None:
    reader = Input(rig.waiter)
    rig.link(reader)
    surface_id = rig.publish(picture=3)
    assert surface_id and reader.read()
    assert not cells(reader)
    frame = reader.frame(surface_id)
    assert frame.memory[0] == 3 and reader.frame(surface_id) is frame and len(cells(reader)) == 1
    with pytest.raises(UnknownSurfaceError):
        reader.frame("s/other/p#1")
    with pytest.raises(UnknownSurfaceError):
        reader.frame("nonsense")
    del frame
    for value in range(60):
        rig.publish(picture=value)
    with pytest.raises(FrameGoneError, match=surface_id):
        reader.frame(surface_id)


def test_more_than_eight_frames(rig: Rig) -> None:
    reader = Input(rig.waiter, "ordered")
    rig.link(reader)
    held: list[memoryview] = []
    for value in range(20):
        rig.publish(picture=value)
        bag = reader.read(hold=True)
        if bag and bag.frame:
            held.append(bag.frame.memory)
    assert [view[0] for view in held] == list(range(MAX_HELD))
    link = rig.waiter.links[0]
    assert (link.received, link.dropped) == (MAX_HELD, 20 - MAX_HELD)
    surface_id = rig.publish(picture=99)
    assert surface_id and reader.read()
    with pytest.raises(TooManyHeldError):
        reader.frame(surface_id)
    held.clear()
    assert reader.frame(surface_id).memory[0] == 99


def test_too_large_is_refused_and_counted(rig: Rig) -> None:
    reader = Input(rig.waiter)
    rig.link(reader)
    with pytest.raises(TooLargeError):
        rig.publish(bytes(MAX_BAG + 1))
    assert rig.output.refused == 1 and reader.read() is None
    rig.publish(bytes(MAX_BAG))
    bag = reader.read()
    assert bag and len(bag.data) == MAX_BAG


def test_slots(rig: Rig) -> None:
    # With nobody reading, a picture is its maker's.
    early = rig.output.acquire(SMALL)
    early.memory[:] = b"\x05" * SMALL.size
    reader = Input(rig.waiter)
    rig.link(reader)
    rig.output.publish(b"", 0, early)
    bag = reader.read(hold=True)
    assert bag and bag.frame and bag.frame.memory[7] == 5
    with pytest.raises(DataPathError, match="again"):
        rig.output.publish(b"", 0, early)
    # What is acquired and dropped comes back.
    for _ in range(200):
        rig.output.acquire(SMALL)
    kept = [rig.output.acquire(SMALL) for _ in range(MAX_PENDING)]
    for value in range(100):  # and what is kept takes nothing from others
        rig.publish(picture=value)
        bag = reader.read(hold=True)
        assert bag and bag.frame and bag.frame.memory[0] == value
    # Views count as well as the slot.
    view = kept.pop().memory
    view[:] = b"\x01" * SMALL.size
    for value in range(100):
        rig.publish(picture=value)
    assert bytes(view) == b"\x01" * SMALL.size
    # A picture that was acquired before its memory was replaced.
    rig.publish(picture=1, surface=Surface.packed(500, 500))
    last = kept.pop()
    last.memory[:] = b"\x0b" * SMALL.size
    rig.output.publish(b"", 0, last)
    bag = reader.read(hold=True)
    assert bag and bag.frame and bytes(bag.frame.memory) == b"\x0b" * SMALL.size


def test_demotion(rig: Rig) -> None:
    demoted, kept = Input(rig.waiter), Input(rig.waiter)
    id = rig.link(demoted)
    rig.link(kept)
    rig.publish(picture=1)
    assert demoted.read()
    old = rig.waiter.links[0].generation
    drawing = rig.output.acquire(SMALL)
    rig.output.remove_link(id, retire=True)
    assert old and old.pool
    ring, pool = bytes(old.ring.bytes), bytes(old.pool.bytes)
    drawing.memory[:] = b"\x04" * SMALL.size
    rig.output.publish(b"", 0, drawing)
    bag = kept.read(hold=True)
    assert bag and bag.frame and bag.frame.memory[0] == 4
    for value in range(50):
        rig.publish(picture=100 + value)
    assert (bytes(old.ring.bytes), bytes(old.pool.bytes)) == (ring, pool)


def test_sums_over_generations_and_departure(rig: Rig) -> None:
    reader = Input(rig.waiter, "ordered")
    id = rig.link(reader)
    got = 0
    for step in range(300):
        rig.publish(str(step).encode())
        if step % 4 == 0:
            rig.output.remove_link(0, retire=True)
        if step % 9 == 0:
            while bag := reader.read():
                assert bag.data == str(got).encode()
                got += 1
    reader.remove_link(id)
    eventually(lambda: id in rig.ends)
    assert rig.ends[id] == End(300, got, 300 - got, "")


def test_links_take_turns_and_have_names(rig: Rig) -> None:
    second = Rig("s/m/p", rig.waiter)
    reader = Input(rig.waiter, "ordered")
    rig.link(reader, "n/p")
    second.link(reader, "m/p")
    assert reader.link_names == ("n/p", "m/p")
    for _ in range(5):
        rig.publish(b"n")
        second.publish(b"m")
    order = [bag.data for bag in iter(reader.read, None)]
    assert order == [b"n", b"m"] * 5
    rig.publish(b"n")
    second.publish(b"m")
    bag = reader.read(link="m/p")
    assert bag and bag.data == b"m" and reader.read(link="m/p") is None
    bag = reader.read()
    assert bag and bag.data == b"n"
    second.output.close()
    for fd in second.rings:
        os.close(fd)


def test_wait(rig: Rig) -> None:
    reader = Input(rig.waiter)
    rig.link(reader)
    started = time.monotonic()
    rig.waiter.wait(0.05)  # may return early, for the generation
    rig.waiter.wait(0.05)
    rig.waiter.wait(0.05)
    assert time.monotonic() - started >= 0.05 and not reader.has_data()
    rig.publish()
    rig.waiter.wait()
    assert reader.has_data()
    # What is merely unread is no arrival.
    seen = rig.waiter.arrived()
    timer = threading.Timer(0.05, rig.publish)
    timer.start()
    while rig.waiter.arrived() == seen:
        rig.waiter.wait(10, seen=seen)
    timer.join()
    assert rig.waiter.arrived() == seen + 1
    # A wake from another thread.
    assert reader.read() and reader.read() is None
    timer = threading.Timer(0.05, rig.waiter.wake)
    timer.start()
    rig.waiter.wait()
    timer.join()


def test_no_thread_to_serve_links(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    reader = Input(rig.waiter)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.close(reader.add_link(1, "link", theirs))
    with monkeypatch.context() as limit:
        limit.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DataPathError, match=r"cannot add link 1 to s/n/p: .* can't start new thread"):
            rig.output.add_link(1, ours)
    # The reader is told at once, and a later link is served.
    eventually(lambda: rig.waiter.wait(1) is None and reader.take_gone() == [(1, "")])
    rig.link(reader)
    rig.publish(b"served")
    eventually(lambda: (bag := reader.read()) is not None and bag.data == b"served")


def test_producer_gone(rig: Rig) -> None:
    reader = Input(rig.waiter, "ordered")
    id = rig.link(reader)
    rig.publish(b"1")
    rig.publish(b"2")
    rig.output.close()
    eventually(lambda: rig.waiter.wait(1) is None and rig.waiter.links[0].eof)
    assert reader.take_gone() == [(id, "")] and reader.take_gone() == []
    assert [bag.data for bag in iter(reader.read, None)] == [b"1", b"2"]
    assert reader.link_names == ()


def test_refused(rig: Rig) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rig.output.add_link(1, ours)
    send(theirs, {"kind": "hello", "version": 7, "profile": "newest", "formats": []})
    eventually(lambda: 1 in rig.ends)
    assert "version 7" in rig.ends[1].why
    theirs.close()


def test_links_change_while_bags_flow(rig: Rig) -> None:
    reader = Input(rig.waiter, "newest")
    done = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        try:
            for round in range(60):
                id = rig.link(reader, f"link{round}")
                time.sleep(0.001)
                (reader.remove_link if round % 2 else rig.output.remove_link)(id)
                eventually(lambda: rig.output.readers == 0)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()
            rig.waiter.wake()

    thread = threading.Thread(target=churn)
    thread.start()
    value = got = 0
    while not done.is_set():
        value = (value + 1) % 256
        rig.publish(bytes([value]), value)
        bag = reader.read(hold=True)
        if bag:
            got += 1
            assert bag.frame and bag.frame.memory[0] == bag.data[0] == bag.frame.memory[-1]
        reader.take_gone()
    thread.join()
    assert not failures and got


def test_fork(rig: Rig) -> None:
    reader = Input(rig.waiter)
    rig.link(reader)
    rig.publish(picture=1)
    bag = reader.read(hold=True)
    assert bag and bag.frame
    drawing = rig.output.acquire(SMALL)
    drawing.memory[:] = b"\x02" * SMALL.size
    child = os.fork()
    if not child:
        code = 1
        try:
            readable = bag.frame.memory[0] == 1
            drawing.memory[:] = b"\x0f" * SMALL.size
            del bag  # must not empty the parent's cell
            gc.collect()
            inert = reader.read() is None and rig.output.readers == 0
            try:
                rig.output.publish(b"", 0)
                inert = False
            except DataPathError:
                pass
            code = 0 if readable and inert else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert len(cells(reader)) == 1
    assert rig.output.readers == 1
    rig.output.publish(b"", 0, drawing)
    bag = reader.read(hold=True)
    assert bag and bag.frame and bag.frame.memory[0] == 2


BREAKS: dict[str, Callable[[memoryview, int], None]] = {
    "slot": lambda words, entry: words.__setitem__(entry + 1, 1 << 40),
    "length": lambda words, entry: words.__setitem__(entry + 2, MAX_BAG + 1),
    "large bag without slot": lambda words, entry: (
        words.__setitem__(entry + 2, 5000),
        words.__setitem__(entry + 1, 0),
    )[0],
    "pixels": lambda words, entry: words.__setitem__(entry + 5, 1 << 50),
    "planes": lambda words, entry: words.__setitem__(entry + 12, 9),
    "plane": lambda words, entry: words.__setitem__(entry + 13, 1 << 50),
    "unfinished": lambda words, entry: words.__setitem__(entry, 0),
    "newest": lambda words, entry: words.__setitem__(layout.RING_NEWEST, 1 << 62),
}


@pytest.mark.parametrize("what", BREAKS)
def test_broken_producer(rig: Rig, what: str) -> None:
    reader = Input(rig.waiter)
    id = rig.link(reader)
    rig.publish(picture=1)
    generation = rig.output._variants[0].generation  # pyright: ignore[reportPrivateUsage]
    assert generation
    BREAKS[what](generation.words, (generation.entries + layout.ENTRY_SIZE) >> 3)
    assert reader.read(hold=True) is None
    gone = reader.take_gone()
    assert [link.id for link in gone] == [id] and gone[0].why


@pytest.mark.parametrize("nonsense", [b"\xff", b"[]", b"[" * 4000, b"{" * 10])
def test_reader_that_says_nonsense(rig: Rig, nonsense: bytes) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    id = next(IDS)
    rig.output.add_link(id, ours.detach())
    theirs.send(nonsense)
    eventually(lambda: id in rig.ends)
    theirs.close()
    reader = Input(rig.waiter)
    rig.link(reader)  # others still join
    rig.publish(picture=1)
    assert reader.read()


class Texture:
    """What a slot only names."""


@pytest.mark.parametrize("renewals", [1, 2, 5])
def test_pictures_that_slots_name(rig: Rig, renewals: int) -> None:
    rig.output.decide((RGBA, RESIDENT))
    reader = Input(rig.waiter, "ordered", (RESIDENT,))
    rig.link(reader)
    named = Surface(RESIDENT, 32, 32, (), 16)
    made: list[weakref.ref[Texture]] = []

    def publish() -> None:
        slot = rig.output.acquire(named)
        slot.resident = Texture()
        made.append(weakref.ref(slot.resident))
        rig.output.publish(b"", 0, slot)

    def read() -> Frame:
        bag = reader.read(hold=True)
        assert bag and bag.frame
        return bag.frame

    def alive() -> set[int]:
        return {number for number, texture in enumerate(made) if texture() is not None}

    for _ in range(5):
        publish()
    held = [read(), read()]
    for _ in range(renewals):
        rig.output.remove_link(0, retire=True)
        publish()
    before = set(range(len(made) - 1))  # in generations before the last
    assert before <= alive(), "what is held or owed was let go"
    for _ in range(len(made) - len(held)):
        read()
    for _ in range(40):
        publish()
        read()
    assert set(range(5)) & alive() == {0, 1}
    held.pop()
    publish()
    assert set(range(5)) & alive() == {0}
    held.clear()
    publish()
    assert not before & alive()


@pytest.mark.parametrize("nonsense", [1, 1 << 40, (1 << 64) - 1])
def test_broken_reader(rig: Rig, nonsense: int) -> None:
    broken, good = Input(rig.waiter, "ordered"), Input(rig.waiter, "ordered")
    rig.link(broken)
    rig.link(good)
    page = rig.waiter.links[0].page.words
    for at in range(1, 512):
        page[at] = nonsense
    for value in range(100):
        rig.publish(picture=value)
        bag = good.read(hold=True)
        assert bag and bag.frame and bag.frame.memory[5] == value
