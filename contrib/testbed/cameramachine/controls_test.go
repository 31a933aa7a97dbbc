package cameramachine_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/graph"
)

// value is what the driver says a control of a camera is.
func value(t testing.TB, device, name string) string {
	t.Helper()
	_, v, _ := strings.Cut(cameramachine.Control(t, device, "-C", name), ": ")
	return strings.TrimSpace(v)
}

// becomes waits until the driver has that value.
func becomes(t testing.TB, device, name, want string) {
	t.Helper()
	testbed.Eventually(t, settles, func() string {
		if now := value(t, device, name); now != want {
			return fmt.Sprintf("%s is %s, not %s", name, now, want)
		}
		return ""
	})
}

// Controls are the driver's when the stream starts, and when they are set while it
// runs; the camera is not opened again for that. What cannot be set is named, and why.
func TestControls(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	r := testbed.Run(t)
	sharedVivid(t)
	project := r.Project("lit", map[string]string{"pyproject.toml": "", "stream.py": `from tatolab.stream import CameraSource, StreamBuilder, stream


@stream
def lit(stream_builder: StreamBuilder) -> None:
    controls = {"brightness": 60, "mute": True, "contrast": 1000}
    camera = stream_builder.add(CameraSource, name="camera", config={"device_id": "/dev/video15", "max_width": 320, "max_height": 180, "fps": 25, "controls": controls})
    stream_builder.expose(camera.output("video"))
`})
	run := r.Command(project, "run")
	out := testbed.Capture(run)
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	out.Await(t, "control contrast of /dev/video15 (vivid) cannot be 1000: it goes from 0 to 255")
	becomes(t, lit, "brightness", "60")
	becomes(t, lit, "mute", "1")

	ctx, cancel := context.WithTimeout(t.Context(), 2*settles)
	defer cancel()
	pictures, err := r.Client().ReadBags(ctx, graph.Source{Stream: "lit", Node: "camera", Port: "video"}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer pictures.Close()
	picture := func() {
		t.Helper()
		if _, err := pictures.Next(); err != nil {
			t.Fatalf("no more pictures: %v\n%s", err, out.String())
		}
	}
	picture()
	node := func() string {
		t.Helper()
		g, err := r.Client().Graph(t.Context(), "lit")
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("process %d, %d restarts", g.Nodes[0].PID, g.Nodes[0].Restarts)
	}
	before, started := node(), len(out.String())
	r.Must(project, "set", "lit/camera", "controls.brightness=255", "controls.hue=9")
	becomes(t, lit, "brightness", "255")
	becomes(t, lit, "hue", "9")
	picture()
	refused := map[string]string{
		"loudness=3":                  "/dev/video15 (vivid) has no control loudness; it has alpha_component, ",
		"brightness=256":              "control brightness of /dev/video15 (vivid) cannot be 256: it goes from 0 to 255",
		"menu=2":                      "control menu of /dev/video15 (vivid) cannot be 2: `v4l2-ctl -d /dev/video15 -L` lists what it can be",
		"read_only_integer_32_bits=7": "control read_only_integer_32_bits of /dev/video15 (vivid) cannot be set: it can only be read",
	}
	// Who sets is told, and what goes with it is not set either.
	set := []string{"set", "lit/camera", "controls.saturation=7"}
	for setting := range refused {
		set = append(set, "controls."+setting)
	}
	saturation := value(t, lit, "saturation")
	if res := r.CLI(project, set...); res.Code != 1 {
		t.Errorf("exit %d, want 1: %s", res.Code, res.Stderr)
	} else {
		for _, said := range refused {
			if !strings.Contains(res.Stderr, said) {
				t.Errorf("it does not say %q: %s", said, res.Stderr)
			}
		}
	}
	becomes(t, lit, "saturation", saturation)
	if out := r.Must(project, "graph", "lit", "--diff"); strings.Contains(out, "loudness") || !strings.Contains(out, `"brightness":255`) {
		t.Errorf("what runs differs by %s", out)
	}
	// A setting that is taken out is undone.
	r.Must(project, "set", "lit/camera", "controls.hue=null")
	becomes(t, lit, "hue", "0")
	if res := r.CLI(project, "set", "lit/camera", "controls.brightness=bright"); res.Code == 0 || !strings.Contains(res.Stderr, "'brightness'] is 'bright', not ") {
		t.Errorf("a word for a value: exit %d, %s", res.Code, res.Stderr)
	}
	becomes(t, lit, "brightness", "255")
	picture()
	said := out.String()[started:]
	if strings.Contains(said, "cannot be 1000") {
		t.Errorf("what was refused at the start is said again:\n%s", said)
	}
	if strings.Contains(said, "camera lost") || strings.Contains(said, "camera is back") || node() != before {
		t.Errorf("the camera was opened again: %s, before that %s:\n%s", node(), before, said)
	}
	run.Process.Signal(unix.SIGINT)
	if err := run.Wait(); err != nil {
		t.Errorf("Ctrl-C: %v, want exit 0\n%s", err, out.String())
	}
}
