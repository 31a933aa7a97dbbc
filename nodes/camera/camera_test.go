package camera

import (
	"os"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host/hosttest"
)

func one(c fakecamera.Camera) fakecamera.Script {
	return fakecamera.Script{Cameras: []fakecamera.Camera{c}}
}

const path = "/dev/video0"

// A 720p30 YUYV camera: frames arrive once, in order, whole, and say what they
// are; for three seconds none is missing. On a machine that is busy with other
// tests the process may not get to run in time: then the three seconds begin
// anew, but not for ever.
func TestEveryFrameArrives(t *testing.T) {
	length, limit := 3*time.Second, hosttest.Patience
	if os.Getenv("TATOLAB_SOAK") != "" {
		length, limit = 10*time.Minute, 20*time.Minute
	}
	r := start(t, one(fakecamera.Webcam(path, "YUYV", 1280, 720, 30)), nil)
	r.Link(Port, datapath.Ordered, datapath.RGBA)
	last := r.Frame()
	if !last.Counted || last.Width != 1280 || last.Height != 720 {
		t.Fatalf("the first frame is %dx%d, whole %v", last.Width, last.Height, last.Counted)
	}
	begin, frames, before := last.Timestamp, 0, r.CPU()
	for deadline := time.Now().Add(limit); time.Duration(last.Timestamp-begin) < length; {
		p := r.Frame()
		if !p.Counted || p.Counter <= last.Counter {
			t.Fatalf("after frame %d comes %d, whole %v", last.Counter, p.Counter, p.Counted)
		}
		if p.Timestamp <= last.Timestamp || p.Age < 0 || p.Age > hosttest.Patience {
			t.Fatalf("frame %d has timestamp %d after %d, and is %v old", p.Counter, p.Timestamp, last.Timestamp, p.Age)
		}
		frames++
		if p.Counter != last.Counter+1 {
			t.Logf("after frame %d comes %d", last.Counter, p.Counter)
			if time.Now().After(deadline) {
				t.Fatalf("there are not %v in which no frame is missing", length)
			}
			begin, frames, before = p.Timestamp, 0, r.CPU()
		}
		last = p
	}
	t.Logf("%d frames, %v of CPU", frames, r.CPU()-before)
	if want := int(length.Seconds() * 29); frames < want { // by the camera's clock
		t.Errorf("%d frames in %v at 30 a second", frames, length)
	}
	for key, want := range map[string]any{"width": int64(1280), "height": int64(720), "timestamp_ns": last.Timestamp, "fps": 30.0} {
		if got := last.Bag[key]; got != want {
			t.Errorf("the bag says %s %v (%T), want %v", key, got, got, want)
		}
	}
	r.Stop()
	if s := r.bed.State(path); s.Open != 0 || s.Streaming {
		t.Errorf("after the end the camera is %+v", s)
	}
}

// misbehaviour is a camera that is not as it should be, and what the node makes
// of it.
type misbehaviour struct {
	name   string
	camera fakecamera.Camera
	config map[string]any
	// condition and message, of which part is given, before any frame; and
	// said, a part of a line of the log.
	condition, message, said string
	// mode is part of the remark about what the camera is set to.
	mode string
	// width of the frames that come, 0 if none do.
	width int
	// fix is done to the camera once the condition is there; frames come then.
	fix func(*fakecamera.Bed)
}

func webcam(change func(*fakecamera.Camera)) fakecamera.Camera {
	c := fakecamera.Webcam(path, "YUYV", 320, 180, 30)
	change(&c)
	return c
}

// plug puts a well-behaved camera in the place of the other.
func plug(bed *fakecamera.Bed) {
	_ = bed.Plug(fakecamera.Webcam(path, "YUYV", 320, 180, 30))
}

func TestMisbehaviour(t *testing.T) {
	sizes := func(sizes ...fakecamera.Size) []fakecamera.Size { return sizes }
	for _, test := range []misbehaviour{
		{name: "grants another size", width: 160, mode: "160x90 YUYV",
			camera: webcam(func(c *fakecamera.Camera) { c.Grant = &fakecamera.Grant{FourCC: "YUYV", Width: 160, Height: 90} })},
		{name: "grants another format", width: 320, mode: "320x180 NV12",
			camera: webcam(func(c *fakecamera.Camera) { c.Grant = &fakecamera.Grant{FourCC: "NV12", Width: 320, Height: 180} })},
		{name: "grants a format nobody can convert", condition: "failed", message: `not supported`, fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) {
				c.Grant = &fakecamera.Grant{FourCC: "H264", Width: 320, Height: 180}
			})},
		{name: "grants another rate", width: 320, mode: "15/1", said: "gives 15 frames a second, not 30", config: map[string]any{"fps": 30},
			camera: webcam(func(c *fakecamera.Camera) {
				c.Grant = &fakecamera.Grant{FourCC: "YUYV", Width: 320, Height: 180, Rate: 15}
			})},
		{name: "has no rate control", width: 320, said: "no control of its frame rate", config: map[string]any{"fps": 10},
			camera: webcam(func(c *fakecamera.Camera) { c.NoRateControl = true })},
		{name: "lists no rates", width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Formats[0].Sizes[0].Rates = nil })},
		{name: "has only MJPEG", width: 320, mode: "320x180 MJPG", camera: fakecamera.Webcam(path, "MJPG", 320, 180, 30)},
		{name: "has a stepwise range of sizes", width: 480, mode: "480x270 NV12", config: map[string]any{"max_width": 481, "max_height": 271},
			camera: fakecamera.Camera{Path: path, Card: "Range", Formats: []fakecamera.Format{{FourCC: "NV12", Range: &fakecamera.Range{
				Min: fakecamera.Size{Width: 160, Height: 90}, Max: fakecamera.Size{Width: 1920, Height: 1080}, Step: fakecamera.Size{Width: 16, Height: 2}, Rates: []float64{30}}}}}},
		{name: "has raw video only at a low rate", width: 320, mode: "320x180 MJPG",
			camera: fakecamera.Camera{Path: path, Card: "Two formats", Formats: []fakecamera.Format{
				{FourCC: "YUYV", Sizes: sizes(fakecamera.Size{Width: 320, Height: 180, Rates: []float64{5}})},
				{FourCC: "MJPG", Sizes: sizes(fakecamera.Size{Width: 320, Height: 180, Rates: []float64{30}})}}}},
		{name: "has nothing small enough", condition: "failed", message: "it offers YUYV 320x180", config: map[string]any{"max_width": 64, "max_height": 64},
			camera: webcam(func(c *fakecamera.Camera) {})},
		{name: "is multi-planar, loses frames and cuts others short", width: 320, mode: "320x180 NM12",
			camera: webcam(func(c *fakecamera.Camera) {
				c.Multiplanar, c.Formats[0].FourCC, c.LoseEvery, c.TruncateEvery = true, "NM12", 5, 3
			})},
		{name: "is multi-planar, has an error of its bus and no rate control", width: 320, mode: "320x180 YUYV",
			camera: webcam(func(c *fakecamera.Camera) { c.Multiplanar, c.NoRateControl, c.IOErrorEvery = true, true, 3 })},
		{name: "pads its lines", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.Padding = 64 })},
		{name: "gives two buffers", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.BuffersAtMost = 2 })},
		{name: "gives one buffer", condition: "failed", message: "the driver gives 1", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.BuffersAtMost = 1 })},
		{name: "loses frames", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.LoseEvery = 4 })},
		{name: "marks frames as damaged", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.ErrorEvery = 3 })},
		{name: "cuts frames short", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.TruncateEvery = 3 })},
		{name: "cuts JPEGs short", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.Formats[0].FourCC, c.TruncateEvery = "MJPG", 3 })},
		{name: "sends JPEGs without an end", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.Formats[0].FourCC, c.Endless = "MJPG", true })},
		{name: "sends empty frames", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.EmptyEvery = 3 })},
		{name: "has errors of its bus", width: 320, camera: webcam(func(c *fakecamera.Camera) { c.IOErrorEvery = 3 })},
		{name: "cuts every frame short", condition: "lost", message: "that is whole: the last is a damaged frame: 57600 of 115200 bytes", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.TruncateEvery = 1 })},
		{name: "stamps with the wall clock", width: 320, said: "time of arrival", camera: webcam(func(c *fakecamera.Camera) { c.Clock = fakecamera.Realtime })},
		{name: "stamps with a clock of its own", width: 320, said: "time of arrival", camera: webcam(func(c *fakecamera.Camera) { c.Clock = fakecamera.Unknown })},
		{name: "has a clock that stands", width: 320, said: "time of arrival", camera: webcam(func(c *fakecamera.Camera) { c.Clock = fakecamera.Frozen })},
		{name: "has a clock in the future", width: 320, said: "time of arrival", camera: webcam(func(c *fakecamera.Camera) { c.Clock = fakecamera.Ahead })},
		{name: "never delivers", condition: "lost", message: "no frame from", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Silent = true })},
		{name: "says it is ready when it is not", condition: "lost", message: "bad frames in a row", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Silent, c.AlwaysReady = true, true })},
		{name: "is slow to begin", condition: "lost", message: "no frame from", width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.SlowStart = 2.5 })},
		{name: "finds no bandwidth", condition: "lost", message: "no bandwidth left", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.NoBandwidth = true })},
		{name: "is busy", condition: "busy", message: "/dev/video0 (Fake Webcam) is held by ", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Busy = true })},
		{name: "is forbidden", condition: "denied", message: "usermod -aG video", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Denied = true })},
		{name: "hangs in DQBUF", condition: "stuck", message: "driver has not answered", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Hang = "DQBUF" })},
		{name: "hangs in S_FMT", condition: "stuck", message: "driver has not answered", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Hang = "S_FMT" })},
		{name: "is a metadata node", condition: "missing", message: "there is no capture device", fix: plug, width: 320,
			camera: webcam(func(c *fakecamera.Camera) { c.Metadata = true })},
		{name: "is not there", condition: "missing", message: "nowhere; there are /dev/video0 (Fake Webcam)", config: map[string]any{"device_id": "nowhere"},
			camera: webcam(func(c *fakecamera.Camera) {})},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := start(t, one(test.camera), test.config)
			r.Link(Port, datapath.Ordered, datapath.RGBA)
			if test.condition != "" {
				begin := time.Now()
				r.Condition(test.condition, test.message)
				t.Logf("told after %v", time.Since(begin))
			}
			if test.fix != nil {
				test.fix(r.bed)
			}
			if test.width != 0 {
				expectFrames(r, test)
			} else if p := r.Next(300 * time.Millisecond); p != nil {
				t.Errorf("there is a frame of %dx%d", p.Width, p.Height)
			}
			if test.mode != "" {
				r.Condition("", test.mode)
			}
			if test.said != "" {
				r.Said(test.said)
			}
			r.Stop()
			if s := r.bed.State(path); s.Open != 0 || s.Streaming {
				t.Errorf("after the end the camera is %+v", s)
			}
		})
	}
}

// expectFrames reads a few frames: whole ones, stamped with the present, none
// twice. That none is missing is for TestEveryFrameArrives, which runs alone.
func expectFrames(r *rig, test misbehaviour) {
	r.Helper()
	last := r.Frame()
	if last.Width != test.width {
		r.Errorf("frames are %d wide, want %d", last.Width, test.width)
	}
	for range 20 {
		p := r.Frame()
		switch {
		case !p.Counted:
			r.Fatalf("the frame after %d is not whole", last.Counter)
		case p.Counter == last.Counter:
			r.Fatalf("frame %d comes twice", p.Counter)
		case p.Timestamp <= last.Timestamp || p.Age < 0 || p.Age > hosttest.Patience:
			r.Fatalf("frame %d has timestamp %d after %d, and is %v old", p.Counter, p.Timestamp, last.Timestamp, p.Age)
		}
		last = p
	}
}

// Every format shows the picture in its colours: the bars, from left to right. So
// do those of a multi-planar device, with planes together and apart.
func TestFormats(t *testing.T) {
	bars := [][3]int{{191, 191, 191}, {191, 191, 0}, {0, 191, 191}, {0, 191, 0}, {191, 0, 191}, {191, 0, 0}, {0, 0, 191}}
	single := []string{"YUYV", "UYVY", "YVYU", "VYUY", "NV12", "NV21", "NV16", "YU12", "YV12", "RGB3", "BGR3", "XR24", "AB24", "RGB4", "GREY", "MJPG"}
	multi := []string{"YUYV", "NV12", "MJPG", "NM12", "NM21", "NM16", "YM12", "YM21"}
	for i, format := range append(single, multi...) {
		name, multiplanar := format, i >= len(single)
		if multiplanar {
			name += " multi-planar"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			camera := fakecamera.Webcam(path, format, 320, 180, 30)
			camera.Padding, camera.Multiplanar = 32, multiplanar
			camera.DataOffset = 128 // of multi-planar ones
			r := start(t, one(camera), nil)
			r.Link(Port, datapath.Newest, datapath.RGBA)
			p := r.Frame()
			if !p.Counted {
				t.Error("the frame is not whole")
			}
			for i, want := range bars {
				got := p.Pixels[4*(90*320+i*320/7+20):][:4]
				if format == "GREY" {
					luma := (299*want[0] + 587*want[1] + 114*want[2]) / 1000
					want = [3]int{luma, luma, luma}
				}
				for c := range want {
					if d := int(got[c]) - want[c]; d < -6 || d > 6 || got[3] != 255 {
						t.Errorf("bar %d is %v, want %v", i, got, want)
						break
					}
				}
			}
			r.Stop()
		})
	}
}
