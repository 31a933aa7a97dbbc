package e2e

import (
	"fmt"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/internal/testbed"
)

// A virtual camera that is taken by somebody else when its pictures begin, or goes
// and comes back, shows them once it can, though the runtime gives a sink that
// does not deliver nothing to read meanwhile.
func TestVirtualCameraRecovers(t *testing.T) {
	const path = "/dev/video7"
	output := fakecamera.Camera{
		Path: path, Card: "Tatolab", Driver: "v4l2 loopback", Output: true, Busy: true,
		Formats: []fakecamera.Format{{FourCC: "YUYV", Range: &fakecamera.Range{
			Min: fakecamera.Size{Width: 2, Height: 1}, Max: fakecamera.Size{Width: 4096, Height: 4096}, Step: fakecamera.Size{Width: 2, Height: 1},
		}}},
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
		if bed, err = fakecamera.Wrap(cmd, fakecamera.Script{Cameras: []fakecamera.Camera{output}}); err != nil {
			t.Fatal(err)
		}
	}
	r.Start()
	project := r.Project("shown", map[string]string{"pyproject.toml": "", "stream.py": `from tatolab.stream import StreamBuilder, TestPatternSource, VirtualCameraSink, stream


@stream
def shown(stream_builder: StreamBuilder) -> None:
    source = stream_builder.add(TestPatternSource, name="source", config={"width": 64, "height": 36, "fps": 10})
    sink = stream_builder.add(VirtualCameraSink, name="sink", config={"device_id": "Tatolab"})
    stream_builder.connect(source.output("video"), sink.input("video"))
`})
	run := r.Command(project, "run")
	out := testbed.Capture(run)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	shows := func() {
		t.Helper()
		const several = 5 * 2 * 64 * 36 // pictures, not only the first
		testbed.Eventually(t, 20*time.Second, func() string {
			if s := bed.State(path); s.Written < several {
				return fmt.Sprintf("%d bytes were written to the device; the run said\n%s", s.Written, out.String())
			}
			return ""
		})
	}
	out.Await(t, "virtual camera busy: "+path+" (Tatolab) is held by ")
	bed.Change(path, func(c *fakecamera.Camera) { c.Busy = false })
	out.Await(t, "delivers again: "+path+" (Tatolab) shows 64x36 YUYV")
	shows()

	bed.Unplug(path)
	out.Await(t, "virtual camera missing: not found: Tatolab")
	output.Busy = false
	if err := bed.Plug(output); err != nil {
		t.Fatal(err)
	}
	out.Await(t, "delivers again: "+path+" (Tatolab) shows 64x36 YUYV")
	shows()

	// One that keeps to another size shows pictures of that size as soon as they come.
	bed.Unplug(path)
	out.Await(t, "virtual camera missing: not found: Tatolab")
	output.Grant = &fakecamera.Grant{FourCC: "YUYV", Width: 128, Height: 72}
	if err := bed.Plug(output); err != nil {
		t.Fatal(err)
	}
	out.Await(t, "virtual camera failed: cannot set 64x36 YUYV on "+path+" (Tatolab): it keeps to 128x72 YUYV")
	if said, err := r.Command(project, "set", "shown/source", "width=128", "height=72").CombinedOutput(); err != nil {
		t.Fatalf("set: %v\n%s", err, said)
	}
	out.Await(t, "delivers again: "+path+" (Tatolab) shows 128x72 YUYV")

	run.Process.Signal(unix.SIGINT)
	if err := run.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v, want exit 0\n%s", err, out.String())
	}
}
