"""Building a graph: what a `@stream` function is given."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from ._config import check_config, json_value
from ._names import MAX_LENGTH, cast, listing
from ._node import NodeDeclaration, declaration_of


class Exposure(enum.Enum):
    """Who outside the stream may read an output."""

    PRIVATE = "private"
    """Other streams of this machine."""
    PUBLIC = "public"
    """Other machines too."""


@dataclass(frozen=True)
class NodeOutputPortReference:
    """An output of a node of this stream. Names are cast."""

    node_name: str
    port_name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_name", cast(self.node_name, "name of a node"))
        object.__setattr__(self, "port_name", cast(self.port_name, "name of an output"))


@dataclass(frozen=True)
class NodeInputPortReference:
    """An input of a node of this stream. Names are cast."""

    node_name: str
    port_name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "node_name", cast(self.node_name, "name of a node"))
        object.__setattr__(self, "port_name", cast(self.port_name, "name of an input"))


@dataclass(frozen=True)
class RemoteOutputPortReference:
    """An exposed output of another stream; `machine` None for this machine."""

    machine: str | None
    stream_name: str
    node_name: str
    port_name: str


OutputReference = Union[NodeOutputPortReference, RemoteOutputPortReference]


def _port(declaration: NodeDeclaration, node_name: str, port: str, direction: str) -> str:
    """`port`, cast; refused where the node has none of that name."""
    ports = declaration.inputs if direction == "input" else declaration.outputs
    name = cast(port, f"name of an {direction}")
    if name not in ports:
        other = declaration.outputs if direction == "input" else declaration.inputs
        remark = ""
        if name in other:
            reverse = "output" if direction == "input" else "input"
            remark = f'; "{name}" is an {reverse}: write .{reverse}("{name}")'
        raise ValueError(
            f'node "{node_name}" ({declaration.cls.__name__}) has no {direction} "{port}"; '
            f"its {direction}s: {listing(ports)}{remark}"
        )
    return name


class NodeReference:
    """A node that was added to a stream."""

    def __init__(self, name: str, declaration: NodeDeclaration) -> None:
        self._name = name
        self._declaration = declaration

    @property
    def name(self) -> str:
        """The node's name, unique in its stream."""
        return self._name

    def output(self, port: str) -> NodeOutputPortReference:
        """The output `port`; `ValueError` lists those that exist."""
        return NodeOutputPortReference(self._name, _port(self._declaration, self._name, port, "output"))

    def input(self, port: str) -> NodeInputPortReference:
        """The input `port`; `ValueError` lists those that exist."""
        return NodeInputPortReference(self._name, _port(self._declaration, self._name, port, "input"))

    def __repr__(self) -> str:
        return f"<node {self._name!r} of class {self._declaration.cls.__name__}>"


class StreamBuilder:
    """Collects the nodes, links and exposures of one stream."""

    def __init__(self, name: str) -> None:
        self._name = cast(name, "name of a stream")
        self._nodes: dict[str, tuple[NodeDeclaration, dict[str, Any]]] = {}
        self._links: list[tuple[OutputReference, NodeInputPortReference]] = []
        self._exposed: dict[NodeOutputPortReference, Exposure] = {}

    @property
    def name(self) -> str:
        """The stream's name."""
        return self._name

    def add(
        self,
        node_class: type,
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> NodeReference:
        """Add a node. Unless `name` is given it is named after its class.

        `config` is a mapping of JSON values; it is checked against the class
        that the node's constructor annotates. A name that is taken is refused.
        """
        declaration = _node_class(node_class)
        if name is None:
            cast_name = self._free_name(cast(node_class.__name__, "name of a node"))
        else:
            cast_name = cast(name, "name of a node")
            if cast_name in self._nodes:
                raise ValueError(
                    f'stream "{self._name}" already has a node "{cast_name}" '
                    f"({self._nodes[cast_name][0].cls.__name__}); give this one another name"
                )
        where = f'config of node "{cast_name}"'
        if config is not None and not isinstance(config, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'{where} must be a mapping such as {{"key": value}}, not {type(config).__name__}')
        values: dict[str, Any] = json_value(config or {}, where)
        check_config(declaration, values, where)
        self._nodes[cast_name] = (declaration, values)
        return NodeReference(cast_name, declaration)

    def connect(self, source: OutputReference, destination: NodeInputPortReference) -> None:
        """Link an output to an input of this stream."""
        if not isinstance(source, (NodeOutputPortReference, RemoteOutputPortReference)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(_wants("connect", "first an output", ".output(PORT) or remote_output(ADDRESS)", source))
        if not isinstance(destination, NodeInputPortReference):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(_wants("connect", "second an input", ".input(PORT)", destination))
        if isinstance(source, NodeOutputPortReference):
            self._check_held(source, "output")
        self._check_held(destination, "input")
        if (source, destination) in self._links:
            raise ValueError(
                f"{_address(source)} is already connected to "
                f"{destination.node_name}/{destination.port_name}; remove one of the two connect(...) lines"
            )
        self._links.append((source, destination))

    def expose(self, output: NodeOutputPortReference, level: Exposure = Exposure.PRIVATE) -> None:
        """Let others read an output: this machine's streams, or other machines too."""
        if not isinstance(output, NodeOutputPortReference):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(_wants("expose", "an output of this stream", ".output(PORT)", output))
        if not isinstance(level, Exposure):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"expose takes a level of Exposure, not {level!r}: write Exposure.PRIVATE or Exposure.PUBLIC"
            )
        self._check_held(output, "output")
        if output in self._exposed:
            raise ValueError(
                f"{_address(output)} is already exposed as {self._exposed[output].value}; expose each output once"
            )
        self._exposed[output] = level

    def remote_output(self, address: str) -> RemoteOutputPortReference:
        """The exposed output of another stream, by its address.

        `"stream/node/port"` on this machine, `"machine/stream/node/port"` on
        another.
        """
        if not isinstance(address, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f'remote_output takes an address such as "stream/node/port", not {address!r}')
        parts = address.split("/")
        if len(parts) not in (3, 4):
            raise ValueError(
                f"{address!r} is no address, it has {len(parts)} part{'s' * (len(parts) != 1)}: "
                'write "stream/node/port", or "machine/stream/node/port" for another machine'
            )
        names = [cast(part, f"part of the address {address!r}") for part in parts]
        machine = names.pop(0) if len(names) == 4 else None
        return RemoteOutputPortReference(machine, *names)

    def _free_name(self, name: str) -> str:
        free, count = name, 1
        while free in self._nodes:
            count += 1
            suffix = f"-{count}"
            free = name[: MAX_LENGTH - len(suffix)].rstrip("-") + suffix
        return free

    def _check_held(self, port: NodeOutputPortReference | NodeInputPortReference, direction: str) -> None:
        node = self._nodes.get(port.node_name)
        if node is None:
            raise ValueError(
                f'stream "{self._name}" has no node "{port.node_name}"; its nodes: {listing(self._nodes)}. '
                "Use what this stream's add(...) returned"
            )
        _port(node[0], port.node_name, port.port_name, direction)


def graph_of(builder: StreamBuilder) -> dict[str, Any]:
    """The graph that was built, as JSON values (`service/graph` in Go)."""
    return {
        "stream": builder.name,
        "nodes": [
            {"name": name, "type": declaration.type, "config": config}
            for name, (declaration, config) in builder._nodes.items()
        ],
        "links": [
            {
                "source": _source(source),
                "target": {"node": target.node_name, "port": target.port_name},
            }
            for source, target in builder._links
        ],
        "exposed": [
            {"node": output.node_name, "port": output.port_name, "level": level.value}
            for output, level in builder._exposed.items()
        ],
    }


def declarations_of(builder: StreamBuilder) -> dict[str, NodeDeclaration]:
    """The declaration behind each node, by the node's name."""
    return {name: declaration for name, (declaration, _) in builder._nodes.items()}


def _address(source: OutputReference) -> str:
    return "/".join(_source(source).values())


def _source(source: OutputReference) -> dict[str, str]:
    end: dict[str, str] = {}
    if isinstance(source, RemoteOutputPortReference):
        if source.machine is not None:
            end["machine"] = source.machine
        end["stream"] = source.stream_name
    end["node"] = source.node_name
    end["port"] = source.port_name
    return end


def _wants(method: str, what: str, how: str, got: object) -> str:
    return f"{method} takes {what}, from {how}; it got {_described(got)}"


def _described(got: object) -> str:
    if isinstance(got, NodeOutputPortReference):
        return f'the output "{got.node_name}/{got.port_name}"'
    if isinstance(got, NodeInputPortReference):
        return f'the input "{got.node_name}/{got.port_name}"'
    if isinstance(got, NodeReference):
        return f'the node "{got.name}" itself, without a port'
    return repr(got)


def _node_class(node_class: object) -> NodeDeclaration:
    """The declaration of what was passed to `add`, or why it cannot be one."""
    if not inspect.isclass(node_class):
        kind = type(node_class)
        if declaration_of(kind) is not None:
            raise TypeError(
                f"add takes the class {kind.__name__}, not an instance of it: "
                f"write add({kind.__name__}, config={{...}}) without parentheses after the name"
            )
        raise TypeError(f"add takes a node class, not {node_class!r}")
    declaration = declaration_of(node_class)
    name = node_class.__qualname__
    if declaration is None:
        parent = next((b.__name__ for b in node_class.__mro__[1:] if declaration_of(b)), None)
        because = f"it inherits from the node {parent} but is not one itself; " if parent else ""
        raise TypeError(f"{name} is no node class: {because}decorate it with @node")
    if "<locals>" in name:
        raise TypeError(
            f"{name} is defined inside a function, and a node's own process could not import it: "
            "move the class to the top of its module"
        )
    if node_class.__module__ == "__main__":
        raise TypeError(
            f"{name} is defined in __main__, and a node's own process could not import it: "
            f"move the class to a module of its own, for example nodes/{name.lower()}.py"
        )
    found: Any = sys.modules.get(node_class.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not node_class:
        raise TypeError(
            f"{declaration.type} does not lead to this class (the name is bound to {found!r}), "
            "so a node's own process could not import it: define it under its own name in its module"
        )
    return declaration
