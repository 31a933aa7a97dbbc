"""What a node's callbacks are given.

These are protocols: the runtime lends the objects behind them, so that a node
module imports, type-checks and is tested without one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ._pixels import PixelBuffer

_T = TypeVar("_T")


class LinkInputDataReader(Protocol):
    """`ctx.inputs`: reads bags. Nothing here waits; None means nothing new."""

    @overload
    def read(self, port: str) -> dict[str, Any] | None: ...
    @overload
    def read(self, port: str, *, into: type[_T]) -> _T | None: ...
    @overload
    def read(self, port: str, *, into: None) -> dict[str, Any] | None: ...
    def read(self, port: str, *, into: Any = None) -> Any:
        """The next bag of `port` as its delivery profile says, or None.

        `into` makes it an object of a dataclass, TypedDict or pydantic model,
        or a `VideoFrame`; a bag that does not fit raises `ValueError` here.
        """
        ...

    def read_with_timestamp(self, port: str, *, into: Any = None) -> tuple[Any, int | None]:
        """As `read`, with the bag's timestamp in monotonic nanoseconds."""
        ...

    def read_from_inbound_link(self, port: str, *, into: Any = None) -> tuple[Any, str | None]:
        """As `read`, with the name of the link the bag came over."""
        ...

    def read_from_inbound_link_with_timestamp(
        self, port: str, *, into: Any = None
    ) -> tuple[Any, str | None, int | None]:
        """As `read`, with the name of the link and the timestamp."""
        ...

    def inbound_link_names(self, port: str) -> list[str]:
        """The links the graph gives `port`, named by their sources (`camera/video`)."""
        ...

    def has_data(self, port: str) -> bool:
        """Whether `read` would return a bag."""
        ...


class LinkOutputDataWriter(Protocol):
    """`ctx.outputs`: publishes bags."""

    def write(self, port: str, bag: Mapping[str, Any], timestamp_ns: int | None = None) -> None:
        """Publish `bag` to every reader of `port`; never waits for one.

        The timestamp is `timestamp_ns`, else the bag's own, else now. Nobody
        connected: dropped. A bag above 64 MiB is refused, counted and logged.
        A port the node did not declare is a `ValueError`.
        """
        ...


class GpuLimitedAccess(Protocol):
    """`ctx.gpu_limited_access`: pictures."""

    def acquire_pixel_buffer(self, width: int, height: int, format: str = "rgba") -> PixelBuffer:
        """Memory for a picture of the node's own, to be named by a bag it writes."""
        ...

    def resolve_surface(self, surface_id: str) -> PixelBuffer:
        """The picture of a bag that was just read, by its `surface_id`."""
        ...


class RuntimeContextLimitedAccess(Protocol):
    """The context of `process`, `on_pause` and `on_resume`."""

    @property
    def config(self) -> dict[str, Any]:
        """The node's configuration as the stream gave it."""
        ...

    @property
    def time(self) -> int:
        """`CLOCK_MONOTONIC` now, in nanoseconds."""
        ...

    @property
    def node_id(self) -> str:
        """The node's name in its stream."""
        ...

    @property
    def runtime_id(self) -> str:
        """Identifies this run of the runtime."""
        ...

    @property
    def inputs(self) -> LinkInputDataReader: ...

    @property
    def outputs(self) -> LinkOutputDataWriter: ...

    @property
    def gpu_limited_access(self) -> GpuLimitedAccess: ...

    def is_paused(self) -> bool:
        """Whether the node is paused."""
        ...

    def should_process(self) -> bool:
        """False once the node is paused or to stop: a loop of its own ends then."""
        ...


class RuntimeContextFullAccess(RuntimeContextLimitedAccess, Protocol):
    """The context of `setup`, `teardown`, `start` and `stop`."""

    @property
    def gpu_full_access(self) -> Any:
        """What compiles effects."""
        ...
