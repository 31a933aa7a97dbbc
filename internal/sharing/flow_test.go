package sharing

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
)

// counting is a project with a stream that sends numbered bags once the file
// "go" is there, and one that reads them and notes what it got.
var counting = map[string]string{
	"pyproject.toml":    "",
	"nodes/__init__.py": "",
	"stream.py": `from tatolab.stream import StreamBuilder, stream
from nodes.count import Counter, Reader


@stream
def counter(stream_builder: StreamBuilder) -> None:
    node = stream_builder.add(Counter, name="counter")
    stream_builder.expose(node.output("count"))


@stream
def reader(stream_builder: StreamBuilder) -> None:
    node = stream_builder.add(Reader, name="reader")
    stream_builder.connect(stream_builder.remote_output("counter/counter/count"), node.input("count"))
`,
	"nodes/count.py": `import json
import os
import time

from tatolab.stream import RuntimeContextLimitedAccess, node

TOTAL = int(os.environ["TOTAL"])
PAUSE = float(os.environ.get("PAUSE", "0"))


@node(execution="continuous", interval_ms=1)
class Counter:
    @node.output()
    def count(self) -> dict: ...

    def __init__(self) -> None:
        self.n = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        if not os.path.exists("go"):
            return
        for _ in range(min(12, TOTAL - self.n)):
            self.n += 1
            ctx.outputs.write("count", {"n": self.n})


@node
class Reader:
    @node.input(delivery_profile="ordered")
    def count(self) -> dict: ...

    def __init__(self) -> None:
        self.seen = {"first": 0, "last": 0, "received": 0, "disorder": 0}

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        bag = ctx.inputs.read("count")
        if bag is None:
            return
        n, seen = bag["n"], self.seen
        seen["disorder"] += n <= seen["last"]
        seen["first"] = seen["first"] or n
        seen["last"] = n
        seen["received"] += 1
        if n == TOTAL:
            with open(os.environ["NOTE"] + "~", "w") as file:
                json.dump(seen, file)
            os.rename(os.environ["NOTE"] + "~", os.environ["NOTE"])
        if PAUSE:
            time.sleep(PAUSE)
`,
}

// noted is what a reader has seen of the bags, the last of all included.
type noted struct{ First, Last, Received, Disorder uint64 }

// Ordered: every bag arrives in order or is counted as dropped, whatever the
// readers do; and no reader does anything to another.
func TestOrdered(t *testing.T) {
	t.Parallel()
	total := uint64(50_000)
	limit := 90 * time.Second
	if soak {
		total, limit = 1_000_000, 30*time.Minute
	}
	r := testbed.Run(t)
	project := r.Project("counting", counting)
	env := []string{"--env", fmt.Sprintf("TOTAL=%d", total)}
	r.Must(project, append([]string{"run", "-d", "stream.py:counter"}, env...)...)
	readers := map[string]string{"fast": "0", "slow": "0.02", "halted": "0", "killed": "0"}
	for name, pause := range readers {
		r.Must(project, append([]string{"run", "-d", "stream.py:reader", "--name", name, "--env", "PAUSE=" + pause, "--env", "NOTE=" + name + ".json"}, env...)...)
	}
	for name := range readers {
		testbed.Eventually(t, settles, func() string {
			if l := look(t, r, name).Links[0]; l.State != "wired" || l.Profile != "ordered" {
				return fmt.Sprintf("%s: %+v", name, l)
			}
			return ""
		})
	}
	testbed.Write(t, project, map[string]string{"go": ""})

	// The halted one stands still for a while, and the killed one dies, with
	// bags on their way to both.
	for _, name := range []string{"halted", "killed"} {
		flows(t, r, name)
	}
	halted := node(t, r, "halted", "reader").PID
	testbed.Freeze(t, halted)
	stands := look(t, r, "halted").Links[0].Received
	unix.Kill(node(t, r, "killed", "reader").PID, unix.SIGKILL)
	testbed.Eventually(t, limit, func() string {
		l := look(t, r, "halted").Links[0]
		if unread := l.Sent - l.Received - l.Dropped; l.Received > stands+1 || unread > 16 {
			t.Fatalf("halted, at %d received: %+v, so that %d are unread, more than the window", stands, l, unread)
		}
		if l.Sent < total/2 {
			return fmt.Sprintf("the counter has sent %d", l.Sent)
		}
		return ""
	})
	flows(t, r, "killed")
	unix.Kill(halted, unix.SIGCONT)

	for name := range readers {
		var got noted
		testbed.Eventually(t, limit, func() string {
			data, err := os.ReadFile(filepath.Join(project, name+".json"))
			if err != nil {
				return err.Error()
			}
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			return ""
		})
		l := look(t, r, name).Links[0]
		t.Logf("%s: sent %d = received %d + dropped %d", name, l.Sent, l.Received, l.Dropped)
		if l.Sent != l.Received+l.Dropped {
			t.Errorf("%s: sent %d, but received %d and dropped %d", name, l.Sent, l.Received, l.Dropped)
		}
		if l.Received != got.Received || got.Disorder != 0 || got.Last != total {
			t.Errorf("%s: the runtime counts %+v, the node %+v", name, l, got)
		}
		// What was sent before a reader joined, or joined again, is not its link's.
		if l.Sent > total || got.First+l.Sent <= total {
			t.Errorf("%s, whose first bag was %d: sent %d of %d bags", name, got.First, l.Sent, total)
		}
		if restarts := node(t, r, name, "reader").Restarts; (restarts == 1) != (name == "killed") {
			t.Errorf("%s was started again %d times", name, restarts)
		}
	}
}

// newestProject is a 30 Hz source that notes in a file what it has published,
// and a 5 Hz reader that checks what it reads against that.
var newestProject = map[string]string{
	"pyproject.toml":    "",
	"nodes/__init__.py": "",
	"stream.py": `from tatolab.stream import StreamBuilder, stream
from nodes.newest import Reader, Source


@stream
def source(stream_builder: StreamBuilder) -> None:
    node = stream_builder.add(Source, name="source")
    stream_builder.expose(node.output("bag"))


@stream
def reader(stream_builder: StreamBuilder) -> None:
    node = stream_builder.add(Reader, name="reader")
    stream_builder.connect(stream_builder.remote_output("source/source/bag"), node.input("bag"))
`,
	"nodes/newest.py": `import mmap

from tatolab.stream import RuntimeContextLimitedAccess, log, node

BEGUN, DONE = 0, 1  # the bag last begun to be written, the one written last


def shared() -> memoryview:
    with open("shared", "r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")


@node(execution="continuous", interval_ms=33)
class Source:
    @node.output()
    def bag(self) -> dict: ...

    def __init__(self) -> None:
        self.n, self.shared = 0, shared()

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        self.n += 1
        self.shared[BEGUN] = self.n
        ctx.outputs.write("bag", {"n": self.n})
        self.shared[DONE] = self.n


@node(execution="continuous", interval_ms=200)
class Reader:
    @node.input(delivery_profile="newest")
    def bag(self) -> dict: ...

    def __init__(self) -> None:
        self.last, self.shared = 0, shared()

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        done = self.shared[DONE]
        bag = ctx.inputs.read("bag")
        begun = self.shared[BEGUN]
        if bag is None:
            # Nothing yet on the link, or nothing new.
            if self.last and self.last < done:
                log.error(f"read nothing after {self.last} although {done} was there")
            return
        if not done <= bag["n"] <= begun:
            log.error(f"read {bag['n']} although {done} was there")
        if bag["n"] <= self.last:
            log.error(f"read {bag['n']} after {self.last}")
        self.last = bag["n"]
`,
	"shared": string(make([]byte, 4096)),
}

// Newest: a slow reader never gets a bag that is not the newest at that moment.
func TestNewest(t *testing.T) {
	t.Parallel()
	lasts := 30 * time.Second
	if soak {
		lasts = time.Hour
	}
	r := testbed.Run(t)
	project := r.Project("newest", newestProject)
	r.Must(project, "run", "-d", "stream.py:reader")
	r.Must(project, "run", "-d", "stream.py:source")
	flows(t, r, "reader")
	time.Sleep(lasts)
	if wrong := r.Must(project, "logs", "reader", "--level", "warn"); wrong != "" {
		t.Error(wrong)
	}
	l := look(t, r, "reader").Links[0]
	if l.Received == 0 || l.Dropped == 0 {
		t.Errorf("a 5 Hz reader of 30 bags a second: %+v", l)
	}
	if unread := l.Sent - l.Received - l.Dropped; unread > 1 {
		t.Errorf("%d unread: %+v", unread, l)
	}
}
