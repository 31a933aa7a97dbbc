"""Effects, through real node processes and a real tatolab-gl."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import NodeProcess, Stream, running, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def gl_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tatolab-gl, built for this test."""
    go = shutil.which("go") or "/usr/local/go/bin/go"
    if not os.path.exists(go):
        pytest.fail("these tests build tatolab-gl: install Go (`make deps`)")
    path = tmp_path_factory.mktemp("gl") / "tatolab-gl"
    subprocess.run([go, "build", "-o", path, "./cmd/tatolab-gl"], cwd=ROOT, check=True)
    return path


@pytest.fixture(autouse=True)
def with_gl(gl_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TATOLAB_GL", str(gl_path))


# A source of pictures whose every pixel differs from its neighbours, an effect
# node whose body each test gives, and a sink that says what it sees.
STREAM = """
from tatolab.stream import StreamBuilder, stream
from nodes import Drawing, Sink, Source

@stream
def effects(stream_builder: StreamBuilder) -> None:
    source = stream_builder.add(Source, name="source")
    drawing = stream_builder.add(Drawing, name="drawing")
    sink = stream_builder.add(Sink, name="sink")
    stream_builder.connect(source.output("video"), drawing.input("video"))
    stream_builder.connect(drawing.output("video"), sink.input("video"))
"""

NODES = '''
import os, signal, time
import numpy as np
from tatolab.stream import GlslPixelEffect, VideoFrame, log, node

INVERT = "vec4 effect(vec4 source, ivec2 at) {{ return vec4(1.0 - source.rgb, source.a); }}"
SCALE = "vec4 effect(vec4 source, ivec2 at) {{ return vec4(source.rgb * dials.by, source.a); }}"
ENDLESS = """
vec4 effect(vec4 source, ivec2 at) {{
    float a = source.r + 1.0;
    while (a != 0.0) a = fract(a * 1.1) + 1.0;
    return vec4(a);
}}
"""
WIDTH, HEIGHT = {width}, {height}

def pattern():
    y, x = np.arange(HEIGHT)[:, None], np.arange(WIDTH)[None, :]
    image = np.empty((HEIGHT, WIDTH, 4), "uint8")
    image[:, :, 0], image[:, :, 1], image[:, :, 2], image[:, :, 3] = x % 251, y % 241, (x % 7) * (y % 11), 200
    return image

@node(execution="continuous", interval_ms={interval_ms})
class Source:
    @node.output()
    def video(self): ...

    def setup(self, ctx):
        self.pattern = pattern()

    def process(self, ctx):
        picture = ctx.gpu_limited_access.acquire_pixel_buffer(WIDTH, HEIGHT)
        picture.as_numpy()[:] = self.pattern
        ctx.outputs.write("video", {{
            "surface_id": picture.surface_id, "width": WIDTH, "height": HEIGHT, "timestamp_ns": ctx.time,
        }})

@node
class Drawing:
    @node.input(delivery_profile="newest")
    def video(self): ...

    @node.output()
    def video_out(self): ...

    {body}

@node
class Sink:
    @node.input(delivery_profile="newest")
    def video(self): ...

    def setup(self, ctx):
        self.pattern = pattern().astype("int16")
        self.said = set()

    def process(self, ctx):
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is None or self.pattern.size > 1 << 27:
            return
        with frame.cpu() as image:
            expected = self.pattern.copy()
            expected[:, :, :3] = 255 - expected[:, :, :3]
            for name, value in {{"inverted": expected, "same": self.pattern, "black": expected * 0}}.items():
                if image.shape == value.shape and np.abs(image[:, :, :3].astype("int16") - value[:, :, :3]).max() <= 1:
                    break
            else:
                name = f"something else, {{image.shape}} from {{image[0, 0]}} to {{image[-1, -1]}}"
            age = time.monotonic_ns() - frame.timestamp_ns
        if name not in self.said:
            self.said.add(name)
            log.info(f"sees {{name}}", age_ms=age / 1e6)
'''


def project(folder: Path, body: str, width: int = 321, height: int = 123, interval_ms: int = 20) -> Path:
    body = body.strip("\n").replace("\n", "\n    ")
    nodes = NODES.format(body=body, width=width, height=height, interval_ms=interval_ms)
    stream = STREAM.replace('drawing.output("video")', 'drawing.output("video_out")')
    return write(folder / "project", {"stream.py": stream, "nodes.py": nodes})


ONE = """
def setup(self, ctx):
    self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, INVERT)

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is not None:
        ctx.outputs.write("video_out", self.effect.apply_to_frame(ctx.gpu_limited_access, frame))
"""


@pytest.fixture
def effects(tmp_path: Path) -> Iterator[Any]:
    """Runs the three nodes with a body of the middle one."""
    managers: list[Any] = []

    def start(body: str, **shape: int) -> Stream:
        manager = running(project(tmp_path, body, **shape))
        managers.append(manager)
        return manager.__enter__()

    yield start
    for manager in managers:
        manager.__exit__(None, None, None)


@pytest.fixture
def nodes(effects: Any) -> Any:
    """The same, of which only the nodes matter."""
    return lambda *args, **shape: effects(*args, **shape).nodes


def said(node: NodeProcess, text: str) -> str:
    return node.wait(lambda: next((line for line in node.logs() if text in line), None), f"{text!r} in the log")


def errors(node: NodeProcess) -> list[str]:
    return [message["message"] for message in node.of("error")]


def test_an_effect_changes_every_pixel_and_leaves_nothing(effects: Any) -> None:
    stream = effects(ONE)
    drawing = stream.nodes["drawing"]
    assert said(stream.nodes["sink"], "sees") == "sees inverted"
    # It reads the pictures where they are: in the source's pool.
    maps = Path(f"/proc/{stream.graphics.process.pid}/maps")
    assert "memfd:tatolab-pool" in maps.read_text()
    assert drawing.stop() == 0
    drawing.wait(lambda: "memfd:tatolab-pool" not in maps.read_text(), "its memory to be unmapped")
    assert not errors(drawing)


def test_a_chain_uploads_once_and_reads_back_once(nodes: Any) -> None:
    stream = nodes("""
def setup(self, ctx):
    self.invert = GlslPixelEffect.compile(ctx.gpu_full_access, INVERT)
    self.scale = GlslPixelEffect.compile(ctx.gpu_full_access, effect_glsl=SCALE, dials={"by": "float"})
    self.frames = 0
    self.before = None

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is None:
        return
    gpu = ctx.gpu_limited_access
    once = self.invert.apply_to_frame(gpu, frame)
    again = self.scale.apply_to_frame(gpu, VideoFrame.from_bag(once), dials={"by": 1})
    other = self.scale.apply_to_frame(gpu, frame, dials={"by": 0.5})  # thrown away
    ctx.outputs.write("video_out", again)
    assert again["timestamp_ns"] == frame.timestamp_ns
    statistics = gpu.gl.request("statistics", "count")["statistics"]
    if self.before is None:
        if statistics["readbacks"] == 0:
            return  # nobody reads yet
        self.before = statistics
        assert statistics["draws"] == 3 * statistics["uploads"]
    elif self.frames == 50:
        log.info(f"statistics { {name: value - self.before[name] for name, value in statistics.items()} }")
    self.frames += 1
""")
    assert said(stream["sink"], "sees") == "sees inverted"
    statistics = eval(said(stream["drawing"], "statistics").removeprefix("statistics "))
    assert (statistics["uploads"], statistics["draws"], statistics["readbacks"]) == (50, 150, 50)
    # As many as before: those of the frame, and of the ones before that are kept for a while.
    assert statistics["pictures"] <= 16
    assert not errors(stream["drawing"])


def test_results_can_be_read_and_changed(nodes: Any) -> None:
    stream = nodes("""
def setup(self, ctx):
    self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, INVERT)

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is None:
        return
    gpu = ctx.gpu_limited_access
    bag = self.effect.apply_to_frame(gpu, frame)
    drawn = VideoFrame.from_bag(bag)
    with frame.cpu() as before, drawn.cpu() as after:
        assert (after[:, :, :3] == 255 - before[:, :, :3]).all()
        assert not before.flags.writeable
        try:
            frame.writable()
            assert False
        except RuntimeError as error:
            assert "belongs to the node" in str(error)
    with drawn.writable() as image:
        image[:, :, :3] = 255
    # What was written is what the next effect and the readers see.
    ctx.outputs.write("video_out", self.effect.apply_to_frame(gpu, drawn))
    own = gpu.acquire_pixel_buffer(64, 32)
    own.as_numpy()[:] = 10
    of_own = VideoFrame(own.surface_id, 64, 32, ctx.time)
    image = gpu.resolve_surface(self.effect.apply_to_frame(gpu, of_own)["surface_id"]).as_numpy()
    assert image.shape == (32, 64, 4) and (image[:, :, :3] == 245).all()
    log.info("all of it holds")
""")
    said(stream["drawing"], "all of it holds")
    assert said(stream["sink"], "sees") == "sees black"
    assert not errors(stream["drawing"])


def test_mistakes_are_refused_by_name(nodes: Any) -> None:
    stream = nodes('''
def refused(self, function, *words):
    try:
        function()
    except (ValueError, TypeError) as error:
        missing = [word for word in words if word not in str(error)]
        if missing:
            log.error(f"{missing} not in: {error}")
    else:
        log.error(f"not refused: {words}")

def setup(self, ctx):
    gpu = ctx.gpu_full_access
    compile = lambda dials, glsl=INVERT: lambda: GlslPixelEffect.compile(gpu, glsl, dials)
    self.refused(compile({"tint": "vec3"}), "'tint'", "vec3", "vec4")
    self.refused(compile({"warp": "mat4"}), "'warp'", "float, int, vec2, vec4")
    for name in ("streamlib_extent", "gl_x", "two__words", "2fast", "a-b"):
        self.refused(compile({name: "float"}), repr(name))
    many = {f"dial_{i}": "float" for i in range(31)}
    GlslPixelEffect.compile(gpu, INVERT, many)
    self.refused(compile({**many, "one_more": "float"}), "'one_more'", "132", "128")
    wrong = "vec4 effect(vec4 s, ivec2 at) {\\n  return 1 / nothing;\\n}"
    self.refused(compile(None, wrong), "line 2", "return 1 / nothing;")
    self.refused(compile(None, "// " + "x" * 200000), "bytes")
    self.effect = GlslPixelEffect.compile(gpu, """
        vec4 effect(vec4 source, ivec2 at) {
            return vec4(dials.a, float(dials.b), dials.c.x, dials.d.x);
        }""", {"a": "float", "b": "int", "c": "vec2", "d": "vec4"})
    self.done = False

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is None or self.done:
        return
    self.done = True
    gpu = ctx.gpu_limited_access
    good = {"a": 1, "b": 2, "c": (0.5, 0.5), "d": np.array([1, 2, 3, 4])}
    apply = lambda **changes: lambda: self.effect.apply_to_frame(gpu, frame, {**good, **changes})
    apply()()
    self.refused(apply(e=1), "'e'", "a, b, c, d")
    self.refused(lambda: self.effect.apply_to_frame(gpu, frame, {"a": 1}), "'b'")
    self.refused(lambda: self.effect.apply_to_frame(gpu, frame, 7), "7")
    self.refused(apply(a="x"), "'a'", "'x'")
    self.refused(apply(a=float("nan")), "'a'", "nan")
    self.refused(apply(b=1.5), "'b'", "1.5")
    self.refused(apply(b=2**31), "'b'")
    self.refused(apply(c=(1, 2, 3)), "'c'", "2 finite")
    self.refused(apply(d=4), "'d'")
    gone = VideoFrame("other/camera/video#12", 10, 10, 1)
    self.refused(lambda: self.effect.apply_to_frame(gpu, gone, good), "other/camera/video#12")
    log.info("all refused")
''')
    said(stream["drawing"], "all refused")
    assert stream["drawing"].logs() == ["all refused"]
    assert not errors(stream["drawing"])


def test_a_mistake_in_setup_fails_the_node_with_its_line(tmp_path: Path) -> None:
    body = ONE.replace("INVERT)", '"vec4 effect(vec4 source, ivec2 at) {\\n    return sourse;\\n}")')
    stream = Stream(project(tmp_path, body))
    try:
        node = stream.spawn("drawing")
        node.expect("loaded")
        node.send("start")
        message = node.expect("failed", phase="setup")["message"]
        assert "line 2" in message and "return sourse;" in message and "sourse' undeclared" in message, message
    finally:
        stream.close()


def test_what_the_runtime_answers_instead_of_a_connection_is_the_error(tmp_path: Path) -> None:
    project_ = project(tmp_path, ONE)
    stream = Stream(project_)
    node = NodeProcess(stream.spec("drawing"))
    try:
        node.expect("loaded")
        node.send("start")
        node.expect("graphics")
        node.send("graphics", message="install the package tatolab-gui")
        assert "install the package tatolab-gui" in node.expect("failed", phase="setup")["message"]
    finally:
        node.close()


def test_the_death_of_tatolab_gl_costs_pictures_and_is_no_error(effects: Any) -> None:
    stream = effects(ONE)
    drawing, sink = stream.nodes["drawing"], stream.nodes["sink"]
    said(sink, "sees inverted")
    for round_ in range(2, 5):
        stream.graphics.process.kill()
        drawing.wait(lambda number=round_: stream.graphics.processes == number, "another tatolab-gl")
    # It draws with the last one.
    process = stream.graphics.process
    drawing.wait(lambda: "memfd:tatolab-pool" in Path(f"/proc/{process.pid}/maps").read_text(), "a draw")
    assert not errors(drawing)
    assert set(sink.logs()) == {"sees inverted"}


def test_tatolab_gl_that_stands_still_is_told_of_and_replaced(effects: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = ONE.replace("def setup", "import tatolab.stream._gl as gl\ngl.ANSWER_LIMIT = 1\n\ndef setup")
    stream = effects(body)
    said(stream.nodes["sink"], "sees inverted")
    first = stream.graphics.process
    os.kill(first.pid, signal.SIGSTOP)
    stream.nodes["drawing"].wait(lambda: stream.graphics.processes == 2, "another tatolab-gl")
    assert stream.graphics.late == [1]
    assert "tatolab-gl did not answer for 1 s" in errors(stream.nodes["drawing"])[0]
    assert first.poll() == -signal.SIGKILL


def test_a_draw_that_never_ends_is_ended_and_hurts_no_other_effect(nodes: Any) -> None:
    # A shader on Mesa's software renderer leaves a loop after 65,535 rounds:
    # on a large picture that is far more than 2 s.
    stream = nodes(
        """
def setup(self, ctx):
    self.good = GlslPixelEffect.compile(ctx.gpu_full_access, INVERT)
    self.bad = GlslPixelEffect.compile(ctx.gpu_full_access, ENDLESS)
    self.failed = 0

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is None:
        return
    gpu = ctx.gpu_limited_access
    if self.failed < 2:
        try:
            began = time.monotonic()
            ctx.outputs.write("video_out", self.bad.apply_to_frame(gpu, frame))
        except RuntimeError as error:
            self.failed += 1
            log.info(f"ended after {time.monotonic() - began:.1f} s: {error}")
    else:
        ctx.outputs.write("video_out", self.good.apply_to_frame(gpu, frame))
""",
        width=2048,
        height=2048,
        interval_ms=100,
    )
    first = said(stream["drawing"], "ended after")
    assert "the effect 'vec4 effect(vec4 source, ivec2 at) {'" in first, first
    assert "did not finish within 2.25 s" in first
    said(stream["drawing"], "tried again in")  # and so not for now
    said(stream["sink"], "sees inverted")


def test_stop_works_during_a_draw_that_never_ends(nodes: Any) -> None:
    stream = nodes(ONE.replace("INVERT", "ENDLESS"), width=2048, height=2048, interval_ms=100)
    assert stream["drawing"].stop() == 0


@pytest.mark.parametrize(("width", "height"), [(1, 1), (4096, 4096)])
def test_extreme_sizes(nodes: Any, width: int, height: int) -> None:
    body = """
def setup(self, ctx):
    self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, INVERT)
    self.done = False

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is None or self.done:
        return
    self.done = True
    with VideoFrame.from_bag(self.effect.apply_to_frame(ctx.gpu_limited_access, frame)).cpu() as image:
        corner = image[-1, -1].tolist()
    with frame.cpu() as image:
        before = image[-1, -1].tolist()
    assert corner == [255 - before[0], 255 - before[1], 255 - before[2], before[3]], (before, corner)
    log.info(f"corner {corner}")
"""
    stream = nodes(body, width=width, height=height, interval_ms=3000)
    said(stream["drawing"], "corner")
    assert not errors(stream["drawing"])


def test_a_forked_child_draws_nothing_and_costs_its_parent_nothing(effects: Any) -> None:
    stream = effects("""
def setup(self, ctx):
    self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, INVERT)
    self.forked = False

def process(self, ctx):
    frame = ctx.inputs.read("video", into=VideoFrame)
    if frame is None:
        return
    if not self.forked:
        self.forked = True
        if (child := os.fork()) == 0:
            try:
                self.effect.apply_to_frame(ctx.gpu_limited_access, frame)
            except RuntimeError as error:
                os._exit(0 if "it forked" in str(error) else 1)
            os._exit(2)
        log.info(f"the child ends with {os.waitpid(child, 0)[1]}")
    ctx.outputs.write("video_out", self.effect.apply_to_frame(ctx.gpu_limited_access, frame))
""")
    said(stream.nodes["drawing"], "the child ends with 0")
    said(stream.nodes["sink"], "sees inverted")
    assert stream.graphics.processes == 1
    assert not errors(stream.nodes["drawing"])
