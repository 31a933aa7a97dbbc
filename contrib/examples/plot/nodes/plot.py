"""Draws a number over time, with numpy, as a picture of its own."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, node

BACKGROUND = (24, 26, 32, 255)
GRID = (60, 64, 76, 255)
LINE = (80, 220, 140, 255)


@dataclass
class PlotConfig:
    # What the picture shows, from its left edge to its right one.
    seconds: float = 20
    # The values at the lower and upper edge.
    low: float = 0.0
    high: float = 1.0
    width: int = 640
    height: int = 240

    def __post_init__(self) -> None:
        if self.seconds <= 0 or self.low >= self.high:
            raise ValueError("seconds must be above 0, and low below high")


@node
class Plot:
    """Plots the `value` of the bags it reads."""

    @node.input(delivery_profile="ordered")
    def value(self) -> dict: ...

    @node.output()
    def video(self) -> VideoFrame: ...

    def __init__(self, config: PlotConfig) -> None:
        self.config = config
        self.points: deque[tuple[int, float]] = deque()

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        bag = ctx.inputs.read("value")
        if bag is None:
            return
        now = bag["timestamp_ns"]
        self.points.append((now, bag["value"]))
        while self.points[0][0] < now - self.config.seconds * 1e9:
            self.points.popleft()
        width, height = self.config.width, self.config.height
        picture = ctx.gpu_limited_access.acquire_pixel_buffer(width, height)
        self.draw(picture.as_numpy(), now)
        ctx.outputs.write(
            "video",
            {"surface_id": picture.surface_id, "width": width, "height": height, "timestamp_ns": now},
        )

    def draw(self, image: np.ndarray, now: int) -> None:
        height, width, _ = image.shape
        image[:] = BACKGROUND
        image[:: max(1, height // 4)] = GRID
        times, values = np.array(self.points).T
        columns = np.arange(width)
        column_times = now - (width - 1 - columns) / (width - 1) * self.config.seconds * 1e9
        values = np.interp(column_times, times, values)
        values = np.clip((values - self.config.low) / (self.config.high - self.config.low), 0, 1)
        rows = np.round((1 - values) * (height - 1)).astype(int)
        known = column_times >= times[0]
        # A column reaches to its neighbour's height, so that the line is whole.
        for column in columns[known]:
            before = rows[max(column - 1, 0)]
            top, bottom = sorted((before, rows[column]))
            image[top : bottom + 1, column] = LINE
