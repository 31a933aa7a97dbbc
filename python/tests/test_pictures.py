"""Pictures between nodes, over the real data path."""

from __future__ import annotations

import contextlib
import gc
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import running, write
from tatolab.stream import PixelBuffer, VideoFrame
from tatolab.stream._datapath import Surface
from tatolab.stream._host.links import Links, OwnMemory

NODES = """
    from tatolab.stream import VideoFrame, node, log

    @node(execution="continuous", interval_ms=20)
    class Painter:
        n = 0
        {first_output}
        @node.output()
        def video(self): ...

        def setup(self, ctx):
            self.kept = ctx.gpu_limited_access.acquire_pixel_buffer(64, 48)

        def process(self, ctx):
            self.n = (self.n + 1) % 200
            if {reuse}:
                buffer = self.kept
            else:
                buffer = ctx.gpu_limited_access.acquire_pixel_buffer(64, 48, format="rgba")
            image = buffer.as_numpy()
            image[:] = self.n
            image[0, 0] = (1, 2, 3, 4)
            ctx.outputs.write("video", dict(
                surface_id=buffer.surface_id, width=64, height=48, timestamp_ns=ctx.time, n=self.n))
            try:
                image[:] = 255
                log.error("a published picture was written")
            except ValueError:
                pass

    @node
    class Relay:
        @node.input()
        def video(self): ...
        @node.output()
        def video_again(self): ...
        def process(self, ctx):
            bag = ctx.inputs.read("video")
            if bag is not None:
                ctx.outputs.write("video_again", bag)

    @node
    class Looker:
        @node.input(delivery_profile="ordered")
        def video(self): ...
        def process(self, ctx):
            frame = ctx.inputs.read("video", into=VideoFrame)
            if frame is None:
                return
            with frame.cpu() as image:
                log.info("saw", shape=list(image.shape), first=image[0, 0].tolist(), writeable=image.flags.writeable,
                         least=int(image[1:].min()), most=int(image[1:].max()), surface=frame.surface_id)
            try:
                frame.writable()
            except RuntimeError as error:
                log.info("refused", why=str(error))
"""

STREAM = """
    from tatolab.stream import stream
    from nodes import Looker, Painter, Relay

    @stream
    def direct(b):
        b.connect(b.add(Painter).output("video"), b.add(Looker).input("video"))

    @stream
    def relayed(b):
        relay = b.add(Relay)
        b.connect(b.add(Painter).output("video"), relay.input("video"))
        b.connect(relay.output("video_again"), b.add(Looker).input("video"))
"""


def test_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    memory = OwnMemory("s/n/video#1", Surface.packed(4, 2))
    with pytest.raises(RuntimeError, match=r"PixelBuffer\.as_numpy needs numpy, .*: uv add numpy"):
        PixelBuffer(memory).as_numpy()


@pytest.mark.parametrize("target", ["direct", "relayed"])
@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("outputs", [1, 2])
def test_pictures(tmp_path: Path, target: str, reuse: bool, outputs: int) -> None:
    first = "" if outputs == 1 else "@node.output()\n        def other(self): ..."
    nodes = NODES.replace("{first_output}", first).replace("{reuse}", str(reuse))
    project = write(tmp_path / "p", {"stream.py": STREAM, "nodes.py": nodes})
    with running(project, f"stream.py:{target}") as stream:
        looker = stream.nodes["looker"]
        looker.wait(lambda: len(looker.of("log")) > 20)
        saw = [m["fields"] for m in looker.of("log") if m["message"] == "saw"]
        owner = "direct/painter/video#" if target == "direct" else "relayed/relay/video_again#"
        for picture in saw:
            assert picture["shape"] == [48, 64, 4] and picture["first"] == [1, 2, 3, 4]
            assert picture["least"] == picture["most"], "a torn picture"
            assert not picture["writeable"]
            assert picture["surface"].startswith(owner)
        assert len({p["surface"] for p in saw}) == len(saw)
        refusal = next(m for m in looker.of("log") if m["message"] == "refused")
        assert "acquire_pixel_buffer" in refusal["fields"]["why"]
        for name, node in stream.nodes.items():
            assert node.stop() == 0, name
            assert not node.of("error"), name
            assert "a published picture was written" not in node.logs()


class Channel:
    """Stands where a node's control channel is."""

    def send(self, kind: str, fd: int | None = None, **fields: Any) -> None: ...

    def send_log(self, level: str, message: str, fields: Any, time_ns: int) -> None: ...


class Pair:
    """A node that makes pictures and one that reads them, in this process."""

    def __init__(self, read: bool = True) -> None:
        channel: Any = Channel()
        self.maker = Links(channel, {"stream": "s", "node": "maker", "inputs": [], "outputs": ["video"]})
        ports = [{"port": "video", "profile": "ordered", "links": ["maker/video"]}]
        self.looker = Links(channel, {"stream": "s", "node": "looker", "inputs": ports, "outputs": []})
        self.maker.open()
        self.looker.open()
        if not read:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.maker.add({"direction": "out", "id": 1, "port": "video"}, ours.detach())
        self.looker.add({"direction": "in", "id": 1, "port": "video", "name": "maker/video"}, theirs.detach())
        end = time.monotonic() + 20
        while self.maker.open_outputs["video"].joining:
            assert time.monotonic() < end
            time.sleep(0.001)

    def close(self) -> None:
        self.maker.close()
        self.looker.close()

    def make(self, value: int) -> PixelBuffer:
        buffer = self.maker.pictures.acquire_pixel_buffer(np.int64(64), 48)  # pyright: ignore[reportArgumentType]
        buffer.as_numpy()[:] = value
        return buffer

    def write(self, bag: dict[str, Any], **more: Any) -> None:
        self.maker.outputs.write("video", bag, **more)

    def read(self) -> VideoFrame:
        frame = self.looker.inputs.read("video", into=VideoFrame)
        assert frame is not None
        return frame

    def value(self) -> int:
        with self.read().cpu() as image:
            assert image.min() == image.max()
            return int(image[0, 0, 0])


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def bag_of(buffer: PixelBuffer) -> dict[str, Any]:
    return {"surface_id": buffer.surface_id, "width": buffer.width, "height": buffer.height, "timestamp_ns": 1}


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_picture_is_written_again(pair: Pair) -> None:
    card = pair.make(200)
    pair.write(bag_of(card))
    assert pair.value() == 200
    for value in range(100):
        pair.write(bag_of(pair.make(value)))
        assert pair.value() == value
    pair.write(bag_of(card))
    assert pair.value() == 200
    assert card.as_numpy().min() == card.as_numpy().max() == 200


def test_a_part_that_was_kept_draws_in_no_other_picture(pair: Pair) -> None:
    card = pair.make(5)
    red = card.as_numpy()[..., 0]
    pair.write(bag_of(card))
    assert pair.value() == 5
    del card
    for value in range(100):
        drawn = pair.make(value)
        red[:] = 222
        pair.write(bag_of(drawn))
        red[:] = 223
        assert pair.value() == value


@pytest.mark.parametrize("read", [True, False])
def test_pictures_that_are_not_written_go(read: bool) -> None:
    pair = Pair(read)
    with without_gc():
        gone = [weakref.ref(pair.make(1)) for _ in range(300)]
    assert sum(ref() is not None for ref in gone) < 10
    pair.close()


def test_a_bag_is_enough(pair: Pair) -> None:
    with without_gc():
        for first in range(0, 240, 4):
            bags = [bag_of(pair.make(first + i)) for i in range(4)]
            for i, bag in enumerate(bags):
                pair.write(bag)
                assert pair.value() == first + i
        lost = bag_of(pair.make(1))
        kept = [pair.make(2) for _ in range(10)]
        with pytest.raises(ValueError, match=r"the node has that picture no longer\. Keep what acquire_pixel_buffer"):
            pair.write(lost)
        del kept


def test_names_of_nothing(pair: Pair) -> None:
    pair.write({"surface_id": "mispelt", "width": 1, "height": 1, "timestamp_ns": 1})
    with pytest.raises(RuntimeError, match="'mispelt', names none of its pictures"):
        pair.read().cpu()


def test_timestamps_of_bags(pair: Pair) -> None:
    for given, bag, want in [
        (None, {"timestamp_ns": np.int64(5)}, 5),
        (np.int64(6), {"timestamp_ns": 5}, 6),
        (-1, {}, -1),
    ]:
        pair.write(bag, timestamp_ns=given)
        assert pair.looker.inputs.read_with_timestamp("video")[1] == want
    for now in (True, 1.5, "then", 1 << 63):
        before = time.monotonic_ns()
        pair.write({"timestamp_ns": now})
        assert before <= pair.looker.inputs.read_with_timestamp("video")[1] <= time.monotonic_ns()
    unread = Pair(read=False)
    for wrong in (True, 1.5, "then", 1 << 63):
        for each in (pair, unread):  # a mistake is not one only while somebody looks
            with pytest.raises(TypeError, match="timestamp_ns is nanoseconds, an integer of 64 bits"):
                each.write({}, timestamp_ns=wrong)
    unread.close()


@pytest.mark.parametrize("wrong", [0, -1, True, 1.0, "640", 1 << 20, None])
def test_extents(wrong: Any) -> None:
    pair = Pair(read=False)
    with pytest.raises(ValueError, match="height of a picture must be an integer from 1 to 32768"):
        pair.maker.pictures.acquire_pixel_buffer(640, wrong)
    pair.close()


def test_frames_are_themselves() -> None:
    frame = VideoFrame("s/n/p#1", 1, 1, 1, color_info=[1, 2, 3, True])
    assert len({frame, VideoFrame("s/n/p#1", 1, 1, 1, color_info=[1, 2, 3, True])}) == 2
