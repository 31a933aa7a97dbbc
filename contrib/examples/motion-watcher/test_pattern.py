"""The motion watcher for a machine without a camera: the same stream over a test picture.

    tatolab dev test_pattern.py
"""

from tatolab.stream import DisplayWindow, StreamBuilder, TestPatternSource, stream

from nodes.motion_detector import MotionDetector


@stream
def motion_watcher(stream_builder: StreamBuilder) -> None:
    """Watches a test picture, in which something moves every few seconds, for motion."""
    camera = stream_builder.add(TestPatternSource, name="camera", config={"motion": 4})
    detector = stream_builder.add(MotionDetector, name="detector", config={"sensitivity": 0.02})
    window = stream_builder.add(DisplayWindow, config={"title": "Motion watcher (test picture)"})

    stream_builder.connect(camera.output("video"), window.input("video"))
    stream_builder.connect(camera.output("video"), detector.input("video"))

    stream_builder.expose(camera.output("video"))
    stream_builder.expose(detector.output("motion"))
