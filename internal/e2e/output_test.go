package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
)

// Bags come out of `tatolab read` as they were written: integers that a float64
// cannot hold, and the bag with nothing in it.
func TestReadIsExact(t *testing.T) {
	r := testbed.Run(t)
	files := ticker("exact")
	files["nodes/counter.py"] = strings.ReplaceAll(files["nodes/counter.py"],
		`{"n": self.n}`, `{"n": self.n, "wall_ns": 1796079600123456789, "most": 2**64 - 1, "html": "<&>"} if self.n % 2 else {}`)
	files["nodes/printer.py"] = strings.ReplaceAll(files["nodes/printer.py"], "log.info(f\"count {bag['n']}\")", "pass")
	project := r.Project("exact", files)
	r.Must(project, "run", "-d")
	out := r.Must(project, "read", "exact/counter/count", "-n", "2")
	for _, want := range []string{`"wall_ns":1796079600123456789`, `"most":18446744073709551615`, `"html":"<&>"`, "{}\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is missing in\n%s", want, out)
		}
	}
	var record map[string]any
	if err := json.Unmarshal([]byte(r.Must(project, "logs", "exact", "--json", "-n", "1")), &record); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"time", "level", "stream", "node", "message", "fields"} {
		if record[key] == nil {
			t.Errorf("the record has no %s: %v", key, record)
		}
	}
}

// A result that cannot be written is an error; a reader that leaves ends a
// command that follows, though nothing more comes.
func TestOutputThatGoesNowhere(t *testing.T) {
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	r.Must(project, "run", "-d")
	for _, args := range [][]string{{"streams"}, {"streams", "--json"}, {"read", "ticker/counter/count"}, {"logs", "ticker", "-f"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		cmd := r.Command(project, args...)
		var stderr strings.Builder
		cmd.Stdout, cmd.Stderr = full, &stderr
		cmd.Run()
		full.Close()
		if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("%v: %v, %q", args, cmd.ProcessState, stderr.String())
		}
	}
	r.Must(project, "stop", "ticker")
	cmd := r.Command(project, "logs", "ticker", "-f", "-n", "1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	out.Close()
	timer := time.AfterFunc(30*time.Second, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if err := cmd.Wait(); err != nil {
		t.Errorf("logs -f without a reader: %v", err)
	}
}

// The runtime folder goes when a user has logged out everywhere. A runtime that
// lives on is there again after the next login, and still the only one.
func TestRuntimeFolderRemoved(t *testing.T) {
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	r.Must(project, "run", "-d")
	folder := filepath.Dir(r.Socket())
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	testbed.Eventually(t, 30*time.Second, func() string { return r.CLI(project, "streams").Stderr })
	if out := r.Must(project, "run", "-d", "--name", "second"); !strings.Contains(out, "second kept") {
		t.Error(out)
	}
	lock, err := os.Open(filepath.Join(folder, "tatolabd.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
		t.Errorf("another runtime could start: %v", err)
	}
}
