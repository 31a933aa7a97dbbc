package cameramachine_test

import (
	"strings"
	"testing"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/nodes/host/hosttest"
)

// vivid's menus, by their names.
const (
	noSignal, noLock, outOfRange, selectedSignal = "1", "2", "3", "4"
	dv720x480p59, dv1280x720p30                  = "2", "7"
	ntsc, pal                                    = "0", "4"
)

// A receiver of HDMI is set to the signal it finds, follows it while it streams, says
// why it has none, and goes on when there is one; so is a receiver of television, to
// another standard. vivid tells of another signal when what it loops is changed.
func TestSourceChange(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	cameramachine.Load(t, "vivid", "n_devs=1", "node_types=0x101", "vid_cap_nr=5", "vid_out_nr=6",
		"num_inputs=2", "input_types=0xd", "num_outputs=1", "output_types=1")
	tell := func(controls ...string) {
		t.Helper()
		set(t, device, controls...)
		set(t, device, "loop_video=1")
		set(t, device, "loop_video=0")
	}
	comes := func(p *hosttest.Process, width, height int) {
		t.Helper()
		for {
			if f := p.Frame(); f.Width == width && f.Height == height {
				return
			}
		}
	}
	const television, hdmi = "0", "1"
	cameramachine.Control(t, device, "-i", hdmi)
	set(t, device, "dv_timings_signal_mode="+selectedSignal, "dv_timings="+dv1280x720p30, "timestamp_source=1")
	p := start(t, map[string]any{"device_id": device})
	p.Condition("", "1280x720 ")
	comes(p, 1280, 720)
	p.Forget()
	tell("dv_timings=" + dv720x480p59)
	p.Said("the source has changed: /dev/video5 (vivid)")
	p.Condition("", "720x480 ")
	comes(p, 720, 480)

	for mode, says := range map[string]string{noSignal: "nothing is connected", noLock: "not stable", outOfRange: "outside of what"} {
		p.Forget()
		tell("dv_timings_signal_mode=" + mode)
		if m := p.Condition("no-signal", "camera has no signal at HDMI 0 of /dev/video5 (vivid)"); !strings.Contains(m.Message, says) {
			t.Errorf("mode %s: it says %s", mode, m.Message)
		}
	}
	p.Forget()
	tell("dv_timings_signal_mode="+selectedSignal, "dv_timings="+dv1280x720p30)
	p.Said("camera is back: /dev/video5 (vivid)")
	comes(p, 1280, 720)
	p.Stop()

	cameramachine.Control(t, device, "-i", television)
	set(t, device, "standard_signal_mode="+selectedSignal, "standard="+ntsc)
	p = start(t, map[string]any{"device_id": device})
	comes(p, 720, 480)
	tell("standard=" + pal)
	p.Said("the source has changed: /dev/video5 (vivid)")
	comes(p, 720, 576)
	p.Stop()
}
