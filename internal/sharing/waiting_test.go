package sharing

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
)

// talking is a project with a stream that counts, and readers of it at right
// and wrong addresses.
func talking(addresses map[string]string) map[string]string {
	var readers strings.Builder
	for name, address := range addresses {
		fmt.Fprintf(&readers, `

@stream
def %s(stream_builder: StreamBuilder) -> None:
    node = stream_builder.add(Listener, name="listener")
    stream_builder.connect(stream_builder.remote_output(%q), node.input("count"))
`, name, address)
	}
	return map[string]string{
		"pyproject.toml":    "",
		"nodes/__init__.py": "",
		"stream.py": `from tatolab.stream import StreamBuilder, stream
from nodes.talk import Listener, Talker


@stream
def talk(stream_builder: StreamBuilder) -> None:
    node = stream_builder.add(Talker, name="talker")
    stream_builder.expose(node.output("count"))
` + readers.String(),
		"nodes/talk.py": `from tatolab.stream import RuntimeContextLimitedAccess, node


@node(execution="continuous", interval_ms=10)
class Talker:
    @node.output()
    def count(self) -> dict: ...

    @node.output()
    def quiet(self) -> dict: ...

    def __init__(self) -> None:
        self.n = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        self.n += 1
        ctx.outputs.write("count", {"n": self.n, "raw": b"\x00\xff"})
        ctx.outputs.write("quiet", {"n": self.n})


@node
class Listener:
    @node.input(delivery_profile="ordered")
    def count(self) -> dict: ...

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        ctx.inputs.read("count")
`,
	}
}

// A link that cannot be made says what is missing; so do `tatolab read` and
// `snapshot`, whatever state the stream is in.
func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	addresses := map[string]string{
		"good":     "talk/talker/count",
		"nostream": "ghost/talker/count",
		"nonode":   "talk/ghost/count",
		"noport":   "talk/talker/ghost",
		"hidden":   "talk/talker/quiet",
		"distant":  "rig/talk/talker/count",
	}
	r := testbed.Run(t)
	talker, project := r.Project("talk", talking(nil)), r.Project("readers", talking(addresses))
	r.Must(talker, "run", "-d")
	for name := range addresses {
		r.Must(project, "run", "-d", "stream.py:"+name)
	}
	flows(t, r, "good")
	missing := func(why map[string]string) {
		t.Helper()
		for name, reason := range why {
			waits(t, r, name, "needs "+addresses[name]+": "+reason)
			if name == "distant" {
				continue
			}
			for _, command := range [][]string{{"read", "--no-wait"}, {"snapshot", "-o", "never.png"}} {
				res := r.CLI(project, append(command, addresses[name])...)
				want := "error: cannot read " + addresses[name] + ": " + reason + "\n"
				if res.Code != 1 || res.Stdout != "" || !strings.HasPrefix(res.Stderr, want) || !strings.Contains(res.Stderr, "hint: ") {
					t.Errorf("%v of %s: %+v, want %q and a hint", command, addresses[name], res, want)
				}
			}
		}
		if _, err := os.Stat(filepath.Join(project, "never.png")); err == nil {
			t.Error("a snapshot that failed has left a file")
		}
	}
	const distant = "reading from other machines is not built yet"
	missing(map[string]string{
		"nostream": "no stream ghost is running",
		"nonode":   "talk has no node ghost",
		"noport":   "talk/talker has no output ghost",
		"hidden":   "it is not exposed, its level is internal",
		"distant":  distant,
	})
	for _, wrong := range []string{"talk", "talk/talker", "a/b/c/d/e", "rig/talk/talker/count", ""} {
		if res := r.CLI(project, "read", wrong, "--no-wait"); res.Code != 2 || !strings.HasPrefix(res.Stderr, "error: ") {
			t.Errorf("read of %q: %+v, want a usage error", wrong, res)
		}
	}

	r.Must(project, "stop", "talk")
	stopped := map[string]string{"good": "talk is stopped", "nonode": "talk is stopped", "hidden": "talk is stopped", "distant": distant}
	missing(stopped)
	// A person who waits is told so, and gets the bag when there is one.
	reading, out := hold(t, r, project, "read", addresses["good"], "-n", "1")
	out.Await(t, "waiting for talk/talker/count: talk is stopped\n")
	r.Stop() // kept, but not started
	if err := reading.Wait(); err == nil || !strings.Contains(out.String(), "error: the runtime went away") {
		t.Errorf("the runtime went, and read ended with %v:\n%s", err, out.String())
	}
	r.Start()
	missing(stopped)

	r.Must(project, "start", "talk")
	r.Stop()
	venv := filepath.Join(talker, ".venv")
	if err := os.Rename(venv, venv+"-gone"); err != nil {
		t.Fatal(err)
	}
	r.Start()
	failed := "talk has failed: " + talker + " has no .venv/bin/python. Run uv sync in talk."
	testbed.Eventually(t, settles, func() string {
		if table := r.Must(project, "streams"); !strings.Contains(table, "talk      failed") {
			return table
		}
		return ""
	})
	missing(map[string]string{"good": failed, "noport": failed})
	if err := os.Rename(venv+"-gone", venv); err != nil {
		t.Fatal(err)
	}
	reading, out = hold(t, r, project, "read", addresses["good"], "-n", "1")
	out.Await(t, "waiting for talk/talker/count: "+failed+"\n")
	r.Must(project, "start", "talk")
	if err := reading.Wait(); err != nil || !strings.Contains(out.String(), `"raw":{"$bytes":"AP8="}`) {
		t.Errorf("read, when the stream is back: %v\n%s", err, out.String())
	}
	flows(t, r, "good")
}

// Who may read is on disk before it takes effect: what was shut stays shut,
// however the runtime ends, and what cannot be recorded does not happen.
func TestRestrictionIsRecordedFirst(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("talking", talking(map[string]string{"listen": "talk/talker/count"}))
	r.Must(project, "run", "-d", "stream.py:talk")
	r.Must(project, "run", "-d", "stream.py:listen")
	flows(t, r, "listen")
	rulings := func() string {
		var record struct {
			Rulings []struct{ Node, Port, Level string }
		}
		data, err := os.ReadFile(r.Record("talk"))
		if err == nil {
			err = json.Unmarshal(data, &record)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(record.Rulings)
	}

	folder := filepath.Dir(r.Record("talk"))
	if err := os.Rename(folder, folder+"-gone"); err != nil {
		t.Fatal(err)
	}
	testbed.Write(t, filepath.Dir(folder), map[string]string{filepath.Base(folder): "in the way"})
	res := r.CLI(project, "expose", "talk", "talker", "count", "--internal")
	if res.Code != 1 || !strings.Contains(res.Stderr, "error: cannot change talk: the record of talk cannot be written: ") {
		t.Errorf("expose without a place for records: %+v", res)
	}
	flows(t, r, "listen")
	if err := errors.Join(os.Remove(folder), os.Rename(folder+"-gone", folder)); err != nil {
		t.Fatal(err)
	}

	r.Must(project, "expose", "talk", "talker", "count", "--internal")
	r.Kill(unix.SIGKILL)
	if got := rulings(); got != "[{talker count internal}]" {
		t.Errorf("the record of a stream whose output was made internal rules %s", got)
	}
	r.Start()
	const shut = "needs talk/talker/count: it is not exposed, its level is internal"
	waits(t, r, "listen", shut)
	// It holds over another `run -d`, until --reset.
	r.Must(project, "run", "-d", "stream.py:talk")
	waits(t, r, "listen", shut)
	if said := r.Must(project, "expose", "talk", "talker", "count", "--reset"); said != "talk/talker/count is private\n" {
		t.Errorf("expose --reset says %q", said)
	}
	r.Kill(unix.SIGKILL)
	if got := rulings(); got != "[]" {
		t.Errorf("after --reset the record rules %s", got)
	}
	r.Start()
	flows(t, r, "listen")
}

// A cut waits for the producer alone: not for a reader that stands still, and
// not for ever.
func TestCutOfWhatStandsStill(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("talking", talking(map[string]string{"listen": "talk/talker/count"}))
	r.Must(project, "run", "-d", "stream.py:talk")
	r.Must(project, "run", "-d", "stream.py:listen")
	flows(t, r, "listen")
	expose := func(flag string) { r.Must(project, "expose", "talk", "talker", "count", flag) }
	const shut = "needs talk/talker/count: it is not exposed, its level is internal"

	talker, listener := node(t, r, "talk", "talker").PID, node(t, r, "listen", "listener").PID
	testbed.Freeze(t, listener)
	expose("--internal")
	waits(t, r, "listen", shut)
	unix.Kill(listener, unix.SIGCONT)
	expose("--reset")
	flows(t, r, "listen")
	if now := node(t, r, "talk", "talker").PID; now != talker {
		t.Errorf("the producer was process %d and is %d: it was ended for its reader's sake", talker, now)
	}
	if now := node(t, r, "listen", "listener").PID; now != listener {
		t.Errorf("the reader was process %d and is %d", listener, now)
	}

	testbed.Freeze(t, talker)
	expose("--internal")
	if unix.Kill(talker, 0) == nil {
		t.Error("the command has returned, and the producer that did not cut is still there")
	}
	waits(t, r, "listen", shut)
	testbed.Eventually(t, settles, func() string {
		if log := r.Must(project, "logs", "talk"); !strings.Contains(log, "it did not cut a reader off within 5s") {
			return "the log does not say why the producer was ended:\n" + log
		}
		return ""
	})
	expose("--reset")
	flows(t, r, "listen")
}
