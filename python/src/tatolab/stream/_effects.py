"""GLSL effects over pictures."""

from __future__ import annotations

import dataclasses
import fcntl
import math
import mmap
import os
import re
import struct
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Union, cast

from ._gl import START_LIMIT, DrawTimeoutError, Gl, Memory, PictureLostError

if TYPE_CHECKING:
    from ._context import GpuLimitedAccess
    from ._datapath import Frame, Surface
    from ._pixels import VideoFrame

DialType = Literal["float", "int", "vec2", "vec4"]

_NUMBERS: Final[dict[str, int]] = {"float": 1, "int": 1, "vec2": 2, "vec4": 4}
_DIAL_BYTES = 128
_INT_MAX = 2**31

_F_ADD_SEALS = 1033
_F_SEAL_SHRINK = 2

# An effect whose draw had to be ended rests for so long, in seconds, doubling.
_FIRST_REST = 1.0
_LAST_REST = 60.0


class GlslPixelEffect:
    """A piece of GLSL applied to every pixel of a picture.

    The source defines `vec4 effect(vec4 source, ivec2 at)`: the colour at `at`,
    where `source` is. It may use `streamlib_extent`, `streamlib_elapsed_seconds`,
    `streamlib_source_at(ivec2)`, `streamlib_source_uv(vec2)` and `dials.NAME`.
    """

    def __init__(self, gl: Gl, glsl: str, dials: dict[str, str]) -> None:
        self._gl = gl
        self._glsl = glsl
        self._dials = dials
        self._number = gl.number()
        self._compiled_in = 0  # the process of tatolab-gl that has it
        self._began: float | None = None
        self._rest = 0.0
        self._rests_until = 0.0

    @classmethod
    def compile(cls, gpu_full_access: Any, effect_glsl: str, dials: Mapping[str, str] | None = None) -> GlslPixelEffect:
        """Compile an effect, in `setup`.

        `dials` names the values it is given at each picture, and their types:
        `float`, `int`, `vec2`, `vec4`. A mistake raises `ValueError`, in the
        GLSL with the line of `effect_glsl` it is in.
        """
        gl = getattr(gpu_full_access, "gl", None)
        if not isinstance(gl, Gl):
            raise RuntimeError("GlslPixelEffect.compile needs the gpu_full_access of a running node's context")
        effect = cls(gl, effect_glsl, _checked(dials or {}))
        until = time.monotonic() + START_LIMIT
        while True:
            gl.start()
            try:
                effect._compile()
                return effect
            except PictureLostError:
                # It ended meanwhile, by what it did for another node.
                if time.monotonic() > until:
                    raise

    def apply_to_frame(
        self, gpu_limited_access: GpuLimitedAccess, frame: VideoFrame, dials: Mapping[str, Any] | Any = None
    ) -> dict[str, Any]:
        """Draw the effect of `frame`, and return the bag of the result for a video output.

        `dials` gives each dial its value: a mapping, or a dataclass object.
        What is drawn stays with OpenGL until somebody needs it in memory, so
        that effects of a stream can be chained at no cost. A draw of more than
        2 s is ended and raises.
        """
        values = self._values(dials)
        pictures = cast(Any, gpu_limited_access)
        source: Source = pictures.gl_source(frame)
        now = time.monotonic()
        if now < self._rests_until:
            raise DrawTimeoutError(
                f"cannot apply {self}: its last draw did not end in time; "
                f"it is tried again in {self._rests_until - now:.0f} s"
            )
        if self._began is None:
            self._began = now
        try:
            result = self._apply(frame, source, values, now - self._began)
        except DrawTimeoutError:
            self._rest = min(2 * self._rest or _FIRST_REST, _LAST_REST)
            self._rests_until = time.monotonic() + self._rest
            raise
        self._rest = 0.0
        bag: dict[str, Any] = pictures.adopt(result)
        bag.update(width=result.width, height=result.height, timestamp_ns=frame.timestamp_ns)
        color_info = getattr(frame, "color_info", None)
        if color_info is not None:
            bag["color_info"] = color_info
        return bag

    def __str__(self) -> str:
        for line in self._glsl.splitlines():
            if line.strip():
                return f"the effect {line.strip()[:40]!r}"
        return "an effect"

    def _compile(self) -> None:
        try:
            self._gl.request(
                "compile",
                f"compile {self}",
                effect=self._number,
                text=self._glsl,
                dials=[{"name": name, "type": type_} for name, type_ in self._dials.items()],
            )
        except ValueError as error:
            raise ValueError(f"cannot compile {self}:\n{error}") from None
        self._compiled_in = self._gl.process

    def _apply(self, frame: VideoFrame, source: Source, values: dict[str, list[float]], elapsed: float) -> GlPicture:
        gl, doing = self._gl, f"apply {self}"
        gl.start(source.process if isinstance(source, PictureInGl) else 0)
        if self._compiled_in != gl.process:
            self._compile()
        width, height = source.width, source.height
        fields: dict[str, Any] = {"effect": self._number, "values": values, "elapsed": elapsed}
        if isinstance(source, PictureInGl) and not source.changed:
            source.require(doing)
            fields["source"] = source.number
        else:
            place = source.place() if isinstance(source, PictureInGl) else source
            fields["from"] = place.described(gl, doing)
        try:
            answer = gl.request("apply", doing, moved=4 * width * height, **fields)
        except ValueError as error:
            raise ValueError(f"cannot apply {self}: {error}") from None
        if isinstance(source, Place):
            uploaded = GlPicture(gl, answer["source"], width, height)
            if isinstance(source.memory, Scratch):
                spare.give(source.memory)  # it has been uploaded
            else:
                # Another node's picture, which is held, does not change: the next effect of it finds it there.
                object.__setattr__(frame, "_uploaded", uploaded)
        elif "source" in answer:
            gl.drop(gl.process, (answer["source"],))
        return GlPicture(gl, answer["picture"], width, height)

    def _values(self, dials: Any) -> dict[str, list[float]]:
        if dials is None:
            dials = {}
        elif dataclasses.is_dataclass(dials) and not isinstance(dials, type):
            dials = dataclasses.asdict(dials)
        if not isinstance(dials, Mapping):
            raise TypeError(f"dials are a mapping or a dataclass object, not {dials!r}")
        given = cast("Mapping[str, Any]", dials)
        for name in given:
            if name not in self._dials:
                known = ", ".join(self._dials) or "none"
                raise ValueError(f"{self} has no dial {name!r}; it has {known}")
        values: dict[str, list[float]] = {}
        for name, type_ in self._dials.items():
            if name not in given:
                raise ValueError(f"dial {name!r} of {self} has no value")
            values[name] = _numbers(name, type_, given[name])
        return values


class Place(NamedTuple):
    """Where the pixels of a picture lie: RGBA, eight bits each."""

    memory: Memory
    offset: int
    stride: int
    width: int
    height: int

    def described(self, gl: Gl, doing: str) -> dict[str, int]:
        """It in the terms of tatolab-gl."""
        number = gl.memory(self.memory, writable=False, doing=doing)
        return {
            "memory": number, "offset": self.offset, "stride": self.stride, "width": self.width, "height": self.height,
        }  # fmt: skip


class Scratch:
    """Shared memory of this process's own."""

    def __init__(self, size: int) -> None:
        self.size: Final = size
        self._fd = os.memfd_create("tatolab-picture", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self._fd).atexit = False
        os.ftruncate(self._fd, size)
        fcntl.fcntl(self._fd, _F_ADD_SEALS, _F_SEAL_SHRINK)
        self.view: Final = memoryview(mmap.mmap(self._fd, size))

    def fileno(self) -> int:
        return self._fd


class PictureInGl:
    """A picture that OpenGL holds, and that this process reads when it must."""

    surface_id = ""

    def __init__(self, gl: Gl, process: int, number: int, width: int, height: int) -> None:
        self.width: Final = width
        self.height: Final = height
        self.process: Final = process
        self.number: Final = number
        self._gl = gl
        self._memory: Scratch | None = None

    @property
    def changed(self) -> bool:
        """Whether what is in memory is the picture, and no longer what OpenGL has."""
        return False

    def require(self, doing: str) -> None:
        """Raise if it went with its tatolab-gl."""
        if self.process != self._gl.process:
            raise PictureLostError(f"cannot {doing}: its picture went with tatolab-gl, which has ended")

    def place(self) -> Place:
        """Where it is in memory; reads it back if it is not there yet."""
        if self._memory is None:
            memory = Scratch(4 * self.width * self.height)
            self._read(memory)
            self._memory = memory
        return Place(self._memory, 0, 4 * self.width, self.width, self.height)

    @property
    def surface(self) -> Surface:
        """What it is: RGBA, without space between rows."""
        from ._datapath import Surface

        return Surface.packed(self.width, self.height)

    def copy_into(self, pixels: memoryview) -> None:
        """Copy its pixels to memory of their size."""
        if self._memory is not None:
            pixels[:] = self._memory.view
            return
        memory = spare.take(len(pixels))
        try:
            self._read(memory)
            pixels[:] = memory.view
        finally:
            spare.give(memory)

    def _read(self, memory: Scratch) -> None:
        gl, doing = self._gl, f"read the picture {self.surface_id}"
        gl.start(self.process)
        self.require(doing)
        try:
            into = {"memory": gl.memory(memory, writable=True, doing=doing), "offset": 0, "stride": 4 * self.width}
            gl.request("read", doing, moved=memory.size, picture=self.number, into=into)
        except ValueError as error:
            raise ValueError(f"cannot {doing}: {error}") from None


class GlPicture(PictureInGl):
    """A picture of the node's own."""

    def __init__(self, gl: Gl, number: int, width: int, height: int) -> None:
        super().__init__(gl, gl.process, number, width, height)
        weakref.finalize(self, gl.drop, gl.process, (number,)).atexit = False

    @classmethod
    def uploaded(cls, gl: Gl, place: Place, doing: str) -> GlPicture:
        """A picture made of memory."""
        gl.start()
        fields: dict[str, Any] = {"from": place.described(gl, doing)}
        answer = gl.request("upload", doing, moved=4 * place.width * place.height, **fields)
        return cls(gl, answer["picture"], place.width, place.height)

    @classmethod
    def copied(cls, gl: Gl, source: PictureInGl, doing: str) -> GlPicture:
        """A copy of a picture that OpenGL has."""
        gl.start(source.process)
        source.require(doing)
        answer = gl.request("copy", doing, source=source.number)
        return cls(gl, answer["picture"], source.width, source.height)

    @property
    def changed(self) -> bool:
        return self._memory is not None

    @property
    def memory(self) -> memoryview:
        """Its pixels, writable: from now on they are what the picture is."""
        self.place()
        assert self._memory is not None
        return self._memory.view

    def reference(self) -> bytes:
        """What a slot holds that names it."""
        return REFERENCE.pack(self.process, self.number)


class SharedPicture(PictureInGl):
    """A picture that an effect of another node drew: `frame` is the slot that names it, which is held."""

    def __init__(self, gl: Gl, frame: Frame) -> None:
        surface = frame.surface
        process, number = REFERENCE.unpack(frame.memory[: REFERENCE.size])
        super().__init__(gl, process, number, surface.width, surface.height)
        self.surface_id = frame.surface_id
        self._frame = frame

    @property
    def memory(self) -> memoryview:
        """Its pixels, read-only."""
        self.place()
        assert self._memory is not None
        return self._memory.view.toreadonly()


REFERENCE: Final = struct.Struct("=QQ")
"""The number of the tatolab-gl that has a picture, and that of the picture."""

Source = Union[PictureInGl, Place]


class _Spare:
    """Memory used for one picture after the other: pages that are mapped cost nothing."""

    def __init__(self) -> None:
        self._spare: list[Scratch] = []

    def take(self, size: int) -> Scratch:
        try:
            memory = self._spare.pop()
        except IndexError:
            return Scratch(size)
        return memory if memory.size == size else Scratch(size)

    def give(self, memory: Scratch) -> None:
        self._spare[:] = [memory]


spare = _Spare()
"""The process's."""


def _checked(dials: Mapping[str, str]) -> dict[str, str]:
    """The declared dials, or a `ValueError` that says which is wrong and why."""
    # As std430 lays them out behind the elapsed seconds, which is how the limit is counted.
    end = 4
    for name, type_ in dials.items():
        if type_ not in _NUMBERS:
            hint = "; for three numbers, use a vec4" if type_ == "vec3" else ""
            raise ValueError(f"dial {name!r} is a {type_!r}; a dial is one of float, int, vec2, vec4{hint}")
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "__" in name or name.startswith(("gl_", "streamlib_")):
            raise ValueError(f"{name!r} cannot be the name of a dial: GLSL takes no such name, or keeps it for itself")
        size = 4 * _NUMBERS[type_]
        end = (end + size - 1) // size * size + size
        if end > _DIAL_BYTES:
            raise ValueError(f"dial {name!r} is too much: the dials take {end} bytes, the limit is {_DIAL_BYTES}")
    return dict(dials)


def _numbers(name: str, type_: str, value: Any) -> list[float]:
    count = _NUMBERS[type_]
    try:
        numbers = [value] if count == 1 else list(cast("Iterable[Any]", value))
        if type_ == "int":
            whole = [int(number) for number in numbers]
            if whole != numbers or not -_INT_MAX <= whole[0] < _INT_MAX:
                raise ValueError
            return [float(whole[0])]
        floats = [float(number) for number in numbers]
        if len(floats) != count or not all(map(math.isfinite, floats)):
            raise ValueError
    except (TypeError, ValueError):
        what = {"float": "a finite number", "int": "a whole number of 32 bits"}.get(type_, f"{count} finite numbers")
        raise ValueError(f"dial {name!r} is a {type_}: {what}, not {value!r}") from None
    return floats
