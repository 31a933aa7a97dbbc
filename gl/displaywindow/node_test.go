package displaywindow

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"tatolab.com/tatolab/nodes/host"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/gl/xvfb"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
)

// asNode makes this test binary tatolab-window.
const asNode = "TATOLAB_TEST_WINDOW_NODE"

func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Getenv(asNode) != "" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// rig plays the runtime, and a source, for one window.
type rig struct {
	t        *testing.T
	cmd      *exec.Cmd
	conn     *control.Conn
	messages chan *control.Message // closed when the node has gone
	output   *datapath.Output
	lastLink uint64
}

func start(t *testing.T, config string, environment ...string) *rig {
	t.Helper()
	r := &rig{t: t, messages: make(chan *control.Message, 1000), cmd: exec.Command("/proc/self/exe")}
	conn, theirs, err := control.Pair()
	if err != nil {
		t.Fatal(err)
	}
	r.conn = conn
	spec, err := control.WriteSpec(&control.Spec{
		Protocol: control.Protocol, Build: build.ID(), Instance: "demo/window#1", Stream: "demo", Node: "window",
		Type: "tatolab.stream:DisplayWindow", Config: json.RawMessage(config),
		Inputs: []control.Input{{Port: "video", Profile: "newest", Links: []string{"camera/video"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "DISPLAY=") {
			r.cmd.Env = append(r.cmd.Env, e)
		}
	}
	r.cmd.Env = append(append(r.cmd.Env, asNode+"=1", "DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent"), environment...)
	r.cmd.ExtraFiles = []*os.File{theirs, spec}
	r.cmd.Stdout, r.cmd.Stderr = os.Stderr, os.Stderr
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	spec.Close()
	r.output, err = datapath.NewOutput(datapath.OutputOptions{Owner: "demo/camera/video", Formats: []datapath.Format{datapath.RGBA}})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.messages)
		for {
			m, err := conn.Receive()
			if err != nil {
				return
			}
			if m.File != nil {
				m.File.Close()
			}
			r.messages <- m
		}
	}()
	t.Cleanup(func() {
		r.cmd.Process.Kill()
		r.cmd.Wait()
		conn.Close()
		r.output.Close()
		for range r.messages {
		}
	})
	r.expect(control.Hello, "")
	r.expect(control.Loaded, "")
	r.link()
	r.send(&control.Message{Kind: control.Start})
	return r
}

func (r *rig) send(m *control.Message) {
	r.t.Helper()
	if err := r.conn.Send(m); err != nil {
		r.t.Fatal(err)
	}
}

// link joins the source to the window.
func (r *rig) link() {
	r.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")
	r.lastLink++
	r.send(&control.Message{Kind: control.Link, ID: r.lastLink, Port: "video", Name: "camera/video", Direction: control.In, Profile: "newest", File: theirs})
	theirs.Close()
	if err := r.output.AddLink(r.lastLink, ours); err != nil {
		r.t.Fatal(err)
	}
}

// publish sends a picture whose left half is one colour, and whose right half
// another.
func (r *rig) publish(width, height int, left, right color.RGBA) {
	r.t.Helper()
	slot, err := r.output.Acquire(datapath.RGBA, 4*width*height)
	for deadline := time.Now().Add(30 * time.Second); errors.Is(err, datapath.ErrNotWanted) && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond) // the window has not joined yet
		slot, err = r.output.Acquire(datapath.RGBA, 4*width*height)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range width * height {
		c := left
		if i%width >= width/2 {
			c = right
		}
		copy(slot.Bytes[4*i:], []byte{c.R, c.G, c.B, c.A})
	}
	slot.Surface = datapath.Packed(r.output.NewSurface(), datapath.RGBA, width, height, 4)
	if _, err := r.output.Publish([]byte{0x80}, datapath.Now(), slot); err != nil {
		r.t.Fatal(err)
	}
}

// expect waits for a message of that kind with that text in it.
func (r *rig) expect(kind, text string) *control.Message {
	r.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case m, ok := <-r.messages:
			if !ok {
				r.t.Fatalf("the node has gone before it said %s %q", kind, text)
			}
			if m.Kind == kind && strings.Contains(m.Message, text) {
				return m
			}
			if m.Kind == control.Failed || m.Kind == control.Error || m.Level == "error" {
				r.t.Fatalf("instead of %s %q: %s %s", kind, text, m.Kind, m.Message)
			}
		case <-deadline:
			r.t.Fatalf("no %s %q in 30 s", kind, text)
		}
	}
}

// gone waits for the end of the process and returns its exit status.
func (r *rig) gone() int {
	r.t.Helper()
	kill := time.AfterFunc(30*time.Second, func() {
		r.t.Error("the process does not end")
		r.cmd.Process.Kill()
	})
	defer kill.Stop()
	r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

var (
	orange = color.RGBA{240, 130, 10, 255}
	teal   = color.RGBA{10, 130, 140, 255}
	white  = color.RGBA{255, 255, 255, 255}
)

// shows waits until the window, at (0,0) of the screen, shows the two halves
// of a picture that fills 400×200.
func shows(x *xvfb.Server, left, right color.RGBA) {
	x.Wait(fmt.Sprintf("picture of %v and %v", left, right), func() bool {
		shot := x.Screen()
		return xvfb.Near(shot.RGBAAt(5, 5), left) && xvfb.Near(shot.RGBAAt(195, 195), left) &&
			xvfb.Near(shot.RGBAAt(205, 5), right) && xvfb.Near(shot.RGBAAt(395, 195), right)
	})
}

const small = `{"title": "a title", "width": 400, "height": 200}`

func TestShowsTheNewestAndStops(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, small, "DISPLAY="+x.Name)
	r.expect(control.Ready, "")
	r.publish(64, 32, orange, teal)
	r.expect(control.Condition, "on display "+x.Name)
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	r.publish(64, 32, orange, white)
	r.publish(1280, 640, teal, orange)
	shows(x, teal, orange)
	// One that is too large to show is named, and the last one stays.
	r.publish(20000, 1, white, white)
	m := <-r.messages
	for m.Kind != control.Log {
		m = <-r.messages
	}
	if m.Level != "error" || !strings.Contains(m.Message, "20000×1") {
		t.Errorf("a picture too large: %s %q", m.Level, m.Message)
	}
	shows(x, teal, orange)
	r.send(&control.Message{Kind: control.Stop})
	r.expect(control.Stopping, "")
	r.expect(control.Stopped, "")
	if status := r.gone(); status != 0 {
		t.Errorf("it ended with %d", status)
	}
}

func TestSmallestAndLargePictures(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, `{"title": "a title", "width": 400, "height": 200, "scaling": "stretch"}`, "DISPLAY="+x.Name)
	r.publish(1, 1, orange, orange) // of one pixel the right half is all
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, orange)
	r.publish(8192, 8192, teal, orange)
	shows(x, teal, orange)
	r.publish(1, 1, white, white)
	shows(x, white, white)
}

// Bags without a picture leave the window its last one; of a source that gives
// nothing else it is said.
func TestBagsWithoutPictures(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, small, "DISPLAY="+x.Name)
	r.publish(64, 32, orange, teal)
	bare := func() {
		if _, err := r.output.Publish([]byte{0x80}, datapath.Now()); err != nil {
			t.Fatal(err)
		}
	}
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	var said []string
	for deadline := time.Now().Add(30 * time.Second); len(said) == 0; {
		bare()
		select {
		case m := <-r.messages:
			if m.Kind == control.Log && m.Level == "error" {
				said = append(said, m.Message)
			}
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is said in 30 s")
		}
	}
	if !strings.Contains(said[0], "camera/video gives: its bags name no picture") {
		t.Error(said)
	}
	shows(x, orange, teal)
	r.publish(64, 32, teal, white)
	shows(x, teal, white)
}

func TestThePictureStaysWithoutItsSource(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, small, "DISPLAY="+x.Name)
	r.publish(64, 32, orange, teal)
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	r.output.Close()
	r.expect(control.Lost, "")
	x.Window("a title").Hide()
	x.Window("a title").Show()
	shows(x, orange, teal)
	// The source is back.
	var err error
	r.output, err = datapath.NewOutput(datapath.OutputOptions{Owner: "demo/camera/video", Formats: []datapath.Format{datapath.RGBA}})
	if err != nil {
		t.Fatal(err)
	}
	r.link()
	r.publish(64, 32, teal, white)
	shows(x, teal, white)
}

func TestClosingEndsTheNodeByItself(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, small, "DISPLAY="+x.Name)
	r.publish(64, 32, orange, teal)
	w := x.Window("a title")
	w.Place(0, 0, 400, 200)
	shows(x, orange, teal)
	w.Close()
	if m := r.expect(control.Log, "window closed"); m.Level != "info" {
		t.Errorf("level %s", m.Level)
	}
	r.expect(control.Stopping, "")
	r.expect(control.Stopped, "")
	if status := r.gone(); status != 0 {
		t.Errorf("it ended with %d", status)
	}
}

// A window that cannot be drawn to has not ended by itself: it fails, and is
// started again by the runtime. Mesa writes down the shaders it is given, and
// takes others in their place.
func TestNothingToDrawWith(t *testing.T) {
	x := xvfb.Start(t, "")
	dir := t.TempDir()
	r := start(t, small, "DISPLAY="+x.Name, "MESA_SHADER_DUMP_PATH="+dir)
	r.publish(64, 32, orange, teal)
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	r.send(&control.Message{Kind: control.Stop})
	r.gone()
	shaders, err := filepath.Glob(filepath.Join(dir, "*.glsl"))
	if err != nil {
		t.Fatal(err)
	}
	if len(shaders) == 0 {
		t.Skip("this OpenGL is no Mesa: its shaders cannot be broken")
	}
	for _, shader := range shaders {
		if err := os.WriteFile(shader, []byte("broken"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r = start(t, small, "DISPLAY="+x.Name, "MESA_SHADER_READ_PATH="+dir)
	if m := r.expect(control.Error, "cannot draw: cannot compile the vertex shader"); m.Phase != "process" {
		t.Errorf("phase %q", m.Phase)
	}
	if status := r.gone(); status != 1 {
		t.Errorf("it ended with %d", status)
	}
}

func TestWaitsForADisplay(t *testing.T) {
	// A name that is free: that of a server that was.
	x := xvfb.Start(t, "")
	name := x.Name
	x.Stop()
	r := start(t, small, "DISPLAY="+name)
	r.expect(control.Ready, "")
	if m := r.expect(control.Condition, "waits for a display: cannot open display "+name); m.Condition != "display" {
		t.Errorf("condition %q", m.Condition)
	}
	x = xvfb.Start(t, name)
	if m := r.expect(control.Condition, "on display"); m.Condition != "" {
		t.Errorf("condition %q", m.Condition)
	}
	// The link was there before the display.
	r.publish(64, 32, orange, teal)
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	// The end of the display is the end of the process, as a death.
	x.Stop()
	if status := r.gone(); status == 0 {
		t.Error("the loss of the display passed for an end by itself")
	}
	r = start(t, small, "DISPLAY="+name)
	r.expect(control.Condition, "waits for a display")
	r.send(&control.Message{Kind: control.Stop})
	r.expect(control.Stopped, "")
	if status := r.gone(); status != 0 {
		t.Errorf("stopped while waiting, it ended with %d", status)
	}
}

func TestConfigurationIsChecked(t *testing.T) {
	for config, want := range map[string]string{
		`{"scaling": "cover"}`:  "cover",
		`{"width": 0}`:          "width is 0, not between 1 and 16384",
		`{"titel": "x"}`:        "titel",
		`{"height": "tall"}`:    "height",
		`{"width": 1000000000}`: "1000000000",
	} {
		r := start(t, config)
		for m := range r.messages {
			if m.Kind == control.Failed {
				if !strings.Contains(m.Message, want) {
					t.Errorf("%s: %q", config, m.Message)
				}
				want = ""
			}
		}
		if want != "" {
			t.Errorf("%s was taken", config)
		}
	}
}

// A display that hangs blocks what draws: neither the source, nor the end.
func TestADisplayThatHangsHoldsNobodyUp(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, small, "DISPLAY="+x.Name)
	r.publish(64, 32, orange, teal)
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	x.Freeze()
	for range 200 {
		r.publish(640, 320, white, white)
	}
	x.Thaw()
	r.publish(64, 32, teal, orange)
	shows(x, teal, orange)
	x.Freeze()
	r.publish(640, 320, white, white)
	r.send(&control.Message{Kind: control.Stop})
	r.gone()
}

// The process is stopped, its source is not.
func TestAStoppedWindowHoldsNobodyUp(t *testing.T) {
	x := xvfb.Start(t, "")
	r := start(t, small, "DISPLAY="+x.Name)
	r.publish(64, 32, orange, teal)
	x.Window("a title").Place(0, 0, 400, 200)
	shows(x, orange, teal)
	r.cmd.Process.Signal(unix.SIGSTOP)
	for range 200 {
		r.publish(64, 32, white, white)
	}
	r.publish(64, 32, teal, orange)
	r.cmd.Process.Signal(unix.SIGCONT)
	shows(x, teal, orange)
	if folder := os.Getenv("TATOLAB_SCREENSHOTS"); folder != "" {
		x.Save(filepath.Join(folder, "node.png"))
	}
}

// What the node takes and what a stream may give it are the same.
func TestLimits(t *testing.T) {
	hosttest.Limits(t, "DisplayWindow", func(raw json.RawMessage) error {
		c := defaults
		if err := host.Decode(raw, &c); err != nil {
			return err
		}
		return c.check()
	})
}
