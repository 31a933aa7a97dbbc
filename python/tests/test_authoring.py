"""Building streams and declaring nodes: what works, and every refusal with its fix."""

from __future__ import annotations

import dataclasses
import enum
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import (  # noqa: UP035
    Any,
    Dict,
    List,
    Literal,
    Tuple,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)

import pytest

import tatolab.stream as ts
from harness import SOURCE
from tatolab.stream import (
    CameraSource,
    DisplayWindow,
    Exposure,
    Mp4Sink,
    StreamBuilder,
    VideoFileSource,
    VirtualCameraSink,
    compile_stream_to_graph,
    is_stream_function,
    node,
    stream,
)
from tatolab.stream._builtins import BUILTINS
from tatolab.stream._config import MAX_DEPTH, ConfigError, build, config_class, schema
from tatolab.stream._limits import Between, limits
from tatolab.stream._names import cast
from tatolab.stream._node import declaration_of

VECTORS = Path(__file__).resolve().parents[2] / "service/name/testdata/cast.json"


class Mode(enum.Enum):
    FAST = "fast"
    GOOD = "good"


@dataclasses.dataclass
class Zone:
    name: str
    corners: list[tuple[int, int]]


@dataclasses.dataclass
class DetectorConfig:
    sensitivity: float = 0.02
    mode: Mode = Mode.FAST
    zones: list[Zone] = dataclasses.field(default_factory=list)
    limit: int | None = None
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if not 0 < self.sensitivity < 1:
            raise ValueError(f"sensitivity must be between 0 and 1, not {self.sensitivity}")


class Options(TypedDict, total=False):
    level: int


@node
class Detector:
    """Finds things.

    At length.
    """

    @node.input(delivery_profile="newest", description="what to look at")
    def video(self) -> None: ...

    @node.output
    def motion(self) -> None: ...

    @node.output("Other Port")
    def other(self) -> None: ...

    def __init__(self, config: DetectorConfig) -> None:
        self.config = config

    def process(self, ctx: Any) -> None: ...


@node
class Plain:
    @node.input()
    def bags(self) -> None: ...

    def process(self, ctx: Any) -> None: ...


@node(execution="manual", description="typed")
class Typed:
    def __init__(self, config: Options) -> None: ...

    def start(self, ctx: Any) -> None: ...


class Undecorated(Detector):
    pass


def make_local_class() -> type:
    @node
    class Local:
        @node.input()
        def x(self) -> None: ...

        def process(self, ctx: Any) -> None: ...

    return Local


@stream
def watcher(b: StreamBuilder) -> None:
    """Watches."""
    camera = b.add(CameraSource, name="Camera", config={"fps": 30})
    first = b.add(Detector, config={"sensitivity": 0.5})
    second = b.add(Detector)
    b.connect(camera.output("video"), first.input("VIDEO"))
    b.connect(b.remote_output("rig/main/cam/Vidéo"), second.input("video"))
    b.connect(b.remote_output("main/cam/video"), second.input("video"))
    b.expose(first.output("motion"))
    b.expose(camera.output("video"), Exposure.PUBLIC)


def test_graph() -> None:
    here = Detector.__module__
    assert compile_stream_to_graph(watcher) == {
        "stream": "watcher",
        "nodes": [
            {"name": "camera", "type": "tatolab.stream:CameraSource", "config": {"fps": 30}},
            {"name": "detector", "type": f"{here}:Detector", "config": {"sensitivity": 0.5}},
            {"name": "detector-2", "type": f"{here}:Detector", "config": {}},
        ],
        "links": [
            {"source": {"node": "camera", "port": "video"}, "target": {"node": "detector", "port": "video"}},
            {
                "source": {"machine": "rig", "stream": "main", "node": "cam", "port": "video"},
                "target": {"node": "detector-2", "port": "video"},
            },
            {
                "source": {"stream": "main", "node": "cam", "port": "video"},
                "target": {"node": "detector-2", "port": "video"},
            },
        ],
        "exposed": [
            {"node": "detector", "port": "motion", "level": "private"},
            {"node": "camera", "port": "video", "level": "public"},
        ],
    }
    assert compile_stream_to_graph(watcher, name="Ein Näme")["stream"] == "ein-name"
    assert is_stream_function(watcher) and not is_stream_function(make_local_class) and not is_stream_function(3)


def test_names_are_cast_as_in_the_runtime() -> None:
    vectors = json.loads(VECTORS.read_text())
    for raw, want in vectors["cast"]:
        assert cast(raw) == want
        assert cast(want) == want
    for raw in vectors["refused"]:
        with pytest.raises(ValueError, match="needs a letter or a digit"):
            cast(raw)


def test_a_defaulted_name_that_is_taken_gets_a_number() -> None:
    b = StreamBuilder("s")
    cls = type("X" * 70, (), dict(vars(Plain)))
    names = [b._free_name("plain")]  # pyright: ignore[reportPrivateUsage]
    del cls
    b.add(Plain, name="plain")
    names.append(b.add(Plain).name)
    names.append(b.add(Plain).name)
    assert names == ["plain", "plain-2", "plain-3"]
    b.add(Plain, name="y" * 63)
    assert b._free_name("y" * 63) == "y" * 61 + "-2"  # pyright: ignore[reportPrivateUsage]


def test_declaration() -> None:
    declared = declaration_of(Detector)
    assert declared is not None
    assert declared.description == "Finds things." and declared.mode == "reactive"
    assert list(declared.inputs) == ["video"] and declared.inputs["video"].description == "what to look at"
    assert list(declared.outputs) == ["motion", "other-port"]
    assert declaration_of(Undecorated) is None
    typed = declaration_of(Typed)
    assert typed is not None and typed.description == "typed" and typed.mode == "manual"
    assert Detector(config=DetectorConfig()).motion() is None, "a port method stays a method"


def test_ports_are_inherited() -> None:
    @node
    class Child(Detector):
        @node.input(delivery_profile="ordered")
        def sound(self) -> None: ...

        other = None  # type: ignore[assignment]

    declared = declaration_of(Child)
    assert declared is not None
    assert list(declared.inputs) == ["video", "sound"] and list(declared.outputs) == ["motion"]


def test_schema() -> None:
    declared = declaration_of(Detector)
    assert declared is not None
    found = schema(declared)
    assert found["$schema"].endswith("2020-12/schema") and found["additionalProperties"] is False
    properties = found["properties"]
    assert properties["sensitivity"] == {"type": "number", "default": 0.02}
    assert properties["mode"] == {"enum": ["fast", "good"]}
    assert properties["limit"] == {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}
    assert properties["zones"]["items"]["required"] == ["name", "corners"]
    assert properties["kind"] == {"enum": ["a", "b"], "default": "a"}
    json.dumps(found, allow_nan=False)
    mp4 = declaration_of(Mp4Sink)
    assert mp4 is not None and schema(mp4)["required"] == ["path"]


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = {"x": value}
    return value


@pytest.mark.parametrize(
    ("config", "kind", "texts"),
    [
        (3, TypeError, ["must be a mapping", "int"]),
        ([], TypeError, ["must be a mapping", "list"]),
        ({"sensitivty": 1}, ValueError, ["['sensitivty']", "no such key", '"sensitivity"']),
        ({"sensitivity": "x"}, ValueError, ["['sensitivity'] is 'x'", "a number"]),
        ({"sensitivity": True}, ValueError, ["['sensitivity'] is True", "a number"]),
        ({"sensitivity": 2}, ValueError, ["between 0 and 1, not 2"]),
        ({"sensitivity": float("nan")}, ValueError, ["['sensitivity'] is nan", "JSON"]),
        ({"mode": "slow"}, ValueError, ["['mode'] is 'slow'", "'fast', 'good'"]),
        ({"kind": "c"}, ValueError, ["['kind'] is 'c'", "'a' or 'b'"]),
        ({"limit": 1.5}, ValueError, ["['limit'] is 1.5", "an integer"]),
        ({"limit": 2**64}, ValueError, ["['limit'] is 18446744073709551616", "64 bits"]),
        ({"zones": [{"name": "x"}]}, ValueError, ["['zones'][0] lacks", '"corners"']),
        ({"zones": [{"name": "x", "corners": [[1, "y"]]}]}, ValueError, ["['zones'][0]['corners'][0][1] is 'y'"]),
        ({"zones": [{"name": "x", "corners": [[1]]}]}, ValueError, ["['corners'][0] is [1]", "a list of 2"]),
        ({1: 2}, TypeError, ["[1]", "keys are strings"]),
        ({b"k": 2}, TypeError, ["[b'k']", "keys are strings"]),
        ({"zones": [{"name": object()}]}, TypeError, ["['zones'][0]['name'] is an object"]),
        ({"zones": {1, 2}}, TypeError, ["['zones'] is a set"]),
        ({"limit": b"x"}, TypeError, ["['limit'] is a bytes"]),
        (cyclic(), ValueError, ["contains itself"]),
        ({"zones": deep(MAX_DEPTH + 5)}, ValueError, ["nested more than"]),
    ],
)
def test_config_refusals(config: Any, kind: type[Exception], texts: list[str]) -> None:
    with pytest.raises(kind) as caught:
        StreamBuilder("s").add(Detector, name="eye", config=config)
    for text in ['config of node "eye"', *texts]:
        assert text in str(caught.value)


def add(*args: Any, **kwargs: Any) -> Callable[[StreamBuilder], Any]:
    return lambda b: b.add(*args, **kwargs)


def twice(call: Callable[[StreamBuilder], Any]) -> Callable[[StreamBuilder], Any]:
    def both(b: StreamBuilder) -> None:
        call(b)
        call(b)

    return both


def connected_twice(b: StreamBuilder) -> None:
    source, target = b.add(CameraSource).output("video"), b.add(Plain).input("bags")
    b.connect(source, target)
    b.connect(source, target)


def exposed_twice(b: StreamBuilder) -> None:
    source = b.add(CameraSource).output("video")
    b.expose(source)
    b.expose(source)


@pytest.mark.parametrize(
    ("call", "kind", "texts"),
    [
        (add(Detector(DetectorConfig())), TypeError, ["takes the class Detector, not an instance"]),
        (add("Detector"), TypeError, ["takes a node class", "'Detector'"]),
        (add(int), TypeError, ["int is no node class", "@node"]),
        (add(Undecorated), TypeError, ["inherits from the node Detector but is not one itself", "@node"]),
        (add(make_local_class()), TypeError, ["inside a function", "top of its module"]),
        (add(Plain, name=""), ValueError, ["no usable name of a node"]),
        (add(Plain, name=3), TypeError, ["name of a node must be a string, not int"]),
        (add(Plain, config={"a": 1}), ValueError, ['"a"', "Plain takes no config"]),
        (twice(add(Plain, name="one")), ValueError, ['already has a node "one" (Plain)', "another name"]),
        (add(Typed, config={"level": "x"}), ValueError, ["['level'] is 'x'", "an integer"]),
        (add(Typed, config={"lvel": 1}), ValueError, ["['lvel']", '"level"']),
        (add(DisplayWindow, config={"scaling": "zoom"}), ValueError, ["'fit' or 'fill' or 'stretch'"]),
        (add(DisplayWindow, config={"width": "wide"}), ValueError, ["['width'] is 'wide'", "an integer"]),
        (add(CameraSource, config={"device": "/dev/video0"}), ValueError, ["['device']", '"device_id"']),
        (add(Mp4Sink), ValueError, ["lacks", '"path"']),
        (add(Mp4Sink, config={"path": ""}), ValueError, ["['path'] is '', not a path"]),
        (add(VideoFileSource, config={"path": "a\0b"}), ValueError, ["['path'] is 'a\\x00b', not a path"]),
        (add(VirtualCameraSink, config={"device_id": " "}), ValueError, ["['device_id'] is ' ', not a path or"]),
        (add(CameraSource, config={"device_id": ""}), ValueError, ["['device_id'] is '', not a path or"]),
        (add(CameraSource, config={"fps": 0}), ValueError, ["['fps'] is 0, not between 0.001 and 1000"]),
        (lambda b: b.add(Detector).output("motoin"), ValueError, ['no output "motoin"', '"motion", "other-port"']),
        (lambda b: b.add(Detector).input("motion"), ValueError, ['no input "motion"', '.output("motion")']),
        (lambda b: b.add(CameraSource).input("x"), ValueError, ['no input "x"', "its inputs: none"]),
        (
            lambda b: b.connect(b.add(Plain).input("bags"), None),
            TypeError,
            ["first an output", 'the input "plain/bags"'],
        ),
        (lambda b: b.connect(b.add(Plain), None), TypeError, ["first an output", "without a port"]),
        (
            lambda b: b.connect(b.add(CameraSource).output("video"), b.add(CameraSource).output("video")),
            TypeError,
            ["second an input", 'the output "camerasource-2/video"'],
        ),
        (
            lambda b: b.connect(StreamBuilder("other").add(CameraSource).output("video"), b.add(Plain).input("bags")),
            ValueError,
            ['stream "s" has no node "camerasource"', '"plain"'],
        ),
        (
            connected_twice,
            ValueError,
            ["camerasource/video is already connected to plain/bags"],
        ),
        (
            exposed_twice,
            ValueError,
            ["camerasource/video is already exposed as private"],
        ),
        (lambda b: b.expose(b.add(CameraSource).output("video"), "public"), TypeError, ["Exposure.PRIVATE or"]),
        (lambda b: b.expose(b.remote_output("a/b/c")), TypeError, ["an output of this stream"]),
        (lambda b: b.remote_output("a/b"), ValueError, ["'a/b'", "2 parts", "stream/node/port"]),
        (lambda b: b.remote_output("a/b/c/d/e"), ValueError, ["5 parts"]),
        (lambda b: b.remote_output("a//c"), ValueError, ["'a//c'", "needs a letter"]),
        (lambda b: b.remote_output(3), TypeError, ["an address", "3"]),
    ],
)
def test_builder_refusals(call: Callable[[Any], Any], kind: type[Exception], texts: list[str]) -> None:
    with pytest.raises(kind) as caught:
        call(StreamBuilder("s"))
    for text in texts:
        assert text in str(caught.value)


async def coroutine(b: StreamBuilder) -> None: ...


def generator(b: StreamBuilder) -> Any:
    yield


def nothing() -> None: ...


def two(a: Any, b: Any) -> None: ...


class Holder:
    def method(self, b: StreamBuilder) -> None: ...


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: stream(), "takes no arguments"),  # type: ignore[call-arg]
        (lambda: stream("name"), "takes no arguments"),  # type: ignore[arg-type]
        (lambda: stream(name="x"), "takes no arguments"),  # type: ignore[call-arg]
        (lambda: stream(lambda b: None), "lambda"),
        (lambda: stream(coroutine), "async"),  # type: ignore[type-var]
        (lambda: stream(generator), "generator"),
        (lambda: stream(nothing), "takes ()"),  # type: ignore[type-var]
        (lambda: stream(two), "takes (a: 'Any', b: 'Any')"),  # type: ignore[type-var]
        (lambda: stream(Holder.method), "member of a class"),  # type: ignore[type-var]
        (lambda: stream(staticmethod(nothing)), "member of a class"),  # type: ignore[type-var]
        (lambda: stream(classmethod(two)), "member of a class"),  # type: ignore[type-var]
        (lambda: stream(Holder), "belongs on a function"),  # type: ignore[type-var]
    ],
)
def test_stream_refusals(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert text in str(caught.value) and "write @stream" in str(caught.value)


def test_a_nested_stream_is_refused() -> None:
    with pytest.raises(TypeError, match="defined inside another function: write @stream"):

        @stream
        def inner(b: StreamBuilder) -> None: ...


def declare(body: dict[str, Any], **options: Any) -> Callable[[], Any]:
    return lambda: (node(**options) if options else node)(type("Broken", (), body))


def method(*_: Any) -> None: ...


def port(name: str, out: bool = False) -> Any:
    return (node.output(name) if out else node.input(name))(method)


async def async_process(self: Any, ctx: Any) -> None: ...


def init(source: str) -> Any:
    space: dict[str, Any] = {"Any": Any, "DetectorConfig": DetectorConfig}
    exec(f"def __init__(self, {source}): ...", space)
    return space["__init__"]


IN = {"x": port("x"), "process": method}


@pytest.mark.parametrize(
    ("call", "texts"),
    [
        (lambda: node(3), ["takes no positional argument", "3"]),
        (lambda: node()(3), ["belongs on a class"]),
        (declare({"process": method}), ["Broken has no input", 'execution="continuous"']),
        (declare({"process": method}, execution="reactive"), ["reactive and has no input"]),
        (declare(IN, execution="sometimes"), ['"reactive", "continuous", "manual"', "'sometimes'"]),
        (declare(IN, interval_ms=5), ["interval_ms", "this node is reactive"]),
        (declare(IN, execution="continuous", interval_ms=-1), ["interval_ms -1"]),
        (declare(IN, execution="continuous", interval_ms="5"), ["must be a number, not str"]),
        (declare(IN, scheduling="fast"), ["'fast'", '"realtime", "high", "normal"']),
        (declare({"x": port("x")}), ["has no process()", "def process(self, ctx)"]),
        (declare({}, execution="manual"), ["has no start()", "def start(self, ctx)"]),
        (declare({**IN, "process": async_process}), ["Broken.process is async"]),
        (
            declare({**IN, "setup": lambda self: None}),
            ["Broken.setup does not take the context", "def setup(self, ctx)"],
        ),  # type: ignore[misc]
        (declare({**IN, "process": lambda self, a, b: None}), ["Broken.process does not take the context"]),  # type: ignore[misc]
        (declare({**IN, "y": port("X")}), ["two inputs named 'x'", "method y"]),
        (declare({**IN, "__init__": init("a")}), ["takes (a)", "config: MyConfig"]),
        (declare({**IN, "__init__": init("config, b")}), ["takes (config, b)"]),
        (declare({**IN, "__init__": init("*args")}), ["takes (*args)"]),
        (declare({**IN, "__init__": init("config")}), ["no annotation"]),
        (lambda: node.input(delivery_profile="sometimes"), ["'sometimes'", '"newest", "ordered"']),
        (lambda: node.input(audio_window=3), ["audio is out of scope"]),
        (lambda: node.input(nme="x"), ["takes no nme"]),
        (lambda: node.input(description=3), ["must be a string"]),
        (lambda: node.output()(3), ["belongs on a method"]),
    ],
)
def test_node_refusals(call: Callable[[], Any], texts: list[str]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        call()
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("config: Any", ["annotated with", "Any", "a dataclass, a TypedDict"]),
        ("config: dict", ["annotated with dict"]),
        ("config: int", ["annotated with int"]),
        ("config: 'Missing'", ["Missing", "import it outside of"]),
    ],
)
def test_config_annotations(source: str, texts: list[str]) -> None:
    from tatolab.stream._config import config_class

    cls = node(type("Broken", (), {**IN, "__init__": init(source)}))
    declared = declaration_of(cls)
    assert declared is not None
    with pytest.raises(TypeError) as caught:
        config_class(declared)
    for text in texts:
        assert text in str(caught.value)


@dataclasses.dataclass
class Loose:
    """Written as people write who never heard of generics."""

    some: List = dataclasses.field(default_factory=list)  # noqa: UP006  # pyright: ignore
    pair: Tuple = ()  # noqa: UP006  # pyright: ignore
    none: tuple[()] = ()
    names: Dict = dataclasses.field(default_factory=dict)  # noqa: UP006  # pyright: ignore


def test_bare_generics() -> None:
    value = {"some": [1, "x"], "pair": [1, None], "names": {"a": 1}}
    assert build(value, Loose, "config", closed=True) == Loose([1, "x"], (1, None), (), {"a": 1})
    for wrong in ({"some": 3}, {"names": []}, {"none": [1]}):
        with pytest.raises(ConfigError):
            build(wrong, Loose, "config", closed=True)

    @node
    class Takes:
        @node.input()
        def bags(self) -> None: ...

        def __init__(self, config: Loose) -> None: ...

        def process(self, ctx: Any) -> None: ...

    declared = declaration_of(Takes)
    assert declared
    properties = schema(declared)["properties"]
    assert (properties["some"]["type"], properties["names"]["type"]) == ("array", "object")


def limited() -> list[Any]:
    """Every range of every built-in node: class, key, whether it is of the values of a dict, range."""
    found: list[Any] = []
    for cls in BUILTINS:
        for key, hint in get_type_hints(config_class(declaration_of(cls)), include_extras=True).items():
            values = get_origin(hint) is dict
            if values:
                hint = get_args(hint)[1]
            found += [(cls, key, values, limit) for limit in limits(get_args(hint)[1:]) if isinstance(limit, Between)]
    return found


def test_ranges_of_builtin_nodes() -> None:
    """Each end is taken, what is beyond it refused by name with the range; and the documentation has it."""
    documented = (Path(__file__).parents[2] / "docs/python.md").read_text()
    for cls, key, values, limit in limited():
        row = next(line for line in documented.splitlines() if line.startswith(f"| `{cls.__name__}` |"))
        assert f"`{key}`: {limit.least} to {limit.most}" in row
        for value, good in (
            (limit.least, True),
            (limit.most, True),
            (limit.least - 1, False),
            (limit.most + 1, False),
        ):
            call = add(cls, name="n", config={key: {"x": value} if values else value})
            if good:
                call(StreamBuilder("s"))
                continue
            place = f"['{key}']['x']" if values else f"['{key}']"
            with pytest.raises(ValueError) as caught:
                call(StreamBuilder("s"))
            assert str(caught.value) == (
                f'config of node "n"{place} is {value}, not between {limit.least} and {limit.most}'
            )


def test_numbers_of_builtin_nodes_have_ranges() -> None:
    """No number of a configuration takes just any value."""
    ranges = {(cls, key) for cls, key, _, _ in limited()}
    for cls in BUILTINS:
        for key, hint in get_type_hints(config_class(declaration_of(cls))).items():
            if hint in (int, float) or get_origin(hint) is dict:
                assert (cls, key) in ranges


def test_pydantic_config() -> None:
    pydantic = pytest.importorskip("pydantic")
    model = pydantic.create_model("Model", level=(int, ...), inner=(dict[str, int], {}))
    cls = node(type("Modelled", (), {**IN, "__init__": init("config: DetectorConfig")}))
    cls.__init__.__annotations__["config"] = model
    cls.__qualname__, cls.__module__ = "Modelled", __name__
    globals()["Modelled"] = cls
    b = StreamBuilder("s")
    b.add(cls, config={"level": 3})
    with pytest.raises(ValueError, match=r"config of node \"m\"\['inner'\]\['a'\]: .*integer"):
        b.add(cls, name="m", config={"level": 3, "inner": {"a": "x"}})
    declared = declaration_of(cls)
    assert declared is not None and schema(declared)["required"] == ["level"]


@pytest.mark.parametrize("name", ["MicrophoneSource", "H264Encoder", "ModelInputTensorKernel", "graph_generator"])
def test_what_the_public_package_has_and_this_one_has_not(name: str) -> None:
    with pytest.raises(ImportError, match=f"tatolab.stream has no {name}: "):
        exec(f"from tatolab.stream import {name}")
    with pytest.raises(AttributeError):
        ts.nonsense  # type: ignore[attr-defined]  # pyright: ignore


def test_without_a_runtime() -> None:
    with pytest.raises(RuntimeError, match=r"log\.info needs a running node"):
        ts.log.info("x")
    with pytest.raises(RuntimeError, match="CameraSource runs inside the runtime"):
        CameraSource({})
    frame = ts.VideoFrame.from_bag({"surface_id": "a", "width": 2, "height": 1, "timestamp_ns": 3, "n": 4})
    assert (frame.width, frame.fps) == (2, None)
    with pytest.raises(RuntimeError, match=r"VideoFrame\.cpu needs the picture"):
        frame.cpu()


@pytest.mark.parametrize(
    ("bag", "text"),
    [
        ({}, "lacks 'surface_id'; it has no keys"),
        ({"surface_id": 3, "width": 2, "height": 1, "timestamp_ns": 3}, "'surface_id' of a picture's bag is 3"),
        ({"surface_id": "a", "width": "2", "height": 1, "timestamp_ns": 3}, "'width' of a picture's bag is '2'"),
        ({"surface_id": "a", "width": 2, "height": 0, "timestamp_ns": 3}, "'height' of a picture's bag is 0"),
    ],
)
def test_no_video_frame(bag: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("(", r"\(")):
        ts.VideoFrame.from_bag(bag)


def test_importing_costs_little() -> None:
    """What every node process pays: neither numpy nor msgpack nor asyncio and the like."""
    code = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); before = set(sys.modules)\n"
        "import tatolab.stream, tatolab.stream._host.main\n"
        "print(sorted(set(sys.modules) - before))"
    )
    loaded = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("numpy", "msgpack", "asyncio", "pathlib", "multiprocessing", "tempfile", "urllib", "logging"):
        assert f"'{heavy}'" not in loaded, heavy


def test_timer() -> None:
    import threading

    rung = threading.Semaphore(0)
    with ts.start_monotonic_timer(2_000_000, rung.release):
        for _ in range(5):
            assert rung.acquire(timeout=10)
    with pytest.raises(ValueError, match="above 0 ns"):
        ts.start_monotonic_timer(0, rung.release)
