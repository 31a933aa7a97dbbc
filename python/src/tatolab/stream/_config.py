"""Values of configuration and bags against the classes that describe them.

One description, three uses: checking the configuration of a node when its
stream compiles, building the object a node's constructor or a typed read gets,
and the JSON Schema of the catalog. Supported are dataclasses, TypedDicts,
pydantic models, and what their fields are usually made of; a type that is not
understood is not checked.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import inspect
import math
import sys
import types
import typing
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Union

from ._limits import limits
from ._names import listing

if TYPE_CHECKING:
    from ._node import NodeDeclaration

# The wire carries 127 nested containers; the graph around a config takes a few.
MAX_DEPTH = 120


class ConfigError(ValueError):
    """A value is none of JSON, or does not fit the class that describes it; the text has the key path."""


# JSON values


def json_value(value: Any, path: str, _open: tuple[int, ...] = ()) -> Any:
    """A copy of `value` in dicts, lists and plain scalars, or why it is no JSON value."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            raise ConfigError(f"{path} is {value}, beyond 64 bits; write it as a string")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ConfigError(f"{path} is {value}, which JSON cannot hold; use None or a string")
        return float(value)
    if not isinstance(value, (Mapping, list, tuple)):
        raise TypeError(
            f"{path} is {_article(type(value).__name__)}, which is no JSON value; "
            "use dict, list, str, int, float, bool or None"
        )
    if id(value) in _open:  # pyright: ignore[reportUnknownArgumentType]
        raise ConfigError(f"{path} contains itself; a config is a tree")
    if len(_open) >= MAX_DEPTH:
        raise ConfigError(f"{path} is nested more than {MAX_DEPTH} deep")
    _open = (*_open, id(value))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        items: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        for key, item in items.items():
            if not isinstance(key, str):
                raise TypeError(f"{path}[{key!r}]: the key is {_article(type(key).__name__)}, keys are strings")
            result[key] = json_value(item, f"{path}[{key!r}]", _open)
        return result
    elements: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
    return [json_value(item, f"{path}[{i}]", _open) for i, item in enumerate(elements)]


# The config class of a node


def config_class(declaration: NodeDeclaration) -> Any:
    """The class the constructor's `config` is annotated with, None without one."""
    if not declaration.takes_config:
        return None
    cls = declaration.cls
    fix = "annotate it with a dataclass, a TypedDict or a pydantic model"
    where = f"{cls.__qualname__}.__init__: `config`"
    try:
        annotation = typing.get_type_hints(cls.__init__)["config"]
    except NameError as error:
        raise TypeError(
            f"{where} is annotated with a name that does not exist when the node runs ({error}); "
            "import it outside of `if TYPE_CHECKING:` and define it at the top of a module"
        ) from None
    if not (
        inspect.isclass(annotation)
        and (dataclasses.is_dataclass(annotation) or _is_typed_dict(annotation) or _is_pydantic(annotation))
    ):
        raise TypeError(f"{where} is annotated with {_type_name(annotation)}; {fix}")
    return annotation


def check_config(declaration: NodeDeclaration, config: Mapping[str, Any], where: str) -> None:
    """Refuse a config that the node's constructor could not be given."""
    build_config(declaration, config, where)


def build_config(declaration: NodeDeclaration, config: Mapping[str, Any], where: str) -> Any:
    """The object the node's constructor is given, None where it takes none."""
    cls = config_class(declaration)
    if cls is None:
        if config:
            raise ConfigError(
                f"{where} has {listing(config)}, but {declaration.cls.__qualname__} takes no config: "
                "remove it, or write `def __init__(self, config: MyConfig)` in the class"
            )
        return None
    return build(config, cls, where, closed=True)


# Building and checking


def build(value: Any, annotation: Any, path: str, *, closed: bool) -> Any:
    """`value` as `annotation` says, or `ConfigError` naming the place.

    `closed` refuses keys that the class does not have (a config: most likely
    misspelt); a bag may carry more than a reader wants.
    """
    if annotation is Any or annotation is object or isinstance(annotation, typing.TypeVar):
        return value
    if annotation is None or annotation is type(None):
        return _expect(value, value is None, "null", path)
    if inspect.isclass(annotation) and not isinstance(annotation, types.GenericAlias):
        return _build_class(value, annotation, path, closed)
    return _build_generic(value, annotation, path, closed)


def _build_class(value: Any, kind: Any, path: str, closed: bool) -> Any:
    cls: Any = kind
    if _is_pydantic(cls):
        return _build_pydantic(value, cls, path)
    if dataclasses.is_dataclass(kind):
        if isinstance(value, cls):
            return value
        names = {f.name for f in dataclasses.fields(cls) if f.init}
        required = [
            f.name
            for f in dataclasses.fields(cls)
            if f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        ]
        fields = _fields(value, cls, path, names, required, closed)
        try:
            return cls(**fields)
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: {cls.__name__} refuses it: {error}") from error
    if _is_typed_dict(cls):
        names = set(cls.__annotations__) | set(typing.get_type_hints(cls))
        fields = _fields(value, cls, path, names, sorted(cls.__required_keys__), closed)
        if closed:
            return fields
        return {**value, **fields}
    if issubclass(cls, enum.Enum):
        try:
            return cls(value)
        except ValueError:
            members = ", ".join(repr(m.value) for m in cls)
            raise ConfigError(f"{path} is {value!r}, none of {members}") from None
    if cls is bool:
        return _expect(value, isinstance(value, bool), "true or false", path)
    if cls is int:
        return _expect(value, isinstance(value, int) and not isinstance(value, bool), "an integer", path)
    if cls is float:
        _expect(value, isinstance(value, (int, float)) and not isinstance(value, bool), "a number", path)
        return float(value)
    if cls is str:
        return _expect(value, isinstance(value, str), "a string", path)
    if cls in (bytes, bytearray, memoryview):
        return _expect(value, isinstance(value, (bytes, bytearray, memoryview)), "bytes", path)
    if _is_path(cls):
        return cls(_expect(value, isinstance(value, str), "a string", path))
    if cls in (list, tuple, set, frozenset):
        collection: Any = cls  # pyright would keep the elements as unknown
        return collection(_expect(value, isinstance(value, (list, tuple)), "a list", path))
    if cls is dict:
        return _expect(value, isinstance(value, Mapping), "a map", path)
    return value


_LISTS: Final = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_MAPS: Final = (dict, Mapping, collections.abc.MutableMapping)


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """A generic type and what it is of; of anything where that is not said (`List`)."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if arguments or origin is None:
        return origin, arguments
    if origin in _LISTS:
        return origin, (Any,)
    if origin in _MAPS:
        return origin, (Any, Any)
    return origin, (Any, ...) if annotation is typing.Tuple else ()  # noqa: UP006


def _build_generic(value: Any, annotation: Any, path: str, closed: bool) -> Any:
    origin, arguments = _parts(annotation)
    if origin is typing.Annotated:
        built = build(value, arguments[0], path, closed=closed)
        for limit in limits(arguments[1:]):
            _expect(value, limit.holds(value), str(limit), path)
        return built
    if _is_qualifier(origin):
        return build(value, arguments[0], path, closed=closed)
    if origin is Literal:
        found = [a for a in arguments if a == value and type(a) is type(value)]
        return _expect(value, bool(found), " or ".join(repr(a) for a in arguments), path)
    if origin is Union or origin is types.UnionType:
        # An exact type first, so that 3 stays an int in `float | int`.
        for argument in arguments:
            if type(value) is argument or (value is None and argument is type(None)):
                return value
        errors: list[str] = []
        for argument in arguments:
            try:
                return build(value, argument, path, closed=closed)
            except ConfigError as error:
                if argument is not type(None):
                    errors.append(str(error))
        raise ConfigError(errors[0] if len(errors) == 1 else f"{path} is {value!r}, not {_type_name(annotation)}")
    if origin in _LISTS:
        _expect(value, isinstance(value, (list, tuple)), "a list", path)
        items = [build(v, arguments[0], f"{path}[{i}]", closed=closed) for i, v in enumerate(value)]
        collection: Any = origin if origin in (set, frozenset) else list
        return collection(items)
    if origin is tuple:
        _expect(value, isinstance(value, (list, tuple)), "a list", path)
        if len(arguments) == 2 and arguments[1] is ...:
            arguments = (arguments[0],) * len(value)
        _expect(value, len(value) == len(arguments), f"a list of {len(arguments)}", path)
        return tuple(
            build(v, a, f"{path}[{i}]", closed=closed) for i, (v, a) in enumerate(zip(value, arguments, strict=True))
        )
    if origin in _MAPS:
        _expect(value, isinstance(value, Mapping), "a map", path)
        return {k: build(v, arguments[1], f"{path}[{k!r}]", closed=closed) for k, v in value.items()}
    return value


def _fields(value: Any, cls: Any, path: str, names: set[str], required: list[str], closed: bool) -> dict[str, Any]:
    _expect(value, isinstance(value, Mapping), f"a map for {cls.__name__}", path)
    if closed:
        for key in value:
            if key not in names:
                raise ConfigError(
                    f"{path}[{key!r}]: {cls.__name__} has no such key; its keys: {listing(sorted(names))}"
                )
    missing = [name for name in required if name not in value]
    if missing:
        raise ConfigError(f"{path} lacks {listing(missing)}, which {cls.__name__} requires")
    hints = _hints(cls)
    return {
        name: build(value[name], hints.get(name, Any), f"{path}[{name!r}]", closed=closed)
        for name in names
        if name in value
    }


def _build_pydantic(value: Any, cls: Any, path: str) -> Any:
    try:
        return cls.model_validate(value)
    except Exception as error:
        errors = getattr(error, "errors", None)
        if not callable(errors):
            raise
        lines: list[str] = []
        found: Any = errors()
        for one in found:
            place = "".join(f"[{part!r}]" for part in one["loc"])
            lines.append(f"{path}{place}: {one['msg']}")
        raise ConfigError("; ".join(lines)) from error


def _expect(value: Any, fits: bool, what: str, path: str) -> Any:
    if not fits:
        shown = repr(value)
        if len(shown) > 60:
            shown = _article(type(value).__name__)
        raise ConfigError(f"{path} is {shown}, not {what}")
    return value


_hints_of: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _hints_of:
        try:
            _hints_of[cls] = typing.get_type_hints(cls, include_extras=True)
        except NameError as error:
            raise TypeError(
                f"{cls.__qualname__} has an annotation that does not exist when the node runs ({error}); "
                "import it outside of `if TYPE_CHECKING:`"
            ) from None
    return _hints_of[cls]


def _is_typed_dict(cls: Any) -> bool:
    # typing_extensions has a TypedDict of its own, so not typing.is_typeddict.
    return hasattr(cls, "__required_keys__") and inspect.isclass(cls) and issubclass(cls, dict)


def _is_pydantic(cls: Any) -> bool:
    return inspect.isclass(cls) and hasattr(cls, "model_validate") and hasattr(cls, "model_json_schema")


def _is_path(cls: type) -> bool:
    # Not imported for it: whoever annotates with Path has imported it.
    pathlib = sys.modules.get("pathlib")
    return pathlib is not None and issubclass(cls, pathlib.PurePath)


def _is_qualifier(origin: Any) -> bool:
    return getattr(origin, "_name", None) in ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")


def _type_name(annotation: Any) -> str:
    if inspect.isclass(annotation) and not isinstance(annotation, types.GenericAlias):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")


def _article(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"


# JSON Schema


def schema(declaration: NodeDeclaration) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a node's config."""
    cls = config_class(declaration)
    if cls is None:
        body: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    else:
        body = _schema(cls, ())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **body}


_SCALARS: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", None: "null"}


def _schema(annotation: Any, inside: tuple[Any, ...]) -> dict[str, Any]:
    if annotation is type(None):
        annotation = None
    try:
        if annotation in _SCALARS:
            return {"type": _SCALARS[annotation]}
    except TypeError:  # unhashable
        return {}
    if annotation in inside:
        return {}  # recursive: not described further
    origin, arguments = _parts(annotation)
    if origin is typing.Annotated:
        body = _schema(arguments[0], inside)
        for limit in limits(arguments[1:]):
            body |= limit.schema()
        return body
    if _is_qualifier(origin):
        return _schema(arguments[0], inside)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is Union or origin is types.UnionType:
        return {"anyOf": [_schema(a, inside) for a in arguments]}
    if origin in _LISTS:
        return {"type": "array", "items": _schema(arguments[0], inside)}
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is ...:
            return {"type": "array", "items": _schema(arguments[0], inside)}
        n = len(arguments)
        items = [_schema(a, inside) for a in arguments]
        return {"type": "array", "prefixItems": items, "minItems": n, "maxItems": n}
    if origin in _MAPS:
        return {"type": "object", "additionalProperties": _schema(arguments[1], inside)}
    if not inspect.isclass(annotation):
        return {}
    cls: Any = annotation
    if _is_pydantic(cls):
        return cls.model_json_schema()
    if issubclass(cls, enum.Enum):
        return {"enum": [m.value for m in cls]}
    if _is_path(cls):
        return {"type": "string"}
    if cls in (list, tuple, set, frozenset):
        return {"type": "array"}
    if cls is dict:
        return {"type": "object"}
    inside = (*inside, cls)
    if dataclasses.is_dataclass(cls):
        return _dataclass_schema(cls, inside)
    if _is_typed_dict(cls):
        return _object(
            cls,
            {name: _schema(hint, inside) for name, hint in _hints(cls).items()},
            sorted(cls.__required_keys__),
        )
    return {}


def _dataclass_schema(cls: Any, inside: tuple[Any, ...]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    hints = _hints(cls)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        one = _schema(hints.get(field.name, Any), inside)
        if field.default is not dataclasses.MISSING:
            # One that JSON cannot say is still a default.
            with contextlib.suppress(TypeError, ValueError):
                one["default"] = json_value(field.default, field.name)
        elif field.default_factory is dataclasses.MISSING:
            required.append(field.name)
        properties[field.name] = one
    return _object(cls, properties, required)


def _object(cls: type, properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    body: dict[str, Any] = {
        "title": cls.__name__,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        body["required"] = required
    return body
