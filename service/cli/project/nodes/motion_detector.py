"""Reports whether something moves in the picture."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, log, node

# A pixel whose brightness, 0 to 255, differs by more than this has changed.
THRESHOLD = 25


@dataclass
class MotionDetectorConfig:
    # The share of the picture that must change to count as motion.
    sensitivity: float = 0.02


@node
class MotionDetector:
    """Compares each picture with the one before."""

    @node.input()
    def video(self) -> VideoFrame: ...

    @node.output()
    def motion(self) -> dict[str, Any]: ...

    def __init__(self, config: MotionDetectorConfig) -> None:
        self.sensitivity = config.sensitivity
        self.before: Any = None
        self.moving = False

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is None:
            return
        with frame.cpu() as image:
            # Every eighth pixel both ways is enough, and sixty-four times less work.
            now = image[::8, ::8, :3].mean(axis=2)
        changed = 0.0
        if self.before is not None and self.before.shape == now.shape:
            changed = float((np.abs(now - self.before) > THRESHOLD).mean())
        self.before = now

        moving = changed > self.sensitivity
        if moving != self.moving:
            self.moving = moving
            log.info("motion started" if moving else "motion stopped", changed=round(changed, 4))
        ctx.outputs.write("motion", {"moving": moving, "changed": changed, "timestamp_ns": frame.timestamp_ns})
