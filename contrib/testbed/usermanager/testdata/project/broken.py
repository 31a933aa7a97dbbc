"""Does not compile."""

from tatolab.stream import StreamBuilder, stream


@stream
def broken(stream_builder: StreamBuilder) -> None:
    """Uses a name that is not there."""
    stream_builder.add(NobodyKnows)  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
