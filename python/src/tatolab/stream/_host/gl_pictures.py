"""Pictures that OpenGL holds: the part of `ctx.gpu_limited_access` that effects need."""

from __future__ import annotations

import os
import queue
from collections import deque
from typing import TYPE_CHECKING, Any

from .._effects import REFERENCE, GlPicture, PictureInGl, Place, SharedPicture, spare
from .._gl import Connection, Gl

if TYPE_CHECKING:
    from .._datapath import Output, Slot
    from .._effects import Source
    from .._pixels import PixelBuffer, PixelMemory
    from .channel import Channel

# A result is named by its bag only, which holds nothing. So that it is still
# there when the bag is written, or given to the next effect, the last ones are
# kept: a chain of effects within a callback is shorter than this.
MAX_KEPT = 8
MAX_KEPT_BYTES = 256 << 20
MIN_KEPT = 2


class GlPictures:
    """What effects ask of a node's pictures."""

    def __init__(self, channel: Channel, address: str) -> None:
        self.switchboard = Switchboard(channel)
        self.gl = Gl(self.switchboard)
        self._gl_address = address
        self._kept: deque[PixelBuffer] = deque()

    def name(self, picture: GlPicture) -> str:
        """Give the result of an effect its name."""
        picture.surface_id = f"{self._gl_address}#gl-{picture.process}-{picture.number}"
        return picture.surface_id

    def keep(self, result: PixelBuffer) -> None:
        """Keep the result of an effect for a while."""
        self._kept.append(result)
        size = sum(4 * kept.width * kept.height for kept in self._kept)
        while len(self._kept) > MAX_KEPT or (size > MAX_KEPT_BYTES and len(self._kept) > MIN_KEPT):
            gone = self._kept.popleft()
            size -= 4 * gone.width * gone.height

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
