package cameramachine_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/v4l2/pixel"
)

// A multi-planar device shows, in each of its formats, the picture that v4l2-ctl
// takes of it. Those whose planes lie apart are among them: with vivid the picture
// of NM16 begins 128 bytes into the first piece of memory, that of NM61 into the second.
func TestMultiplanar(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	// Beside another of its name, that one might be found where it was lost.
	module := cameramachine.Load(t, "vivid", "n_devs=1", "node_types=0x1", "vid_cap_nr=8", "multiplanar=2")
	cameramachine.Control(t, planes, "-c", "osd_text_mode=2")
	want := reference(t, planes)
	formats := convertible(t, planes)
	for _, f := range []pixel.FourCC{
		pixel.YUYV, pixel.NV12, pixel.NM12, pixel.NM21, pixel.NM16, pixel.NM61, pixel.YM12, pixel.YM21, pixel.YM16, pixel.YM61,
	} {
		if !slices.Contains(formats, f) {
			t.Errorf("vivid does not offer %v: it has %v", f, formats)
		}
	}
	for _, f := range formats {
		samePicture(t, f, capture(t, planes, f), want, 4)
	}

	// The node takes it as any other, and finds it again.
	p := start(t, map[string]any{"device_id": planes, "max_width": width, "max_height": height})
	for last, i := p.Frame(), 0; i < 10; i++ {
		f := p.Frame()
		if f.Width != width || f.Height != height || f.Timestamp <= last.Timestamp {
			t.Fatalf("after a frame of %d comes one of %d, %dx%d", last.Timestamp, f.Timestamp, f.Width, f.Height)
		}
		last = f
	}
	module.Unbind()
	p.Condition("lost", "was unplugged")
	module.Bind()
	p.Said("camera is back: " + planes)
	p.Frame()
	p.Stop()

	out, err := exec.Command(filepath.Join(testbed.Bin(t), "tatolabd"), "camera", "--list").Output()
	var list []api.Camera
	if err == nil {
		err = json.Unmarshal(out, &list)
	}
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(c api.Camera) bool { return c.Path == planes })
	if i < 0 || list[i].Error != "" || !slices.ContainsFunc(list[i].Formats, func(f api.CameraFormat) bool { return f.FourCC == "NM12" && len(f.Sizes) > 0 }) {
		t.Errorf("`tatolabd camera --list` shows %s", out)
	}
}
