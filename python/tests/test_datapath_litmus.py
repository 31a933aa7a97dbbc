"""The fence of the data path, see docs/data-path.md, "Fences"."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STREAM = Path(__file__).parents[1] / "src/tatolab/stream"

# Two processes count up, and note what they saw of the other's count, without
# ever waiting for it, so that every step is a trial.
LITMUS = """
import mmap, os, sys
sys.path.insert(0, sys.argv[1])
from _datapath._shared import make_fence
rounds = int(sys.argv[2])

def trial(fenced):
    words = memoryview(mmap.mmap(-1, 8192 + 2 * 8 * (rounds + 2))).cast("Q")
    child = os.fork()
    mine, yours, notes = (0, 256, 1024) if child else (256, 0, 1024 + rounds + 2)
    fence = make_fence()
    words[mine + 128] = 1
    while not words[yours + 128]:
        pass
    if fenced:
        for step in range(1, rounds + 1):
            words[mine] = step
            fence()
            words[notes + step] = words[yours]
    else:
        for step in range(1, rounds + 1):
            words[mine] = step
            words[notes + step] = words[yours]
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    a, b = 1024, 1024 + rounds + 2
    stale = 0
    for step in range(1, rounds + 1):
        # The first step of the other that this one did not see must have seen it.
        other = words[a + step] + 1
        if other <= rounds and words[b + other] < step:
            stale += 1
    return stale

print(trial(True), trial(False))
"""


def test_fence() -> None:
    rounds = 5_000_000 if os.environ.get("TATOLAB_SOAK") == "1" else 300_000
    done = subprocess.run(
        [sys.executable, "-I", "-c", LITMUS, str(STREAM), str(rounds)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    fenced, plain = map(int, done.stdout.split())
    print(f"both sides stale in {rounds} steps: {fenced} times with the fence, {plain} without")
    assert fenced == 0
