"""The codec of our own against the `msgpack` package, both ways, and against broken bytes."""

from __future__ import annotations

import random
from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from tatolab.stream import decode_msgpack_bytes_to_python_object as decode
from tatolab.stream import encode_bag_to_msgpack_bytes as encode
from tatolab.stream._datapath._native import core
from tatolab.stream._msgpack import MAX_DEPTH, pure_decode, pure_encode

VALUES: list[Any] = [
    None,
    True,
    False,
    0.0,
    -0.5,
    1e300,
    float("inf"),
    "",
    "x" * 31,
    "x" * 32,
    "é" * 200,
    "x" * 70000,
    b"",
    b"x" * 255,
    b"x" * 256,
    b"x" * 70000,
    [],
    list(range(15)),
    list(range(16)),
    list(range(70000)),
    {},
    {str(i): i for i in range(15)},
    {str(i): i for i in range(16)},
    {str(i): i for i in range(70000)},
    {"a": [{"b": [None, {"c": b"d"}]}]},
    *(
        sign * (1 << bits) + near
        for bits in range(64)
        for near in (-1, 0, 1)
        for sign in (1, -1)
        if bits < 63 or sign > 0
    ),
    2**64 - 1,
    -(2**63),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: repr(v)[:20])
def test_round_trip(value: Any) -> None:
    assert pure_decode(pure_encode(value)) == value
    assert pure_decode(memoryview(bytearray(pure_encode(value)))) == value


def test_the_same_bytes_as_msgpack() -> None:
    msgpack = pytest.importorskip("msgpack")
    for value in VALUES:
        data = msgpack.packb(value, use_bin_type=True)
        assert pure_encode(value) == data
        assert pure_decode(data) == value
        assert msgpack.unpackb(pure_encode(value), raw=False) == value


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind == 6:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(20))]
    if kind == 7:
        return {str(rng.random()): random_value(rng, depth + 1) for _ in range(rng.randrange(20))}
    scalars = (
        None,
        rng.random() < 0.5,
        rng.randrange(-(2**63), 2**64),
        rng.random(),
        "ü" * rng.randrange(40),
        rng.randbytes(9),
    )
    return scalars[kind]


def test_random_values_and_their_truncations() -> None:
    rng = random.Random(7)
    for _ in range(300):
        value = random_value(rng)
        data = pure_encode(value)
        assert pure_decode(data) == value
        if len(data) > 1:
            with pytest.raises(ValueError, match="bag"):
                pure_decode(data[: rng.randrange(len(data))])


def test_random_bytes_are_refused_or_read() -> None:
    rng = random.Random(8)
    for _ in range(5000):
        try:
            pure_decode(rng.randbytes(rng.randrange(40)))
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends in the middle"),
        (b"\xc1", "0xc1 begins no msgpack value"),
        (b"\xc0\xc0", "1 bytes after its end"),
        (b"\xdd\xff\xff\xff\xff", "ends in the middle"),
        (b"\xdf\xff\xff\xff\xff", "ends in the middle"),
        (b"\xc6\xff\xff\xff\xff", "ends in the middle"),
        (b"\x81\x01\x02", "keys are strings, 1 is int"),
        (b"\x91" * 200 + b"\xc0", "nested more than"),
        (b"\xa1\xff", "codec can't decode"),
    ],
)
def test_broken_bytes(data: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        pure_decode(data)
    if "nested" not in text:  # msgpack's own limit is higher
        with pytest.raises(ValueError, match=text):
            decode(data)


def test_extensions_are_read() -> None:
    assert pure_decode(b"\xd6\xff\x00\x00\x00\x05") == 5.0
    assert pure_decode(b"\xd4\x07x") == b"x"
    assert decode(b"\xd4\x07x") == b"x"


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("bag", "text"),
    [
        ([1], "a bag is a mapping with string keys, not list"),
        ({1: 2}, "keys are strings, 1 is int"),
        ({"a": {b"k": 2}}, "keys are strings, b'k' is bytes"),
        ({"a": object()}, "cannot hold object; use dict"),
        ({"a": {1, 2}}, "cannot hold set"),
        ({"a": 2**64}, "beyond 64 bits"),
        ({"a": -(2**63) - 1}, "beyond 64 bits"),
        (nested(MAX_DEPTH + 1), "nested more than"),
    ],
)
def test_what_a_bag_cannot_hold(bag: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        encode(bag)
    with pytest.raises(ValueError, match=r"keys are|cannot"):
        pure_encode(bag if isinstance(bag, dict) else {"x": object()})


def test_what_a_bag_can_hold() -> None:
    numpy = pytest.importorskip("numpy")
    bag: dict[str, Any] = {"a": numpy.float32(0.5), "b": numpy.int64(3), "c": numpy.bool_(True), "d": (1, 2)}
    for write in (encode, pure_encode):
        assert decode(write(bag)) == {"a": 0.5, "b": 3, "c": True, "d": [1, 2]}
    assert decode(encode(OrderedDict(a=1))) == decode(encode(MappingProxyType({"a": 1}))) == {"a": 1}
    assert decode(encode({"m": MappingProxyType({"a": bytearray(b"x")})})) == {"m": {"a": b"x"}}
    assert decode(encode({"m": memoryview(b"xyz")[::2]})) == {"m": b"xz"}
    assert pure_decode(pure_encode(nested(MAX_DEPTH))) == nested(MAX_DEPTH)


@pytest.mark.skipif(core is None, reason="not built")
def test_small_bags_in_c() -> None:
    scalars = [value for value in VALUES if not isinstance(value, (list, dict, bytes))]
    rng = random.Random(9)
    done = 0
    for count in [1, 2, 4, 15, 16, 20] * 200:
        bag = {rng.choice("äxy") * rng.choice([0, 1, 31, 32, 300]) + str(n): rng.choice(scalars) for n in range(count)}
        data = core.encode(bag)
        if data is NotImplemented:
            assert len(pure_encode(bag)) > 4096 - 9
            continue
        done += 1
        assert data == pure_encode(bag)
        read = core.decode(data)
        if read is NotImplemented:
            assert count > 15
            continue
        assert read == bag and list(read) == list(bag)
        assert [type(value) for value in read.values()] == [type(value) for value in bag.values()]
        cut = data[: rng.randrange(len(data))]
        assert core.decode(cut) is NotImplemented and core.decode(data + b"\xc0") is NotImplemented
    assert done > 300
    for other in (
        {"a": []},
        {"a": {}},
        {"a": b""},
        {"a": 2**64},
        {"a": -(2**63) - 1},
        {"a": "\ud800"},
        {1: 2},
        {"a": "x" * 4096},
        OrderedDict(a=1),
        [],
    ):
        assert core.encode(other) is NotImplemented
    float32 = b"\x81\xa1a\xca\x3f\x00\x00\x00"
    for data in (float32, b"\x81\xa1a\x90", b"\x81\x01\x02", b"\x81\xa1\xff\x01", b"", bytearray(b"\x80")):
        assert core.decode(data) is NotImplemented
    # All bytes there are, first bytes above all: read as the codec in Python does, or left to it.
    for _ in range(20_000):
        data = b"\x81\xa1a" + rng.randbytes(1) + rng.randbytes(rng.choice([0, 1, 2, 4, 8, rng.randrange(40)]))
        read = core.decode(data)
        if read is not NotImplemented:
            assert pure_encode(read) == pure_encode(pure_decode(data))
