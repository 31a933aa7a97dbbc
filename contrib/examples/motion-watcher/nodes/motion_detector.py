"""Reports whether something moves in front of the camera."""

from dataclasses import dataclass

import numpy as np
from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, log, node

# Every eighth pixel in both directions is enough to see motion.
STEP = 8
# A pixel has changed when its brightness, 0 to 255, differs by more than this.
PIXEL_THRESHOLD = 25
# Motion is over once nothing has changed for this long.
QUIET_NS = 1_000_000_000


@dataclass
class MotionDetectorConfig:
    # The share of the picture, 0 to 1, that must change to count as motion.
    sensitivity: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.sensitivity < 1:
            raise ValueError(f"sensitivity must be between 0 and 1, not {self.sensitivity}")


@node
class MotionDetector:
    """Compares each picture with the one before, and reports how much has changed."""

    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    @node.output()
    def motion(self) -> dict: ...

    def __init__(self, config: MotionDetectorConfig) -> None:
        self.sensitivity = config.sensitivity
        self.previous = None
        self.moving = False
        self.last_change_ns = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is None:
            return
        with frame.cpu() as image:
            brightness = image[::STEP, ::STEP, :3].mean(axis=2)
        changed = self.compare(brightness)
        if changed > self.sensitivity:
            self.last_change_ns = frame.timestamp_ns
            self.note(moving=True)
        elif frame.timestamp_ns - self.last_change_ns > QUIET_NS:
            self.note(moving=False)
        ctx.outputs.write(
            "motion",
            {"moving": self.moving, "changed": round(changed, 4), "timestamp_ns": frame.timestamp_ns},
        )

    def compare(self, brightness) -> float:
        """The share of pixels that differ from the picture before."""
        previous, self.previous = self.previous, brightness
        if previous is None or previous.shape != brightness.shape:
            return 0.0
        return float((np.abs(brightness - previous) > PIXEL_THRESHOLD).mean())

    def note(self, *, moving: bool) -> None:
        if moving != self.moving:
            self.moving = moving
            log.info("motion started" if moving else "motion stopped")
