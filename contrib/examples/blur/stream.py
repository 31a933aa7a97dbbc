"""A test picture, blurred."""

from tatolab.stream import DisplayWindow, StreamBuilder, TestPatternSource, stream

from nodes.gaussian_blur import GaussianBlur


@stream
def blur(stream_builder: StreamBuilder) -> None:
    """Blurs a picture in two passes."""
    # A size that a machine without a GPU can blur in time, too.
    camera = stream_builder.add(TestPatternSource, name="camera", config={"width": 640, "height": 360})
    blurred = stream_builder.add(GaussianBlur, name="blur", config={"radius": 6.0})
    window = stream_builder.add(DisplayWindow, name="window", config={"title": "Blurred"})

    stream_builder.connect(camera.output("video"), blurred.input("video"))
    stream_builder.connect(blurred.output("blurred"), window.input("video"))
