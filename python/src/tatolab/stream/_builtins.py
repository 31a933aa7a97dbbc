"""The node classes the runtime itself provides.

They have no Python behind them: the runtime runs each in a helper process.
These classes are what a stream function names, and say which ports and which
configuration there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict

from ._limits import Between, Text
from ._node import DeliveryProfile, InputPort, NodeDeclaration, OutputPort

TYPE_PREFIX = "tatolab.stream"

# The helper processes are in Go and check the same: their tests compare the two.
_INT32 = 2**31 - 1
_FPS = Between(0.001, 1000)


class CameraSourceConfig(TypedDict, total=False):
    """Configuration of `CameraSource`."""

    device_id: Annotated[str, Text("a path or the name of a camera")]
    """Path, name below `/dev/v4l/by-id`, or card name; absent: the first capture device."""
    max_width: Annotated[int, Between(1, _INT32)]
    """Largest width in pixels; 1920 where absent."""
    max_height: Annotated[int, Between(1, _INT32)]
    """Largest height in pixels; 1080 where absent."""
    fps: Annotated[float, _FPS]
    """Frames per second to ask the camera for."""
    controls: dict[str, Annotated[int | bool, Between(-_INT32 - 1, _INT32)]]
    """Settings of the device by the names `v4l2-ctl -l` shows, such as `{"brightness": 128}`."""


class TestPatternSourceConfig(TypedDict, total=False):
    """Configuration of `TestPatternSource`."""

    width: Annotated[int, Between(64, 8192)]
    """In pixels; 1280 where absent."""
    height: Annotated[int, Between(8, 8192)]
    """In pixels; 720 where absent."""
    fps: Annotated[float, _FPS]
    """Frames per second; 30 where absent."""
    motion: Annotated[float, Between(0, 1_000_000)]
    """Something moves during every other period of so many seconds; absent or 0: nothing does."""


class DisplayWindowConfig(TypedDict, total=False):
    """Configuration of `DisplayWindow`."""

    title: str
    width: Annotated[int, Between(1, 16384)]
    """In pixels; 1280 where absent."""
    height: Annotated[int, Between(1, 16384)]
    """In pixels; 720 where absent."""
    scaling: Literal["fit", "fill", "stretch"]


class _VideoFilePath(TypedDict):
    path: Annotated[str, Text("a path")]
    """H.264 in MP4, or MJPEG; relative to the project's folder."""


class VideoFileSourceConfig(_VideoFilePath, total=False):
    """Configuration of `VideoFileSource`."""

    loop: bool
    """Begin again at the end."""
    realtime: bool
    """Keep to the file's own frame times."""


class Mp4SinkConfig(TypedDict):
    """Configuration of `Mp4Sink`."""

    path: Annotated[str, Text("a path")]
    """The file to write, relative to the project's folder; an existing one is replaced."""


class VirtualCameraSinkConfig(TypedDict, total=False):
    """Configuration of `VirtualCameraSink`."""

    device_id: Annotated[str, Text("a path or the name of a device")]
    """Path, name below `/dev/v4l/by-id`, or card name of a V4L2 output device; absent: the first."""


def _builtin(
    description: str,
    *,
    video_in: DeliveryProfile | None = None,
    video_out: bool = False,
) -> Callable[[type], Any]:
    def declare(cls: Any) -> Any:
        cls.__module__ = TYPE_PREFIX
        cls.type = f"{TYPE_PREFIX}:{cls.__name__}"
        cls.__doc__ = description
        cls.__tatolab_node__ = NodeDeclaration(
            cls=cls,
            description=description,
            mode="reactive" if video_in else "manual",
            interval_ms=0,
            scheduling=None,
            inputs={"video": InputPort("video", "pictures", video_in)} if video_in else {},
            outputs={"video": OutputPort("video", "pictures")} if video_out else {},
            takes_config=True,
        )
        return cls

    return declare


class _Builtin:
    type: str

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f"{cls.__name__} runs inside the runtime and cannot be constructed: "
            f"write stream_builder.add({cls.__name__}, config={{...}})"
        )


@_builtin("Pictures of a camera.", video_out=True)
class CameraSource(_Builtin):
    def __init__(self, config: CameraSourceConfig) -> None: ...


@_builtin("A test picture, with something moving in it where asked for.", video_out=True)
class TestPatternSource(_Builtin):
    __test__ = False  # no test class, whatever pytest thinks of its name

    def __init__(self, config: TestPatternSourceConfig) -> None: ...


@_builtin("Shows pictures in a window.", video_in="newest")
class DisplayWindow(_Builtin):
    def __init__(self, config: DisplayWindowConfig) -> None: ...


@_builtin("Pictures of a video file.", video_out=True)
class VideoFileSource(_Builtin):
    def __init__(self, config: VideoFileSourceConfig) -> None: ...


@_builtin("Writes pictures to a fragmented MP4 file.", video_in="ordered")
class Mp4Sink(_Builtin):
    def __init__(self, config: Mp4SinkConfig) -> None: ...


@_builtin("Gives pictures to other programs as a camera.", video_in="newest")
class VirtualCameraSink(_Builtin):
    def __init__(self, config: VirtualCameraSinkConfig) -> None: ...


BUILTINS: tuple[type, ...] = (
    CameraSource,
    TestPatternSource,
    DisplayWindow,
    VideoFileSource,
    Mp4Sink,
    VirtualCameraSink,
)
