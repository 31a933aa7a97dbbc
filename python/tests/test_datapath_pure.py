"""The data path without what it has in C, see docs/data-path.md, "In C"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tatolab.stream._datapath import _native


@pytest.mark.skipif(not _native.NATIVE, reason="not built: test_datapath.py is all there is")
def test_the_same_in_python() -> None:
    tests = Path(__file__).with_name("test_datapath.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, _native.PURE: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not _native.NATIVE, reason="not built")
def test_the_ordinary_case_is_done_in_c() -> None:
    code = """
import socket, sys, time
from tatolab.stream._datapath import Input, Output, Surface, Waiter
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
output, waiter = Output("s/n/p"), Waiter()
reader = Input(waiter)
reader.add_link(1, "link", theirs)
output.add_link(1, ours)
while not output.readers:
    time.sleep(0.001)
small = Surface.packed(8, 8)
def frame():
    output.publish(b"bag", 0, output.acquire(small))
    waiter.wait()
    return reader.read(hold=True)
for _ in range(100):
    assert frame().frame
calls = []
sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
frame()
sys.setprofile(None)
print(*calls)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["frame"]
