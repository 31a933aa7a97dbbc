"""The links of a node: which there are, reading them, writing to them."""

from __future__ import annotations

import operator
import os
import socket
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._config import build
from .._effects import GlPicture, PictureInGl, SharedPicture
from .._msgpack import decode_msgpack_bytes_to_python_object, encode_bag_to_msgpack_bytes
from .._names import cast, listing
from .._pixels import MAX_EXTENT, RESIDENT, RGBA, PixelBuffer, VideoFrame, own_pictures
from ..clock import monotonic_now_ns
from .gl_pictures import GlPictures, Recent, source_of

if TYPE_CHECKING:
    from .._datapath import Bag, End, Frame, Input, Output, Slot, Surface, Waiter
    from .._effects import Source
    from .channel import Channel


# How long a node waits for those that are to read it from its first bag on,
# and how often it looks.
READERS_LIMIT_S = 2.0
READERS_LOOK_S = 0.002


class Links:
    """All links of the node. The data path is imported with the first of them."""

    def __init__(self, channel: Channel, spec: dict[str, Any]) -> None:
        self._channel = channel
        self.address = f"{spec['stream']}/{spec['node']}"
        self._profiles: dict[str, Any] = {port["port"]: port["profile"] for port in spec["inputs"]}
        self.names: dict[str, list[str]] = {port["port"]: list(port["links"]) for port in spec["inputs"]}
        self.out_ports: tuple[str, ...] = tuple(spec["outputs"])
        self._lock = threading.Lock()
        # Links into a node that may have effects that came before its setup had
        # returned, by id; None for joining at once.
        self._early: dict[int, tuple[dict[str, Any], int]] | None = {} if _may_have_effects() else None
        self._bell = threading.Event()  # stands in for the waiter until there is one
        self._waiter: Waiter | None = None
        self.open_inputs: dict[str, Input] = {}
        self.open_outputs: dict[str, Output] = {}
        self._written: dict[int, Output] = {}  # where each link begins that leaves the node
        self.reads = 0
        self.inputs = Inputs(self)
        self.outputs = Outputs(self)
        self.pictures = Pictures(self)

    # Control thread

    def add(self, message: dict[str, Any], fd: int) -> None:
        """Join the end of a link; one that cannot be joined is reported lost.

        Those from nodes of the same stream wait for the setup of a node that may
        have effects: only then is it known which kinds of pictures it takes.
        """
        if message["direction"] == "in" and message.get("local"):
            with self._lock:
                if self._early is not None:
                    self._early[message["id"]] = message, fd
                    return
        self._join(message, fd)

    def _join(self, message: dict[str, Any], fd: int) -> None:
        link: int = message["id"]
        port: str = message["port"]
        with socket.socket(fileno=fd) as end:
            try:
                if message["direction"] == "out":
                    self._written[link] = self.output(port)
                    self._written[link].add_link(link, end.detach())
                else:
                    formats = (RESIDENT,) if message.get("local") and self.pictures.gl.process else ()
                    page = self._input(port).add_link(link, message["name"], end.detach(), formats)
                    self._channel.send("page", page, id=link)
                    os.close(page)
            except Exception as error:
                self.log("error", f"cannot join the link {message.get('name')} to {port}: {error}")
                self._channel.send("lost", id=link)

    def remove(self, link: int, *, retire: bool) -> None:
        """Leave a link; with `retire` the readers that remain at its output get fresh memory."""
        with self._lock:
            early = self._early.pop(link, None) if self._early else None
        if early is not None:
            os.close(early[1])
        output = self._written.pop(link, None)
        if output is not None:
            output.remove_link(link, retire=retire)
        for reader in list(self.open_inputs.values()):
            reader.remove_link(link)

    def _input(self, port: str) -> Input:
        with self._lock:
            if port not in self._profiles:
                raise ValueError(f"the node has no input {port}")
            if port not in self.open_inputs:
                from .._datapath import Input, Waiter

                if self._waiter is None:
                    self._waiter = Waiter()
                    self._bell.set()  # whoever waits at the bell is to wait there
                self.open_inputs[port] = Input(self._waiter, self._profiles[port], (RGBA,))
            return self.open_inputs[port]

    def output(self, port: str) -> Output:
        """The output `port`, made when it is first needed."""
        with self._lock:
            if port not in self.out_ports:
                raise ValueError(f"the node has no output {port}")
            if port not in self.open_outputs:
                from .._datapath import Output

                def on_generation(pixel_format: str, ring: int) -> None:
                    self._channel.send("ring", ring, port=port, format=pixel_format)
                    os.close(ring)

                def on_gone(link: int, end: End) -> None:
                    if end.why:
                        self.log("warn", f"a reader of {port} was let go: {end.why}")
                    self._channel.send("lost", id=link)

                self.open_outputs[port] = Output(
                    f"{self.address}/{port}",
                    self._formats(),
                    undecided=() if self._early is None else (RESIDENT,),
                    on_generation=on_generation,
                    on_gone=on_gone,
                )
            return self.open_outputs[port]

    def _formats(self) -> tuple[str, ...]:
        # Pictures stay with tatolab-gl for those who can use them there, once
        # an effect was compiled.
        return (RGBA, RESIDENT) if self.pictures.gl.process else (RGBA,)

    def report_gone(self) -> None:
        """Tell the runtime of links into this node whose producer has gone."""
        waiter = self._waiter
        if waiter is None or not waiter.ended:
            return
        waiter.ended = False
        for port, reader in list(self.open_inputs.items()):
            for gone in reader.take_gone():
                if gone.why:
                    self.log("warn", f"a link into {port} was left: {gone.why}")
                self._channel.send("lost", id=gone.id)

    def log(self, level: str, message: str) -> None:
        """Log for the host, not for the node's own code."""
        self._channel.send_log(level, message, {}, monotonic_now_ns())

    def wake(self) -> None:
        """Make the main thread return from `wait`."""
        self._bell.set()
        if self._waiter is not None:
            self._waiter.wake()

    # Main thread

    def open(self) -> None:
        """The node's setup has returned: join what waited for it."""
        with self._lock:
            early, self._early = self._early or {}, None
            outputs = list(self.open_outputs.values())
        for output in outputs:
            output.decide(self._formats())
        for message, fd in early.values():
            self._join(message, fd)

    def arrived(self) -> int:
        """A number that grows with every bag that arrives at an input."""
        return 0 if self._waiter is None else self._waiter.arrived()

    def has_data(self) -> bool:
        """Whether any input has an unread bag."""
        return self._waiter is not None and self._waiter.has_data()

    def wait(self, seen: int) -> None:
        """Return once `arrived` is beyond `seen`, or `wake` was called."""
        if self._waiter is None:
            self._bell.wait()
            self._bell.clear()
        else:
            self._waiter.wait(seen=seen)
            self.report_gone()

    def await_readers(self, stopping: threading.Event) -> None:
        """Wait until whoever was linked to an output before `start` reads it, so that it gets the first bag."""
        limit = time.monotonic() + READERS_LIMIT_S
        while joining := sum(output.joining for output in list(self.open_outputs.values())):
            if time.monotonic() > limit:
                self.log(
                    "warn", f"{joining} readers have not joined within {READERS_LIMIT_S:g} s: they miss the first bags"
                )
                return
            if stopping.wait(READERS_LOOK_S):
                return

    def close(self) -> None:
        """Leave all links."""
        for output in self.open_outputs.values():
            output.close()
        if self._waiter is not None:
            self._waiter.close()


def _may_have_effects() -> bool:
    """Whether the code of the node has asked for `GlslPixelEffect`."""
    from ... import stream

    return "GlslPixelEffect" in vars(stream)


class Inputs:
    """`ctx.inputs`."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def read(self, port: str, *, into: Any = None) -> Any:
        return self._read(port, into)[0]

    def read_with_timestamp(self, port: str, *, into: Any = None) -> tuple[Any, int | None]:
        value, _, timestamp = self._read(port, into)
        return value, timestamp

    def read_from_inbound_link(self, port: str, *, into: Any = None) -> tuple[Any, str | None]:
        value, link, _ = self._read(port, into)
        return value, link

    def read_from_inbound_link_with_timestamp(
        self, port: str, *, into: Any = None
    ) -> tuple[Any, str | None, int | None]:
        return self._read(port, into)

    def inbound_link_names(self, port: str) -> list[str]:
        return list(self._links.names[self._port(port)])

    def has_data(self, port: str) -> bool:
        reader = self._links.open_inputs.get(self._port(port))
        return reader is not None and reader.has_data()

    def _port(self, port: str) -> str:
        names = self._links.names
        if port not in names:
            name = cast(port, "name of an input")
            if name not in names:
                raise ValueError(f'the node has no input "{port}"; its inputs: {listing(names)}')
            return name
        return port

    def _read(self, port: str, into: Any) -> tuple[Any, str | None, int | None]:
        reader = self._links.open_inputs.get(self._port(port))
        if reader is None:
            return None, None, None
        picture = isinstance(into, type) and issubclass(into, VideoFrame)
        bag = reader.read(hold=picture)
        if bag is None:
            return None, None, None
        self._links.reads += 1
        return self._value(port, bag, into, picture), bag.link, bag.timestamp_ns

    def _value(self, port: str, bag: Bag, into: Any, picture: bool) -> Any:
        value: Any = decode_msgpack_bytes_to_python_object(bag.data)
        if into is None:
            return value
        if not picture:
            return build(value, into, f'bag of "{port}"', closed=False)
        if not isinstance(value, Mapping):
            raise ValueError(f'bag of "{port}" is no map')
        frame = into.from_bag(value)
        frame._hold(self._links.pictures.held(bag.frame), read=True)  # pyright: ignore[reportPrivateUsage]
        return frame


class Outputs:
    """`ctx.outputs`."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._told: set[tuple[str, str]] = set()

    def write(self, port: str, bag: Mapping[str, Any], timestamp_ns: int | None = None) -> None:
        port = self._port(port)
        if not isinstance(bag, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'a bag is a mapping with string keys, not {type(bag).__name__} (written to "{port}")')
        stamp = None if timestamp_ns is None else _timestamp(timestamp_ns)
        if stamp is None and timestamp_ns is not None:
            raise TypeError(
                f'timestamp_ns is nanoseconds, an integer of 64 bits, not {timestamp_ns!r} (written to "{port}")'
            )
        surface_id = bag.get("surface_id")
        buffer = self._links.pictures.own(surface_id) if isinstance(surface_id, str) else None
        output = self._links.open_outputs.get(port)
        # Nothing is encoded for nobody.
        if output is not None and output.readers > 0:
            if stamp is None:
                stamp = _timestamp(bag.get("timestamp_ns"))
            self._publish(port, output, bag, surface_id, buffer, monotonic_now_ns() if stamp is None else stamp)
        if buffer is not None:
            self._links.pictures.written(buffer)

    def _publish(
        self,
        port: str,
        output: Output,
        bag: Mapping[str, Any],
        surface_id: Any,
        buffer: PixelBuffer | None,
        timestamp_ns: int,
    ) -> None:
        slots: tuple[Slot, ...] = ()
        if buffer is not None:
            slots = self._links.pictures.own_slots(port, output, buffer)
        elif isinstance(surface_id, str):
            slots = self._links.pictures.foreign_slots(port, output, surface_id)
        if slots and slots[0].surface_id != surface_id:
            bag = {**bag, "surface_id": slots[0].surface_id}
        try:
            output.publish(encode_bag_to_msgpack_bytes(bag), timestamp_ns, *slots)
        except Exception as error:
            from .._datapath import TooLargeError

            if not isinstance(error, TooLargeError):
                raise
            self._tell_once(port, "large", f"{error}; further ones are counted, not logged")

    def _port(self, port: str) -> str:
        ports = self._links.out_ports
        if port in ports:
            return port
        name = cast(port, "name of an output")
        if name not in ports:
            raise ValueError(f'the node has no output "{port}"; its outputs: {listing(ports)}')
        return name

    def _tell_once(self, port: str, what: str, message: str) -> None:
        if (port, what) not in self._told:
            self._told.add((port, what))
            self._links.log("warn", message)


def _extent(what: str, value: Any) -> int:
    """A side of a picture, in pixels."""
    try:
        extent = operator.index(value)
    except TypeError:
        extent = 0
    if isinstance(value, bool) or not 0 < extent <= MAX_EXTENT:
        raise ValueError(f"{what} of a picture must be an integer from 1 to {MAX_EXTENT} (pixels), not {value!r}")
    return extent


def _timestamp(value: Any) -> int | None:
    """An integer of any kind that fits an entry; None for anything else."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if not isinstance(value, bool) and -(1 << 63) <= number < 1 << 63 else None


class OwnMemory:
    """Memory for a picture that no output has taken yet."""

    def __init__(self, surface_id: str, surface: Any) -> None:
        self.surface_id = surface_id
        self.surface = surface
        self.memory = memoryview(bytearray(surface.size))


class Pictures(GlPictures):
    """`ctx.gpu_limited_access`."""

    def __init__(self, links: Links) -> None:
        super().__init__(links._channel, links.address)  # pyright: ignore[reportPrivateUsage]
        self._links = links
        self._buffers: weakref.WeakValueDictionary[str, PixelBuffer] = weakref.WeakValueDictionary()
        self._acquired = Recent()
        self._last_written: PixelBuffer | None = None
        self._count = 0
        self._surface: Surface | None = None  # of the picture made last
        # Where the node published a picture last: the next is most likely for
        # there too, and made in that output's memory at once.
        self._port: str | None = links.out_ports[0] if len(links.out_ports) == 1 else None

    def acquire_pixel_buffer(self, width: int, height: int, format: str = "rgba") -> PixelBuffer:
        if format.lower() != "rgba":
            raise ValueError(f'pictures are "rgba" here, not "{format}": write acquire_pixel_buffer({width}, {height})')
        width, height = _extent("width", width), _extent("height", height)
        buffer = PixelBuffer(self._memory(width, height), self._renew)
        self._acquire(buffer, buffer.surface_id)
        return buffer

    def _renew(self, buffer: PixelBuffer) -> Slot | OwnMemory:
        """Memory for a buffer's next picture."""
        made = self._memory(buffer.width, buffer.height)
        self._acquire(buffer, made.surface_id)
        return made

    def _acquire(self, buffer: PixelBuffer, surface_id: str) -> None:
        self._buffers[surface_id] = buffer
        self._acquired.add(buffer)

    def written(self, buffer: PixelBuffer) -> None:
        """A bag that names the buffer was written; another may be, to another output."""
        buffer._written()  # pyright: ignore[reportPrivateUsage]
        self._acquired.remove(buffer)
        self._last_written = buffer

    def _memory(self, width: int, height: int) -> Slot | OwnMemory:
        surface = self._surface
        if surface is None or (surface.width, surface.height) != (width, height):
            from .._datapath import Surface

            surface = self._surface = Surface.packed(width, height)
        if self._port is not None:
            return self._links.output(self._port).acquire(surface)
        self._count += 1
        return OwnMemory(f"{self._links.address}#own-{self._count}", surface)

    def resolve_surface(self, surface_id: str) -> PixelBuffer:
        buffer = self._buffers.get(surface_id)
        if buffer is not None:
            return buffer
        frame = self._frame(surface_id)
        if frame is None:
            raise ValueError(f"{surface_id} names no picture of this node, nor of a bag it read lately")
        return PixelBuffer(self.held(frame))

    def held(self, frame: Any) -> Any:
        """A frame as its pictures are used: one that only names a picture is wrapped."""
        if frame is not None and self.gl.process and frame.surface.format == RESIDENT:
            return SharedPicture(self.gl, frame)
        return frame

    def _frame(self, surface_id: str) -> Frame | None:
        from .._datapath import UnknownSurfaceError

        for reader in list(self._links.open_inputs.values()):
            try:
                return reader.frame(surface_id)
            except UnknownSurfaceError:
                continue
        return None

    def own(self, surface_id: str) -> PixelBuffer | None:
        """The buffer of this node that has the name, if there is one."""
        return self._buffers.get(surface_id)

    def own_slots(self, port: str, output: Output, buffer: PixelBuffer) -> tuple[Slot, ...]:
        """A buffer's memory as slots of `output`; copied if it is not there, or was published."""
        from .._datapath import Slot

        self._port = port
        made = buffer._memory  # pyright: ignore[reportPrivateUsage]
        if isinstance(made, Slot) and made.surface_id.startswith(output.owner + "#") and not made.published:
            return self._slots(output, made, made)
        return self._slots(output, made, None)

    def foreign_slots(self, port: str, output: Output, surface_id: str) -> tuple[Slot, ...]:
        """Copies of a picture that was read, in the memory of `output`.

        None for a name of nothing: a text like any other, unless it is of this node.
        """
        from .._datapath import FrameGoneError

        try:
            frame = self._frame(surface_id)
        except FrameGoneError as error:
            raise ValueError(
                f'cannot write {surface_id} to "{port}": {error}. '
                "Read it with into=VideoFrame, and keep that until it is written"
            ) from None
        if frame is not None:
            return self._slots(output, self.held(frame), None)
        if surface_id.startswith((f"{self._links.address}/", f"{self._links.address}#")):
            raise ValueError(
                f'cannot write {surface_id} to "{port}": the node has that picture no longer. '
                "Keep what acquire_pixel_buffer or the effect returned until the bag is written"
            )
        return ()

    def _slots(self, output: Output, picture: Any, slot: Slot | None) -> tuple[Slot, ...]:
        """A picture, in `slot` already or not, in the formats that readers asked for."""
        slots = () if slot is None else (slot,)
        if RESIDENT in output.wanted:
            slots = (*slots, self.reference(output, picture, slot))
        if slot is None and (RGBA in output.wanted or not (slots or isinstance(picture, PictureInGl))):
            copy = output.acquire(picture.surface, *slots)
            if isinstance(picture, PictureInGl):
                picture.copy_into(copy.memory)
            else:
                copy.memory[:] = picture.memory[: picture.surface.size]
            slots = (*slots, copy)
        return slots

    # What effects ask

    def gl_source(self, frame: VideoFrame) -> Source:
        """Where an effect finds the picture of `frame`."""
        held = frame.__dict__.get("_frame")
        uploaded = frame.__dict__.get("_uploaded")
        if isinstance(uploaded, GlPicture) and uploaded.process == self.gl.process:
            return uploaded
        if held is None:
            held = self.resolve_surface(frame.surface_id)._memory  # pyright: ignore[reportPrivateUsage]
        return source_of(held)

    def adopt(self, picture: GlPicture) -> dict[str, Any]:
        """Make the result of an effect a picture of the node's own; returns what names it in a bag."""
        surface_id = self.name(picture)
        buffer = self._buffers[surface_id] = PixelBuffer(picture)
        own_pictures[surface_id] = picture
        self.drawn.add(buffer)
        return {"surface_id": surface_id}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"this runtime's gpu_limited_access has no {name}; it has acquire_pixel_buffer and resolve_surface, "
            "and GlslPixelEffect runs effects"
        )
