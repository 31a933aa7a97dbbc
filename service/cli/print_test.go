package cli

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

var update = flag.Bool("update", false, "write the man page and the completions anew")

// TestPackaging holds what packages install to the table of verbs.
func TestPackaging(t *testing.T) {
	for path, want := range map[string]string{
		"man/tatolab.1":                manPage(),
		"completion/bash/tatolab":      completionScripts["bash"],
		"completion/zsh/_tatolab":      completionScripts["zsh"],
		"completion/fish/tatolab.fish": completionScripts["fish"],
	} {
		path = filepath.Join("../../packaging", path)
		if *update {
			if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s is not what the table of verbs says (%v); write it with `go test ./service/cli -run TestPackaging -update`", path, err)
		}
	}
}

// Every verb says what it does, and in the manual's own form.
func TestTable(t *testing.T) {
	for _, c := range commands() {
		if c.short == "" || strings.HasSuffix(c.short, ".") || c.long == "" || !strings.HasSuffix(strings.TrimSpace(c.long), ".") && !strings.Contains(c.long, "dot -Tsvg") {
			t.Errorf("%s: short %q, long %q", c.name, c.short, c.long)
		}
		open := strings.HasSuffix(c.args, "…") // any number
		if words := len(strings.Fields(c.args)); !open && (words != c.max || strings.Count(" "+c.args, " [") != c.max-c.min) {
			t.Errorf("%s takes %d to %d arguments, its synopsis is %q", c.name, c.min, c.max, c.args)
		}
		for _, e := range c.examples {
			if fields := strings.Fields(e[0]); fields[0] == "tatolab" && find(fields[1]) == nil {
				t.Errorf("%s: example %q is of no verb", c.name, e[0])
			}
		}
	}
}

func printed(show func(*environment)) (stdout, stderr string) {
	var out, err bytes.Buffer
	show(&environment{print: newPrinter(&out, &err)})
	return out.String(), err.String()
}

// TestStreamsTable is the manual's own example, to the letter.
func TestStreamsTable(t *testing.T) {
	six, four := 6, 4
	out, err := printed(func(e *environment) {
		e.showStreams(&api.Streams{Version: 1, Streams: []api.Stream{
			{Name: "motion_watcher", State: api.Kept, Nodes: &six, Project: "/home/you/motion-watcher"},
			{Name: "front_door", State: api.Attached, Nodes: &four, Project: "/home/you/cameras"},
			{Name: "garage", State: api.Failed, Project: "/home/you/cameras", Reason: "/home/you/cameras has no .venv/bin/python. Run uv sync in cameras."},
		}})
	})
	const want = `NAME            STATE     NODES  PROJECT
motion_watcher  kept      6      /home/you/motion-watcher
front_door      attached  4      /home/you/cameras
garage          failed    -      /home/you/cameras
garage failed: /home/you/cameras has no .venv/bin/python. Run uv sync in cameras. ` + "`tatolab start garage` retries it, `tatolab rm garage` forgets it.\n"
	if out != want || err != "" {
		t.Errorf("stdout:\n%s\nstderr: %q\nwant:\n%s", out, err, want)
	}
}

func TestFailureShowsDetailAndHint(t *testing.T) {
	out, err := printed(func(e *environment) {
		failure := api.Errorf(api.CompileFailed, "stream.py, line 3: name 'x' is not defined").WithHint("one\ntwo")
		failure.Detail = "Traceback\n  x\n"
		e.print.failure(failure)
	})
	const want = "error: stream.py, line 3: name 'x' is not defined\nTraceback\n  x\nhint: one\nhint: two\n"
	if out != "" || err != want {
		t.Errorf("stdout %q, stderr %q, want %q", out, err, want)
	}
}

func TestRecord(t *testing.T) {
	at := time.Date(2026, 11, 30, 14, 3, 22, 5e6, time.Local)
	out, _ := printed(func(e *environment) {
		e.print.record(&api.Record{Time: at, Level: "warn", Node: "detector", Message: "two\nlines\n", Fields: map[string]any{"b": "x y", "a": 1.5}}, clockLayout)
		e.print.record(&api.Record{Time: at, Level: "info", Message: "loaded"}, clockLayout)
		e.print.record(&api.Record{Time: at, Level: "error", Message: "process: ValueError: <x>",
			Fields: map[string]any{"traceback": "Traceback:\n  File \"a.py\"\n", "more": "<b>"}}, clockLayout)
	})
	const want = "14:03:22.005 WARN  detector  two\n    lines a=1.5 b=\"x y\"\n14:03:22.005 INFO   loaded\n" +
		"14:03:22.005 ERROR  process: ValueError: <x> more=<b>\n    Traceback:\n      File \"a.py\"\n"
	if out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// An error of several lines stands there once, and in full once.
func TestRecordOfTheSameErrorAgain(t *testing.T) {
	at := time.Date(2026, 11, 30, 14, 3, 22, 5e6, time.Local)
	failure := &api.Record{Time: at, Level: "error", Node: "effect", Message: "setup: ValueError: cannot compile:\n line 4",
		Fields: map[string]any{"traceback": "Traceback:\n  File \"a.py\"\nValueError: cannot compile:\n line 4\n"}}
	out, _ := printed(func(e *environment) {
		for range 2 {
			e.print.record(failure, clockLayout)
			e.print.record(&api.Record{Time: at, Level: "info", Node: "effect", Message: "again"}, clockLayout)
		}
		other := *failure
		other.Message = "setup: ValueError: else"
		e.print.record(&other, clockLayout)
	})
	const want = `14:03:22.005 ERROR effect  setup: ValueError: cannot compile:
     line 4
    Traceback:
      File "a.py"
14:03:22.005 INFO  effect  again
14:03:22.005 ERROR effect  setup: ValueError: cannot compile: (as before)
14:03:22.005 INFO  effect  again
14:03:22.005 ERROR effect  setup: ValueError: else
    Traceback:
      File "a.py"
    ValueError: cannot compile:
     line 4
`
	if out != want {
		t.Errorf("%s\nwant\n%s", out, want)
	}
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a":              "a",
		"a: b\nc\nd":     "a: b …",
		"a:\n  b\n  ^\n": "a: b …",
	} {
		if got := oneLine(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Text of others cannot move the cursor of a terminal.
func TestControlCharacters(t *testing.T) {
	p := newPrinter(&bytes.Buffer{}, &bytes.Buffer{})
	if got := p.clean("a\x1b]0;x\x07\rb\tc\n", true); got != "a]0;xb\tc\n" {
		t.Errorf("%q", got)
	}
	if got := p.clean("a\x1bb", false); got != "a\x1bb" {
		t.Errorf("what goes to a file is changed: %q", got)
	}
}

func TestTop(t *testing.T) {
	look := func(pid int, cpu int64) []*api.Graph {
		return []*api.Graph{{Stream: "s", Usage: api.Usage{CPUms: 2 * cpu, Memory: 1 << 20, Processes: 2}, Nodes: []api.GraphNode{
			{Node: graph.Node{Name: "a"}, State: api.NodeRunning, PID: pid, CPUms: cpu, Outputs: []api.GraphOutput{{Port: "x", Rate: 30}}},
		}, Links: []api.GraphLink{
			{Link: graph.Link{Target: graph.End{Node: "a", Port: "in"}}, Rate: 10, Dropped: 2, LatencyP50MS: 1, LatencyP99MS: 5},
			{Link: graph.Link{Target: graph.End{Node: "a", Port: "other"}}, Rate: 5, Dropped: 3, LatencyP50MS: 4, LatencyP99MS: 4},
		}}}
	}
	list := measure(look(1, 1000), look(1, 1500), time.Second)
	if s := list.Streams[0]; s.CPU != 1 || s.Memory != 1<<20 || s.Processes != 2 {
		t.Errorf("%+v", s)
	}
	n := list.Nodes[0]
	if n.CPU != 0.5 || n.InRate != 15 || n.OutRate != 30 || n.Dropped != 5 || n.LatencyP50MS != 4 || n.LatencyP99MS != 5 {
		t.Errorf("%+v", n)
	}
	// Another process counts from nothing, not from the old one's time.
	if n := measure(look(1, 1000), look(2, 300), time.Second).Nodes[0]; n.CPU != 0 {
		t.Errorf("a new process has used %v cores", n.CPU)
	}
}

func TestReloadLine(t *testing.T) {
	for want, r := range map[string]api.Reload{
		"s: saved, no node changed":                               {Stream: api.Stream{Name: "s"}},
		"s reloaded in 180ms: a, b restarted; c added; d removed": {Stream: api.Stream{Name: "s"}, Restarted: []string{"a", "b"}, Added: []string{"c"}, Removed: []string{"d"}, TookMS: 180.4},
	} {
		if got := reloadLine(&r); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestEnvFlag(t *testing.T) {
	t.Setenv("HERE", "yes")
	f := pflag.NewFlagSet("run", pflag.ContinueOnError)
	l := addLoadFlags(f)
	if err := f.Parse([]string{"--dir", t.TempDir(), "--env", "A=1=2", "--env", "HERE", "--env", "EMPTY="}); err != nil {
		t.Fatal(err)
	}
	req, err := l.load(nil)
	if err != nil || req.Env["A"] != "1=2" || req.Env["HERE"] != "yes" || req.Env["EMPTY"] != "" || len(req.Env) != 3 {
		t.Errorf("%v, %v", req.Env, err)
	}
}

func TestIdentifier(t *testing.T) {
	for cast, want := range map[string]string{"motion-watcher": "motion_watcher", "2nd": "stream_2nd", "class": "stream_class", "~": "stream", "a.b": "a_b"} {
		if got := identifier(cast); got != want {
			t.Errorf("identifier(%q) = %q, want %q", cast, got, want)
		}
	}
}

// A misspelt verb finds the one that was meant.
func TestNearest(t *testing.T) {
	for word, want := range map[string]string{"strems": "streams", "sotp": "stop", "xyzzy": "", "grpah": "graph"} {
		if got := nearest(word); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestCompletionWithoutARuntimeIsSilent(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	if got := complete(context.Background(), []string{"stop", ""}); got != nil {
		t.Errorf("%v", got)
	}
}

// A row stays a line, whatever is in it.
func TestRowsAreLines(t *testing.T) {
	got := newPrinter(nil, nil).formatTable([]string{"A", "B"}, [][]string{{"x\ny", "1"}, {"tab\tbed", "\x1b[31m"}})
	if want := "A        B\nx?y      1\ntab?bed  ?[31m\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
