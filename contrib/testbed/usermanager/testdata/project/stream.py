"""Streams for the tests of the service."""

from tatolab.stream import StreamBuilder, TestPatternSource, stream

from nodes.counter import Counter
from nodes.holder import Holder
from nodes.stubborn import Stubborn


@stream
def counter(stream_builder: StreamBuilder) -> None:
    """Counts the pictures of a test picture."""
    camera = stream_builder.add(TestPatternSource, name="camera")
    count = stream_builder.add(Counter, name="counter")
    stream_builder.connect(camera.output("video"), count.input("video"))
    stream_builder.expose(count.output("count"))


@stream
def stubborn(stream_builder: StreamBuilder) -> None:
    """Ten nodes that do not end when they are asked to."""
    camera = stream_builder.add(TestPatternSource, name="camera")
    for n in range(10):
        node = stream_builder.add(Stubborn, name=f"node-{n}", config={"number": n})
        stream_builder.connect(camera.output("video"), node.input("video"))


@stream
def holder(stream_builder: StreamBuilder) -> None:
    """Holds something that one process at a time may have."""
    stream_builder.expose(stream_builder.add(Holder, name="holder").output("held"))
