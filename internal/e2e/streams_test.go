package e2e

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
)

// ticker is a project of two nodes: one counts, the other logs the count.
func ticker(name string) map[string]string {
	return map[string]string{
		"stream.py": strings.ReplaceAll(`"""A counter."""
from tatolab.stream import StreamBuilder, stream
from nodes.counter import Counter
from nodes.printer import Printer


@stream
def NAME(stream_builder: StreamBuilder) -> None:
    """Counts."""
    counter = stream_builder.add(Counter, name="counter")
    printer = stream_builder.add(Printer, name="printer")
    stream_builder.connect(counter.output("count"), printer.input("count"))
    stream_builder.expose(counter.output("count"))
`, "NAME", name),
		"nodes/__init__.py": "",
		"nodes/counter.py": `from tatolab.stream import RuntimeContextLimitedAccess, node


@node(execution="continuous", interval_ms=50)
class Counter:
    @node.output()
    def count(self) -> dict: ...

    def __init__(self) -> None:
        self.n = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        self.n += 1
        ctx.outputs.write("count", {"n": self.n})
`,
		"nodes/printer.py": `from tatolab.stream import RuntimeContextLimitedAccess, log, node


@node
class Printer:
    @node.input(delivery_profile="ordered")
    def count(self) -> dict: ...

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        bag = ctx.inputs.read("count")
        if bag is not None:
            log.info(f"count {bag['n']}")
`,
		"pyproject.toml": "[project]\nname = \"ticker\"\nversion = \"0\"\n",
	}
}

// A node whose code takes a while to load still gets the first bag of the node
// beside it that it reads in order.
func TestTheFirstBagIsRead(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/counter.py"] = strings.Replace(files["nodes/counter.py"], "interval_ms=50", "interval_ms=1", 1)
	files["nodes/printer.py"] = "import time\n\ntime.sleep(0.3)\n" + strings.Replace(files["nodes/printer.py"],
		`        if bag is not None:
            log.info(f"count {bag['n']}")`,
		`        if bag is not None and not hasattr(self, "first"):
            self.first = bag["n"]
            log.info(f"first {self.first}.")`, 1)
	project := r.Project("ticker", files)
	_, out := start(t, r, project, "first ", "run")
	if text := out.String(); !strings.Contains(text, "first 1.") {
		t.Errorf("the first bag was not read:\n%s", text)
	}
}

// start runs `tatolab args` in dir and waits until its output says what.
func start(t testing.TB, r *testbed.Runtime, dir, what string, args ...string) (*exec.Cmd, *testbed.Output) {
	t.Helper()
	cmd := r.Command(dir, args...)
	out := testbed.Capture(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	out.Await(t, what)
	return cmd, out
}

// Scenario 1: however the command of an attached stream ends, the stream is
// gone within a moment, and its name is free.
func TestAttachedEndsWithItsCommand(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	for _, end := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGKILL} {
		cmd, _ := start(t, r, project, "count ", "run")
		if err := cmd.Process.Signal(end); err != nil {
			t.Fatal(err)
		}
		cmd.Wait()
		testbed.Eventually(t, 30*time.Second, func() string {
			if table := r.Must(project, "streams"); strings.Contains(table, "ticker") {
				return end.String() + ": " + table
			}
			for _, p := range r.Processes() {
				if strings.Contains(p, "bootstrap.py") || strings.Contains(p, "keeper") {
					return end.String() + " left " + p
				}
			}
			return ""
		})
	}
}

// A command that is merely stopped does not end its stream.
func TestStoppedCommandKeepsItsStream(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	cmd, _ := start(t, r, project, "count ", "run")
	cmd.Process.Signal(unix.SIGSTOP)
	before := received(t, r, "ticker")
	time.Sleep(2 * time.Second)
	if after := received(t, r, "ticker"); after <= before {
		t.Errorf("the printer received %d bags, then %d: the stream stands still", before, after)
	}
	cmd.Process.Signal(unix.SIGCONT)
	cmd.Process.Signal(unix.SIGINT)
	if err := cmd.Wait(); err != nil {
		t.Errorf("Ctrl-C after it was stopped: %v", err)
	}
}

func received(t *testing.T, r *testbed.Runtime, stream string) uint64 {
	t.Helper()
	g, err := r.Client().Graph(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return g.Links[0].Received
}

// Scenario 2: when the runtime is killed, nothing of it lives on.
func TestKilledRuntimeLeavesNothing(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	r.Must(project, "run", "-d")
	cmd, out := start(t, r, r.Project("other", ticker("other")), "count ", "run")
	r.Kill(unix.SIGKILL)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("run exits %d when the runtime is gone, want 1", code)
	}
	out.Await(t, "error: ")
	r.NothingLeft()
	r.Start()
	if table := r.Must(project, "streams"); !strings.Contains(table, "ticker  kept") || strings.Contains(table, "other") {
		t.Errorf("after the restart:\n%s", table)
	}
	testbed.Eventually(t, 30*time.Second, func() string {
		if received(t, r, "ticker") == 0 {
			return "the kept stream does not deliver"
		}
		return ""
	})
}

// Scenarios 3 and 6: nodes that leave children behind, hang, or ignore signals.
func TestStubbornNodes(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	bodies := map[string]string{
		"sleeper":  "import time; time.sleep(3600)",
		"spinner":  "while True: pass",
		"native":   "import ctypes, signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT}); ctypes.PyDLL(None).sleep(3600)",
		"parent":   "import subprocess, time; subprocess.Popen(['sleep', '3600']); time.sleep(0.05)",
		"daemon":   "import subprocess, time; subprocess.Popen(['setsid', '-f', 'sleep', '3600']); time.sleep(0.05)",
		"selfkill": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
	}
	files := map[string]string{"pyproject.toml": "", "nodes/__init__.py": ""}
	builder := "from tatolab.stream import StreamBuilder, stream\n"
	adds := ""
	for name, body := range bodies {
		files["nodes/"+name+".py"] = `from tatolab.stream import node


@node(execution="continuous", interval_ms=50)
class Stubborn:
    def process(self) -> None:
        ` + body + "\n"
		builder += "from nodes." + name + " import Stubborn as " + name + "\n"
		adds += "    stream_builder.add(" + name + ", name=\"" + name + "\")\n"
	}
	files["stream.py"] = builder + "\n\n@stream\ndef stubborn(stream_builder: StreamBuilder) -> None:\n" + adds
	project := r.Project("stubborn", files)
	r.Must(project, "run", "-d")
	running := func() {
		t.Helper()
		testbed.Eventually(t, 60*time.Second, func() string {
			g, err := r.Client().Graph(t.Context(), "stubborn")
			if err != nil {
				return err.Error()
			}
			for _, n := range g.Nodes {
				if n.Name != "selfkill" && n.State != "running" {
					return n.Name + " is " + string(n.State) + ": " + n.Reason
				}
				if n.Name == "selfkill" && !strings.Contains(n.Reason, "segmentation fault") {
					return "selfkill: " + n.Reason
				}
			}
			return ""
		})
	}
	running()
	res := r.CLI(project, "stop", "stubborn")
	if res.Code != 0 {
		t.Fatalf("stop: %+v", res)
	}
	if said := res.Stdout + res.Stderr; !strings.Contains(said, "native") || strings.Contains(said, "sleeper") {
		t.Errorf("stop says %q: native had to be killed, sleeper could be interrupted", said)
	}
	if table := r.Must(project, "streams"); !strings.Contains(table, "stubborn  stopped  -") {
		t.Errorf("streams:\n%s", table)
	}
	// What a reload had to kill is not told by the next stop.
	r.Must(project, "start", "stubborn")
	running()
	files["stream.py"] = strings.Replace(files["stream.py"], `    stream_builder.add(native, name="native")`+"\n", "", 1)
	testbed.Write(t, project, files)
	r.Must(project, "run", "-d")
	testbed.Eventually(t, 60*time.Second, func() string {
		if logs := r.Must(project, "logs", "stubborn"); strings.Count(logs, "native was killed") < 2 {
			return logs
		}
		return ""
	})
	if res := r.CLI(project, "stop", "stubborn"); res.Code != 0 || strings.Contains(res.Stdout+res.Stderr, "native") {
		t.Errorf("stop after a reload without native: %+v", res)
	}
	for _, p := range r.Processes() {
		if !strings.Contains(p, "tatolabd") || strings.Contains(p, "keeper") {
			t.Errorf("left behind: %s", p)
		}
	}
}

// A node that dies is named with its cause and started again; its links come
// back by themselves.
func TestDeadNodeComesBack(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	_, out := start(t, r, project, "count ", "run")
	g, err := r.Client().Graph(t.Context(), "ticker")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if n.Name == "counter" {
			unix.Kill(n.PID, unix.SIGSEGV)
		}
	}
	out.Await(t, "counter died: segmentation fault")
	out.Await(t, "count 10\n")
}

// A node that hangs in a callback is alive, but not well: graph says so.
func TestGraphShowsWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/printer.py"] = strings.ReplaceAll(files["nodes/printer.py"], "        bag = ", "        import time\n        time.sleep(3600)\n        bag = ")
	project := r.Project("ticker", files)
	r.Must(project, "run", "-d")
	testbed.Eventually(t, 30*time.Second, func() string {
		if g := r.Must(project, "graph", "ticker"); !strings.Contains(g, "nothing was read for ") {
			return g
		}
		return ""
	})
}
