"""Pictures between nodes, over the real data path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness import running, write
from tatolab.stream import PixelBuffer
from tatolab.stream._datapath import Surface
from tatolab.stream._host.links import OwnMemory

pytest.importorskip("numpy")

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
