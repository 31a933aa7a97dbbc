"""Night vision: brightness in one colour, with noise and a dark edge.

Change the GLSL while `tatolab dev` runs: only this node is replaced, and a
mistake is shown with its line while the camera and the windows go on.
"""

from dataclasses import dataclass, field

from tatolab.stream import GlslPixelEffect, RuntimeContextFullAccess, RuntimeContextLimitedAccess, VideoFrame, node

GLSL = """
float random(vec2 seed) {
    return fract(sin(dot(seed, vec2(12.9898, 78.233))) * 43758.5453);
}

vec4 effect(vec4 source, ivec2 at) {
    float brightness = dot(source.rgb, vec3(0.2126, 0.7152, 0.0722));
    float grain = random(vec2(at) + fract(streamlib_elapsed_seconds) * 100.0) - 0.5;
    vec2 from_middle = vec2(at) / vec2(streamlib_extent) - 0.5;
    float edge = 1.0 - dot(from_middle, from_middle) * 1.5;
    return vec4(dials.tint.rgb * (brightness + grain * dials.noise) * edge, source.a);
}
"""


@dataclass
class NightVisionConfig:
    # Red, green and blue, 0 to 1.
    tint: list[float] = field(default_factory=lambda: [0.2, 1.0, 0.3])
    # How much the picture crackles, 0 to 1.
    noise: float = 0.15


@node
class NightVision:
    """Shows its input in night vision."""

    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    @node.output()
    def video_out(self) -> VideoFrame: ...

    def __init__(self, config: NightVisionConfig) -> None:
        self.dials = {"tint": (*config.tint, 1.0), "noise": config.noise}

    def setup(self, ctx: RuntimeContextFullAccess) -> None:
        self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, GLSL, dials={"tint": "vec4", "noise": "float"})

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is not None:
            ctx.outputs.write("video_out", self.effect.apply_to_frame(ctx.gpu_limited_access, frame, dials=self.dials))
