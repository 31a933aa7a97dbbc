"""Records for the stream's log: `log.info("motion started", changed=0.14)`.

Usable inside a running node only. `print` works too; its lines have the level
`info` on standard output, `warn` on standard error, and no fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_sink: Callable[[str, str, dict[str, Any]], None] | None = None


def _set_sink(sink: Callable[[str, str, dict[str, Any]], None] | None) -> None:  # pyright: ignore[reportUnusedFunction]
    global _sink
    _sink = sink


def _send(level: str, message: object, fields: dict[str, Any]) -> None:
    if _sink is None:
        raise RuntimeError(
            f"log.{level} needs a running node: no runtime is lent to this process; use print or logging here"
        )
    _sink(level, str(message), fields)


def trace(message: object, **fields: Any) -> None:
    """Log the finest detail."""
    _send("trace", message, fields)


def debug(message: object, **fields: Any) -> None:
    """Log what helps to find a mistake."""
    _send("debug", message, fields)


def info(message: object, **fields: Any) -> None:
    """Log what happens."""
    _send("info", message, fields)


def warn(message: object, **fields: Any) -> None:
    """Log what is odd and was coped with."""
    _send("warn", message, fields)


warning = warn


def error(message: object, **fields: Any) -> None:
    """Log what went wrong."""
    _send("error", message, fields)
