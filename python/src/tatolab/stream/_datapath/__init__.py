"""How bags and pixels travel: rings and pools in shared memory, read in place.

The protocol, and the argument for each of its races, is docs/data-path.md.
Standard library only.
"""

from ._input import (
    Bag,
    Frame,
    FrameGoneError,
    Gone,
    Input,
    Profile,
    TooManyHeldError,
    UnknownSurfaceError,
    Waiter,
)
from ._native import core
from ._output import End, Output, Slot, TooLargeError
from ._shared import MAX_BAG, MAX_HELD, MAX_PENDING, RESIDENT, RGBA, SRGB, VERSION, DataPathError, Surface

if core is not None:
    core.use(Bag, Frame, Slot)

__all__ = [
    "MAX_BAG",
    "MAX_HELD",
    "MAX_PENDING",
    "RESIDENT",
    "RGBA",
    "SRGB",
    "VERSION",
    "Bag",
    "DataPathError",
    "End",
    "Frame",
    "FrameGoneError",
    "Gone",
    "Input",
    "Output",
    "Profile",
    "Slot",
    "Surface",
    "TooLargeError",
    "TooManyHeldError",
    "UnknownSurfaceError",
    "Waiter",
]
