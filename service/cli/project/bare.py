"""PROJECT_TITLE: a stream without nodes yet."""

from tatolab.stream import StreamBuilder, stream


@stream
def PROJECT_FUNCTION(stream_builder: StreamBuilder) -> None:
    """Add nodes with stream_builder.add, and join them with stream_builder.connect."""
