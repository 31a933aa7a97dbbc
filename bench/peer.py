"""The Python processes of the benchmark: argv[1] is the folder that holds
``_datapath``, argv[2] the job (see measure.go), descriptors 3… the links."""

from __future__ import annotations

import json
import resource
import socket
import sys
import time

sys.path.insert(0, sys.argv[1])
from _datapath import Input, Output, Surface, Waiter

job = json.loads(sys.argv[2])
SMALL_BAG = 200
size: int = job["size"] or SMALL_BAG


def cpu() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def produce() -> None:
    links = [socket.socket(fileno=3 + index) for index in range(job["readers"])]
    picture = bytearray(b"\x55" * size)
    if job["mode"] == "socket":

        def emit() -> None:
            picture[:8] = time.monotonic_ns().to_bytes(8, "little")  # a bag has its own
            for link in links:
                link.sendall(picture)

    else:
        output = Output("bench/python/out")
        for index, link in enumerate(links):
            output.add_link(index + 1, link)
        while output.readers < len(links):
            time.sleep(0.001)
        surface = Surface.packed(1280, 720)
        bag = bytes(SMALL_BAG)
        if job["mode"] == "copy":

            def emit() -> None:
                now = time.monotonic_ns()
                slot = output.acquire(surface)
                slot.memory[:] = picture
                output.publish(bag, now, slot)

        elif job["size"]:

            def emit() -> None:
                slot = output.acquire(surface)
                # Here the picture would be made.
                output.publish(bag, time.monotonic_ns(), slot)

        else:

            def emit() -> None:
                output.publish(bag, time.monotonic_ns())

    frames = index = used = wall = 0
    pause = job["pause_us"] / 1e6
    end = time.monotonic() + job["seconds"]
    while index < job["frames"] or (not job["frames"] and (index % 16 or time.monotonic() < end)):
        if index == job["warm"]:
            used, wall = 0, time.monotonic_ns()
        if pause:
            before = time.thread_time_ns()
            emit()
            used += time.thread_time_ns() - before
            time.sleep(pause)
        else:
            emit()
        if index >= job["warm"]:
            frames += 1
        index += 1
    over = time.monotonic_ns()
    if job["mode"] != "socket":
        output.close()
    print(json.dumps({"frames": frames, "cpu_ns": used, "wall_ns": over - wall}))


def read() -> None:
    link = socket.socket(fileno=3)
    latencies: list[int] = []
    counts = [0, 0, 0]  # seen, and CPU and wall time at the first that counts
    keep = bool(job["frames"])

    def seen(now: int, stamp: int) -> None:
        if counts[0] == job["warm"]:
            counts[1], counts[2] = cpu(), time.monotonic_ns()
        counts[0] += 1
        if keep and counts[0] > job["warm"]:
            latencies.append(now - stamp)

    if job["mode"] == "socket" and job["size"]:
        frame = memoryview(bytearray(size))
        while True:
            at = 0
            while at < size:
                got = link.recv_into(frame[at:])
                if not got:
                    break
                at += got
            if at < size:
                break
            seen(time.monotonic_ns(), int.from_bytes(frame[:8], "little"))
    elif job["mode"] == "socket":
        bag = bytearray(size)
        while link.recv_into(bag):
            seen(time.monotonic_ns(), int.from_bytes(bag[:8], "little"))
    else:
        waiter = Waiter()
        reader = Input(waiter, job["profile"])
        reader.add_link(1, "bench", link)
        hold = bool(job["size"])
        gone = False
        while True:
            bag = reader.read(hold=hold)
            if bag is not None:
                seen(time.monotonic_ns(), bag.timestamp_ns)
                continue
            if gone:
                break
            waiter.wait()
            if waiter.ended:
                gone = bool(reader.take_gone())
    # The first frame that counts is where the clocks were read.
    print(
        json.dumps(
            {
                "latency_ns": latencies,
                "frames": max(1, counts[0] - job["warm"]),
                "cpu_ns": cpu() - counts[1],
                "wall_ns": time.monotonic_ns() - counts[2],
            }
        )
    )


{"produce": produce, "read": read}[job["role"]]()
