"""A blur in two passes: along the rows, then along the columns.

Both passes are one effect with different dials. What the first one draws stays
on the GPU, where the second one finds it: the picture is uploaded once and read
back once.
"""

from dataclasses import dataclass

from tatolab.stream import GlslPixelEffect, RuntimeContextFullAccess, RuntimeContextLimitedAccess, VideoFrame, node

GLSL = """
vec4 effect(vec4 source, ivec2 at) {
    int reach = int(ceil(dials.radius));
    float spread = max(dials.radius / 2.0, 0.1);
    vec4 sum = vec4(0.0);
    float weights = 0.0;
    for (int i = -reach; i <= reach; i++) {
        float weight = exp(-float(i * i) / (2.0 * spread * spread));
        sum += weight * streamlib_source_at(at + i * ivec2(dials.along));
        weights += weight;
    }
    return sum / weights;
}
"""


@dataclass
class GaussianBlurConfig:
    # How far a pixel reaches, in pixels.
    radius: float = 6.0

    def __post_init__(self) -> None:
        if not 0 <= self.radius <= 64:
            raise ValueError(f"radius must be between 0 and 64 pixels, not {self.radius}")


@node
class GaussianBlur:
    """Blurs its input."""

    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    @node.output()
    def blurred(self) -> VideoFrame: ...

    def __init__(self, config: GaussianBlurConfig) -> None:
        self.radius = config.radius

    def setup(self, ctx: RuntimeContextFullAccess) -> None:
        self.pass_ = GlslPixelEffect.compile(ctx.gpu_full_access, GLSL, dials={"radius": "float", "along": "vec2"})

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is None:
            return
        gpu = ctx.gpu_limited_access
        rows = self.pass_.apply_to_frame(gpu, frame, dials={"radius": self.radius, "along": (1, 0)})
        both = self.pass_.apply_to_frame(gpu, VideoFrame.from_bag(rows), dials={"radius": self.radius, "along": (0, 1)})
        ctx.outputs.write("blurred", both)
