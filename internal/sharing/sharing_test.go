// Package sharing tests streams that read each other, and looking inside them:
// real programs, the camera being a scripted one.
package sharing

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testbed.Cleanup()
	os.Exit(code)
}

// soak tells whether the long forms are to be run.
var soak = os.Getenv("TATOLAB_SOAK") != ""

// settles is how long things may take to come about on a busy machine.
const settles = 40 * time.Second

// rig is a runtime, and the cameras it sees.
type rig struct {
	*testbed.Runtime
	bed *fakecamera.Bed
}

const cameraPath = "/dev/video0"

// withCamera starts a runtime with one camera, of this size and 30 frames a
// second.
func withCamera(t *testing.T, width, height int, motion float64) *rig {
	t.Helper()
	r := &rig{}
	t.Cleanup(func() { // after the runtime's own
		if r.bed != nil {
			r.bed.Close()
		}
	})
	r.Runtime = testbed.New(t)
	camera := fakecamera.Webcam(cameraPath, "YUYV", width, height, 30)
	camera.Motion = motion
	r.Spawn = func(cmd *exec.Cmd) (err error) {
		r.bed, err = fakecamera.Start(cmd, fakecamera.Script{Cameras: []fakecamera.Camera{camera}})
		return err
	}
	r.Start()
	return r
}

// hold starts `tatolab args` in dir, to be ended with interrupt.
func hold(t *testing.T, r *testbed.Runtime, dir string, args ...string) (*exec.Cmd, *testbed.Output) {
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
		if t.Failed() {
			t.Logf("tatolab %s said:\n%s", strings.Join(args, " "), out.String())
		}
	})
	return cmd, out
}

// interrupt is Ctrl-C.
func interrupt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Process.Signal(unix.SIGINT)
	if err := cmd.Wait(); err != nil {
		t.Fatalf("Ctrl-C on %v: %v, want exit 0", cmd.Args, err)
	}
}

// look returns the graph of a stream.
func look(t *testing.T, r *testbed.Runtime, stream string) *api.Graph {
	t.Helper()
	g, err := r.Client().Graph(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func node(t *testing.T, r *testbed.Runtime, stream, name string) api.GraphNode {
	t.Helper()
	for _, n := range look(t, r, stream).Nodes {
		if n.Name == name {
			return n
		}
	}
	t.Fatalf("%s has no node %s", stream, name)
	return api.GraphNode{}
}

// flows waits until the first link of a stream is wired and bags arrive.
func flows(t *testing.T, r *testbed.Runtime, stream string) {
	t.Helper()
	var first uint64
	seen := false
	testbed.Eventually(t, settles, func() string {
		g, err := r.Client().Graph(t.Context(), stream)
		if err != nil {
			return err.Error()
		}
		if len(g.Links) == 0 {
			return stream + " is not loaded yet"
		}
		l := g.Links[0]
		if l.State != api.LinkWired {
			return fmt.Sprintf("%s is %s: %s", l.Source, l.State, l.Reason)
		}
		if !seen || l.Received < first {
			first, seen = l.Received, true
		}
		if l.Received <= first {
			return fmt.Sprintf("%s has received %d bags and no more", stream, l.Received)
		}
		return ""
	})
}

// waits waits until the first link of a stream waits for this reason.
func waits(t *testing.T, r *testbed.Runtime, stream, reason string) {
	t.Helper()
	testbed.Eventually(t, settles, func() string {
		l := look(t, r, stream).Links[0]
		if l.State != api.LinkAwaitingRemote || l.Reason != reason {
			return fmt.Sprintf("%s is %s: %q, want %q", l.Source, l.State, l.Reason, reason)
		}
		return ""
	})
}

// now is the clock of nodes' timestamps.
func now() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

// lines are the whole lines of a file that a node writes.
func lines(file string) []string {
	data, _ := os.ReadFile(file)
	end := strings.LastIndexByte(string(data), '\n')
	if end < 0 {
		return nil
	}
	return strings.Split(string(data[:end]), "\n")
}

// end parses node/port.
func end(text string) graph.End {
	node, port, _ := strings.Cut(text, "/")
	return graph.End{Node: node, Port: port}
}

// replace saves a file with a text replaced, as editors do.
func replace(t *testing.T, file, old, new string) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %q", file, old)
	}
	if err := os.WriteFile(file+"~", []byte(strings.Replace(string(data), old, new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+"~", file); err != nil {
		t.Fatal(err)
	}
}
