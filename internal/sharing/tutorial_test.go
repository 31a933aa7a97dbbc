package sharing

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/internal/testbed"
)

// projects writes the two projects of docs/tutorial-sharing.md, which are those
// of contrib/examples.
func projects(t *testing.T, r *testbed.Runtime) (watcher, log string) {
	t.Helper()
	return r.NumPyProject("motion-watcher", testbed.Example(t, "motion-watcher")),
		r.Project("motion-log", testbed.Example(t, "motion-log"))
}

// The page shows the code that the tests run.
func TestTutorialShowsTheExamples(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testbed.Root(), "docs/tutorial-sharing.md"))
	if err != nil {
		t.Fatal(err)
	}
	watcher, log := testbed.Example(t, "motion-watcher"), testbed.Example(t, "motion-log")
	for name, code := range map[string]string{
		"motion-watcher/stream.py":  watcher["stream.py"],
		"nodes/motion_event_log.py": log["nodes/motion_event_log.py"],
		"stream.py":                 log["stream.py"],
	} {
		if !strings.Contains(string(page), "\n`"+name+"`:\n\n```python\n"+code+"```\n") {
			t.Errorf("the page does not show %s as it is in contrib/examples", name)
		}
	}
}

// event is a line of motion-events.jsonl.
type event struct {
	Time    time.Time
	Event   string
	Changed float64
}

func events(t *testing.T, project string) (list []event) {
	t.Helper()
	for _, line := range lines(filepath.Join(project, "motion-events.jsonl")) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("motion-events.jsonl: %q: %v", line, err)
		}
		list = append(list, e)
	}
	return list
}

// said is how often the watcher's own log speaks of a start or stop of motion.
func said(r *testbed.Runtime, dir, what string) int {
	return strings.Count(r.Must(dir, "logs", "motion_watcher", "--node", "detector"), what)
}

// The page as it is typed: the watcher first.
func TestTutorial(t *testing.T) {
	t.Parallel()
	r := withCamera(t, 640, 360, 2)
	watcher, log := projects(t, r.Runtime)
	watching, watched := hold(t, r.Runtime, watcher, "dev")
	watched.Await(t, "motion_watcher is running (3 nodes); Ctrl-C stops it")
	watched.Await(t, "displaywindow  waits for a display")
	logging, logged := hold(t, r.Runtime, log, "dev")
	logged.Await(t, "motion_log is running (1 node); Ctrl-C stops it")

	want := "NAME            STATE     NODES  PROJECT\n" +
		"motion_watcher  attached  3      " + watcher + "\n" +
		"motion_log      attached  1      " + log + "\n"
	if got := r.Must(r.Dir, "streams"); got != want {
		t.Errorf("tatolab streams prints\n%s, want\n%s", got, want)
	}
	pids := func() map[string]int {
		list := map[string]int{}
		for _, n := range look(t, r.Runtime, "motion_watcher").Nodes {
			list[n.Name] = n.PID
		}
		return list
	}
	before := pids()

	// A start and a stop, in turn, and each of them once.
	testbed.Eventually(t, settles, func() string {
		if list := events(t, log); len(list) < 4 {
			data, _ := os.ReadFile(filepath.Join(log, "motion-events.jsonl"))
			return "motion-events.jsonl holds no two episodes:\n" + string(data)
		}
		return ""
	})
	// Saving the log's node reloads the log alone.
	replace(t, filepath.Join(log, "nodes/motion_event_log.py"), `"motion started"`, `"motion begun"`)
	logged.Await(t, "motioneventlog")
	testbed.Eventually(t, settles, func() string {
		data, _ := os.ReadFile(filepath.Join(log, "motion-events.jsonl"))
		if !strings.Contains(string(data), "motion begun") {
			return "the saved version writes nothing:\n" + string(data)
		}
		return ""
	})
	interrupt(t, logging)
	alternate(t, events(t, log))

	// The watcher has noticed nothing of all this.
	testbed.Eventually(t, settles, func() string {
		if table := r.Must(r.Dir, "streams"); strings.Contains(table, "motion_log") {
			return table
		}
		return ""
	})
	sofar := said(r.Runtime, watcher, "motion started")
	testbed.Eventually(t, settles, func() string {
		if said(r.Runtime, watcher, "motion started") == sofar {
			return "the watcher does not go on"
		}
		return ""
	})
	if after := pids(); !equal(before, after) {
		t.Errorf("the watcher's nodes were %v and are %v", before, after)
	}
	if strings.Contains(watched.String(), "motion_log") {
		t.Error("the watcher speaks of its reader")
	}
	interrupt(t, watching)
}

// alternate checks that starts and stops come in turn.
func alternate(t *testing.T, list []event) {
	t.Helper()
	for i, e := range list {
		began := e.Event != "motion stopped"
		// A reader that is reloaded begins anew with "not moving": what it
		// writes first is a start, whatever the last one wrote.
		if i > 0 && began == (list[i-1].Event != "motion stopped") && e.Event != "motion begun" {
			t.Errorf("event %d is %q, as the one before", i, e.Event)
		}
		if e.Time.IsZero() || began && e.Changed == 0 {
			t.Errorf("event %d is %+v", i, e)
		}
	}
}

func equal(a, b map[string]int) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if b[key] != value {
			return false
		}
	}
	return true
}

// The other order: the log waits, and says for what, wires itself, waits again
// when the watcher goes, and is wired again when it is back.
func TestTutorialTheOtherOrder(t *testing.T) {
	t.Parallel()
	r := withCamera(t, 320, 180, 2)
	watcher, log := projects(t, r.Runtime)
	_, logged := hold(t, r.Runtime, log, "dev")
	logged.Await(t, "input motion waits: it needs motion_watcher/detector/motion: no stream motion_watcher is running")
	logged.Await(t, "motion_log is running")
	table := r.Must(log, "graph")
	if !strings.Contains(table, "awaiting_remote") || !strings.Contains(table, "needs motion_watcher/detector/motion: no stream motion_watcher is running") {
		t.Errorf("graph does not say what the link waits for:\n%s", table)
	}
	pid := node(t, r.Runtime, "motion_log", "motioneventlog").PID
	for i := range 2 {
		watching, watched := hold(t, r.Runtime, watcher, "dev")
		logged.Await(t, "input motion reads motion_watcher/detector/motion")
		flows(t, r.Runtime, "motion_log")
		if i == 0 {
			// A reload of the source: the reader runs on.
			replace(t, filepath.Join(watcher, "nodes/motion_detector.py"), "PIXEL_THRESHOLD = 25", "PIXEL_THRESHOLD = 24")
			watched.Await(t, "detector")
			logged.Await(t, "input motion reads motion_watcher/detector/motion")
			flows(t, r.Runtime, "motion_log")
		}
		interrupt(t, watching)
		waits(t, r.Runtime, "motion_log", "needs motion_watcher/detector/motion: no stream motion_watcher is running")
	}
	if now := node(t, r.Runtime, "motion_log", "motioneventlog").PID; now != pid {
		t.Errorf("the reader was process %d and is %d", pid, now)
	}
}
