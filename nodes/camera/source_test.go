package camera

import (
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/service/control"
)

// receiver is a device with an HDMI input, and what is connected to it.
func receiver(width, height int, rate float64) fakecamera.Camera {
	c := fakecamera.Webcam(path, "UYVY", 1920, 1080)
	c.Card = "Receiver"
	c.Signal = &fakecamera.Signal{Width: width, Height: height, Rate: rate}
	return c
}

// comes waits for a frame of some width; those from before are passed over.
func (r *rig) comes(width int) {
	r.Helper()
	for {
		p := r.Frame()
		if !p.Counted {
			r.Errorf("a frame %d wide is not whole", p.Width)
		}
		if p.Width == width {
			return
		}
	}
}

// A receiver is set to what is connected, and again while it streams: readers
// see a gap and then pictures of another size, and the device is not closed.
func TestSourceChanges(t *testing.T) {
	t.Parallel()
	r := start(t, one(receiver(1280, 720, 50)), nil)
	r.Condition("", "1280x720 UYVY 50/1")
	r.Link(Port, datapath.Newest, datapath.RGBA)
	if p := r.Frame(); p.Width != 1280 || p.Height != 720 || p.Bag["fps"] != 50.0 {
		t.Errorf("the first frame is %dx%d, its bag %v", p.Width, p.Height, p.Bag)
	}
	r.Forget()
	r.bed.Connect(path, fakecamera.Signal{Width: 640, Height: 360, Rate: 59.94})
	r.Said("the source has changed: /dev/video0 (Receiver)")
	r.comes(640)
	r.Condition("", "640x360 UYVY 2997/50")
	r.Said("delivers 640x360 UYVY")
	for _, m := range r.All(func(m *control.Message) bool { return m.Kind == control.Condition && m.Condition != "" }) {
		t.Errorf("a change is no loss, but it says %s", m.Message)
	}
	if s := r.bed.State(path); s.Open != 1 {
		t.Errorf("the receiver is %+v", s)
	}
	// The same signal again, off and on within a moment: it has to be set anew.
	r.Forget()
	r.bed.Connect(path, fakecamera.Signal{})
	r.bed.Connect(path, fakecamera.Signal{Width: 640, Height: 360, Rate: 59.94})
	r.Said("the source has changed")
	r.comes(640)
	// And without a reader.
	r.Stop()
	r = start(t, one(receiver(1280, 720, 50)), nil)
	r.Condition("", "1280x720 UYVY 50/1")
	r.bed.Connect(path, fakecamera.Signal{Width: 640, Height: 360, Rate: 30})
	r.Condition("", "640x360 UYVY 30/1")
	r.Stop()
}

// A receiver without a signal says why, once, and waits: for one that tells of a
// signal and for one that does not, with and without readers.
func TestNoSignal(t *testing.T) {
	good := fakecamera.Signal{Width: 320, Height: 240, Rate: 30}
	for _, test := range []struct {
		name     string
		signal   fakecamera.Signal
		says     string
		noEvents bool
		unread   bool
	}{
		{name: "nothing", says: "no signal at HDMI 1 of /dev/video0 (Receiver): nothing is connected, or it is switched off"},
		{name: "unstable", signal: fakecamera.Signal{Width: 640, Height: 480, Unstable: true}, says: "is not stable"},
		{name: "too fast", signal: fakecamera.Signal{Width: 640, Height: 480, TooFast: true}, says: "outside of what the device can receive"},
		{name: "told of nothing", noEvents: true, says: "nothing is connected"},
		{name: "unread", unread: true, says: "nothing is connected"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := receiver(640, 480, 60)
			c.NoEvents = test.noEvents
			r := start(t, one(c), nil)
			if !test.unread {
				r.Link(Port, datapath.Newest, datapath.RGBA)
				r.Frame()
			}
			r.Condition("", "640x480 UYVY 60/1")
			r.Forget()
			r.bed.Connect(path, test.signal)
			m := r.Condition("no-signal", "camera has no signal at HDMI 1 of /dev/video0 (Receiver): ")
			if !strings.Contains(m.Message, test.says) {
				t.Errorf("it says %s", m.Message)
			}
			if !test.unread {
				for r.Next(0) != nil { // from before
				}
				if p := r.Next(2 * lastRetry); p != nil {
					t.Errorf("without a signal a picture %d wide comes", p.Width)
				}
			}
			told := r.All(func(m *control.Message) bool { return m.Condition == "no-signal" })
			if len(told) != 1 {
				t.Errorf("it says so %d times:%s", len(told), r.Transcript())
			}
			r.bed.Connect(path, good)
			if !test.unread {
				r.comes(320)
			}
			r.Said("camera is back: /dev/video0 (Receiver)")
			r.Condition("", "320x240 UYVY 30/1")
			r.bed.Connect(path, fakecamera.Signal{})
			r.bed.Unplug(path)
			r.Condition("lost", "")
			r.Must(r.bed.Plug(receiver(1280, 720, 50)))
			r.Condition("", "1280x720 UYVY 50/1")
			r.Stop()
		})
	}
}

// A signal that comes and goes all the time keeps no core busy, and what comes
// in the end is what counts.
func TestFlappingSignal(t *testing.T) {
	t.Parallel()
	r := start(t, one(receiver(640, 480, 60)), nil)
	r.Link(Port, datapath.Newest, datapath.RGBA)
	r.Frame()
	r.Forget()
	before := r.CPU()
	const flaps = 500
	for i := range flaps {
		r.bed.Connect(path, fakecamera.Signal{Width: 64 * (1 + i%2), Height: 64, Rate: 60})
		time.Sleep(2 * time.Millisecond)
	}
	t.Logf("%v of CPU for %d changes", r.CPU()-before, flaps)
	if told := r.All(logged); len(told) > flaps/4 {
		t.Errorf("%d lines in the log for %d changes", len(told), flaps)
	}
	r.bed.Connect(path, fakecamera.Signal{Width: 320, Height: 240, Rate: 60})
	r.comes(320)
	r.Stop()
}
