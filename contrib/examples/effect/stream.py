"""A test picture through an effect, beside the picture itself.

With a camera, put `CameraSource` where `TestPatternSource` stands.
"""

from tatolab.stream import DisplayWindow, StreamBuilder, TestPatternSource, stream

from nodes.night_vision import NightVision


@stream
def effect(stream_builder: StreamBuilder) -> None:
    """Shows a picture, and the same in night vision."""
    camera = stream_builder.add(TestPatternSource, name="camera")
    night = stream_builder.add(NightVision, name="night", config={"tint": [0.2, 1.0, 0.3], "noise": 0.15})
    before = stream_builder.add(DisplayWindow, name="before", config={"title": "Before", "width": 640, "height": 360})
    after = stream_builder.add(DisplayWindow, name="after", config={"title": "After", "width": 640, "height": 360})

    stream_builder.connect(camera.output("video"), night.input("video"))
    stream_builder.connect(camera.output("video"), before.input("video"))
    stream_builder.connect(night.output("video_out"), after.input("video"))
