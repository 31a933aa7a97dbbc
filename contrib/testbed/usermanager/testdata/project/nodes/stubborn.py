"""Does not end when it is asked to."""

import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, node


@dataclass
class StubbornConfig:
    number: int = 0


@node
class Stubborn:
    """Sleeps, catches every exception, and wants no signal."""

    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    def __init__(self, config: StubbornConfig) -> None:
        self.number = config.number

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()))
        Path(f"stubborn-{self.number}").touch()
        while True:
            with suppress(BaseException):
                time.sleep(3600)
