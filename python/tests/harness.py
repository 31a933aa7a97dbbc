"""Stands where the runtime stands: compiles a project, runs and links its nodes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
BOOTSTRAP = SOURCE / "tatolab/stream/_lend/bootstrap.py"
# Generous: the machine may be busy. A test that waits so long has failed.
PATIENCE_S = 90.0  # a busy machine loads drivers and 256 MiB pictures slowly

Message = dict[str, Any]


def write(folder: Path, files: dict[str, str]) -> Path:
    """Write a project's files and return its folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


def ask(
    mode: str, project: Path, target: str = "stream.py", python: str = sys.executable, **request: Any
) -> dict[str, Any]:
    """Run the bootstrap in `mode`, as service/project does, and return its answer."""
    request = {
        "project": str(project),
        "target": target,
        "name": None,
        "snapshot_root": str(project.parent / f"{project.name}.snapshots"),
        **request,
    }
    read_end, write_end = os.pipe()
    answer_fd = fcntl.fcntl(write_end, fcntl.F_DUPFD, 50)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as answer:
        process = subprocess.Popen(
            [python, "-I", "-u", str(BOOTSTRAP), mode],
            cwd=project,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=False,
            preexec_fn=lambda: os.dup2(answer_fd, 3) and None,
        )
        os.close(answer_fd)
        output, _ = process.communicate(json.dumps(request).encode(), PATIENCE_S)
        data = answer.read()
    assert data, f"no answer; it printed:\n{output.decode()}"
    return {**json.loads(data), "printed": output.decode()}


def compiled(project: Path, target: str = "stream.py", **request: Any) -> dict[str, Any]:
    """Compile a stream that must compile."""
    answer = ask("compile", project, target, **request)
    assert answer["ok"], answer
    return answer


def refused(project: Path, target: str = "stream.py", **request: Any) -> dict[str, Any]:
    """Compile a stream that must not compile."""
    answer = ask("compile", project, target, **request)
    assert not answer["ok"], answer
    return answer


class Graphics:
    """A stream's tatolab-gl, started when a node first asks for it, and after its end."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.processes = 0
        self.late: list[int] = []
        self._ids = 0
        self._lock = threading.Lock()

    def _start(self) -> None:
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        spec_fd = os.memfd_create("spec")
        os.write(spec_fd, json.dumps({"protocol": 1, "node": "tatolab-gl"}).encode())
        channel_copy, spec_copy = (fcntl.fcntl(fd, fcntl.F_DUPFD, 50) for fd in (theirs.fileno(), spec_fd))

        def arrange() -> None:
            os.dup2(channel_copy, 3)
            os.dup2(spec_copy, 4)
            os.closerange(5, 60)

        self.process = subprocess.Popen(
            [os.environ["TATOLAB_GL"]],
            stdin=subprocess.DEVNULL,
            close_fds=False,
            preexec_fn=arrange,
        )
        for fd in (channel_copy, spec_copy, spec_fd):
            os.close(fd)
        theirs.close()
        self.channel = ours
        self.processes += 1  # last: who sees it may look at the process

    def connect(self) -> tuple[Message, int]:
        """What the runtime would answer, and a descriptor, the caller's."""
        with self._lock:
            if self.process is None or self.process.poll() is not None:
                self._start()
            self._ids += 1
            theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, contextlib.suppress(OSError):
                socket.send_fds(
                    self.channel, [json.dumps({"kind": "graphics", "id": self._ids}).encode()], [theirs.fileno()]
                )
            return {"id": self._ids, "process": self.processes}, ours.detach()

    def close(self) -> None:
        if self.process is not None:
            self.channel.close()  # by which it ends
            self.process.wait(PATIENCE_S)
            self.process = None


class NodeProcess:
    """One node process with the runtime's end of its channel."""

    def __init__(
        self,
        spec: dict[str, Any],
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        graphics: Graphics | None = None,
    ) -> None:
        self.spec = spec
        self._graphics = graphics
        self.messages: list[Message] = []
        self.descriptors: list[int] = []
        self.output = ""
        self._changed = threading.Condition()
        self._ended = False
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ours
        spec_fd = os.memfd_create("spec")
        os.write(spec_fd, json.dumps(spec).encode())
        channel_fd = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 50)
        spec_copy = fcntl.fcntl(spec_fd, fcntl.F_DUPFD, 50)

        def arrange() -> None:
            os.dup2(channel_fd, 3)
            os.dup2(spec_copy, 4)
            os.closerange(5, 60)

        self.process = subprocess.Popen(
            [python, "-I", "-u", str(BOOTSTRAP), "node"],
            cwd=spec["project"],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            close_fds=False,
            preexec_fn=arrange,
            start_new_session=True,
        )
        for fd in (channel_fd, spec_copy, spec_fd):
            os.close(fd)
        theirs.close()
        self._threads = [threading.Thread(target=self._listen), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def _listen(self) -> None:
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.channel, 1 << 16, 1)
            except OSError:
                data, fds = b"", []
            message: Message = json.loads(data) if data else {}
            if message.get("kind") == "graphics" and self._graphics is not None:
                self._serve(self._graphics, message)
            with self._changed:
                if data:
                    self.messages.append(message)
                    self.descriptors.extend(fds)
                else:
                    self._ended = True
                self._changed.notify_all()
            if not data:
                return

    def _serve(self, graphics: Graphics, message: Message) -> None:
        if "id" in message:
            graphics.late.append(message["id"])
            if graphics.process is not None:
                graphics.process.kill()
            return
        answer, fd = graphics.connect()
        with contextlib.suppress(OSError):
            self.send("graphics", fd, **answer)
        os.close(fd)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output += line.decode(errors="replace")
                self._changed.notify_all()

    def send(self, kind: str, fd: int | None = None, **fields: Any) -> None:
        data = json.dumps({"kind": kind, **fields}).encode()
        if fd is None:
            self.channel.send(data)
        else:
            socket.send_fds(self.channel, [data], [fd])

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.messages if message["kind"] == kind]

    def logs(self) -> list[str]:
        return [message["message"] for message in self.of("log")]

    def wait(self, condition: Callable[[], Any], what: str = "it") -> Any:
        """Wait until `condition` is true, looking again at every message and line."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not (found := condition()):
                left = deadline - time.monotonic()
                assert left > 0, f"waited for {what} in vain; messages {self.messages}; printed:\n{self.output}"
                self._changed.wait(min(left, 0.5))
        return found

    def expect(self, kind: str, **fields: Any) -> Message:
        """Wait for a message of `kind` that has `fields`."""

        def found() -> Message | None:
            return next((m for m in self.of(kind) if all(m.get(k) == v for k, v in fields.items())), None)

        return self.wait(found, f"{kind} {fields}")

    def printed(self, text: str) -> None:
        self.wait(lambda: text in self.output, f"{text!r} to be printed")

    def start(self) -> NodeProcess:
        self.expect("loaded")
        self.send("start")
        self.expect("ready")
        return self

    def stop(self) -> int:
        self.send("stop")
        self.expect("stopped")
        return self.ended()

    def ended(self) -> int:
        """Wait for the end of the process and of what it printed."""
        code = self.process.wait(PATIENCE_S)
        self._threads[1].join(PATIENCE_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Children of the node may hold the pipe: they end with the session.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self.channel.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        for fd in self.descriptors:
            os.close(fd)


class Stream:
    """A compiled stream and the node processes that were started of it."""

    def __init__(self, project: Path, target: str = "stream.py", python: str = sys.executable) -> None:
        self.project = project
        self.python = python
        self.answer = compiled(project, target, python=python)
        self.nodes: dict[str, NodeProcess] = {}
        self.graphics = Graphics()
        self._links = 0

    def spec(self, name: str, **changes: Any) -> dict[str, Any]:
        graph = self.answer["graph"]
        node = next(n for n in graph["nodes"] if n["name"] == name)
        declared = self.answer["nodes"][name]
        names: dict[str, list[str]] = {}
        for link in graph["links"]:
            if link["target"]["node"] == name:
                names.setdefault(link["target"]["port"], []).append("/".join(link["source"].values()))
        return {
            "protocol": 1,
            "build": "test",
            "instance": f"{graph['stream']}/{name}#1",
            "runtime_id": "runtime-1",
            "stream": graph["stream"],
            "node": name,
            "type": node["type"],
            "config": node["config"],
            "project": str(self.project),
            "snapshot": str(self.project.parent / f"{self.project.name}.snapshots" / self.answer["snapshot"]),
            "execution": declared["execution"],
            "inputs": [{**port, "links": names.get(port["port"], [])} for port in declared["inputs"]],
            "outputs": declared["outputs"],
            **changes,
        }

    def spawn(self, name: str, **changes: Any) -> NodeProcess:
        self.nodes[name] = NodeProcess(self.spec(name, **changes), self.python, graphics=self.graphics)
        return self.nodes[name]

    def connect(self) -> None:
        """Wire every link of the graph between nodes that were spawned."""
        for link in self.answer["graph"]["links"]:
            source, target = link["source"], link["target"]
            if source["node"] in self.nodes and target["node"] in self.nodes:
                self.wire(source["node"], source["port"], target["node"], target["port"])

    def wire(self, source: str, out_port: str, target: str, in_port: str) -> int:
        self._links += 1
        profiles = {p["port"]: p["profile"] for p in self.answer["nodes"][target]["inputs"]}
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        common: dict[str, Any] = {"id": self._links, "name": f"{source}/{out_port}"}
        self.nodes[source].send("link", ends[0].fileno(), port=out_port, direction="out", **common)
        self.nodes[target].send(
            "link", ends[1].fileno(), port=in_port, direction="in", profile=profiles[in_port], local=True, **common
        )
        for end in ends:
            end.close()
        return self._links

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
        self.graphics.close()


@contextlib.contextmanager
def running(project: Path, target: str = "stream.py", *names: str, python: str = sys.executable) -> Iterator[Stream]:
    """Compile, start and wire a stream: all of its Python nodes, or those in `names`."""
    stream = Stream(project, target, python)
    try:
        wanted = names or [n["name"] for n in stream.answer["graph"]["nodes"]]
        for name in wanted:
            stream.spawn(name)
        for name in wanted:
            stream.nodes[name].expect("loaded")
        stream.connect()
        for name in wanted:
            stream.nodes[name].start()
        yield stream
    finally:
        stream.close()
