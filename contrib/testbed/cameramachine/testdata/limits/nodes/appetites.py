"""Nodes with appetites."""

import subprocess

from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, log, node

MORSEL = 16 << 20


class Greedy:
    """Takes something for each picture."""

    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    def __init__(self) -> None:
        self.had = []

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        if ctx.inputs.read("video", into=VideoFrame) is not None:
            self.take()

    def take(self) -> None:
        raise NotImplementedError


@node
class Eater(Greedy):
    """Takes 16 MiB for each picture."""

    def take(self) -> None:
        self.had.append(b"x" * MORSEL)


@node
class Forker(Greedy):
    """Starts a process for each picture."""

    def take(self) -> None:
        try:
            self.had.append(subprocess.Popen(["sleep", "1000"]))
        except OSError as error:
            log.info(f"no more processes: {error.strerror}")
