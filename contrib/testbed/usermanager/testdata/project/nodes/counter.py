"""Counts pictures."""

from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, log, node


@node
class Counter:
    """Writes how many pictures it has read."""

    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    @node.output()
    def count(self) -> dict: ...

    def __init__(self) -> None:
        self.n = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        if ctx.inputs.read("video", into=VideoFrame) is None:
            return
        if self.n == 0:
            log.info("counter counts")
        self.n += 1
        ctx.outputs.write("count", {"count": self.n})
