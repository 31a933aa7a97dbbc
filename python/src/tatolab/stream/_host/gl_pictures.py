"""Pictures that OpenGL holds: the part of `ctx.gpu_limited_access` that effects need."""

from __future__ import annotations

import contextlib
import os
import queue
from typing import TYPE_CHECKING, Any

from .._effects import REFERENCE, GlPicture, PictureInGl, Place, SharedPicture, spare
from .._gl import Connection, Gl

if TYPE_CHECKING:
    from .._datapath import Output, Slot
    from .._effects import Source
    from .._pixels import PixelBuffer, PixelMemory
    from .channel import Channel

# What a callback makes before it writes the first is fewer than this.
MAX_KEPT = 8
MAX_KEPT_BYTES = 256 << 20
MIN_KEPT = 2


class Recent:
    """Pictures that were made last.

    A bag names its picture and holds nothing. So that the picture is still there
    when the bag is written, or given to the next effect, the last ones are kept.
    """

    def __init__(self) -> None:
        self._kept: list[PixelBuffer] = []

    def add(self, buffer: PixelBuffer) -> None:
        """Keep one, instead of the oldest if there are many."""
        kept = self._kept
        kept.append(buffer)
        size = sum(4 * each.width * each.height for each in kept)
        while len(kept) > MAX_KEPT or (size > MAX_KEPT_BYTES and len(kept) > MIN_KEPT):
            gone = kept.pop(0)
            size -= 4 * gone.width * gone.height

    def remove(self, buffer: PixelBuffer) -> None:
        """Keep it no longer."""
        with contextlib.suppress(ValueError):
            self._kept.remove(buffer)


class GlPictures:
    """What effects ask of a node's pictures."""

    def __init__(self, channel: Channel, address: str) -> None:
        self.switchboard = Switchboard(channel)
        self.gl = Gl(self.switchboard)
        self._gl_address = address
        self.drawn = Recent()

    def name(self, picture: GlPicture) -> str:
        """Give the result of an effect its name."""
        picture.surface_id = f"{self._gl_address}#gl-{picture.process}-{picture.number}"
        return picture.surface_id

    def reference(self, output: Output, picture: PixelMemory, like: Slot | None) -> Slot:
        """A slot of `output` that names a picture, for nodes that have effects."""
        from .._datapath import RESIDENT, Surface

        doing = f"publish {picture.surface_id}"
        if isinstance(picture, GlPicture) and not picture.changed:
            made = picture
        elif isinstance(picture, SharedPicture):
            made = GlPicture.copied(self.gl, picture, doing)
        else:
            source = source_of(picture)
            made = GlPicture.uploaded(self.gl, source.place() if isinstance(source, PictureInGl) else source, doing)
        slot = output.acquire(Surface(RESIDENT, made.width, made.height, (), REFERENCE.size), like)
        slot.memory[:] = made.reference()
        slot.resident = made
        return slot


class Switchboard:
    """Where a node asks the runtime for tatolab-gl."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._answers: queue.SimpleQueue[tuple[dict[str, Any], int | None]] = queue.SimpleQueue()

    def answered(self, message: dict[str, Any], fd: int | None) -> None:
        """Control thread: the runtime has answered."""
        self._answers.put((message, fd))

    def connect(self, limit: float) -> Connection:
        """Ask for a connection and wait for it."""
        while not self._answers.empty():  # to questions that an exception broke off
            _, fd = self._answers.get()
            if fd is not None:
                os.close(fd)
        self._channel.send("graphics")
        try:
            message, fd = self._answers.get(timeout=limit)
        except queue.Empty:
            raise RuntimeError("cannot connect to tatolab-gl: the runtime did not answer") from None
        if fd is None:
            raise RuntimeError(message.get("message") or "cannot connect to tatolab-gl")
        return Connection(message["id"], message["process"], fd)

    def late(self, id: int) -> None:
        """Say that a connection is not answered."""
        self._channel.send("graphics", id=id)


def source_of(picture: PixelMemory) -> Source:
    """Where an effect finds a picture: in OpenGL, or in memory that tatolab-gl can map."""
    from .._datapath import Frame

    if isinstance(picture, PictureInGl):
        return picture
    surface = picture.surface
    offset, stride = surface.planes[0]
    if isinstance(picture, Frame):
        return Place(picture.pool, picture.pool_at + offset, stride, surface.width, surface.height)
    # The node's own, which nobody else can map: one copy.
    memory = spare.take(surface.size)
    memory.view[:] = picture.memory[: surface.size]
    return Place(memory, offset, stride, surface.width, surface.height)
