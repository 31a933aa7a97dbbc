"""Declaring a node class: `@node`, `@node.input`, `@node.output`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._names import cast, listing

if TYPE_CHECKING:
    from collections.abc import Mapping

ExecutionMode = Literal["reactive", "continuous", "manual"]
DeliveryProfile = Literal["newest", "ordered"]
Scheduling = Literal["realtime", "high", "normal"]

_MODES = ("reactive", "continuous", "manual")
_PROFILES = ("newest", "ordered")
_SCHEDULING = ("realtime", "high", "normal")

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])


@dataclass(frozen=True)
class InputPort:
    """A declared input and how it reads."""

    name: str
    description: str
    delivery_profile: DeliveryProfile


@dataclass(frozen=True)
class OutputPort:
    """A declared output."""

    name: str
    description: str


@dataclass(frozen=True)
class NodeDeclaration:
    """What `@node` noted on a class."""

    cls: type
    description: str
    mode: ExecutionMode
    interval_ms: float
    scheduling: Scheduling | None
    inputs: Mapping[str, InputPort]
    outputs: Mapping[str, OutputPort]
    takes_config: bool

    @property
    def type(self) -> str:
        """The node's type in a graph, `module:Class`."""
        return f"{self.cls.__module__}:{self.cls.__qualname__}"


def declaration_of(cls: type) -> NodeDeclaration | None:
    """The declaration of a node class, None for a class that is none.

    A subclass of a node class is a node only where it is decorated itself.
    """
    found = cls.__dict__.get("__tatolab_node__")
    return found if isinstance(found, NodeDeclaration) else None


class _Port:
    """Takes the place of a decorated port method until `@node` collects it."""

    def __init__(self, function: Callable[..., Any], port: InputPort | OutputPort) -> None:
        self.function = function
        self.port = port
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self.function if instance is None else self.function.__get__(instance, owner)


def _port_source(function: object, decorator: str) -> Callable[..., Any]:
    if not inspect.isfunction(function):
        raise TypeError(
            f"@{decorator} belongs on a method of a node class, not on {function!r}; "
            f"write @{decorator}(...) above `def NAME(self): ...`"
        )
    return function


def _check_text(value: object, what: str) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {type(value).__name__}")


@overload
def output(name: _F, /) -> _F: ...
@overload
def output(name: str | None = None, *, description: str = "") -> Callable[[_F], _F]: ...
def output(name: Any = None, *, description: str = "") -> Any:
    """Declare an output port, named after the method unless `name` is given."""
    if callable(name):
        return output()(name)
    _check_text(description, "description of an output")

    def declare(function: Callable[..., Any]) -> Any:
        source = _port_source(function, "node.output")
        port = cast(source.__name__ if name is None else name, "name of an output")
        return _Port(source, OutputPort(port, description or _doc(source)))

    return declare


@overload
def input(name: _F, /) -> _F: ...
@overload
def input(
    name: str | None = None,
    *,
    description: str = "",
    delivery_profile: DeliveryProfile = "newest",
) -> Callable[[_F], _F]: ...
def input(
    name: Any = None,
    *,
    description: str = "",
    delivery_profile: DeliveryProfile = "newest",
    **unsupported: Any,
) -> Any:
    """Declare an input port, named after the method unless `name` is given.

    `newest` reads the latest bag each time; `ordered` reads every bag in
    order, 16 of them at most waiting, older ones dropped and counted.
    """
    if callable(name):
        return input()(name)
    _check_text(description, "description of an input")
    if unsupported:
        what = next(iter(unsupported))
        why = " (audio is out of scope for now)" if what == "audio_window" else ""
        raise TypeError(f"@node.input takes no {what}{why}; it takes name, description and delivery_profile")
    if delivery_profile not in _PROFILES:
        raise ValueError(f"delivery_profile {delivery_profile!r} is none of {listing(_PROFILES)}")

    def declare(function: Callable[..., Any]) -> Any:
        source = _port_source(function, "node.input")
        port = cast(source.__name__ if name is None else name, "name of an input")
        return _Port(source, InputPort(port, description or _doc(source), delivery_profile))

    return declare


def _doc(obj: object) -> str:
    """The first paragraph of the docstring, on one line."""
    doc = inspect.cleandoc(getattr(obj, "__doc__", None) or "")
    return " ".join(doc.split("\n\n")[0].split())


def _collect(cls: type) -> tuple[dict[str, InputPort], dict[str, OutputPort]]:
    inputs: dict[str, InputPort] = {}
    outputs: dict[str, OutputPort] = {}
    by_method: dict[str, _Port] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, _Port):
                by_method[name] = value
            elif name in by_method:
                del by_method[name]  # overridden by something that is no port
    for method, declared in by_method.items():
        port = declared.port
        ports = inputs if isinstance(port, InputPort) else outputs
        if port.name in ports:
            kind = "inputs" if isinstance(port, InputPort) else "outputs"
            raise ValueError(
                f"{cls.__qualname__} has two {kind} named {port.name!r} "
                f"(the second is method {method}); give one another name"
            )
        if isinstance(port, InputPort):
            inputs[port.name] = port
        else:
            outputs[port.name] = port
    return inputs, outputs


def _takes_config(cls: type) -> bool:
    """Whether the constructor wants `config`; refuses any other constructor."""
    if cls.__init__ is object.__init__:
        return False
    fix = "write `def __init__(self)` or `def __init__(self, config: MyConfig)`"
    try:
        parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    except (TypeError, ValueError) as error:
        raise TypeError(f"cannot read the constructor of {cls.__qualname__}: {error}; {fix}") from None
    if not parameters:
        return False
    only = parameters[0]
    if (
        len(parameters) > 1
        or only.name != "config"
        or only.kind in (only.VAR_POSITIONAL, only.VAR_KEYWORD, only.POSITIONAL_ONLY)
    ):
        got = ", ".join(str(parameter) for parameter in parameters)
        raise TypeError(f"{cls.__qualname__}.__init__ takes ({got}), a node takes only `config`: {fix}")
    if only.annotation is only.empty:
        raise TypeError(
            f"{cls.__qualname__}.__init__: `config` has no annotation; "
            "annotate it with a dataclass, a TypedDict or a pydantic model"
        )
    return True


def _declare(
    cls: Any,
    execution: Any,
    interval_ms: Any,
    scheduling: Any,
    description: Any,
) -> Any:
    if not inspect.isclass(cls):
        raise TypeError(f"@node belongs on a class, not on {cls!r}")
    inputs, outputs = _collect(cls)
    name = cls.__qualname__
    if execution is None:
        if not inputs:
            raise TypeError(
                f"{name} has no input, so nothing would ever call its process(): "
                'write @node(execution="continuous", interval_ms=...) or @node(execution="manual")'
            )
        execution = "reactive"
    if execution not in _MODES:
        raise ValueError(f"{name}: execution {execution!r} is none of {listing(_MODES)}")
    if execution == "reactive" and not inputs:
        raise TypeError(
            f"{name} is reactive and has no input, so nothing would ever call its process(): "
            "declare one with @node.input or choose another execution"
        )
    if isinstance(interval_ms, bool) or not isinstance(interval_ms, (int, float)):
        raise TypeError(f"{name}: interval_ms must be a number, not {type(interval_ms).__name__}")
    if not 0 <= interval_ms <= 86_400_000:
        raise ValueError(f"{name}: interval_ms {interval_ms} is not between 0 and a day (86400000)")
    if interval_ms and execution != "continuous":
        raise ValueError(f'{name}: interval_ms is for execution="continuous", this node is {execution}')
    if scheduling is not None and scheduling not in _SCHEDULING:
        raise ValueError(f"{name}: scheduling {scheduling!r} is none of {listing(_SCHEDULING)}")
    _check_text(description, f"description of {name}")
    wanted = ("start",) if execution == "manual" else ("process",)
    for method in wanted:
        if not callable(getattr(cls, method, None)):
            raise TypeError(f"{name} is {execution} and has no {method}(): write `def {method}(self, ctx)`")
    for method in ("setup", "process", "teardown", "start", "stop", "on_pause", "on_resume"):
        function = getattr(cls, method, None)
        if function is not None and not _takes(function, 1) and not (method == "process" and _takes(function, 0)):
            raise TypeError(f"{name}.{method} does not take the context: write `def {method}(self, ctx)`")
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name}.{method} is async; node callbacks are plain functions: write `def {method}`")
    stamped: Any = cls
    stamped.__tatolab_node__ = NodeDeclaration(
        cls=cls,
        description=description or _doc(cls),
        mode=execution,
        interval_ms=interval_ms,
        scheduling=scheduling,
        inputs=inputs,
        outputs=outputs,
        takes_config=_takes_config(cls),
    )
    return cls


def _takes(method: Any, arguments: int) -> bool:
    """Whether a method can be called with so many arguments beside self."""
    try:
        inspect.signature(method).bind(*[None] * (1 + arguments))
    except TypeError:
        return False
    except ValueError:
        pass  # no signature to be had: let it be called
    return True


def process_takes_context(cls: Any) -> bool:
    """Whether `process` of a node class wants the context; it may be written without."""
    return _takes(getattr(cls, "process", None), 1)


class _NodeDecorator:
    """`@node`, and the port decorators as its attributes."""

    @overload
    def __call__(self, cls: type[_T], /) -> type[_T]: ...
    @overload
    def __call__(
        self,
        *,
        execution: ExecutionMode | None = None,
        interval_ms: float = 0,
        scheduling: Scheduling | None = None,
        description: str = "",
    ) -> Callable[[type[_T]], type[_T]]: ...
    def __call__(
        self,
        *args: Any,
        execution: ExecutionMode | None = None,
        interval_ms: float = 0,
        scheduling: Scheduling | None = None,
        description: str = "",
    ) -> Any:
        """Declare a class as a node: `@node` or `@node(execution=..., ...)`."""

        def declare(cls: Any) -> Any:
            return _declare(cls, execution, interval_ms, scheduling, description)

        if not args:
            return declare
        if len(args) == 1 and inspect.isclass(args[0]):
            return declare(args[0])
        raise TypeError(
            f"@node takes no positional argument, it got {args[0]!r}: "
            'write @node or @node(execution="continuous", interval_ms=...) above a class'
        )

    if TYPE_CHECKING:

        @overload
        @staticmethod
        def input(name: _F, /) -> _F: ...
        @overload
        @staticmethod
        def input(
            name: str | None = None,
            *,
            description: str = "",
            delivery_profile: DeliveryProfile = "newest",
        ) -> Callable[[_F], _F]: ...
        @staticmethod
        def input(name: Any = None, **options: Any) -> Any: ...

        @overload
        @staticmethod
        def output(name: _F, /) -> _F: ...
        @overload
        @staticmethod
        def output(name: str | None = None, *, description: str = "") -> Callable[[_F], _F]: ...
        @staticmethod
        def output(name: Any = None, **options: Any) -> Any: ...
    else:
        input = staticmethod(input)
        output = staticmethod(output)


node = _NodeDecorator()
