"""Streams for Tatolab: building a graph, and writing the nodes in it.

A module that imports this compiles and type-checks without a runtime. The
runtime lends its own copy of this package to the processes it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import clock, log
from ._builder import (
    Exposure,
    NodeInputPortReference,
    NodeOutputPortReference,
    NodeReference,
    RemoteOutputPortReference,
    StreamBuilder,
)
from ._builtins import (
    CameraSource,
    CameraSourceConfig,
    DisplayWindow,
    DisplayWindowConfig,
    Mp4Sink,
    Mp4SinkConfig,
    TestPatternSource,
    TestPatternSourceConfig,
    VideoFileSource,
    VideoFileSourceConfig,
    VirtualCameraSink,
    VirtualCameraSinkConfig,
)
from ._context import (
    GpuLimitedAccess,
    LinkInputDataReader,
    LinkOutputDataWriter,
    RuntimeContextFullAccess,
    RuntimeContextLimitedAccess,
)
from ._msgpack import decode_msgpack_bytes_to_python_object, encode_bag_to_msgpack_bytes
from ._node import input, node, output
from ._pixels import PixelBuffer, VideoFrame
from ._stream import compile_stream_to_graph, is_stream_function, stream
from .clock import MonotonicTimer, monotonic_now_ns, start_monotonic_timer

if TYPE_CHECKING:
    from ._effects import GlslPixelEffect

__version__ = "0.48.0"

__all__ = [
    "CameraSource",
    "CameraSourceConfig",
    "DisplayWindow",
    "DisplayWindowConfig",
    "Exposure",
    "GlslPixelEffect",
    "GpuLimitedAccess",
    "LinkInputDataReader",
    "LinkOutputDataWriter",
    "MonotonicTimer",
    "Mp4Sink",
    "Mp4SinkConfig",
    "NodeInputPortReference",
    "NodeOutputPortReference",
    "NodeReference",
    "PixelBuffer",
    "RemoteOutputPortReference",
    "RuntimeContextFullAccess",
    "RuntimeContextLimitedAccess",
    "StreamBuilder",
    "TestPatternSource",
    "TestPatternSourceConfig",
    "VideoFileSource",
    "VideoFileSourceConfig",
    "VideoFrame",
    "VirtualCameraSink",
    "VirtualCameraSinkConfig",
    "clock",
    "compile_stream_to_graph",
    "decode_msgpack_bytes_to_python_object",
    "encode_bag_to_msgpack_bytes",
    "input",
    "is_stream_function",
    "log",
    "monotonic_now_ns",
    "node",
    "output",
    "start_monotonic_timer",
    "stream",
]

_AUDIO = "audio is out of scope of Tatolab for Linux for now"
_CODEC = "encoded video has no node of its own here; Mp4Sink writes files, and `tatolab url` gives an output to others"
_GPU = "it belongs to a GPU interface that Tatolab for Linux does not have; see GlslPixelEffect and VideoFrame.cpu"

# Names of the public package that this one knows and does not have.
_ABSENT = {
    **dict.fromkeys(
        (
            "MicrophoneSource",
            "MicrophoneSourceConfig",
            "SpeakerSink",
            "SpeakerSinkConfig",
            "OpusEncoder",
            "OpusEncoderConfig",
            "OpusDecoder",
            "OpusDecoderConfig",
            "AudioBlock",
            "AudioWindowContract",
            "EncodedAudioPacket",
        ),
        _AUDIO,
    ),
    **dict.fromkeys(
        (
            "H264Encoder",
            "H264EncoderConfig",
            "H264Decoder",
            "H264DecoderConfig",
            "H265Encoder",
            "H265EncoderConfig",
            "H265Decoder",
            "H265DecoderConfig",
            "EncodedVideoFrame",
        ),
        _CODEC,
    ),
    **dict.fromkeys(
        (
            "ClaimedSurfacePixelAccess",
            "KernelDispatchBatch",
            "ModelInputTensorKernel",
            "NodeOutputTextureRing",
            "NodeOwnedWindow",
        ),
        _GPU,
    ),
    "graph_generator": "that is a later name of the decorator: write @stream",
}


def __getattr__(name: str) -> Any:
    if name == "GlslPixelEffect":
        # Imported when it is asked for: that tells that a node may have effects.
        from . import _effects

        found = globals()[name] = _effects.GlslPixelEffect
        return found
    if name in _ABSENT:
        # `from tatolab.stream import X` shows an ImportError as it is, while
        # it replaces the text of an AttributeError.
        raise ImportError(f"tatolab.stream has no {name}: {_ABSENT[name]}", name=__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
