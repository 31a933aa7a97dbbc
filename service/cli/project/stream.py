"""PROJECT_TITLE: a camera with an effect in a window, and motion reports other streams can read."""

from tatolab.stream import CameraSource, DisplayWindow, StreamBuilder, stream

from nodes.colour_shift import ColourShift
from nodes.motion_detector import MotionDetector


@stream
def PROJECT_FUNCTION(stream_builder: StreamBuilder) -> None:
    """Shows the camera through an effect, and reports motion."""
    camera = stream_builder.add(CameraSource, name="camera")
    effect = stream_builder.add(ColourShift, name="effect", config={"speed": 0.2})
    window = stream_builder.add(DisplayWindow, name="window", config={"title": "PROJECT_TITLE"})
    detector = stream_builder.add(MotionDetector, name="detector", config={"sensitivity": 0.02})

    stream_builder.connect(camera.output("video"), effect.input("video"))
    stream_builder.connect(effect.output("video"), window.input("video"))
    stream_builder.connect(camera.output("video"), detector.input("video"))

    # Other streams may read the reports as PROJECT_FUNCTION/detector/motion.
    stream_builder.expose(detector.output("motion"))
