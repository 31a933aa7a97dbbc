package node

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/keeper"
)

// The test binary is the keeper and the node processes of these tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(keeper.Main())
		case "node":
			os.Exit(nodeMain(os.Args[2]))
		}
	}
	goleak.VerifyTestMain(m)
}

const patience = 20 * time.Second

// nodeMain is a node process that does what its role says.
func nodeMain(role string) int {
	spec, err := control.ReadSpec()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	c, err := control.Inherited()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	say := func(m control.Message) {
		if err := c.Send(&m); err != nil {
			os.Exit(9)
		}
	}
	hello := control.Message{Kind: control.Hello, Protocol: spec.Protocol, Build: spec.Build, PID: os.Getpid()}
	switch role {
	case "early":
		say(control.Message{Kind: control.Loaded})
		time.Sleep(time.Hour)
	case "old":
		hello.Build = "0.0.1+old"
		say(hello)
		time.Sleep(time.Hour)
	case "future":
		hello.Protocol = 99
		say(hello)
		time.Sleep(time.Hour)
	case "garbage":
		say(hello)
		unix.Write(control.ChannelFD, []byte("{no json"))
		time.Sleep(time.Hour)
	case "closes":
		say(hello)
		c.Close()
		time.Sleep(time.Hour)
	case "deaf":
		say(hello)
		time.Sleep(time.Hour)
	case "repeats":
		say(hello)
		say(control.Message{Kind: control.Ready}) // before start
		say(control.Message{Kind: control.Loaded})
		say(control.Message{Kind: control.Loaded})
		say(control.Message{Kind: "from_the_future", File: os.Stdin})
		say(control.Message{Kind: control.Stopped})
		return 0
	case "flood":
		say(hello)
		for i := range 5000 {
			say(control.Message{Kind: control.Log, Level: "info", Message: fmt.Sprint(i)})
		}
		return 0
	}
	say(hello)
	say(control.Message{Kind: control.Loaded})
	for {
		m, err := c.Receive()
		if err != nil {
			return 0
		}
		switch m.Kind {
		case control.Start:
			page, _ := os.CreateTemp("", "page")
			os.Remove(page.Name())
			page.WriteString(spec.Node)
			say(control.Message{Kind: control.Ready})
			say(control.Message{Kind: control.Page, ID: 7, File: page})
			say(control.Message{Kind: control.Ring, Port: "video", Format: "YUYV", File: page})
			say(control.Message{Kind: control.Log, Level: "WARNING", Message: "careful", Fields: map[string]any{"n": 1}})
			say(control.Message{Kind: control.Error, Phase: "process", Message: "ValueError: no", Traceback: "line 1"})
			say(control.Message{Kind: control.Condition, Condition: "camera lost", Message: "camera lost: it was unplugged"})
		case control.Link:
			if m.File != nil {
				m.File.WriteString("joined " + m.Name)
				m.File.Close()
			}
			say(control.Message{Kind: control.Lost, ID: m.ID})
		case control.Unlink:
			say(control.Message{Kind: control.Unlinked, ID: m.ID})
		case control.Stop:
			say(control.Message{Kind: control.Stopping})
			say(control.Message{Kind: control.Stopped})
			return 0
		}
	}
}

// seen is everything a node gave its owner.
type seen struct {
	mu      sync.Mutex
	events  []Event
	records []api.Record
	at      []time.Time // of records
	ended   chan struct{}
}

func (s *seen) messages() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, r := range s.records {
		all = append(all, r.Level+" "+r.Message)
	}
	return all
}

func (s *seen) names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		names = append(names, strings.TrimPrefix(fmt.Sprintf("%T", e), "node."))
	}
	return names
}

func (s *seen) wait(t *testing.T) Exited {
	t.Helper()
	select {
	case <-s.ended:
	case <-time.After(patience):
		t.Fatalf("the node did not end; events %v, log %v", s.names(), s.messages())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.events[len(s.events)-1].(Exited)
}

func (s *seen) until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("not in time: %s; events %v, log %v", what, s.names(), s.messages())
		}
	}
}

func newKeeper(t *testing.T) *keeper.Keeper {
	t.Helper()
	k, err := keeper.Start(keeper.Options{Stream: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func start(t *testing.T, k *keeper.Keeper, instance string, argv ...string) (*Node, *seen) {
	t.Helper()
	s := &seen{ended: make(chan struct{})}
	n, err := Start(Options{
		Keeper: k, Argv: argv, Env: append(os.Environ(), "PYTHONUNBUFFERED=1"),
		Spec: control.Spec{Instance: instance, Stream: "garage", Node: "door", Config: json.RawMessage(`{}`)},
		Log: func(r api.Record) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.records, s.at = append(s.records, r), append(s.at, time.Now())
		},
		Event: func(e Event) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.events = append(s.events, e)
			if _, last := e.(Exited); last {
				close(s.ended) // a second one panics
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, s
}

func self(t *testing.T, role string) (*Node, *seen) {
	t.Helper()
	return start(t, newKeeper(t), "garage/door#1", "/proc/self/exe", "node", role)
}

func python(t *testing.T, script string) (*Node, *seen) {
	t.Helper()
	return start(t, newKeeper(t), "garage/door#1", "/usr/bin/python3", "-c", script)
}

func TestLife(t *testing.T) {
	n, s := self(t, "good")
	s.until(t, "loaded", func() bool { return slices.Contains(s.names(), "Loaded") })
	n.Send(&control.Message{Kind: control.Start})
	ours, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	n.Send(&control.Message{Kind: control.Link, ID: 3, Port: "in", Name: "cam/video", Direction: control.In, File: theirs})
	n.Send(&control.Message{Kind: control.Unlink, ID: 3})
	if got, err := io.ReadAll(ours); err != nil || string(got) != "joined cam/video" {
		t.Errorf("the link's descriptor: %q, %v", got, err)
	}
	if cpu, rss := n.Usage(); rss < 1<<20 || cpu < 0 {
		t.Errorf("usage: %v, %d bytes", cpu, rss)
	}
	n.Send(&control.Message{Kind: control.Stop})
	if e := s.wait(t); e.Cause != "exit status 0" {
		t.Error(e.Cause)
	}
	want := []string{"Hello", "Loaded", "Ready", "Page", "Ring", "Error", "Condition", "Lost", "Unlinked", "Stopping", "Stopped", "Exited"}
	if got := s.names(); !slices.Equal(got, want) {
		t.Errorf("events %v; want %v", got, want)
	}
	page := s.events[3].(Page)
	content := make([]byte, 10)
	got, _ := page.File.ReadAt(content, 0)
	if page.Link != 7 || string(content[:got]) != "door" {
		t.Errorf("page %d holds %q", page.Link, content[:got])
	}
	page.File.Close()
	s.events[4].(Ring).File.Close()
	if got := s.messages(); !slices.Equal(got, []string{"warn careful", "error process: ValueError: no"}) {
		t.Errorf("log: %q", got)
	}
	if r := s.records[0]; r.Stream != "garage" || r.Node != "door" || r.Fields["n"] != 1.0 {
		t.Errorf("record %+v", r)
	}
	if s.records[1].Fields["traceback"] != "line 1" {
		t.Errorf("no traceback: %+v", s.records[1])
	}
	n.Send(&control.Message{Kind: control.Pause}) // harmless
	n.Kill("too late")
	if cpu, rss := n.Usage(); cpu != 0 || rss != 0 {
		t.Errorf("usage of an ended process: %v, %d", cpu, rss)
	}
}

func TestMisbehaviour(t *testing.T) {
	for role, want := range map[string]string{
		"early":   `killed: it began with "loaded" instead of hello`,
		"old":     "killed: it is of build 0.0.1+old, the runtime of " + build.ID(),
		"future":  "killed: it speaks node protocol 99",
		"garbage": "killed: cannot read a control message",
		"closes":  "killed: it closed its control channel",
	} {
		_, s := self(t, role)
		if e := s.wait(t); !strings.HasPrefix(e.Cause, want) {
			t.Errorf("%s: %q; want %q", role, e.Cause, want)
		}
		if slices.Contains(s.names(), "Loaded") {
			t.Errorf("%s: events %v", role, s.names())
		}
	}
}

func TestRepeatedAndEarlyStepsAreIgnored(t *testing.T) {
	_, s := self(t, "repeats")
	s.wait(t)
	if got := s.names(); !slices.Equal(got, []string{"Hello", "Loaded", "Stopped", "Exited"}) {
		t.Errorf("events %v", got)
	}
}

func TestDeafNode(t *testing.T) {
	n, s := self(t, "deaf")
	s.until(t, "hello", func() bool { return len(s.names()) > 0 })
	begin := time.Now()
	for range 5000 {
		n.Send(&control.Message{Kind: control.Pause, Message: strings.Repeat("x", 1000)})
	}
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("sending to a deaf node took %s", took)
	}
	if e := s.wait(t); !strings.HasPrefix(e.Cause, "killed: it does not read its control channel") {
		t.Error(e.Cause)
	}
}

// What can never be sent must not be waited for.
func TestMessageThatCannotBeSent(t *testing.T) {
	n, s := self(t, "deaf")
	s.until(t, "hello", func() bool { return len(s.names()) > 0 })
	n.Send(&control.Message{Kind: control.Configure, Config: json.RawMessage(`"` + strings.Repeat("x", control.MaxMessage) + `"`)})
	if e := s.wait(t); !strings.HasPrefix(e.Cause, "killed: cannot send configure: 65") {
		t.Error(e.Cause)
	}
}

// Scenario 24.
func TestOutput(t *testing.T) {
	seen := filepath.Join(t.TempDir(), "seen")
	_, s := python(t, fmt.Sprintf(`
import os, sys, time
def await_seen(what):
    while not os.path.exists(%q + what):
        time.sleep(0.01)
print("whole line")
print("unfinished", end="")
await_seen("unfinished")
print(" and its rest")
print("no end", end="")
await_seen("no end")
print()
print("10%%\r20%%\r30%%")
sys.stderr.write("to stderr\r\n")
os.write(1, b"caf\xc3\xa9 \xff!\n")
os.write(1, b"y" * 100000 + b"\n")
print()
print("last words", end="")
os.kill(os.getpid(), 9)
`, seen))
	for _, start := range []string{"unfinished", "no end"} {
		s.until(t, start, func() bool { return slices.Contains(s.messages(), "info "+start) })
		if err := os.WriteFile(seen+start, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := s.wait(t)
	if e.Cause != "killed by signal SIGKILL" {
		t.Error(e.Cause)
	}
	var out []string
	for _, m := range s.messages() {
		if strings.HasPrefix(m, "info ") {
			out = append(out, strings.TrimPrefix(m, "info "))
		} else if m != "warn to stderr" {
			t.Errorf("stderr: %q", m)
		}
	}
	want := []string{"whole line", "unfinished", " and its rest", "no end", "30%", "café \uFFFD!",
		strings.Repeat("y", maxLine) + "… (cut)", "", "last words"}
	if !slices.Equal(out, want) {
		for i := range out {
			out[i] = fmt.Sprintf("%.20s…%d", out[i], len(out[i]))
		}
		t.Errorf("log %q", out)
	}
}

func TestLastWordsOfACrash(t *testing.T) {
	_, s := python(t, `
import ctypes, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("about to", end="")
ctypes.string_at(0)
`)
	if e := s.wait(t); e.Cause != "segmentation fault" {
		t.Error(e.Cause)
	}
	if got := s.messages(); !slices.Contains(got, "info about to") {
		t.Errorf("log %q", got)
	}
}

func TestFloodIsCounted(t *testing.T) {
	_, s := python(t, `
for i in range(20000):
    print("line", i)
`)
	s.wait(t)
	logged, suppressed := 0, 0
	for _, m := range s.messages() {
		var n int
		if _, err := fmt.Sscanf(m, "warn %d suppressed", &n); err == nil {
			suppressed += n
		} else {
			logged++
		}
	}
	if logged+suppressed != 20000 || suppressed == 0 {
		t.Errorf("%d logged, %d suppressed of 20000", logged, suppressed)
	}
	if all := s.messages(); all[len(all)-1] != "info line 19999" {
		t.Errorf("the last words are %q", all[len(all)-1])
	}
}

func TestMessageFloodWaitsInTheNode(t *testing.T) {
	_, s := self(t, "flood")
	if e := s.wait(t); e.Cause != "exit status 0" {
		t.Error(e.Cause)
	}
	if got := s.names(); !slices.Equal(got, []string{"Hello", "Exited"}) {
		t.Errorf("events %v", got)
	}
}

// A pipe that a process of somebody else holds open does not hold up the end.
func TestExitWithAPipeHeldOpen(t *testing.T) {
	k := newKeeper(t)
	// Another instance lives, so that this hidden child may as well be its own
	// and is left alone.
	other, o := start(t, k, "garage/other#1", "/bin/sleep", "1000")
	_, s := start(t, k, "garage/door#1", "/bin/bash", "-c", "(env -i setsid sleep 1000 &); sleep 0.3; echo bye")
	if e := s.wait(t); e.Cause != "exit status 0" {
		t.Error(e.Cause)
	}
	if got := s.messages(); !slices.Contains(got, "info bye") {
		t.Errorf("log %q", got)
	}
	other.Kill("")
	if e := o.wait(t); e.Cause != "killed" {
		t.Error(e.Cause)
	}
}

// Scenario 6: whatever a node is busy with, Kill ends it and names the reason.
func TestKillEndsAnything(t *testing.T) {
	for _, script := range []string{
		"import time; print('up'); time.sleep(3600)",
		"print('up')\nwhile True: pass",
		"import signal, time\nfor s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, signal.SIG_IGN)\nprint('up'); time.sleep(3600)",
		"import os, signal; print('up'); os.kill(os.getpid(), signal.SIGSTOP)",
	} {
		n, s := python(t, script)
		s.until(t, "up", func() bool { return slices.Contains(s.messages(), "info up") })
		n.Kill("it did not stop in 5 s")
		if e := s.wait(t); e.Cause != "killed: it did not stop in 5 s" {
			t.Errorf("%q: %s", script, e.Cause)
		}
	}
}

func TestStartSaysWhyNot(t *testing.T) {
	k := newKeeper(t)
	_, err := Start(Options{
		Keeper: k, Argv: []string{"/no/such/.venv/bin/python"}, Spec: control.Spec{Instance: "garage/door#1"},
		Log: func(api.Record) {}, Event: func(e Event) { t.Errorf("event %T", e) },
	})
	if err == nil || !strings.Contains(err.Error(), "cannot start garage/door#1: /no/such/.venv/bin/python") {
		t.Error(err)
	}
}

func TestNoDescriptorIsLost(t *testing.T) {
	k := newKeeper(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	run := func() {
		_, s := start(t, k, "garage/door#1", "/proc/self/exe", "node", "repeats")
		s.wait(t)
	}
	run()
	before := count()
	for range 20 {
		run()
	}
	for start := time.Now(); count() > before; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%d descriptors before, %d after", before, count())
		}
	}
}

func TestLevelsAndTimes(t *testing.T) {
	for in, want := range map[string]string{"WARNING": "warn", "CRITICAL": "error", "debug": "debug", "loud": "info", "": "info"} {
		if got := level(in); got != want {
			t.Errorf("level %q is %q; want %q", in, got, want)
		}
	}
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	if ago := time.Since(wallClock(ts.Nano() - int64(5*time.Second))); ago < 4*time.Second || ago > 5*time.Second+patience {
		t.Errorf("a stamp 5 s old is taken as %s old", ago)
	}
	if ago := time.Since(wallClock(-1 << 60)); ago > patience {
		t.Errorf("an absurd stamp is taken as %s old", ago)
	}
}
