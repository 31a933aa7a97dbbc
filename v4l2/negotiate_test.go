package v4l2

import (
	"cmp"
	"strings"
	"testing"

	"tatolab.com/tatolab/v4l2/pixel"
)

func offer(f pixel.FourCC, w, h int, rates ...uint32) Offer {
	o := Offer{Format: f, Width: w, Height: h}
	for _, r := range rates {
		o.Intervals = append(o.Intervals, Fraction{1, r})
	}
	return o
}

// A webcam of the usual sort: raw where the bus is wide enough.
var usual = []Offer{
	offer(pixel.YUYV, 640, 480, 30, 15), offer(pixel.YUYV, 1280, 720, 10, 5), offer(pixel.YUYV, 1920, 1080, 5),
	offer(pixel.MJPG, 640, 480, 30, 60), offer(pixel.MJPG, 1280, 720, 30, 60), offer(pixel.MJPG, 1920, 1080, 30), offer(pixel.MJPG, 3840, 2160, 15),
}

func TestChoose(t *testing.T) {
	for _, test := range []struct {
		name   string
		offers []Offer
		want   Request
		mode   string
	}{
		{"default", usual, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 0}, "1920x1080 MJPG 30/1"},
		{"small", usual, Request{MaxWidth: 640, MaxHeight: 480, FPS: 0}, "640x480 YUYV 30/1"},
		{"slow is cheap", usual, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 5}, "1920x1080 YUYV 5/1"},
		{"slow within 720p", usual, Request{MaxWidth: 1280, MaxHeight: 720, FPS: 10}, "1280x720 YUYV 10/1"},
		{"a rate between two is the higher", usual, Request{MaxWidth: 640, MaxHeight: 480, FPS: 20}, "640x480 YUYV 30/1"},
		{"60 costs size", usual, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 60}, "1280x720 MJPG 60/1"},
		{"120 is not there", usual, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 120}, "1280x720 MJPG 60/1"},
		{"everything", usual, Request{MaxWidth: 8000, MaxHeight: 8000, FPS: 0}, "1920x1080 MJPG 30/1"},
		{"bounds are of both sides", usual, Request{MaxWidth: 4000, MaxHeight: 480, FPS: 0}, "640x480 YUYV 30/1"},
		{"a virtual camera of 25", []Offer{offer(pixel.YUYV, 640, 480, 5, 25), offer(pixel.YUYV, 1280, 720, 5, 15)}, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 0}, "640x480 YUYV 25/1"},
		{"no rates known", []Offer{offer(pixel.YUYV, 640, 480), offer(pixel.YUYV, 320, 240)}, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 30}, "640x480 YUYV"},
		{"29.97 is 30", []Offer{{Format: pixel.YUYV, Width: 720, Height: 480, Intervals: []Fraction{{1001, 30000}}}, offer(pixel.YUYV, 640, 480, 30)},
			Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 30}, "720x480 YUYV 30000/1001"},
		{"planar before packed", []Offer{offer(pixel.YUYV, 640, 480, 30), offer(pixel.NV12, 640, 480, 30)}, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 0}, "640x480 NV12 30/1"},
		{"colour before grey", []Offer{offer(pixel.GREY, 640, 480, 30), offer(pixel.MJPG, 640, 480, 30)}, Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 0}, "640x480 MJPG 30/1"},
		{"only what is named", usual, Request{MaxWidth: 640, MaxHeight: 480, Formats: []pixel.FourCC{pixel.MJPG}}, "640x480 MJPG 30/1"},
	} {
		choices, err := choose(test.offers, test.want)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		c := choices[0]
		mode := Mode{Format: pixel.Format{FourCC: c.Format, Width: c.Width, Height: c.Height}, Interval: c.interval}
		if got := mode.String(); got != test.mode {
			t.Errorf("%s: %s, want %s", test.name, got, test.mode)
		}
	}
	_, err := choose(usual, Request{MaxWidth: 320, MaxHeight: 240, FPS: 0})
	if err == nil || !strings.Contains(err.Error(), "fits 320x240") || !strings.Contains(err.Error(), "YUYV 640x480") {
		t.Errorf("nothing fits: %v", err)
	}
}

func TestRatesWithin(t *testing.T) {
	from1to120 := rates{Fraction{1, 120}, Fraction{1, 1}}
	offer := Offer{Format: pixel.YUYV, Width: 640, Height: 480}
	for want, interval := range map[float64]Fraction{0: {1000, 30000}, 50: {1000, 50000}, 120: {1, 120}, 500: {1, 120}} {
		offer.Intervals = from1to120.within(cmp.Or(want, usualRate))
		choices, err := choose([]Offer{offer}, Request{MaxWidth: 640, MaxHeight: 480, FPS: want})
		if err != nil || choices[0].interval != interval {
			t.Errorf("fps %v of 1 to 120: %v, %v, want %v", want, choices, err, interval)
		}
	}
}

func TestSizesFit(t *testing.T) {
	s := sizes{160, 1920, 16, 90, 1080, 2}
	for _, test := range []struct{ w, h, width, height int }{{1920, 1080, 1920, 1080}, {500, 301, 496, 300}, {10000, 10000, 1920, 1080}, {160, 90, 160, 90}} {
		if w, h, ok := s.fit(test.w, test.h); w != test.width || h != test.height || !ok {
			t.Errorf("within %dx%d: %dx%d, %v", test.w, test.h, w, h, ok)
		}
	}
	if _, _, ok := s.fit(159, 1080); ok {
		t.Error("a size fits that is too small")
	}
}

func TestMode(t *testing.T) {
	for _, test := range []struct {
		name   string
		g      granted
		matrix pixel.Matrix
		full   bool
		colour [4]int
	}{
		{"a webcam", granted{colorspace: colorspaceSRGB}, pixel.BT601, false, [4]int{1, 13, 0, 1}},
		{"nothing said", granted{}, pixel.BT601, false, [4]int{2, 2, 0, 1}},
		{"HDMI", granted{colorspace: colorspace709}, pixel.BT709, false, [4]int{1, 1, 0, 1}},
		{"HDMI, 601", granted{colorspace: colorspace709, encoding: encoding601}, pixel.BT601, false, [4]int{1, 1, 0, 1}},
		{"full range", granted{colorspace: colorspace709, quantization: quantizationAll}, pixel.BT709, true, [4]int{1, 1, 0, 1}},
		{"JPEG", granted{colorspace: colorspaceJPEG}, pixel.BT601, true, [4]int{1, 13, 0, 1}},
		{"JPEG, limited", granted{colorspace: colorspaceJPEG, quantization: quantizationLim}, pixel.BT601, false, [4]int{1, 13, 0, 1}},
		{"UHD", granted{colorspace: colorspace2020, transfer: 7}, pixel.BT2020, false, [4]int{9, 16, 0, 1}},
	} {
		m := test.g.mode()
		if m.Matrix != test.matrix || m.FullRange != test.full || m.Colour != test.colour {
			t.Errorf("%s: %+v", test.name, m)
		}
	}
}
