package e2e

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/internal/testbed"
)

// A camera, from the driver's buffer to a Python node's reports: motion is
// seen; the camera is unplugged and comes back as another device, and motion is
// seen again; the stream's end frees it.
func TestMotionWatcherWithACamera(t *testing.T) {
	camera := func(path string) fakecamera.Camera {
		c := fakecamera.Webcam(path, "YUYV", 640, 360, 30)
		c.Motion = 1
		return c
	}
	var bed *fakecamera.Bed
	t.Cleanup(func() { // after the runtime has ended
		if bed != nil {
			bed.Close()
		}
	})
	r := testbed.New(t)
	r.Wrap = func(cmd *exec.Cmd) {
		var err error
		if bed, err = fakecamera.Wrap(cmd, fakecamera.Script{Cameras: []fakecamera.Camera{camera("/dev/video0")}}); err != nil {
			t.Fatal(err)
		}
	}
	r.Start()
	project := r.NumPyProject("motion-watcher", testbed.Example(t, "motion-watcher"))
	run := r.Command(project, "run")
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	run.Stderr = run.Stdout
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	expect := func(what string) {
		t.Helper()
		var seen []string
		for late := time.After(30 * time.Second); ; {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatalf("the run ended without %q; it said\n%s", what, strings.Join(seen, "\n"))
				}
				if seen = append(seen, line); strings.Contains(line, what) {
					return
				}
			case <-late:
				t.Fatalf("no %q; it said\n%s", what, strings.Join(seen, "\n"))
			}
		}
	}
	expect("motion started")
	expect("motion stopped")
	bed.Unplug("/dev/video0")
	expect("camera lost: ")
	if graph := r.Must(project, "graph", "motion_watcher"); !strings.Contains(graph, "camera lost: ") {
		t.Errorf("the graph does not show it:\n%s", graph)
	}
	if err := bed.Plug(camera("/dev/video2")); err != nil {
		t.Fatal(err)
	}
	expect("camera is back: /dev/video2")
	expect("motion started")
	run.Process.Signal(unix.SIGINT)
	for range lines {
	}
	if err := run.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v, want exit 0", err)
	}
	testbed.Eventually(t, 30*time.Second, func() string {
		if s := bed.State("/dev/video2"); s.Open != 0 {
			return "the camera is still held"
		}
		return ""
	})
}
