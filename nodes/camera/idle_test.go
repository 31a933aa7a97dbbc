package camera

import (
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/internal/testbed"
)

// Where there is nothing to do the process sleeps: with a camera that nobody
// reads, with one that is gone, and with one that never was. What it waits for
// wakes it.
func TestIdleSleeps(t *testing.T) {
	for _, test := range []struct {
		name    string
		cameras []fakecamera.Camera
		idle    func(r *rig)
		resume  func(r *rig)
	}{
		{"held", []fakecamera.Camera{named(path, "Cam", "", 320)},
			func(r *rig) { r.Condition("", "320x180 YUYV") },
			func(r *rig) { r.Link(Port, datapath.Newest, datapath.RGBA) }},
		{"lost", []fakecamera.Camera{named(path, "Cam", "", 320)},
			func(r *rig) {
				r.Link(Port, datapath.Newest, datapath.RGBA)
				r.Frame()
				r.bed.Unplug(path)
				r.Condition("lost", "was unplugged")
			},
			func(r *rig) {
				for r.Next(0) != nil { // from before the loss
				}
				r.Must(r.bed.Plug(named("/dev/video3", "Cam", "", 320)))
			}},
		{"missing", nil,
			func(r *rig) {
				r.Link(Port, datapath.Newest, datapath.RGBA)
				r.Condition("missing", "there is no capture device")
			},
			func(r *rig) { r.Must(r.bed.Plug(named(path, "Cam", "", 320))) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, fakecamera.Script{Cameras: test.cameras}, nil)
			test.idle(r)
			// Attempts become rare, but do not end: some stretch is quiet. Two
			// looks a second would be 90 in each.
			const stretch, quiet, limit = 4 * time.Second, 30, time.Minute
			for begin, last := time.Now(), testbed.Switches(t, r.Cmd.Process.Pid); ; {
				time.Sleep(stretch)
				now := testbed.Switches(t, r.Cmd.Process.Pid)
				t.Logf("the threads waited %d times in %v", now-last, stretch)
				if now-last < quiet {
					break
				}
				if last = now; time.Since(begin) > limit {
					t.Fatal("the process does not come to rest")
				}
			}
			test.resume(r)
			if p := r.Frame(); p.Width != 320 {
				t.Errorf("the frame is %d wide", p.Width)
			}
			r.Stop()
		})
	}
}
