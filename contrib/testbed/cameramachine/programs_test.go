package cameramachine_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/v4l2"
)

// settles is how long things may take to come about, emulated.
const settles = time.Minute

// starts is how long a node in Python may take to start: it imports numpy.
const starts = 2 * time.Minute

// The command line, and a stream that watches the camera: the tutorial.
func TestMotionWatcher(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	r := testbed.Run(t)
	module := sharedVivid(t)
	project := r.NumPyProject("motion-watcher", testbed.Example(t, "motion-watcher"))

	list := r.Must(project, "cameras")
	for _, line := range []string{
		device, "  " + device + ", vivid, vivid", "  YUYV   320x180   60, ", "  YUYV   640x480   25, ", "  NV12  1280x720   12.5, ", "  GREY  1920x1080  5, ",
	} {
		if !strings.Contains(list, line) {
			t.Errorf("`tatolab cameras` does not show %q:\n%s", line, list)
		}
	}
	set(t, device, "osd_text_mode=2") // a clock moves too
	run := r.Command(project, "run")
	out := testbed.Capture(run)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	out.Await(t, "delivers 640x480")
	testbed.Eventually(t, starts, func() string {
		g, err := r.Client().Graph(t.Context(), "motion_watcher")
		if err != nil {
			return err.Error()
		}
		for _, n := range g.Nodes {
			if n.Name == "detector" && n.State != api.NodeRunning {
				return fmt.Sprintf("the detector is %s %s", n.State, n.Reason)
			}
		}
		return ""
	})
	// The bars move, or stand still.
	set(t, device, "horizontal_movement=6")
	out.Await(t, "motion started")
	set(t, device, "horizontal_movement=3")
	out.Await(t, "motion stopped")
	if list := r.Must(project, "cameras"); !strings.Contains(list, "held by") {
		t.Errorf("`tatolab cameras` shows no holder:\n%s", list)
	}
	module.Alone()
	module.Unbind()
	out.Await(t, "camera lost: ")
	lost := len(out.String())
	module.Bind()
	out.Await(t, "camera is back: ")
	// The camera that is back shows its clock again: the motion may have been seen before
	// the line that says so came.
	set(t, device, "horizontal_movement=6")
	testbed.Eventually(t, settles, func() string {
		if said := out.String()[lost:]; !strings.Contains(said, "motion started") {
			return "no motion is seen after the camera's return:\n" + said
		}
		return ""
	})
	run.Process.Signal(unix.SIGINT)
	if err := run.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v, want exit 0\n%s", err, out.String())
	}
	testbed.Eventually(t, settles, func() string {
		if holders := v4l2.Holders(device); len(holders) > 0 {
			return fmt.Sprintf("the camera is still held by %v", holders)
		}
		return ""
	})
}

// Who may not open a camera is told what to do, and may once that is done.
func TestPermission(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	cameramachine.Take(t, "vivid", "v4l2loopback").Insert(oneCamera...) // the only camera
	// Where nobody in particular may read it.
	program := filepath.Join("/dev/shm", "tatolabd")
	data, err := os.ReadFile(filepath.Join(testbed.Bin(t), "tatolabd"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, data, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(program) })
	as := func(groups ...string) string {
		t.Helper()
		args := append([]string{"--reuid=65534", "--regid=65534"}, groups...)
		out, err := exec.Command("setpriv", append(args, program, "camera", "--list")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := as("--clear-groups"); !strings.Contains(out, "video") || !strings.Contains(out, `"error"`) || strings.Contains(out, "YUYV") {
		t.Errorf("without permission: %s", out)
	}
	if out := as("--groups=video"); strings.Contains(out, `"error":"`) || !strings.Contains(out, "YUYV") {
		t.Errorf("in the group video: %s", out)
	}
}
