"""The Python peer of the data path's tests: argv[1] is the folder that holds
``_datapath``, argv[2] the plan (see peer_test.go), descriptor 3 the driver."""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import sys
import threading
import time

sys.path.insert(0, sys.argv[1])
from _datapath import DataPathError, Input, Output, Surface, Waiter

plan = json.loads(sys.argv[2])
channel = socket.socket(fileno=3)
told = threading.Event()
report = {"ends": {}, "received": {}, "errors": [], "checked": 0, "sequence": 0}


def fail(text: str) -> None:
    if len(report["errors"]) < 10:
        report["errors"].append(text)


def tell(message: dict, fds: list[int] = []) -> None:  # noqa: B006
    socket.send_fds(channel, [json.dumps(message).encode()], fds)


def serve(link) -> None:
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 65536, 1)
        if not data:
            os._exit(1)
        message = json.loads(data)
        if message["kind"] == "link":
            link(message["id"], message.get("name", ""), fds[0])
        elif message["kind"] == "finish":
            told.set()
        elif message["kind"] == "stop":
            os._exit(0)


def size_of(n: int) -> int:
    return 5000 if n % 97 == 0 else n % 300


def produce() -> None:
    def gone(id, end) -> None:
        report["ends"][str(id)] = {"Sent": end.sent, "Received": end.received, "Dropped": end.dropped, "Why": end.why}

    output = Output("test/python/out", on_gone=gone)
    threading.Thread(target=serve, args=(lambda id, name, fd: output.add_link(id, fd),), daemon=True).start()
    while output.readers < plan["readers"]:
        time.sleep(0.001)
    size = plan["size"]
    surface = Surface.packed(size // 4, 1)
    n = 0
    while n < plan["bags"] or plan["told"] and not told.is_set():
        n += 1
        bag = n.to_bytes(8, "little") + bytes([n & 255]) * size_of(n)
        slot = None
        try:
            if size and n % 3:
                slot = output.acquire(surface)
                slot.memory[:] = n.to_bytes(8, "little") * (size // 8)
            output.publish(bag, time.monotonic_ns(), slot)
        except DataPathError as error:
            fail(f"publish {n}: {error}")
        if plan["renew"] and n % plan["renew"] == 0:
            output.remove_link(0, retire=True)
        if plan["pause_us"] and random.randrange(16) == 0:
            time.sleep(random.randrange(plan["pause_us"]) / 1e6)
    report["sequence"] = output.sequence
    output.close()


def hog() -> None:
    """Publishes, and then keeps the GIL for half a second."""
    output = Output("test/python/out")
    threading.Thread(target=serve, args=(lambda id, name, fd: output.add_link(id, fd),), daemon=True).start()
    while output.readers < plan["readers"]:
        time.sleep(0.001)
    usleep = ctypes.PyDLL(None).usleep  # PyDLL keeps the GIL
    usleep(1)
    for n in range(1, plan["bags"] + 1):
        output.publish(n.to_bytes(8, "little"), time.monotonic_ns())
        usleep(500_000)
        # The end of the hold is the next bag's timestamp.
        output.publish(n.to_bytes(8, "little"), time.monotonic_ns())
        time.sleep(0.01)
    report["sequence"] = output.sequence
    output.close()


def read() -> None:
    waiter = Waiter()
    reader = Input(waiter, plan["profile"])

    def link(id: int, name: str, fd: int) -> None:
        page = reader.add_link(id, name, fd)
        tell({"kind": "page", "id": id}, [page])
        os.close(page)

    threading.Thread(target=serve, args=(link,), daemon=True).start()
    last: dict[str, int] = {}
    held: list = []
    ended = 0

    def check_oldest() -> None:
        frame, n = held.pop(0)
        if bytes(frame.memory) != n.to_bytes(8, "little") * (len(frame.memory) // 8):
            fail(f"frame {n} changed while it was held")

    while True:
        bag = reader.read(hold=True)
        if bag is None:
            if ended >= plan["links"]:
                break
            waiter.wait()
            ended += len(reader.take_gone())
            continue
        n = int.from_bytes(bag.data[:8], "little")
        if bag.data[8:] != bytes([n & 255]) * size_of(n):
            fail(f"bag {n} is torn")
        if n <= last.get(bag.link, 0):
            fail(f"{bag.link}: bag {n} after {last[bag.link]}")
        last[bag.link] = n
        report["received"][bag.link] = report["received"].get(bag.link, 0) + 1
        if bag.frame is not None:
            report["checked"] += 1
            if bytes(bag.frame.memory) != n.to_bytes(8, "little") * (len(bag.frame.memory) // 8):
                fail(f"frame {n} is not its own")
            held.append((bag.frame, n))
            bag.frame = None
            while len(held) > plan["hold"]:
                check_oldest()
        if plan["delay_us"] and random.randrange(8) == 0:
            time.sleep(random.randrange(plan["delay_us"]) / 1e6)
    while held:
        check_oldest()
    waiter.close()


{"produce": produce, "read": read, "hog": hog}[plan["role"]]()
tell({"kind": "report", "message": json.dumps(report)})
time.sleep(60)
