// Package e2e tests the whole: real programs, real processes, the examples of
// contrib.
package e2e

import (
	"bufio"
	"flag"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

func TestMain(m *testing.M) {
	// The tests wait more than they work: more of them at once than there are
	// processors, unless -parallel says otherwise.
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	}
	code := m.Run()
	testbed.Cleanup()
	os.Exit(code)
}

// The main job: pictures, a Python node, its reports in the terminal.
func TestMotionWatcher(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.NumPyProject("motion-watcher", testbed.Example(t, "motion-watcher"))
	run := r.Command(project, "run", "-f", "test_pattern.py")
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	seen := make(chan string)
	go func() {
		defer close(seen)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			for _, what := range []string{"motion started", "motion stopped"} {
				if strings.Contains(lines.Text(), what) {
					seen <- what
				}
			}
		}
	}()
	for _, want := range []string{"motion started", "motion stopped", "motion started"} {
		select {
		case got := <-seen:
			if got != want {
				t.Fatalf("the log says %q, want %q", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("no %q in the log", want)
		}
	}
	if table := r.Must(project, "streams"); !strings.Contains(table, "motion_watcher  attached  3      "+project) {
		t.Errorf("streams:\n%s", table)
	}
	// The window waits for a display and has no use for pictures till then.
	g, err := r.Client().Graph(t.Context(), "motion_watcher")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range g.Links {
		if l.Target.Node == "displaywindow" && l.State != api.LinkWaiting {
			t.Errorf("the window without a display reads: its link is %s", l.State)
		}
	}
	run.Process.Signal(unix.SIGINT)
	for range seen {
	}
	if err := run.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v, want exit 0", err)
	}
	testbed.Eventually(t, 30*time.Second, func() string {
		if table := r.Must(project, "streams"); strings.Contains(table, "motion_watcher") {
			return table
		}
		return ""
	})
}
