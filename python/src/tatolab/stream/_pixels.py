"""Pictures: reading those of other nodes, making one's own."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    import numpy as np
    from numpy.typing import NDArray

    from ._datapath import Surface

    Image = NDArray[np.uint8]

RGBA = "AB24"
"""What data-path.md calls bytes in the order red, green, blue, alpha."""
RESIDENT = "TLRS"
"""What it calls a picture that OpenGL has, and that the slot only names."""
MAX_EXTENT = 1 << 15
"""Pixels on a side; the pixels of one picture are at most 1 GiB."""

_V = TypeVar("_V", bound="VideoFrame")

own_pictures: weakref.WeakValueDictionary[str, PixelMemory] = weakref.WeakValueDictionary()
"""What effects of this process drew, by `surface_id`."""


def _numpy(what: str) -> Any:
    try:
        import numpy
    except ModuleNotFoundError:
        raise RuntimeError(f"{what} needs numpy, which the project does not have: uv add numpy") from None
    return numpy


def _array(memory: memoryview, surface: Surface, what: str) -> Image:
    """The pixels of a surface in place, as height × width × 4."""
    if surface.format != RGBA:
        raise RuntimeError(
            f"{what}: the picture is {surface.format or 'of no known format'}; its producer does not make RGBA"
        )
    offset, stride = surface.planes[0]
    return _numpy(what).ndarray(
        (surface.height, surface.width, 4), "uint8", buffer=memory, offset=offset, strides=(stride, 4, 1)
    )


class _CpuAccess:
    """`with frame.cpu() as image:`"""

    def __init__(self, image: Image) -> None:
        self._image = image

    def __enter__(self) -> Image:
        return self._image

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@dataclass(frozen=True, init=False, eq=False)
class VideoFrame:
    """A picture that another node published.

    `ctx.inputs.read(port, into=VideoFrame)` holds the picture: its pixels
    neither change nor go while this object, or an array from `cpu`, is there.
    Eight at most are held of a link; beyond that, bags with pictures are lost
    to this node, and counted.
    """

    surface_id: str
    width: int
    height: int
    timestamp_ns: int
    """`CLOCK_MONOTONIC` when the picture was taken."""
    fps: float | None = None
    color_info: Any = None
    content_light: Any = None
    mastering_display: Any = None
    texture_layout: Any = None

    def __init__(
        self,
        surface_id: str,
        width: int,
        height: int,
        timestamp_ns: int,
        fps: float | None = None,
        color_info: Any = None,
        content_light: Any = None,
        mastering_display: Any = None,
        texture_layout: Any = None,
        **extra: Any,
    ) -> None:
        """What else a bag carries is not looked at."""
        # A frozen class is filled through its dict.
        self.__dict__.update(
            surface_id=surface_id,
            width=width,
            height=height,
            timestamp_ns=timestamp_ns,
            fps=fps,
            color_info=color_info,
            content_light=content_light,
            mastering_display=mastering_display,
            texture_layout=texture_layout,
            _frame=None,
        )

    @classmethod
    def from_bag(cls: type[_V], bag: Mapping[str, Any]) -> _V:
        """The frame a bag describes, holding its picture only if an effect of this node drew it.

        `ValueError` says which key is missing or of another type.
        """
        wanted = {"surface_id": (str, "a string"), "width": (int, ""), "height": (int, ""), "timestamp_ns": (int, "")}
        for key, (kind, noun) in wanted.items():
            if key not in bag:
                raise ValueError(f"this is no bag of a picture, it lacks {key!r}; it has {_keys(bag)}")
            value = bag[key]
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{key!r} of a picture's bag is {value!r}, not {noun or 'an integer'}")
        for key in ("width", "height"):
            if bag[key] <= 0:
                raise ValueError(f"{key!r} of a picture's bag is {bag[key]}, not above 0")
        frame = cls(**bag)
        frame._hold(own_pictures.get(frame.surface_id))
        return frame

    def _hold(self, frame: PixelMemory | None, read: bool = False) -> None:
        self.__dict__.update(_frame=frame, _read=read)

    def _held(self, what: str) -> PixelMemory:
        frame: PixelMemory | None = self.__dict__.get("_frame")
        if frame is not None:
            return frame
        if self.__dict__.get("_read"):
            raise RuntimeError(
                f"{what} needs the picture, and the bag came without one: what its node wrote as surface_id, "
                f"{self.surface_id!r}, names none of its pictures"
            )
        raise RuntimeError(
            f"{what} needs the picture, and this frame does not hold it: "
            "read it with ctx.inputs.read(port, into=VideoFrame)"
        )

    def cpu(self) -> _CpuAccess:
        """The pixels for `with frame.cpu() as image:`, height × width × 4 of uint8, RGBA.

        They are read in place, without a copy, and are read-only if another
        node published them: they are every other reader's too. Needs numpy.
        """
        frame = self._held("VideoFrame.cpu")
        return _CpuAccess(_array(frame.memory, frame.surface, "VideoFrame.cpu"))

    def writable(self) -> Any:
        """The pixels for `with frame.writable() as image:`, to be changed.

        Only what an effect of this node drew can be; another node's picture is
        its producer's.
        """
        frame: PixelMemory | None = self.__dict__.get("_frame")
        if frame is not None and not frame.memory.readonly:
            return self.cpu()
        raise RuntimeError(
            f"{self.surface_id} belongs to the node that published it: copy it into "
            "ctx.gpu_limited_access.acquire_pixel_buffer(width, height) and write there"
        )

    def __dlpack__(self, **options: Any) -> Any:
        """A copy of the pixels for `torch.from_dlpack(frame)` and the like, on the CPU."""
        with self.cpu() as image:
            pixels: Any = image
            return pixels.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # kDLCPU


def _keys(bag: Mapping[str, Any]) -> str:
    return ", ".join(repr(key) for key in bag) or "no keys"


class PixelMemory(Protocol):
    """What a `PixelBuffer` is made of; the data path has two kinds."""

    @property
    def surface_id(self) -> str: ...
    @property
    def surface(self) -> Surface: ...
    @property
    def memory(self) -> memoryview: ...


class PixelBuffer:
    """A picture in memory.

    One that the node acquired is its own to write, until it writes a bag that
    names it: from then on the memory is the readers'. `as_numpy` afterwards
    begins the next picture, with what is in this one, under a new `surface_id`.
    While it is kept, what is in it stays, and can be written again.
    """

    def __init__(self, memory: PixelMemory, renew: Callable[[PixelBuffer], PixelMemory] | None = None) -> None:
        self._memory = memory
        self._renew = renew  # makes fresh memory; None for another node's picture
        self._image: Any = None

    @property
    def surface_id(self) -> str:
        """The name to put into a bag, with `width`, `height` and `timestamp_ns`."""
        return self._memory.surface_id

    @property
    def width(self) -> int:
        """In pixels."""
        return self._memory.surface.width

    @property
    def height(self) -> int:
        """In pixels."""
        return self._memory.surface.height

    @property
    def format(self) -> str:
        """Always "rgba"."""
        return "rgba"

    def as_numpy(self) -> Image:
        """The pixels in place, height × width × 4 of uint8, RGBA. Needs numpy.

        Writing the bag makes this array read-only. numpy leaves parts of it that
        were taken before (`image[..., 0]`) writable: draw no more through those.
        """
        if self._renew is not None and getattr(self._memory, "published", False):
            before = self._memory
            self._memory = self._renew(self)
            self._memory.memory[:] = before.memory
            self._image = None
        if self._image is None:
            self._image = _array(self._memory.memory, self._memory.surface, "PixelBuffer.as_numpy")
        return self._image

    def lock(self, read_only: bool = True) -> None:
        """Nothing to do here: the memory is always mapped."""

    def unlock(self) -> None:
        """Nothing to do here."""

    def __enter__(self) -> PixelBuffer:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _written(self) -> None:
        """The picture was published: the array given out can no longer be written through."""
        if self._image is not None:
            self._image.flags.writeable = False
            self._image = None
