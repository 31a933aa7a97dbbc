"""An effect: the colours of the picture wander."""

from dataclasses import dataclass

from tatolab.stream import (
    GlslPixelEffect,
    RuntimeContextFullAccess,
    RuntimeContextLimitedAccess,
    VideoFrame,
    node,
)

# Runs once for every pixel: `source` is its colour, `at` its place.
EFFECT = """
vec4 effect(vec4 source, ivec2 at) {
    float turn = streamlib_elapsed_seconds * dials.speed;
    vec3 shifted = source.rgb * (0.8 + 0.4 * sin(turn + vec3(0.0, 2.1, 4.2)));
    return vec4(shifted, source.a);
}
"""


@dataclass
class ColourShiftConfig:
    # How fast the colours wander; 0 holds them still.
    speed: float = 0.2


@node
class ColourShift:
    """Applies EFFECT to every picture."""

    @node.input(name="video")
    def video_in(self) -> VideoFrame: ...

    @node.output(name="video")
    def video_out(self) -> VideoFrame: ...

    def __init__(self, config: ColourShiftConfig) -> None:
        self.speed = config.speed

    def setup(self, ctx: RuntimeContextFullAccess) -> None:
        self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, EFFECT, dials={"speed": "float"})

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is None:
            return
        bag = self.effect.apply_to_frame(ctx.gpu_limited_access, frame, dials={"speed": self.speed})
        ctx.outputs.write("video", bag, frame.timestamp_ns)
