"""Streams that want more than they may have."""

from tatolab.stream import StreamBuilder, TestPatternSource, stream

from nodes.appetites import Eater, Forker

PICTURE = {"width": 320, "height": 180, "fps": 10}


@stream
def eats(stream_builder: StreamBuilder) -> None:
    """A node takes memory without end, of the pictures of another."""
    fed(stream_builder, Eater, "eater")


@stream
def forks(stream_builder: StreamBuilder) -> None:
    """A node starts processes without end, one for each picture of another."""
    fed(stream_builder, Forker, "forker")


def fed(stream_builder: StreamBuilder, greedy: type, name: str) -> None:
    camera = stream_builder.add(TestPatternSource, name="camera", config=PICTURE)
    node = stream_builder.add(greedy, name=name)
    stream_builder.connect(camera.output("video"), node.input("video"))
    stream_builder.expose(camera.output("video"))
