"""The node host, driven over real sockets as the runtime drives it (docs/node-protocol.md)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import PATIENCE_S, SOURCE, NodeProcess, Stream, running, write
from tatolab.stream._datapath import Input, Waiter
from tatolab.stream._host.scheduling import schedule
from tatolab.stream._msgpack import decode_msgpack_bytes_to_python_object

COUNTER = """
    from tatolab.stream import node, log

    @node(execution="continuous", interval_ms=5)
    class Counter:
        @node.output()
        def count(self): ...

        def __init__(self):
            self.n = 0

        def process(self, ctx):
            ctx.outputs.write("count", {"n": self.n, "timestamp_ns": ctx.time})
            self.n += 1
"""


def one_node(folder: Path, body: str) -> Path:
    """A project whose stream is the one node class `N` of `body`."""
    return write(
        folder / "p",
        {
            "stream.py": """
                from tatolab.stream import stream
                from nodes import N

                @stream
                def s(b):
                    b.add(N, name="n")
            """,
            "nodes.py": body,
        },
    )


def test_life_of_a_node(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import os
        from tatolab.stream import log, node

        @node(execution="continuous", interval_ms=10)
        class N:
            def __init__(self): print("constructed")
            def setup(self, ctx):
                print("setup in", os.getcwd())
                log.info("set up", answer=42, bad=float("nan"))
            def process(self):
                print("process")
            def teardown(self, ctx):
                print("teardown")
        """,
    )
    stream = Stream(project)
    node = stream.spawn("n")
    try:
        hello = node.expect("hello")
        assert hello["protocol"] == 1 and hello["build"] == "test" and hello["pid"] == node.process.pid
        node.expect("loaded")
        assert "constructed" not in node.output, "loaded must come before anything of the node runs"
        node.start()
        node.printed("process")
        assert f"setup in {project}" in node.output
        record = node.expect("log", message="set up")
        assert record["level"] == "info" and record["fields"] == {"answer": 42, "bad": "nan"}
        assert 0 <= time.monotonic_ns() - record["time_ns"] < 60e9
        assert node.stop() == 0
        kinds = [m["kind"] for m in node.messages]
        assert kinds == ["hello", "loaded", "log", "ready", "stopping", "stopped"]
        assert node.output.rstrip().endswith("teardown")
    finally:
        stream.close()


def test_bags_travel_in_order(tmp_path: Path) -> None:
    project = write(
        tmp_path / "p",
        {
            "stream.py": """
                from tatolab.stream import stream
                from nodes.counter import Counter
                from nodes.reader import Reader

                @stream
                def s(b):
                    b.connect(b.add(Counter).output("count"), b.add(Reader).input("count"))
            """,
            "nodes/counter.py": COUNTER,
            "nodes/reader.py": """
                from dataclasses import dataclass
                from tatolab.stream import node, log

                @dataclass
                class Count:
                    n: int

                @node
                class Reader:
                    @node.input(delivery_profile="ordered")
                    def count(self): ...

                    def setup(self, ctx):
                        log.info("links", names=ctx.inputs.inbound_link_names("count"))

                    def process(self, ctx):
                        value, link = ctx.inputs.read_from_inbound_link("count", into=Count)
                        log.info("got", n=value.n, link=link)
            """,
        },
    )
    with running(project) as stream:
        reader = stream.nodes["reader"]
        assert reader.expect("log", message="links")["fields"] == {"names": ["counter/count"]}
        reader.wait(lambda: len(reader.of("log")) > 50)
        got = [m["fields"] for m in reader.of("log") if m["message"] == "got"]
        numbers = [f["n"] for f in got]
        # On a busy machine more than the window of 16 may pass at once.
        assert numbers == sorted(set(numbers))
        assert {f["link"] for f in got} == {"counter/count"}
        assert reader.of("page") and stream.nodes["counter"].expect("ring", port="count")
        assert stream.nodes["counter"].stop() == 0
        assert reader.expect("lost")["id"] == 1
        assert reader.stop() == 0


def test_process_is_not_called_again_for_bags_it_does_not_read(tmp_path: Path) -> None:
    project = write(
        tmp_path / "p",
        {
            "stream.py": """
                from tatolab.stream import stream
                from nodes import Once, Idle

                @stream
                def s(b):
                    b.connect(b.add(Once).output("bag"), b.add(Idle).input("bag"))
            """,
            "nodes.py": """
                from tatolab.stream import node, log

                @node(execution="continuous", interval_ms=60)
                class Once:
                    n = 0
                    @node.output()
                    def bag(self): ...
                    def process(self, ctx):
                        if self.n < 10:
                            self.n += 1
                            ctx.outputs.write("bag", {"n": self.n})
                        else:
                            log.info("done")

                @node
                class Idle:
                    calls = 0
                    @node.input(delivery_profile="ordered")
                    def bag(self): ...
                    def process(self, ctx):
                        self.calls += 1
                    def teardown(self, ctx):
                        log.info("calls", n=self.calls)
            """,
        },
    )
    with running(project) as stream:
        stream.nodes["once"].expect("log", message="done")
        idle = stream.nodes["idle"]
        idle.stop()
        calls = idle.expect("log", message="calls")["fields"]["n"]
        # An arrival may fall into the call for the one before, or be late to
        # the start; it is never called in a loop.
        assert 1 <= calls <= 10


def test_an_exception_is_told_once_and_counted(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        from tatolab.stream import node

        @node(execution="continuous", interval_ms=1)
        class N:
            n = 0
            def process(self, ctx):
                self.n += 1
                if self.n == 2:
                    raise KeyError("early")
                if self.n > 5:
                    print("at", self.n)
                    raise ValueError(f"number {self.n}")
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("at 40")
        assert node.stop() == 0
        errors = node.of("error")
        assert [e["message"].split(":")[0] for e in errors[:2]] == ["KeyError", "ValueError"]
        assert errors[1]["phase"] == "process" and errors[1]["message"] == "ValueError: number 6"
        lines = errors[1]["traceback"].splitlines()
        assert lines[0].startswith("Traceback") and 'raise ValueError(f"number {self.n}")' in errors[1]["traceback"]
        assert "tatolab/stream" not in errors[1]["traceback"], "frames of ours"
        told = node.output.count("at ")
        more = sum(int(e["message"].split("(")[1].split()[0]) for e in errors[2:])
        assert more == told - 1, "every repeat is counted"


def test_the_traceback_shows_what_ran_and_not_what_is_on_disk(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        from tatolab.stream import node

        @node(execution="continuous", interval_ms=5)
        class N:
            def process(self, ctx):
                import helper
                helper.fail()
        """,
    )
    write(project, {"helper.py": "def fail():\n    raise ValueError('kept')  # the line that ran\n"})
    stream = Stream(project)
    write(project, {"helper.py": "\n\ndef fail():\n    pass\n", "nodes.py": "raise SystemExit\n"})
    node = stream.spawn("n")
    try:
        node.start()
        error = node.expect("error", message="ValueError: kept")
        assert "# the line that ran" in error["traceback"]
        assert f'File "{project}/helper.py", line 2, in fail' in error["traceback"]
    finally:
        stream.close()


@pytest.mark.parametrize(
    ("body", "phase", "message"),
    [
        ("raise OSError('no such thing')", "load", "OSError: no such thing"),
        ("class N: pass", "load", "TypeError: nodes:N is no node class: decorate it with @node"),
        ("x = 1", "load", "AttributeError: module 'nodes' has no attribute 'N'"),
    ],
)
def test_failure_to_load(tmp_path: Path, body: str, phase: str, message: str) -> None:
    project = one_node(tmp_path, COUNTER.replace("Counter", "N"))
    stream = Stream(project)
    write(project, {"other.py": body})
    manifest = Path(stream.spec("n")["snapshot"]) / "files/nodes.py"
    manifest.write_text(body)
    node = stream.spawn("n")
    try:
        failed = node.expect("failed")
        assert (failed["phase"], failed["message"]) == (phase, message)
        assert node.ended() == 1
    finally:
        stream.close()


def test_failure_to_set_up(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        from tatolab.stream import node

        @node(execution="continuous")
        class N:
            def setup(self, ctx): raise RuntimeError("no lens")
            def process(self, ctx): print("never")
            def teardown(self, ctx): print("never")
        """,
    )
    stream = Stream(project)
    node = stream.spawn("n")
    try:
        node.expect("loaded")
        node.send("start")
        failed = node.expect("failed")
        assert failed["phase"] == "setup" and failed["message"] == "RuntimeError: no lens"
        assert 'raise RuntimeError("no lens")' in failed["traceback"]
        assert node.ended() == 1 and "never" not in node.output and not node.of("ready")
    finally:
        stream.close()


@pytest.mark.parametrize("where", ["setup", "process"])
@pytest.mark.parametrize("how", ["time.sleep(3600)", "while True: pass", "threading.Event().wait()"])
def test_a_callback_that_runs_on_is_interrupted(tmp_path: Path, where: str, how: str) -> None:
    project = one_node(
        tmp_path,
        f"""
        import threading, time
        from tatolab.stream import node

        @node(execution="continuous")
        class N:
            def setup(self, ctx):
                if "{where}" == "setup": self.hang()
            def process(self, ctx): self.hang()
            def hang(self):
                print("hangs")
                try:
                    {how}
                except Exception:
                    print("an Exception, which a node may catch")
            def teardown(self, ctx): print("torn down")
        """,
    )
    stream = Stream(project)
    node = stream.spawn("n")
    try:
        node.expect("loaded")
        node.send("start")
        node.printed("hangs")
        assert node.stop() == 0
        assert f"{where} ran on after stop and was interrupted" in node.logs()
        assert ("torn down" in node.output) == (where == "process")
        assert "an Exception" not in node.output
    finally:
        stream.close()


def test_stop_before_start(tmp_path: Path) -> None:
    project = one_node(tmp_path, COUNTER.replace("Counter", "N"))
    stream = Stream(project)
    node = stream.spawn("n")
    try:
        node.expect("loaded")
        assert node.stop() == 0
        assert [m["kind"] for m in node.messages] == ["hello", "loaded", "stopping", "stopped"]
    finally:
        stream.close()


def test_the_end_of_the_runtime_ends_the_node_at_once(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import threading, time
        from tatolab.stream import node

        @node(execution="manual")
        class N:
            def start(self, ctx):
                threading.Thread(target=time.sleep, args=(3600,)).start()
                print("started")
            def teardown(self, ctx): print("never")
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("started")
        node.channel.shutdown(socket.SHUT_RDWR)
        assert node.ended() == 1 and "never" not in node.output


def test_manual_node_with_a_loop_of_its_own(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import time
        from tatolab.stream import node

        @node(execution="manual")
        class N:
            go_on = True
            def start(self, ctx):
                print("loops")
                while self.go_on:
                    time.sleep(0.01)
                print("loop ended")
            def stop(self, ctx):
                print("stop")
                self.go_on = False
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("loops")
        assert node.stop() == 0
        assert "loop ended" in node.output and node.output.count("stop") == 1
        assert not [t for t in node.logs() if "interrupted" in t]


STOPS_LATE = """
    import threading, time
    from tatolab.stream import node

    @node(execution="manual")
    class N:
        def setup(self, ctx):
            self.end = threading.Event()
        def start(self, ctx):
            print("loops")
            self.end.wait()
        def stop(self, ctx):
            self.end.set()
            time.sleep({seconds})
            print("flushed")
        def teardown(self, ctx):
            print("torn down")
"""


def test_teardown_waits_for_a_stop_that_runs_beside_start(tmp_path: Path) -> None:
    project = one_node(tmp_path, STOPS_LATE.format(seconds=1))
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("loops")
        assert node.stop() == 0
        assert node.output.split()[-3:] == ["flushed", "torn", "down"]


def test_teardown_does_not_wait_for_ever(tmp_path: Path) -> None:
    project = one_node(tmp_path, STOPS_LATE.format(seconds=3600))
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("loops")
        assert node.stop() == 0
        assert "torn down" in node.output and "flushed" not in node.output
        assert "stop ran on for 4 s and is not waited for" in node.logs()


def test_pause_and_resume(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        from tatolab.stream import node

        @node(execution="continuous", interval_ms=5)
        class N:
            def process(self, ctx):
                assert not ctx.is_paused() and ctx.should_process()
                print("process")
            def on_pause(self, ctx): print("paused", ctx.is_paused())
            def on_resume(self, ctx): print("resumed")
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("process")
        node.send("pause")
        node.printed("paused True")
        time.sleep(0.2)
        assert node.output.rstrip().endswith("paused True"), "process ran while paused"
        node.send("resume")
        node.printed("resumed\nprocess")
        node.send("pause")
        assert node.stop() == 0, "a paused node can be stopped"


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_multiprocessing_in_a_node(tmp_path: Path, method: str) -> None:
    project = one_node(
        tmp_path,
        f"""
        import multiprocessing
        from tatolab.stream import node

        def work(n):
            import tatolab.stream, worker
            return f"{{n * 2}} {{worker.ANSWER}} {{tatolab.stream.__file__}}"

        @node(execution="continuous", interval_ms=50)
        class N:
            def setup(self, ctx):
                with multiprocessing.get_context("{method}").Pool(1) as pool:
                    print("result", pool.apply(work, (21,)))
            def process(self, ctx): print("works on")
        """,
    )
    write(project, {"worker.py": "ANSWER = 'kept'\n"})
    stream = Stream(project)
    write(project, {"worker.py": "ANSWER = 'changed on disk'\n"})
    node = stream.spawn("n")
    try:
        node.start()
        node.printed("result 42 kept /")
        node.printed("works on")
        assert node.stop() == 0
    finally:
        stream.close()


def test_a_forked_child_logs_to_the_output(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import os
        from tatolab.stream import log, node

        @node(execution="manual")
        class N:
            def start(self, ctx):
                if os.fork() == 0:
                    log.info("from the child", n=1)
                    os._exit(0)
                os.wait()
                log.info("from the node")
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        node.expect("log", message="from the node")
        node.printed("from the child n=1")
        assert node.stop() == 0


def test_a_crash_leaves_its_stack_in_the_log(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import ctypes
        from tatolab.stream import node

        @node(execution="continuous")
        class N:
            def process(self, ctx): ctypes.string_at(8)
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        assert node.ended() == -signal.SIGSEGV
        node.printed("Fatal Python error: Segmentation fault")
        node.printed('nodes.py", line 7 in process')


def test_a_bag_that_is_too_large_is_refused_and_counted(tmp_path: Path) -> None:
    project = write(
        tmp_path / "p",
        {
            "stream.py": """
                from tatolab.stream import stream
                from nodes import Large, Reader

                @stream
                def s(b):
                    b.connect(b.add(Large).output("bag"), b.add(Reader).input("bag"))
            """,
            "nodes.py": """
                from tatolab.stream import node, log

                @node(execution="continuous", interval_ms=50)
                class Large:
                    data = bytes((64 << 20) + 1)
                    @node.output()
                    def bag(self): ...
                    def process(self, ctx):
                        ctx.outputs.write("bag", {"data": self.data})
                        ctx.outputs.write("bag", {"data": b"x" * 100_000})
                        try:
                            ctx.outputs.write("bga", {})
                        except ValueError as error:
                            log.info(str(error))

                @node
                class Reader:
                    @node.input()
                    def bag(self): ...
                    def process(self, ctx):
                        bag = ctx.inputs.read("bag")
                        if bag: log.info("read", size=len(bag["data"]))
            """,
        },
    )
    with running(project) as stream:
        large, reader = stream.nodes["large"], stream.nodes["reader"]
        reader.wait(lambda: len(reader.of("log")) > 3)
        assert {m["fields"]["size"] for m in reader.of("log")} == {100_000}
        assert len([text for text in large.logs() if "the limit is 67108864" in text]) == 1
        assert 'the node has no output "bga"; its outputs: "bag"' in large.logs()
        assert not large.of("error")


def test_retire_and_unlink_are_answered(tmp_path: Path) -> None:
    project = write(
        tmp_path / "p",
        {
            "stream.py": """
                from tatolab.stream import stream
                from nodes import Counter, Reader

                @stream
                def s(b):
                    b.connect(b.add(Counter).output("count"), b.add(Reader).input("count"))
            """,
            "nodes.py": COUNTER
            + """
    @node
    class Reader:
        @node.input()
        def count(self): ...
        def process(self, ctx):
            if ctx.inputs.read("count"): print("read")
""",
        },
    )
    with running(project) as stream:
        reader, counter = stream.nodes["reader"], stream.nodes["counter"]
        reader.printed("read")
        counter.send("unlink", id=999, retire=True)
        counter.expect("unlinked", id=999)
        counter.send("unlink")  # without an id: told, and survived
        counter.printed("KeyError: 'id'")
        counter.send("of a later version", anything=1)
        reader.send("unlink", id=1)
        reader.expect("unlinked", id=1)
        counter.expect("lost", id=1)
        stream.wire("counter", "count", "reader", "count")
        reader.wait(lambda: len(reader.of("page")) == 2)
        reader.output = ""
        reader.printed("read")


def test_retire_renews_the_output_of_its_link_and_no_other(tmp_path: Path) -> None:
    project = write(
        tmp_path / "p",
        {
            "stream.py": """
                from tatolab.stream import stream
                from nodes import Reader, Source

                @stream
                def s(b):
                    source = b.add(Source)
                    for name, port in (("leaver", "a"), ("stayer", "a"), ("other", "b")):
                        b.connect(source.output(port), b.add(Reader, name=name).input("bag"))
            """,
            "nodes.py": """
                from tatolab.stream import node

                @node(execution="continuous", interval_ms=5)
                class Source:
                    @node.output()
                    def a(self): ...
                    @node.output()
                    def b(self): ...
                    def process(self, ctx):
                        for port in ("a", "b"):
                            ctx.outputs.write(port, {})

                @node
                class Reader:
                    @node.input()
                    def bag(self): ...
                    def process(self, ctx):
                        if ctx.inputs.read("bag") is not None: print("read")
            """,
        },
    )
    with running(project) as stream:
        source = stream.nodes["source"]
        for name in ("leaver", "stayer", "other"):
            stream.nodes[name].printed("read")

        def rings() -> list[int]:
            return [sum(m["port"] == port for m in source.of("ring")) for port in ("a", "b")]

        source.wait(lambda: min(rings()) > 0, "the first rings")
        a, b = rings()
        source.send("unlink", id=1, retire=True)  # the first of the graph's links
        source.expect("unlinked", id=1)
        source.wait(lambda: rings()[0] > a, "a fresh ring")
        for name in ("stayer", "other"):
            stream.nodes[name].output = ""
            stream.nodes[name].printed("read")
        assert rings()[1] == b


def test_what_cannot_be_sent_is_told() -> None:
    """Reports are printed, anything else ends the process: the runtime would wait for it."""
    program = """
import socket, sys
from tatolab.stream._host.channel import Channel

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is: some 4 KiB
channel = Channel(theirs.detach())
channel.send_log("info", "record " + "x" * 10000, {}, 1)
if sys.argv[1] == "gone":
    ours.close()
channel.send("failed", phase="load", message="y" * 10000 if sys.argv[1] == "large" else "short")
print("goes on")
"""

    def run(how: str) -> tuple[int, str, list[str]]:
        done = subprocess.run(
            [sys.executable, "-c", program, how],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.stderr.startswith("record xxx") and "xxx (cannot send log: Message too long)" in done.stderr
        return done.returncode, done.stdout, done.stderr.splitlines()[1:]

    assert run("large") == (1, "", ["cannot send failed: Message too long"])
    assert run("short") == (0, "goes on\n", [])
    assert run("gone") == (0, "goes on\n", [])


def test_nothing_of_the_environment_leaks_into_the_process(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import os, sys
        from tatolab.stream import node

        @node(execution="continuous", interval_ms=50)
        class N:
            def setup(self, ctx):
                fds = [f for f in range(3, 60) if os.path.exists(f"/proc/self/fd/{f}") and os.get_inheritable(f)]
                print("inheritable", fds)
                print("stdin", repr(sys.stdin.read()))
            def process(self, ctx): ...
        """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        node.printed("stdin ''")
        assert "inheritable []" in node.output


def test_spec_of_another_protocol(tmp_path: Path) -> None:
    project = one_node(tmp_path, COUNTER.replace("Counter", "N"))
    stream = Stream(project)
    node = NodeProcess(stream.spec("n", protocol=2))
    try:
        assert node.ended() != 0
        node.printed("the runtime speaks node protocol 2")
        assert os.path.isdir(project)
    finally:
        node.close()


@pytest.mark.parametrize("scheduling", ["normal", "high", "realtime"])
def test_scheduling(tmp_path: Path, scheduling: str) -> None:
    project = one_node(
        tmp_path,
        f"""
        import os, threading
        from tatolab.stream import log, node

        def told(what):
            policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
            log.info(what, policy=policy, nice=os.getpriority(os.PRIO_PROCESS, 0))

        @node(execution="continuous", interval_ms=1000, scheduling="{scheduling}")
        class N:
            def process(self):
                told("node")
                thread = threading.Thread(target=told, args=("thread",))
                thread.start()
                thread.join()
        """,
    )
    node = Stream(project).spawn("n")
    try:
        node.start()
        runs, thread = (node.expect("log", message=what)["fields"] for what in ("node", "thread"))
        refused = [text for text in node.logs() if "is not permitted" in text]
        got = "realtime" if runs["policy"] == os.SCHED_RR else "high" if runs["nice"] == -11 else "normal"
        # What this user may not do is said once, with what it came to.
        assert (got == scheduling) == (not refused)
        assert not refused or f'goes on as "{got}"' in refused[0]
        assert thread["policy"] == os.SCHED_OTHER and thread["nice"] >= 0
    finally:
        node.close()


def test_scheduling_that_is_not_permitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    monkeypatch.setattr(os, "setpriority", lambda which, who, nice: asked.append(nice))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert schedule("normal") == "" and schedule(None) == "" and not asked
    assert 'scheduling "high" is not permitted' in schedule("high")
    told = schedule("realtime")
    assert "realtime: Operation not permitted (RLIMIT_RTPRIO is" in told and 'goes on as "normal"' in told


def test_the_first_bag_waits_for_its_reader(tmp_path: Path) -> None:
    project = one_node(tmp_path, COUNTER.replace("Counter", "N").replace("interval_ms=5", "interval_ms=100"))
    node = Stream(project).spawn("n")
    waiter = Waiter()
    reader = Input(waiter, "ordered")
    try:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        node.send("link", theirs.fileno(), id=1, port="count", direction="out", name="n/count")
        theirs.close()
        node.start()
        time.sleep(0.5)  # a reader that is slow to join: five more would have been written
        os.close(reader.add_link(1, "n/count", ours))
        deadline = time.monotonic() + 20
        while (bag := reader.read()) is None:
            assert time.monotonic() < deadline
            waiter.wait(1)
        late = any("have not joined" in text for text in node.logs())  # the machine is very slow
        assert late or decode_msgpack_bytes_to_python_object(bag.data)["n"] == 0
    finally:
        waiter.close()
        node.close()


def test_a_reader_that_never_joins_is_not_waited_for(tmp_path: Path) -> None:
    project = one_node(tmp_path, COUNTER.replace("Counter", "N").replace("self.n += 1", "print('at work')"))
    node = Stream(project).spawn("n")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            node.send("link", theirs.fileno(), id=1, port="count", direction="out", name="n/count")
            node.start()
            node.printed("at work")
            node.wait(lambda: any("1 readers have not joined within 2 s" in text for text in node.logs()))
        finally:
            node.close()


def test_node_that_closes_what_is_not_its_own(tmp_path: Path) -> None:
    project = one_node(
        tmp_path,
        """
        import os
        from tatolab.stream import node

        @node(execution="continuous", interval_ms=5)
        class N:
            @node.output()
            def out(self): ...
            def process(self, ctx):
                os.closerange(3, 100)
    """,
    )
    with running(project) as stream:
        node = stream.nodes["n"]
        assert node.ended() == 1
        node.printed("the node closed descriptors that are not its own")
