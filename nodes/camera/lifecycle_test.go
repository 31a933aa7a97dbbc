package camera

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/control"
)

func named(path, card, byID string, width int) fakecamera.Camera {
	c := fakecamera.Webcam(path, "YUYV", width, width*9/16/2*2, 30)
	c.Card, c.ByID = card, byID
	return c
}

// planar makes a camera a multi-planar one.
func planar(c fakecamera.Camera) fakecamera.Camera {
	c.Multiplanar, c.Formats[0].FourCC = true, "NM12"
	return c
}

// logged are the messages that become a line of the log: what the node logs
// itself, and why it does not deliver, which the runtime logs.
func logged(m *control.Message) bool {
	return m.Kind == control.Log || m.Kind == control.Condition && m.Condition != ""
}

// Unplugged while it streams, and plugged in again as another device: the loss
// is told, frames are back within 3 s, and nothing is left of the old device.
// Another camera that takes its number in between is not taken for it.
func TestUnplugged(t *testing.T) {
	for _, test := range []struct {
		name           string
		before, after  fakecamera.Camera
		device         string
		anotherInPlace bool
	}{
		{name: "back at its place", before: named(path, "Cam", "", 320), after: named(path, "Cam", "", 320)},
		{name: "back as another device", before: named(path, "Cam", "", 320), after: named("/dev/video3", "Cam", "", 320), device: path},
		{name: "another camera takes its number", before: named(path, "Cam", "", 320), after: named("/dev/video1", "Cam", "", 320), device: path, anotherInPlace: true},
		{name: "by stable name", before: named(path, "Cam", "usb-Maker_Cam_1-video-index0", 320), after: named("/dev/video2", "Cam", "usb-Maker_Cam_1-video-index0", 320),
			device: "usb-Maker_Cam_1-video-index0", anotherInPlace: true},
		{name: "by the path of its stable name", before: named(path, "Cam", "usb-Maker_Cam_1-video-index0", 320), after: named("/dev/video2", "Cam", "usb-Maker_Cam_1-video-index0", 320),
			device: "/dev/v4l/by-id/usb-Maker_Cam_1-video-index0"},
		{name: "multi-planar", before: planar(named(path, "Cam", "", 320)), after: planar(named("/dev/video3", "Cam", "", 320)), device: path},
		{name: "by card", before: named(path, "Cam", "", 320), after: named("/dev/video5", "Cam", "", 320), device: "cam"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.before.Bus, test.after.Bus = "usb-1", "usb-2" // another port
			r := start(t, one(test.before), map[string]any{"device_id": test.device})
			r.Link(Port, datapath.Newest, datapath.RGBA)
			r.Frame()
			r.Forget()
			r.bed.Unplug(path)
			r.Condition("lost", "was unplugged")
			if test.anotherInPlace {
				r.Must(r.bed.Plug(named(path, "Other", "usb-Other-video-index0", 160)))
				for p := r.Next(2 * time.Second); p != nil; p = r.Next(2 * time.Second) {
					if p.Width != 320 {
						t.Fatal("the other camera's picture")
					}
				}
			}
			returned := time.Now()
			r.Must(r.bed.Plug(test.after))
			for r.Next(0) != nil { // published before the loss
			}
			p := r.Frame()
			// Within 3 s where nothing else is done.
			if took := time.Since(returned); took > 3*time.Second+hosttest.Patience/4 {
				t.Errorf("frames are back after %v", took)
			}
			if p.Width != 320 || !p.Counted {
				t.Errorf("the frame is %d wide, whole %v", p.Width, p.Counted)
			}
			r.Condition("", "320x180 "+test.after.Formats[0].FourCC+" 30/1")
			r.Said("camera is back: " + test.after.Path)
			if lines := r.All(logged); len(lines) != 2 {
				t.Errorf("%d lines in the log for two changes of state:%s", len(lines), r.Transcript())
			}
			r.Stop()
		})
	}
}

// The process keeps no descriptor of a device that has gone, however often.
func TestUnpluggedOverAndOver(t *testing.T) {
	t.Parallel()
	r := start(t, one(named(path, "Cam", "", 320)), nil)
	r.Link(Port, datapath.Newest, datapath.RGBA)
	r.Frame()
	descriptors := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.Cmd.Process.Pid))
		r.Must(err)
		return len(entries)
	}
	before := descriptors() // one that is about to be closed may be among them
	for range 5 {
		r.bed.Unplug(path)
		for r.Next(200*time.Millisecond) != nil {
		}
		r.Must(r.bed.Plug(named(path, "Cam", "", 320)))
		r.Frame()
	}
	for limit := time.Now().Add(hosttest.Patience); descriptors() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("%d descriptors before, %d after", before, descriptors())
		}
	}
	r.Stop()
}

// A camera that is lost costs next to nothing, and says so once.
func TestLostCostsNothing(t *testing.T) {
	t.Parallel()
	wait := 4 * time.Second
	if os.Getenv("TATOLAB_SOAK") != "" {
		wait = 10 * time.Minute
	}
	r := start(t, one(named(path, "Cam", "", 320)), nil)
	r.Link(Port, datapath.Newest, datapath.RGBA)
	r.Frame()
	r.Forget()
	r.bed.Unplug(path)
	r.Condition("lost", "was unplugged")
	// Letting the camera go costs something, and attempts become rare.
	for deadline := time.Now().Add(hosttest.Patience); ; {
		before := r.CPU()
		time.Sleep(wait)
		used := r.CPU() - before
		if used <= wait/100+20*time.Millisecond { // two ticks of the clock
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%v of CPU in %v", used, wait)
		}
	}
	if lines := r.All(logged); len(lines) != 1 {
		t.Errorf("%d lines in the log:%s", len(lines), r.Transcript())
	}
	r.Stop()
}

// The camera streams while somebody reads, two seconds longer, and not before;
// it is held all the time.
func TestStreamsForReadersOnly(t *testing.T) {
	t.Parallel()
	r := start(t, one(named(path, "Cam", "", 320)), nil)
	r.Condition("", "320x180 YUYV 30/1")
	time.Sleep(500 * time.Millisecond)
	if s := r.bed.State(path); s.Open != 1 || s.Streaming {
		t.Fatalf("without a reader the camera is %+v", s)
	}
	id := r.Link(Port, datapath.Newest, datapath.RGBA)
	r.Frame()
	left := time.Now()
	r.Unlink(id)
	time.Sleep(time.Second)
	if s := r.bed.State(path); !s.Streaming && time.Since(left) < idleAfter-500*time.Millisecond {
		t.Fatal("a second after its last reader the camera has stopped")
	}
	for r.bed.State(path).Streaming {
		if time.Since(left) > hosttest.Patience {
			t.Fatal("the camera goes on streaming")
		}
		time.Sleep(20 * time.Millisecond)
	}
	// The reader was seen last up to a frame before it left, of a late process more.
	if took := time.Since(left); took < idleAfter-500*time.Millisecond {
		t.Errorf("it stopped %v after its last reader", took)
	}
	if s := r.bed.State(path); s.Open != 1 {
		t.Fatalf("without a reader the camera is %+v", s)
	}
	r.Forget()
	r.Link(Port, datapath.Newest, datapath.RGBA)
	if p := r.Frame(); !p.Counted {
		t.Error("the first frame after a break is not whole")
	}
	r.Stop()
}

// A paused node delivers nothing; an unplugged camera is noticed without
// readers as well.
func TestPausedAndUnpluggedWithoutReaders(t *testing.T) {
	t.Parallel()
	r := start(t, one(named(path, "Cam", "", 320)), nil)
	r.Link(Port, datapath.Newest, datapath.RGBA)
	r.Frame()
	r.Tell(&control.Message{Kind: control.Pause})
	for deadline := time.Now().Add(hosttest.Patience); r.Next(500*time.Millisecond) != nil; {
		if time.Now().After(deadline) {
			t.Fatal("a paused node delivers")
		}
	}
	for r.bed.State(path).Streaming {
		time.Sleep(20 * time.Millisecond)
	}
	r.bed.Unplug(path)
	r.Condition("lost", "was unplugged")
	r.Must(r.bed.Plug(named(path, "Cam", "", 320)))
	r.Said("camera is back")
	r.Tell(&control.Message{Kind: control.Resume})
	r.Frame()
	r.Stop()
}

// Two readers of the bag alone and one of pictures: pictures are only made for
// who wants them.
func TestReaderOfBagsAlone(t *testing.T) {
	r := start(t, one(named(path, "Cam", "", 320)), nil)
	r.Link(Port, datapath.Ordered)
	for range 3 {
		if p := r.Frame(); p.Width != 0 || p.Bag["width"] != int64(320) {
			t.Errorf("got a picture %d wide and the bag %v", p.Width, p.Bag)
		}
	}
	r.Stop()
}

// Two processes want one camera: the second says who has it, and gets it when
// the first has ended. Both are in one bed: a shell starts a program that holds
// the camera, then the node, and waits for both.
func TestBusyNamesItsHolder(t *testing.T) {
	t.Parallel()
	r := prepare(t, nil)
	ready := t.TempDir() + "/ready"
	r.Cmd.Path, r.Cmd.Args = "/bin/sh", []string{"sh", "-c", `mkfifo "$1"; "$0" hold ` + path + ` "$1" >"$1" & read held <"$1"; "$0" camera; status=$?; wait; exit $status`, os.Args[0], ready}
	r.launch(one(named(path, "Cam", "", 320)))
	r.Tell(&control.Message{Kind: control.Start})
	m := r.Condition("busy", "/dev/video0 (Cam) is held by ")
	if !strings.Contains(m.Message, "camera.test (pid ") {
		t.Errorf("it does not say who: %s", m.Message)
	}
	r.Must(os.Remove(ready)) // lets it go
	r.Link(Port, datapath.Newest, datapath.RGBA)
	r.Frame()
	r.Stop()
}

// The first capture device is taken, not a metadata node before it, and a card
// that two cameras have is refused.
func TestWhichCamera(t *testing.T) {
	t.Parallel()
	metadata := named(path, "Cam", "", 160)
	metadata.Metadata = true
	script := fakecamera.Script{Cameras: []fakecamera.Camera{
		metadata, named("/dev/video1", "Cam", "", 320), named("/dev/video10", "Twin", "", 480), named("/dev/video9", "Twin", "", 640),
	}}
	for _, test := range []struct {
		device, message string
		width           int
	}{
		{"", "", 320},
		{"Cam", "", 320},
		{"/dev/video10", "", 480},
		{"Twin", "2 cameras are called Twin", 0},
		{path, "not found: " + path + "; there are /dev/video1 (Cam), /dev/video9 (Twin), /dev/video10 (Twin)", 0},
	} {
		r := start(t, script, map[string]any{"device_id": test.device})
		r.Link(Port, datapath.Newest, datapath.RGBA)
		if test.width == 0 {
			r.Await("condition with "+test.message, func(m *control.Message) bool {
				return m.Kind == control.Condition && m.Condition != "" && strings.Contains(m.Message, test.message)
			})
		} else if p := r.Frame(); p.Width != test.width {
			t.Errorf("device %q is %d wide, want %d", test.device, p.Width, test.width)
		}
		r.Stop()
	}
}

// What cannot work fails the node before it opens anything.
func TestConfigurationRefused(t *testing.T) {
	for _, test := range []struct {
		config map[string]any
		want   string
	}{
		{map[string]any{"max_widht": 640}, `unknown field "max_widht"`},
		{map[string]any{"max_width": 0}, "max_width is 0, not between 1"},
		{map[string]any{"fps": -1}, "fps is -1, not between"},
		{map[string]any{"fps": "fast"}, "fps"},
	} {
		r := launch(t, one(named(path, "Cam", "", 320)), test.config)
		r.Tell(&control.Message{Kind: control.Start})
		m := r.Await("failed", func(m *control.Message) bool { return m.Kind == control.Failed })
		if m.Phase != "setup" || !strings.Contains(m.Message, test.want) {
			t.Errorf("%v: %s %q, want it to say %q", test.config, m.Phase, m.Message, test.want)
		}
		if err := <-r.Exited; err == nil {
			t.Errorf("%v: the process ended well", test.config)
		}
		r.Exited <- nil
	}
}

// stop ends the process quickly, before start, while streaming, and while its
// driver hangs; so does the end of the runtime.
func TestEnds(t *testing.T) {
	t.Run("before start", func(t *testing.T) {
		t.Parallel()
		r := launch(t, one(named(path, "Cam", "", 320)), nil)
		r.Stop()
		r.Await("stopped", func(m *control.Message) bool { return m.Kind == control.Stopped })
	})
	t.Run("streaming", func(t *testing.T) {
		t.Parallel()
		r := start(t, one(named(path, "Cam", "", 320)), nil)
		r.Link(Port, datapath.Newest, datapath.RGBA)
		r.Frame()
		r.Stop()
		r.Await("stopping", func(m *control.Message) bool { return m.Kind == control.Stopping })
		r.Await("stopped", func(m *control.Message) bool { return m.Kind == control.Stopped })
	})
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		r := start(t, one(named("/dev/video7", "Cam", "", 320)), map[string]any{"device_id": path})
		r.Condition("missing", path)
		time.Sleep(time.Second) // into a long wait between attempts
		r.Stop()
	})
	hanging := named(path, "Cam", "", 320)
	hanging.Hang = "DQBUF"
	t.Run("stuck in the driver", func(t *testing.T) {
		t.Parallel()
		r := start(t, one(hanging), nil)
		r.Link(Port, datapath.Newest, datapath.RGBA)
		r.Condition("stuck", "has not answered")
		r.Tell(&control.Message{Kind: control.Stop})
		r.Said("did not stop within")
		select {
		case err := <-r.Exited:
			r.Exited <- err
		case <-time.After(hosttest.Patience):
			t.Fatal("it does not end")
		}
	})
	t.Run("killed while stuck", func(t *testing.T) {
		t.Parallel()
		r := start(t, one(hanging), nil)
		r.Link(Port, datapath.Newest, datapath.RGBA)
		r.Condition("stuck", "has not answered")
		r.Must(r.Cmd.Process.Kill())
		select {
		case err := <-r.Exited:
			r.Exited <- err
		case <-time.After(hosttest.Patience):
			t.Fatal("it does not end")
		}
		if s := r.bed.State(path); s.Open != 0 {
			t.Errorf("the camera is %+v", s)
		}
	})
	t.Run("the runtime is gone", func(t *testing.T) {
		t.Parallel()
		r := start(t, one(named(path, "Cam", "", 320)), nil)
		r.Link(Port, datapath.Newest, datapath.RGBA)
		r.Frame()
		r.Hangup()
		select {
		case err := <-r.Exited:
			r.Exited <- err
		case <-time.After(hosttest.Patience):
			t.Fatal("it does not end")
		}
		if s := r.bed.State(path); s.Open != 0 {
			t.Errorf("the camera is %+v", s)
		}
	})
}

func TestList(t *testing.T) {
	metadata := named("/dev/video1", "Cam", "", 160)
	metadata.Metadata = true
	denied := named("/dev/video2", "Secret", "", 160)
	denied.Denied = true
	board := planar(named("/dev/video3", "Board", "", 320))
	hdmi := receiver(1920, 1080, 60) // as it was set last, which is not what is connected
	hdmi.Path = "/dev/video4"
	cmd := exec.Command(os.Args[0], "camera", "--list")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	bed, err := fakecamera.Start(cmd, fakecamera.Script{Cameras: []fakecamera.Camera{named(path, "Cam", "usb-Cam-video-index0", 320), metadata, denied, board, hdmi}})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	var list []api.Camera
	if err := json.Unmarshal([]byte(out.String()), &list); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if len(list) != 4 || list[0].ID != "usb-Cam-video-index0" || list[0].Card != "Cam" || list[0].Error != "" ||
		len(list[0].Formats) != 1 || list[0].Formats[0].FourCC != "YUYV" || list[0].Formats[0].Sizes[0].Rates[0] != 30 ||
		list[1].Path != "/dev/video2" || !strings.Contains(list[1].Error, "permission denied") ||
		list[2].Path != board.Path || list[2].Error != "" || list[2].Formats[0].FourCC != "NM12" || list[2].Formats[0].Sizes[0].Width != 320 ||
		list[3].Path != hdmi.Path || list[3].Error != "" || list[3].Formats[0].Sizes[0].Width != 640 || list[3].Formats[0].Sizes[0].Height != 480 {
		t.Errorf("got %s", out.String())
	}
}
