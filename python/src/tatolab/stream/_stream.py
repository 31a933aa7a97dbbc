"""Stream functions: `@stream`, and compiling one to a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ._builder import StreamBuilder, graph_of
from ._names import cast

_S = TypeVar("_S", bound=Callable[[StreamBuilder], None])


def _mark(*args: Any, **kwargs: Any) -> Any:
    fix = (
        "write @stream, without parentheses, above "
        "`def NAME(stream_builder: StreamBuilder) -> None:` at the top level of a module"
    )
    if len(args) != 1 or kwargs or isinstance(args[0], str):
        raise TypeError(f"@stream takes no arguments (a stream is named after its function): {fix}")
    function: Any = args[0]
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"@stream is on a member of a class: {fix}")
    if not inspect.isfunction(function):
        raise TypeError(f"@stream belongs on a function, not on {function!r}: {fix}")
    name = function.__qualname__
    if name.endswith("<lambda>"):
        raise TypeError(f"@stream is on a lambda: {fix}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"@stream function {name} is async: {fix}")
    if inspect.isgeneratorfunction(function):
        raise TypeError(f"@stream function {name} is a generator (it has a yield): {fix}")
    if "<locals>" in name:
        raise TypeError(f"@stream function {name} is defined inside another function: {fix}")
    if "." in name:
        raise TypeError(f"@stream function {name} is a member of a class: {fix}")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    extra = [p for p in parameters if p not in positional and p.default is p.empty]
    if len(positional) != 1 or extra:
        got = ", ".join(str(p) for p in parameters)
        raise TypeError(f"@stream function {name} takes ({got}), it must take one StreamBuilder: {fix}")
    cast(name, "name of a stream")
    stamped: Any = function
    stamped.__tatolab_stream__ = f"{function.__module__}:{name}"
    return function


if TYPE_CHECKING:

    def stream(function: _S, /) -> _S:
        """Mark a module-level function that builds a stream.

        The stream is named after the function, its description is the
        docstring. The function is returned as it is.
        """
        ...
else:
    stream = _mark
    stream.__name__ = stream.__qualname__ = "stream"


def is_stream_function(obj: object) -> bool:
    """Whether `obj` is a function decorated with `@stream`."""
    return inspect.isfunction(obj) and hasattr(obj, "__tatolab_stream__")


def build_stream(function: Callable[[StreamBuilder], None], name: str | None = None) -> StreamBuilder:
    """Call a stream function and return the builder it filled."""
    if not is_stream_function(function):
        what = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"{what} is no stream function: decorate it with @stream")
    builder = StreamBuilder(name if name is not None else function.__name__)
    function(builder)
    return builder


def compile_stream_to_graph(
    stream_function: Callable[[StreamBuilder], None], *, name: str | None = None
) -> dict[str, Any]:
    """The graph a stream function builds, as JSON values. Needs no runtime."""
    return graph_of(build_stream(stream_function, name))
