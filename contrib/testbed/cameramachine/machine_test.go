package cameramachine_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/nodes/camera"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/nodes/virtualcamera"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/v4l2/pixel"
)

const (
	device = "/dev/video5"
	// Of vivid's sizes, one that comes at 25 frames a second.
	width, height, rate = 640, 480, 25
	// backBound is how soon frames have to be back after their camera;
	// emulated, everything takes longer.
	backBound = 3 * time.Second
	slack     = 7 * time.Second
)

// The test binary is the node processes too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "camera" {
		os.Exit(camera.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == "virtualcamera" {
		os.Exit(virtualcamera.Main(os.Args[2:]))
	}
	code := cameramachine.Main(m, func() error {
		dir, err := testbed.Build()
		if err == nil {
			err = os.Setenv("TATOLAB_TEST_BIN", dir)
		}
		return err
	})
	os.Exit(code)
}

// vivid loads the driver, with one camera that is device. Tests that call t.Parallel
// have it in turn.
func vivid(t *testing.T) *cameramachine.Module {
	t.Helper()
	return cameramachine.Load(t, "vivid", oneCamera...)
}

var oneCamera = []string{"n_devs=1", "node_types=0x1", "vid_cap_nr=5"}

// sharedVivid loads the driver with a camera for each test of these, which run together:
// device, and other cameras.
func sharedVivid(t *testing.T) *cameramachine.Module {
	t.Helper()
	return cameramachine.Share(t, "vivid", "n_devs=4", "node_types=0x1,0x1,0x1,0x1", "vid_cap_nr=5,15,16,17")
}

const (
	watched   = device // it is the first there is
	lit       = "/dev/video15"
	formatted = "/dev/video16"
	dropping  = "/dev/video17"
)

// Two cameras: device, and one that is multi-planar.
const planes = "/dev/video8"

func withPlanes(t *testing.T) *cameramachine.Module {
	t.Helper()
	return cameramachine.Load(t, "vivid", "n_devs=2", "node_types=0x1,0x1", "vid_cap_nr=5,8", "multiplanar=1,2")
}

// set sets controls of a camera: "name=value".
func set(t testing.TB, device string, controls ...string) {
	t.Helper()
	cameramachine.Control(t, device, "-c", strings.Join(controls, ","))
}

// start starts a camera node that reads device, with a reader of every frame.
func start(t *testing.T, config map[string]any) *hosttest.Process {
	t.Helper()
	p := hosttest.Prepare(t, control.Spec{
		Instance: "s/camera#1", Stream: "s", Node: "camera", Type: "tatolab.stream:CameraSource", Outputs: []string{camera.Port},
	}, config, os.Args[0], "camera")
	p.Start((*exec.Cmd).Start)
	p.Link(camera.Port, datapath.Ordered, datapath.RGBA)
	return p
}

// Everything the device delivers reaches a reader, in order and at its rate, also
// while its controls are set. A pattern that moves a step with each tick of the driver's clock counts them.
func TestFrames(t *testing.T) {
	cameramachine.Need(t)
	const frames = 60
	vivid(t)
	// Right, fast: 8 pixels of 640 a tick (v4l2-tpg-core.c of the kernel), so 80
	// positions. And stamps of when a frame began, not of when it ought to end.
	const step = 8
	set(t, device, "horizontal_movement=6", "timestamp_source=1")
	p := start(t, map[string]any{"device_id": device, "max_width": width, "max_height": height})
	begin := time.Now()
	// A machine that is emulated may stand still for longer than a frame, and then the
	// device itself is late: another take.
	const enough = time.Minute
	var late []string
take:
	for time.Since(begin) < enough {
		first := p.Frame()
		last := first
		for i := 1; i < frames; i++ {
			if i%20 == 0 {
				p.Tell(&control.Message{Kind: control.Configure, Config: fmt.Appendf(nil, `{"controls": {"integer_32_bits": %d}}`, i)})
			}
			f := p.Frame()
			if f.Timestamp <= last.Timestamp {
				t.Fatalf("frame %d is not later than the one before", i)
			}
			moved := (shift(t, first, f)/step - i + width/step) % (width / step)
			if moved != 0 {
				late = append(late, fmt.Sprintf("after %d frames %d were missing", i, moved))
				continue take
			}
			last = f
		}
		took := time.Duration(last.Timestamp - first.Timestamp)
		t.Logf("%d of %d frames in order, in %v; before that: %s", frames, frames, took, late)
		if low, high := (frames-2)*time.Second/rate, frames*time.Second/rate; took < low || took > high {
			t.Errorf("%d frames are %v apart, want %v to %v", frames, took, low, high)
		}
		becomes(t, device, "integer_32_bits", "40")
		p.Stop()
		return
	}
	t.Errorf("no %d frames in order: %s; the node used %v, in %v", frames, late, p.CPU(), time.Since(begin))
}

// shift is by how many pixels the pattern of b lies to the right of that of a.
func shift(t *testing.T, a, b *hosttest.Picture) int {
	t.Helper()
	line, other := middle(a), middle(b)
	for n := 0; n < len(line); n += 4 {
		if bytes.Equal(other[n:], line[:len(line)-n]) && bytes.Equal(other[:n], line[len(line)-n:]) {
			return n / 4
		}
	}
	t.Fatal("the pattern is not that of the first frame, moved")
	return 0
}

// middle is the line of pixels where vivid writes no text.
func middle(f *hosttest.Picture) []byte {
	return f.Pixels[4*f.Width*(f.Height*2/3):][:4*f.Width]
}

// A camera that goes, by each of the ways the driver has, and comes back: frames
// are back, the reader saw a gap, nothing leaks.
func TestReturn(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	module := vivid(t)
	p := start(t, map[string]any{"device_id": device, "max_width": width, "max_height": height})
	p.Frame()
	fds := descriptors(t, p)
	for _, c := range []struct {
		name string
		// do returns when the camera began to return.
		do   func() time.Time
		said string // by the node, "" if it goes on as if nothing was
	}{
		{"disconnected", func() time.Time { set(t, device, "disconnect=1"); return time.Now() }, "was unplugged"},
		{"unplugged", func() time.Time {
			module.Unbind()
			p.Condition("lost", "was unplugged")
			returned := time.Now()
			module.Bind()
			return returned
		}, "was unplugged"},
		{"a buffer marked damaged", func() time.Time { set(t, device, "inject_v4l2_buf_flag_error=1"); return time.Now() }, ""},
		{"a buffer not taken", func() time.Time { set(t, device, "inject_vidioc_qbuf_error=1"); return time.Now() }, "cannot requeue"},
		{"the queue broken", func() time.Time { set(t, device, "inject_fatal_streaming_error=1"); return time.Now() }, "cannot"},
		{"no start after a return", func() time.Time {
			set(t, device, "inject_vidioc_streamon_error=1")
			set(t, device, "disconnect=1")
			return time.Now()
		}, "was unplugged"},
		{"no buffers after a return", func() time.Time {
			set(t, device, "inject_vidioc_reqbufs_error=1")
			set(t, device, "disconnect=1")
			return time.Now()
		}, "was unplugged"},
		{"another number", func() time.Time {
			module.Unbind()
			p.Condition("lost", "was unplugged")
			module.Remove()
			returned := time.Now()
			module.Insert("n_devs=1", "node_types=0x1", "vid_cap_nr=6")
			return returned
		}, "was unplugged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.TB = t
			p.Forget()
			before := p.Frame().Timestamp
			returned := c.do()
			if c.said != "" {
				p.Condition("lost", c.said)
				p.Said("camera is back: ")
			}
			// The first frame after the gap.
			var gap time.Duration
			for f := p.Frame(); ; f = p.Frame() {
				gap = time.Duration(f.Timestamp - before)
				late := time.Duration(f.Timestamp) - time.Duration(monotonic(returned))
				if gap > time.Second/rate*3/2 && (c.said == "" || late > 0) {
					t.Logf("a gap of %v; back %v after the camera", gap.Round(time.Millisecond), late.Round(time.Millisecond))
					if late > backBound+slack {
						t.Errorf("frames were back %v after the camera", late)
					}
					break
				}
				before = f.Timestamp
			}
		})
	}
	p.TB = t
	// Some are open for a moment only, so fewer is right too.
	testbed.Eventually(t, settles, func() string {
		if now := descriptors(t, p); now > fds {
			return fmt.Sprintf("the node has %d descriptors open, not %d", now, fds)
		}
		return ""
	})
	p.Stop()
}

// monotonic is a time as frames have it.
func monotonic(at time.Time) int64 { return datapath.Now() - int64(time.Since(at)) }

func descriptors(t *testing.T, p *hosttest.Process) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Frames that the driver drops are a gap, and nothing else.
func TestDroppedFrames(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	sharedVivid(t)
	set(t, dropping, "percentage_of_dropped_buffers=40")
	p := start(t, map[string]any{"device_id": dropping, "max_width": width, "max_height": height})
	first := p.Frame()
	gaps := 0
	for last := first.Timestamp; gaps < 5; {
		f := p.Frame()
		periods := int((f.Timestamp - last + int64(time.Second/rate/2)) / int64(time.Second/rate))
		if periods > 1 {
			gaps++
		}
		last = f.Timestamp
	}
	if told := p.All(func(m *control.Message) bool { return m.Kind == control.Condition && m.Condition != "" }); len(told) > 0 {
		t.Errorf("the node was not content: %v", told[0].Message)
	}
	p.Stop()
}

// aloneVariable is set where a test has a process for itself, in which it can count.
const aloneVariable = "TATOLAB_TEST_ALONE"

// Nothing of a camera that was closed is left, in the process and in the driver.
func TestRounds(t *testing.T) {
	cameramachine.Need(t)
	const rounds = 100
	if os.Getenv(aloneVariable) == "" {
		t.Parallel()
		vivid(t)
		cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), aloneVariable+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	capture(t, device, pixel.YU12)
	held(t) // itself opens what stays open: Go's poller
	before := held(t)
	for range rounds {
		capture(t, device, pixel.YU12)
	}
	if after := held(t); after != before {
		t.Errorf("before: %s, after %d rounds: %s", before, rounds, after)
	}
}

// held is what this process has of the kernel, and all have of the driver.
func held(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	var open []string
	for _, name := range names {
		if target, err := os.Readlink(name); err == nil {
			open = append(open, target)
		}
	}
	slices.Sort(open)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	references, err := os.ReadFile("/sys/module/vivid/refcnt")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("open are %s; %d mappings of cameras; %s references to the driver",
		strings.Join(open, ", "), bytes.Count(maps, []byte("/dev/video")), bytes.TrimSpace(references))
}
