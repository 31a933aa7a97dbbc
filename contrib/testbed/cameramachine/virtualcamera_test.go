package cameramachine_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/nodes/testpattern/pattern"
	"tatolab.com/tatolab/nodes/virtualcamera"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/v4l2"
)

const loopback = "/dev/video7"

func needLoopback(t *testing.T) {
	t.Helper()
	cameramachine.Need(t)
	if !cameramachine.Has("v4l2loopback") {
		t.Skip("v4l2loopback could not be built: build/cameramachine/no-v4l2loopback says why")
	}
}

// same compares a picture that went through YUYV with the pattern's bars, where
// nothing of the counters is and no two colours share a pair of pixels.
func same(t *testing.T, f *hosttest.Picture) {
	t.Helper()
	bars := make([]byte, 4*f.Width*f.Height)
	pattern.Bars(bars, 4*f.Width, f.Width, f.Height)
	for bar := range 7 {
		at := 4 * (f.Height/3*f.Width + (2*bar+1)*f.Width/14)
		for c := range 3 {
			if d := int(f.Pixels[at+c]) - int(bars[at+c]); d < -6 || d > 6 {
				t.Errorf("bar %d is %v, want %v", bar, f.Pixels[at:at+3], bars[at:at+3])
				break
			}
		}
	}
}

// A stream's pictures are a camera's to any program, with the programs as they are.
func TestVirtualCamera(t *testing.T) {
	needLoopback(t)
	t.Parallel()
	module := cameramachine.Take(t, "v4l2loopback")
	r := testbed.Run(t)
	project := r.Project("shown", map[string]string{"pyproject.toml": "", "stream.py": `from tatolab.stream import StreamBuilder, TestPatternSource, VirtualCameraSink, stream


@stream
def shown(stream_builder: StreamBuilder) -> None:
    source = stream_builder.add(TestPatternSource, name="source", config={"width": 640, "height": 360, "fps": 10})
    sink = stream_builder.add(VirtualCameraSink, name="sink", config={"device_id": "` + loopback + `"})
    stream_builder.connect(source.output("video"), sink.input("video"))
`})
	run := r.Command(project, "run")
	out := testbed.Capture(run)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	out.Await(t, "virtual camera missing: not found: "+loopback+"; v4l2loopback makes one: `sudo modprobe v4l2loopback")
	module.Insert("video_nr=7", "exclusive_caps=1", "card_label=Tatolab")
	out.Await(t, loopback+" (Tatolab) shows 640x360 YUYV")

	p := start(t, map[string]any{"device_id": "Tatolab"})
	// A new reader may be given what lies in the device's buffers in any order.
	const buffers = 8
	for range buffers {
		p.Frame()
	}
	last := p.Frame()
	for i := range 20 {
		f := p.Frame()
		if f.Width != 640 || f.Height != 360 || !f.Counted || f.Counter <= last.Counter {
			t.Fatalf("frame %d is %dx%d, whole %v, number %d after %d", i, f.Width, f.Height, f.Counted, f.Counter, last.Counter)
		}
		last = f
	}
	same(t, last)

	// A reader that hangs misses pictures; the stream goes on meanwhile.
	p.Must(p.Cmd.Process.Signal(unix.SIGSTOP))
	const taken = "/dev/shm/taken"
	t.Cleanup(func() { os.Remove(taken) })
	cameramachine.Control(t, loopback, "--stream-mmap", "--stream-count=15", "--stream-to="+taken)
	if info, err := os.Stat(taken); err != nil || info.Size() != 15*640*360*2 {
		t.Errorf("v4l2-ctl took %v, %v", info, err)
	}
	p.Must(p.Cmd.Process.Signal(unix.SIGCONT))
	testbed.Eventually(t, settles, func() string {
		if f := p.Frame(); !f.Counted || f.Counter < last.Counter+10 {
			return fmt.Sprintf("after frame %d and 15 others comes %d, whole %v", last.Counter, f.Counter, f.Counted)
		}
		return ""
	})

	busy := sink(t, map[string]any{"device_id": loopback})
	busy.Condition("busy", loopback+" (Tatolab) is held by ")
	busy.Stop()
	p.Stop()
	run.Process.Signal(unix.SIGINT)
	if err := run.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v, want exit 0\n%s", err, out.String())
	}
	testbed.Eventually(t, settles, func() string {
		if holders := v4l2.Holders(loopback); len(holders) > 0 {
			return fmt.Sprintf("the device is still held by %v", holders)
		}
		return ""
	})
	// It can be written to again.
	if c, err := v4l2.FindOutput("Tatolab"); err != nil || c.Path != loopback {
		t.Errorf("afterwards: %v, %v", c, err)
	}
}

// sink starts a VirtualCameraSink.
func sink(t *testing.T, config map[string]any) *hosttest.Process {
	t.Helper()
	p := hosttest.Prepare(t, control.Spec{
		Instance: "s/sink#1", Stream: "s", Node: "sink", Type: "tatolab.stream:VirtualCameraSink",
		Inputs: []control.Input{{Port: virtualcamera.Port, Profile: "newest"}},
	}, config, os.Args[0], "virtualcamera")
	p.Start((*exec.Cmd).Start)
	return p
}

// feed gives the sink test patterns until the test ends, each of the size that came
// last.
func feed(t *testing.T, p *hosttest.Process, sizes <-chan [2]int) {
	t.Helper()
	o, err := datapath.NewOutput(datapath.OutputOptions{Owner: "s/source/video", Formats: []datapath.Format{datapath.RGBA}})
	p.Must(err)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	p.Must(err)
	theirs := os.NewFile(uintptr(pair[0]), "link")
	p.Tell(&control.Message{Kind: control.Link, ID: 100, Port: virtualcamera.Port, Name: "source/video", Direction: control.In, Profile: "newest", File: theirs})
	theirs.Close()
	p.Must(o.AddLink(100, os.NewFile(uintptr(pair[1]), "link")))
	video := host.NewVideo(o)
	done, ended := make(chan struct{}), make(chan error, 1)
	t.Cleanup(func() {
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		o.Close()
	})
	go func() {
		var size [2]int
		var bars []byte // of that size
		draw := func(next [2]int) {
			size, bars = next, make([]byte, 4*next[0]*next[1])
			pattern.Bars(bars, 4*size[0], size[0], size[1])
		}
		draw(<-sizes)
		for {
			err := video.Publish(host.Picture{Width: size[0], Height: size[1], TimestampNS: datapath.Now(), Colour: datapath.SRGB}, func(pixels []byte) error {
				copy(pixels, bars)
				return nil
			})
			if err != nil {
				ended <- err
				return
			}
			select {
			case <-done:
				ended <- nil
				return
			case next := <-sizes:
				draw(next)
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
}

// Pictures of another size are shown in that size, once nobody reads the old.
func TestVirtualCameraSize(t *testing.T) {
	needLoopback(t)
	t.Parallel()
	// vivid has outputs too, and this is to be the only one.
	cameramachine.Take(t, "v4l2loopback", "vivid").Insert("video_nr=7", "exclusive_caps=1", "card_label=Tatolab")
	s := sink(t, nil) // the first device there is
	sizes := make(chan [2]int)
	feed(t, s, sizes)
	sizes <- [2]int{320, 180}
	s.Said(loopback + " (Tatolab) shows 320x180 YUYV")
	p := start(t, map[string]any{"device_id": loopback})
	same(t, p.Frame())
	sizes <- [2]int{641, 90}
	s.Condition(control.Unfit, "it keeps to 320x180 YUYV, as long as it is open in ")
	p.Stop()
	s.Said(loopback + " (Tatolab) shows 640x90 YUYV")
	p = start(t, map[string]any{"device_id": loopback})
	if f := p.Frame(); f.Width != 640 || f.Height != 90 {
		t.Errorf("the picture is of %dx%d", f.Width, f.Height)
	}
	p.Stop()
	s.Stop()
}

// Devices that will not do: one that is no output, and one that fails each write
// (vivid's, in Linux 6.1) and is taken away and given back meanwhile.
func TestVirtualCameraErrors(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	const output = "/dev/video6"
	module := cameramachine.Load(t, "vivid", "n_devs=1", "node_types=0x101", "vid_cap_nr=5", "vid_out_nr=6")
	s := sink(t, map[string]any{"device_id": device})
	s.Condition("missing", "not an output device: "+device)
	s.Stop()
	s = sink(t, map[string]any{"device_id": output})
	sizes := make(chan [2]int)
	feed(t, s, sizes)
	sizes <- [2]int{640, 360}
	fds := 0
	for range 2 {
		s.Condition("failed", "cannot write to "+output)
		s.Forget()
		module.Unbind()
		s.Condition("missing", "not found: "+output)
		if fds == 0 {
			fds = descriptors(t, s)
		}
		testbed.Eventually(t, settles, func() string {
			if now := descriptors(t, s); now > fds {
				return fmt.Sprintf("the node has %d descriptors open, not %d", now, fds)
			}
			return ""
		})
		s.Forget()
		module.Bind()
	}
	s.Stop()
}
