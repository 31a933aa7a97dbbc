"""The contexts of a running node: the objects behind `_context.py`."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Protocol

from ..clock import monotonic_now_ns

if TYPE_CHECKING:
    from .links import Inputs, Links, Outputs, Pictures


class Running(Protocol):
    """What a context asks of its node."""

    def is_paused(self) -> bool: ...

    def should_process(self) -> bool: ...


class Context:
    """The context of `process`, `on_pause` and `on_resume`."""

    def __init__(self, node: Running, spec: dict[str, Any], links: Links) -> None:
        self._node = node
        self.config: dict[str, Any] = copy.deepcopy(spec["config"] or {})
        self.node_id: str = spec["node"]
        self.runtime_id: str = spec["runtime_id"]
        self.inputs: Inputs = links.inputs
        self.outputs: Outputs = links.outputs
        self.gpu_limited_access: Pictures = links.pictures

    @property
    def time(self) -> int:
        return monotonic_now_ns()

    def is_paused(self) -> bool:
        return self._node.is_paused()

    def should_process(self) -> bool:
        return self._node.should_process()


class FullContext(Context):
    """The context of `setup`, `teardown`, `start` and `stop`."""

    @property
    def gpu_full_access(self) -> Any:
        return self.gpu_limited_access
