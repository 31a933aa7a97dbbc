package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// Who sets a control that the camera refuses is told, and nothing is left of it. Of
// one that is away nobody can know: it is told later, in the log.
func TestControlRefused(t *testing.T) {
	var bed *fakecamera.Bed
	t.Cleanup(func() { // after the runtime has ended
		if bed != nil {
			bed.Close()
		}
	})
	r := testbed.New(t)
	r.Wrap = func(cmd *exec.Cmd) {
		var err error
		script := fakecamera.Script{Cameras: []fakecamera.Camera{fakecamera.Webcam("/dev/video0", "YUYV", 320, 180, 30)}}
		if bed, err = fakecamera.Wrap(cmd, script); err != nil {
			t.Fatal(err)
		}
	}
	r.Start()
	project := r.Project("lit", map[string]string{"pyproject.toml": "", "stream.py": `from tatolab.stream import CameraSource, StreamBuilder, stream


@stream
def lit(stream_builder: StreamBuilder) -> None:
    stream_builder.add(CameraSource, name="camera")
`})
	r.Must(project, "run", "-d")
	// becomes waits until what the CLI prints has a text.
	becomes := func(text string, args ...string) {
		t.Helper()
		testbed.Eventually(t, 30*time.Second, func() string {
			if out := r.CLI(project, args...); !strings.Contains(out.Stdout, text) {
				return fmt.Sprintf("no %q in %+v", text, out)
			}
			return ""
		})
	}
	becomes("320x180", "graph", "lit")

	const refusal = "cannot change lit: camera refuses: /dev/video0 (Fake Webcam) has no control brightness; it has none"
	if out := r.CLI(project, "set", "lit/camera", "controls.brightness=140"); out.Code != 1 || out.Stderr != "error: "+refusal+"\n" || out.Stdout != "" {
		t.Errorf("%+v", out)
	}
	_, err := r.Client().Change(t.Context(), "lit", api.Changes{Set: map[string]map[string]json.RawMessage{
		"camera": {"controls": json.RawMessage(`{"brightness": 140}`)},
	}})
	if refused := new(api.Error); !errors.As(err, &refused) || refused.Code != api.BadRequest || refused.Message != refusal {
		t.Errorf("the local API says %v", err)
	}
	if out := r.Must(project, "graph", "lit", "--diff"); strings.Contains(out, "brightness") {
		t.Errorf("what was refused is still there: %s", out)
	}
	if out := r.Must(project, "logs", "lit"); strings.Contains(out, "brightness") {
		t.Errorf("it is logged beside: %s", out)
	}

	bed.Unplug("/dev/video0")
	becomes("camera lost", "logs", "lit")
	if out := r.Must(project, "set", "lit/camera", "controls.brightness=140"); !strings.Contains(out, "camera takes it later: camera lost: ") {
		t.Errorf("while the camera is away: %s", out)
	}
	if err := bed.Plug(fakecamera.Webcam("/dev/video0", "YUYV", 320, 180, 30)); err != nil {
		t.Fatal(err)
	}
	becomes("has no control brightness", "logs", "lit")
}
