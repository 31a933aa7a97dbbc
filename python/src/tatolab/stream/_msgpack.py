"""Bags as bytes: msgpack (https://github.com/msgpack/msgpack/blob/master/spec.md).

Small flat bags, which is what names a picture, are done in C where that was
built: cold, as after each wait for a frame, that is a tenth of the time. For
all others the project's `msgpack` is used where it is installed, it is several
times faster; else the codec below. All give and take the same bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

# Deeper ones are refused on both ends, before a stack overflows.
MAX_DEPTH = 127

_HOLDS = "dict, list, str, bytes, int, float, bool or None"
_TIMESTAMP = -1  # the one extension type the format itself defines


class BagError(ValueError):
    """A value that a bag cannot hold, or bytes that are no bag."""


def pure_encode(value: Any) -> bytes:
    """`value` as msgpack, by the codec of this module."""
    out = bytearray()
    _encode(value, out, 0)
    return bytes(out)


def _encode(value: Any, out: bytearray, depth: int) -> None:
    if value is None:
        out.append(0xC0)
    elif value is True:
        out.append(0xC3)
    elif value is False:
        out.append(0xC2)
    elif isinstance(value, int):
        _encode_int(int(value), out)
    elif isinstance(value, float):
        out += struct.pack(">Bd", 0xCB, value)
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogatepass")
        n = len(data)
        if n < 32:
            out.append(0xA0 | n)
        else:
            _head(out, n, 0xD9, 0xDA, 0xDB)
        out += data
    elif isinstance(value, (bytes, bytearray, memoryview)):
        data = value.tobytes() if isinstance(value, memoryview) else value
        _head(out, len(data), 0xC4, 0xC5, 0xC6)
        out += data
    elif isinstance(value, (list, tuple)):
        items: Any = value  # pyright: ignore[reportUnknownVariableType]
        _container(out, len(items), depth, 0x90, 0xDC, 0xDD)
        for item in items:
            _encode(item, out, depth + 1)
    elif isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
        _container(out, len(mapping), depth, 0x80, 0xDE, 0xDF)
        for key, item in mapping.items():
            if not isinstance(key, str):
                raise _no_key(key)
            _encode(key, out, depth + 1)
            _encode(item, out, depth + 1)
    else:
        plain = _plain(value)
        if plain is value:
            raise BagError(f"a bag cannot hold {type(value).__name__}; use {_HOLDS}")
        _encode(plain, out, depth)


def _encode_int(value: int, out: bytearray) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
    elif value >= 0:
        if value < 2**8:
            out += struct.pack(">BB", 0xCC, value)
        elif value < 2**16:
            out += struct.pack(">BH", 0xCD, value)
        elif value < 2**32:
            out += struct.pack(">BI", 0xCE, value)
        elif value < 2**64:
            out += struct.pack(">BQ", 0xCF, value)
        else:
            raise BagError(f"a bag cannot hold {value}, it is beyond 64 bits")
    elif value >= -(2**7):
        out += struct.pack(">Bb", 0xD0, value)
    elif value >= -(2**15):
        out += struct.pack(">Bh", 0xD1, value)
    elif value >= -(2**31):
        out += struct.pack(">Bi", 0xD2, value)
    elif value >= -(2**63):
        out += struct.pack(">Bq", 0xD3, value)
    else:
        raise BagError(f"a bag cannot hold {value}, it is beyond 64 bits")


def _head(out: bytearray, n: int, one: int, two: int, four: int) -> None:
    if n < 2**8:
        out += struct.pack(">BB", one, n)
    elif n < 2**16:
        out += struct.pack(">BH", two, n)
    elif n < 2**32:
        out += struct.pack(">BI", four, n)
    else:
        raise BagError(f"a bag cannot hold {n} bytes in one value")


def _container(out: bytearray, n: int, depth: int, fix: int, two: int, four: int) -> None:
    if depth >= MAX_DEPTH:
        raise _too_deep()
    if n < 16:
        out.append(fix | n)
    elif n < 2**16:
        out += struct.pack(">BH", two, n)
    else:
        out += struct.pack(">BI", four, n)


def _plain(value: Any) -> Any:
    """A numpy scalar as a Python one; anything else as it is."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        return item()
    return value


def pure_decode(data: bytes | bytearray | memoryview) -> Any:
    """The value that msgpack `data` holds, by the codec of this module."""
    view = memoryview(data).cast("B") if not isinstance(data, memoryview) else data
    try:
        value, end = _decode(view, 0, 0)
    except (struct.error, IndexError):
        raise BagError("the bag ends in the middle of a value") from None
    if end != len(view):
        raise BagError(f"the bag has {len(view) - end} bytes after its end")
    return value


_FIXED: dict[int, tuple[str, int]] = {
    0xCA: (">f", 4),
    0xCB: (">d", 8),
    0xCC: (">B", 1),
    0xCD: (">H", 2),
    0xCE: (">I", 4),
    0xCF: (">Q", 8),
    0xD0: (">b", 1),
    0xD1: (">h", 2),
    0xD2: (">i", 4),
    0xD3: (">q", 8),
}
# First byte: format and size of the length, and what follows.
_SIZED: dict[int, tuple[str, int, str]] = {
    0xC4: (">B", 1, "bin"),
    0xC5: (">H", 2, "bin"),
    0xC6: (">I", 4, "bin"),
    0xC7: (">B", 1, "ext"),
    0xC8: (">H", 2, "ext"),
    0xC9: (">I", 4, "ext"),
    0xD9: (">B", 1, "str"),
    0xDA: (">H", 2, "str"),
    0xDB: (">I", 4, "str"),
    0xDC: (">H", 2, "array"),
    0xDD: (">I", 4, "array"),
    0xDE: (">H", 2, "map"),
    0xDF: (">I", 4, "map"),
}


def _decode(view: memoryview, at: int, depth: int) -> tuple[Any, int]:
    first = view[at]
    at += 1
    if first < 0x80:
        return first, at
    if first >= 0xE0:
        return first - 256, at
    if first < 0x90:
        return _items(view, at, first & 0x0F, "map", depth)
    if first < 0xA0:
        return _items(view, at, first & 0x0F, "array", depth)
    if first < 0xC0:
        return _raw(view, at, first & 0x1F, "str")
    if first == 0xC0:
        return None, at
    if first in (0xC2, 0xC3):
        return first == 0xC3, at
    if first in _FIXED:
        form, size = _FIXED[first]
        return struct.unpack_from(form, view, at)[0], at + size
    if first in _SIZED:
        form, size, kind = _SIZED[first]
        n: int = struct.unpack_from(form, view, at)[0]
        at += size
        if kind in ("array", "map"):
            return _items(view, at, n, kind, depth)
        return _raw(view, at, n, kind)
    if 0xD4 <= first <= 0xD8:
        return _raw(view, at, 1 << (first - 0xD4), "ext")
    raise BagError(f"byte {first:#x} begins no msgpack value")


def _raw(view: memoryview, at: int, n: int, kind: str) -> tuple[Any, int]:
    code = 0
    if kind == "ext":
        code = struct.unpack_from(">b", view, at)[0]
        at += 1
    if at + n > len(view):
        raise BagError("the bag ends in the middle of a value")
    data = bytes(view[at : at + n])
    if kind == "str":
        return data.decode("utf-8", "surrogatepass"), at + n
    if kind == "bin":
        return data, at + n
    return _extension(code, data), at + n


def _extension(code: int, data: bytes) -> Any:
    if code == _TIMESTAMP and len(data) in (4, 8, 12):
        if len(data) == 4:
            return float(struct.unpack(">I", data)[0])
        if len(data) == 8:
            (both,) = struct.unpack(">Q", data)
            return (both & 0x3FFFFFFFF) + (both >> 34) / 1e9
        nanoseconds, seconds = struct.unpack(">Iq", data)
        return seconds + nanoseconds / 1e9
    return data


def _items(view: memoryview, at: int, n: int, kind: str, depth: int) -> tuple[Any, int]:
    if depth >= MAX_DEPTH:
        raise BagError(f"the bag is nested more than {MAX_DEPTH} deep")
    # Each item takes a byte at least: a false length costs no memory.
    if n * (2 if kind == "map" else 1) > len(view) - at:
        raise BagError("the bag ends in the middle of a value")
    if kind == "array":
        items: list[Any] = []
        for _ in range(n):
            item, at = _decode(view, at, depth + 1)
            items.append(item)
        return items, at
    mapping: dict[Any, Any] = {}
    for _ in range(n):
        key, at = _decode(view, at, depth + 1)
        if not isinstance(key, str):
            raise _no_key(key)
        mapping[key], at = _decode(view, at, depth + 1)
    return mapping, at


_SCALARS = {type(None), bool, int, float, str, bytes}


def _check(value: Any, depth: int) -> None:
    if isinstance(value, Mapping):
        items: Any = value.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        keys: Any = value  # pyright: ignore[reportUnknownVariableType]
        for key in keys:
            if not isinstance(key, str):
                raise _no_key(key)
    elif isinstance(value, (list, tuple)):
        items = value  # pyright: ignore[reportUnknownVariableType]
    else:
        return
    if depth >= MAX_DEPTH:
        raise _too_deep()
    # A list of a million numbers is not looked at one by one.
    if not _SCALARS.issuperset(map(type, items)):
        for item in items:
            _check(item, depth + 1)


def _no_key(key: object) -> BagError:
    return BagError(f"a bag's keys are strings, {key!r} is {type(key).__name__}")


def _too_deep() -> BagError:
    return BagError(f"a bag cannot be nested more than {MAX_DEPTH} deep (does it contain itself?)")


def _in_c(
    core: Any, encode: Callable[[Any], bytes], decode: Callable[[Any], Any]
) -> tuple[Callable[[Any], bytes], Callable[[Any], Any]]:
    """What C does, before the codec that does all of it."""
    small_encode, small_decode = core.encode, core.decode

    def encode_bag(value: Any) -> bytes:
        data = small_encode(value)
        return encode(value) if data is NotImplemented else data

    def decode_bag(data: Any) -> Any:
        value = small_decode(data)
        return decode(data) if value is NotImplemented else value

    return encode_bag, decode_bag


def _choose() -> tuple[Callable[[Any], bytes], Callable[[Any], Any]]:
    """The project's `msgpack` behind the same face, or the codec above."""
    try:
        import msgpack  # type: ignore[import-not-found,unused-ignore]  # pyright: ignore[reportMissingImports]
    except Exception:  # absent or broken: we have our own
        return pure_encode, pure_decode
    module: Any = msgpack
    if getattr(module, "version", (0,)) < (1, 0):
        return pure_encode, pure_decode
    pack, unpack = module.packb, module.unpackb

    def encode(value: Any) -> bytes:
        _check(value, 0)  # msgpack takes keys of any type, and deeper nesting
        try:
            return pack(value, use_bin_type=True, strict_types=False)
        except Exception:
            return pure_encode(value)  # takes a few types more, and words the refusal

    def decode(data: Any) -> Any:
        try:
            return unpack(
                data, raw=False, strict_map_key=True, timestamp=1, ext_hook=_extension, unicode_errors="surrogatepass"
            )
        except Exception:
            return pure_decode(data)

    return encode, decode


_codec: tuple[Callable[[Any], bytes], Callable[[Any], Any]] | None = None


def _chosen() -> tuple[Callable[[Any], bytes], Callable[[Any], Any]]:
    global _codec
    if _codec is None:
        from ._datapath._native import core

        _codec = _choose() if core is None else _in_c(core, *_choose())
    return _codec


def encode_bag_to_msgpack_bytes(bag: Mapping[str, Any]) -> bytes:
    """A bag as msgpack; `ValueError` names what it cannot hold."""
    if not isinstance(bag, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BagError(f"a bag is a mapping with string keys, not {type(bag).__name__}")
    return (_codec or _chosen())[0](bag if isinstance(bag, dict) else dict(bag))


def decode_msgpack_bytes_to_python_object(data: bytes | bytearray | memoryview) -> Any:
    """The value that msgpack `data` holds; `ValueError` if it is none."""
    return (_codec or _chosen())[1](data)
