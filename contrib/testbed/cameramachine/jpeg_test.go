package cameramachine_test

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"os"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
)

// JPEG from a device, which vivid has not: v4l2loopback hands on what is written to
// it.
func TestJPEG(t *testing.T) {
	needLoopback(t)
	t.Parallel()
	cameramachine.Load(t, "v4l2loopback", "video_nr=7", "exclusive_caps=1", "card_label=loopback")
	out, err := os.OpenFile(loopback, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cameramachine.Control(t, loopback, "-c", "keep_format=1")
	cameramachine.Control(t, loopback, "--set-fmt-video-out=width=320,height=180,pixelformat=MJPG")
	want := color.RGBA{200, 60, 120, 255}
	picture := image.NewRGBA(image.Rect(0, 0, 320, 180))
	for i := 0; i < len(picture.Pix); i += 4 {
		copy(picture.Pix[i:], []byte{want.R, want.G, want.B, want.A})
	}
	var frame bytes.Buffer
	if err := jpeg.Encode(&frame, picture, &jpeg.Options{Quality: 95}); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	end := make(chan struct{})
	go func() {
		for {
			if _, err := out.Write(frame.Bytes()); err != nil {
				written <- err
				return
			}
			select {
			case <-end:
				written <- nil
				return
			case <-time.After(time.Second / 25):
			}
		}
	}()
	// It is a capture device only once something is written; the node waits for that.
	p := start(t, map[string]any{"device_id": loopback})
	for i := range 30 {
		f := p.Frame()
		if f.Width != 320 || f.Height != 180 {
			t.Fatalf("frame %d is of %dx%d", i, f.Width, f.Height)
		}
		got := middle(f)[400:404]
		for c, w := range []byte{want.R, want.G, want.B, 255} {
			if d := int(got[c]) - int(w); d < -4 || d > 4 {
				t.Fatalf("frame %d is %v, want %v", i, got, want)
			}
		}
	}
	p.Said("MJPG")
	p.Stop()
	close(end)
	if err := <-written; err != nil {
		t.Errorf("writing to the loopback: %v", err)
	}
}
