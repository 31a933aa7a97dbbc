package cameramachine_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/v4l2"
	"tatolab.com/tatolab/v4l2/pixel"
)

// Small, for what is converted without the help of vector code.
const smallWidth, smallHeight = 320, 180

// Of every format that can be converted and that vivid has, the picture is the one
// that v4l2-ctl takes of the same pattern as RGB, where the driver has done the
// conversion. So it is for the ways colour is coded.
func TestFormats(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	sharedVivid(t)
	set(t, formatted, "osd_text_mode=2") // the time, for one, differs between pictures
	for _, colour := range []struct {
		name, controls string
		formats        []pixel.FourCC // nil: all
		tolerance      int
	}{
		{"sRGB", "colorspace=2,y_cbcr_encoding=0,quantization=0", nil, 4},
		{"full range", "colorspace=2,y_cbcr_encoding=1,quantization=1", []pixel.FourCC{pixel.YUYV, pixel.NV12, pixel.P422}, 4},
		// libyuv's blues are too dark there: docs/cameras.md.
		{"BT.709", "colorspace=1,y_cbcr_encoding=0,quantization=0", []pixel.FourCC{pixel.YUYV, pixel.NV12, pixel.P422}, 14},
		{"BT.2020", "colorspace=4,y_cbcr_encoding=0,quantization=0", []pixel.FourCC{pixel.YUYV, pixel.NV12, pixel.P422}, 16},
	} {
		t.Run(colour.name, func(t *testing.T) {
			set(t, formatted, colour.controls)
			want := reference(t, formatted)
			formats := colour.formats
			if formats == nil {
				formats = convertible(t, formatted)
				if len(formats) < 20 {
					t.Errorf("vivid offers %v: fewer than expected", formats)
				}
			}
			for _, f := range formats {
				samePicture(t, f, capture(t, formatted, f), want, colour.tolerance)
			}
		})
	}
}

// samePicture tells whether a picture, R, G, B, A, is that of the reference, R, G, B.
func samePicture(t *testing.T, f pixel.FourCC, picture, want []byte, tolerance int) {
	t.Helper()
	if pixel.IsGrey(f) {
		want = grey(want)
	}
	worst, at := 0, 0 // the most that a byte of colour differs, and of which pixel
	for i := range len(picture) / 4 {
		p, w := picture[4*i:4*i+4], want[3*i:3*i+3]
		for c := range w {
			if d := max(int(p[c])-int(w[c]), int(w[c])-int(p[c])); d > worst {
				worst, at = d, i
			}
		}
		if p[3] != 255 {
			t.Fatalf("%v: alpha is %d", f, p[3])
		}
	}
	if worst > tolerance {
		t.Errorf("%v: at %d,%d it is %v, v4l2-ctl has %v", f, at%smallWidth, at/smallWidth, picture[4*at:4*at+4], want[3*at:3*at+3])
	} else {
		t.Logf("%v: within %d of 255", f, worst)
	}
}

// grey is a picture, R, G, B, without colour: vivid weighs by BT.709 there.
func grey(picture []byte) []byte {
	out := make([]byte, len(picture))
	for i := 0; i < len(out); i += 3 {
		p := picture[i : i+3]
		luma := byte((2126*int(p[0]) + 7152*int(p[1]) + 722*int(p[2]) + 5000) / 10000)
		out[i], out[i+1], out[i+2] = luma, luma, luma
	}
	return out
}

// reference is the picture as v4l2-ctl takes it, R, G, B.
func reference(t *testing.T, device string) []byte {
	t.Helper()
	file := filepath.Join(t.TempDir(), "picture")
	cameramachine.Control(t, device, "--set-fmt-video=width=320,height=180,pixelformat=RGB3",
		"--stream-mmap", "--stream-count=1", "--stream-to="+file)
	data, err := os.ReadFile(file)
	if err != nil || len(data) != 3*smallWidth*smallHeight {
		t.Fatalf("v4l2-ctl took %d bytes, %v", len(data), err)
	}
	if bytes.Count(data, data[:3]) == len(data)/3 {
		t.Fatal("the pattern is of one colour")
	}
	return data
}

// convertible lists the formats of a camera that CameraSource converts.
func convertible(t *testing.T, device string) (list []pixel.FourCC) {
	t.Helper()
	d := open(t, device)
	defer d.Close()
	offers, err := d.Offers()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range offers {
		if _, ok := pixel.Cost(o.Format); ok && !slices.Contains(list, o.Format) {
			list = append(list, o.Format)
		}
	}
	return list
}

func open(t *testing.T, device string) *v4l2.Device {
	t.Helper()
	c, err := v4l2.Find(device, nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := v4l2.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// capture is one picture of a camera as a node makes it, R, G, B, A.
func capture(t *testing.T, device string, f pixel.FourCC) []byte {
	t.Helper()
	d := open(t, device)
	defer d.Close()
	mode, err := d.Configure(v4l2.Request{MaxWidth: smallWidth, MaxHeight: smallHeight, FPS: 60, Formats: []pixel.FourCC{f}})
	if err != nil {
		t.Fatal(err)
	}
	if mode.FourCC != f || mode.Width != smallWidth || mode.Height != smallHeight {
		t.Fatalf("asked for %v the camera gives %v", f, mode)
	}
	converter, err := pixel.NewConverter(mode.Format)
	if err != nil {
		t.Fatal(err)
	}
	defer converter.Close()
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	frame, err := d.Next(hosttest.Patience)
	if err != nil {
		t.Fatal(err)
	}
	picture := make([]byte, 4*mode.Width*mode.Height)
	if err := converter.ToRGBA(picture, 4*mode.Width, frame.Planes...); err != nil {
		t.Fatal(err)
	}
	if err := d.Requeue(frame); err != nil {
		t.Fatal(err)
	}
	return picture
}
