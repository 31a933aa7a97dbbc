"""The brightness of a picture over time, drawn as a picture."""

from tatolab.stream import DisplayWindow, StreamBuilder, TestPatternSource, stream

from nodes.brightness_meter import BrightnessMeter
from nodes.plot import Plot


@stream
def plot(stream_builder: StreamBuilder) -> None:
    """Measures how bright a picture is, and plots it."""
    camera = stream_builder.add(TestPatternSource, name="camera", config={"motion": 4})
    meter = stream_builder.add(BrightnessMeter, name="meter")
    plotter = stream_builder.add(Plot, name="plot", config={"seconds": 20, "low": 0.35, "high": 0.55})
    window = stream_builder.add(DisplayWindow, config={"title": "Brightness", "width": 640, "height": 240})

    stream_builder.connect(camera.output("video"), meter.input("video"))
    stream_builder.connect(meter.output("brightness"), plotter.input("value"))
    stream_builder.connect(plotter.output("video"), window.input("video"))
