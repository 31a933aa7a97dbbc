package testpattern

import (
	"encoding/json"
	"image"
	"os"
	"os/exec"
	"strings"
	"tatolab.com/tatolab/nodes/host"
	"testing"
	"time"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/nodes/testpattern/pattern"
	"tatolab.com/tatolab/service/control"
)

// The test binary is the node's process too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "testpattern" {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func prepare(t *testing.T, config map[string]any) *hosttest.Process {
	return hosttest.Prepare(t, control.Spec{
		Instance: "s/pattern#1", Stream: "s", Node: "pattern", Type: "tatolab.stream:TestPatternSource", Outputs: []string{Port},
	}, config, os.Args[0], "testpattern")
}

// Frames come at their rate, each whole and the next of the one before, and
// what moves does so in every other period.
func TestFramesAndMotion(t *testing.T) {
	p := prepare(t, map[string]any{"width": 320, "height": 180, "fps": 30, "motion": 1})
	p.Start((*exec.Cmd).Start)
	p.Condition("", "320x180 30/s")
	p.Link(Port, datapath.Ordered, datapath.RGBA)
	last := p.Frame()
	first := last
	for last.Counter < first.Counter+90 {
		next := p.Frame()
		if !next.Counted || next.Counter <= last.Counter {
			t.Fatalf("after frame %d comes %d, whole %v", last.Counter, next.Counter, next.Counted)
		}
		// Whether the box has moved follows from the counter alone.
		seconds := func(n uint32) float64 { return float64(n) / 30 }
		moved := pattern.BoxAt(320, 180, pattern.Moved(seconds(next.Counter), 1)) != pattern.BoxAt(320, 180, pattern.Moved(seconds(last.Counter), 1))
		share := changed(last.Pixels, next.Pixels)
		if moved != (share > 0.02) {
			t.Fatalf("from frame %d to %d the box moves: %v, but %.4f of the picture changes", last.Counter, next.Counter, moved, share)
		}
		last = next
	}
	// The first may have been late, by less than a second.
	if n := last.Counter - first.Counter; time.Duration(last.Timestamp-first.Timestamp) < time.Duration(n)*time.Second/30-time.Second {
		t.Errorf("%d frames within %v", n, time.Duration(last.Timestamp-first.Timestamp))
	}
	p.Stop()
}

// changed is the share of pixels that differ.
func changed(a, b []byte) float64 {
	n := 0
	for i := 0; i < len(a); i += 4 {
		if a[i] != b[i] || a[i+1] != b[i+1] || a[i+2] != b[i+2] {
			n++
		}
	}
	return float64(n) / float64(len(a)/4)
}

// Without motion only the counter changes; without readers nothing is made.
func TestStillAndIdle(t *testing.T) {
	p := prepare(t, nil)
	p.Start((*exec.Cmd).Start)
	id := p.Link(Port, datapath.Newest, datapath.RGBA)
	a, b := p.Frame(), p.Frame()
	if a.Width != 1280 || a.Height != 720 {
		t.Errorf("the picture is %dx%d", a.Width, a.Height)
	}
	if share := changed(a.Pixels, b.Pixels); share == 0 || share > 0.005 {
		t.Errorf("%.4f of the picture changes", share)
	}
	// Bars from left to right: grey, yellow, …, blue.
	for x, want := range map[int][4]byte{20: {191, 191, 191, 255}, 250: {191, 191, 0, 255}, 1270: {0, 0, 191, 255}} {
		if got := [4]byte(a.Pixels[4*(300*1280+x):]); got != want {
			t.Errorf("the pixel at %v is %v, want %v", image.Pt(x, 300), got, want)
		}
	}
	p.Unlink(id)
	// The last picture may still be on its way: some second is idle.
	for deadline := time.Now().Add(20 * time.Second); ; {
		before := p.CPU()
		time.Sleep(time.Second)
		used := p.CPU() - before
		if used <= 20*time.Millisecond { // two ticks of the clock
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("without a reader it uses %v of CPU in a second", used)
		}
	}
	p.Stop()
}

func TestConfigurationRefused(t *testing.T) {
	for _, test := range []struct {
		config map[string]any
		says   string
	}{
		{map[string]any{"width": 10}, "width is 10, not between 64"}, {map[string]any{"fps": 0}, "fps is 0, not"},
		{map[string]any{"motion": -1}, "motion is -1, not between 0 and 1000000"}, {map[string]any{"colour": 1}, `unknown field "colour"`},
	} {
		p := prepare(t, test.config)
		p.Launch((*exec.Cmd).Start)
		p.Tell(&control.Message{Kind: control.Start})
		if m := p.AwaitKind(control.Failed); !strings.Contains(m.Message, test.says) {
			t.Errorf("%v: %s", test.config, m.Message)
		}
	}
}

// What the node takes and what a stream may give it are the same.
func TestLimits(t *testing.T) {
	hosttest.Limits(t, "TestPatternSource", func(raw json.RawMessage) error {
		c := defaults
		if err := host.Decode(raw, &c); err != nil {
			return err
		}
		return c.check()
	})
}
