package v4l2

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/pixel"
)

// A change of the source ends what waits, streaming or not; events of nothing
// do not, and neither do those from before the device was configured.
func TestSourceChanged(t *testing.T) {
	s := &script{events: []bool{true}, next: []func(*filled) error{frame(1), frame(2)}}
	d := streaming(t, s)
	if _, err := d.Next(time.Second); err != nil {
		t.Fatal(err)
	}
	s.events = []bool{false}
	if f, err := d.Next(time.Second); err != nil || f.Lost != 0 {
		t.Errorf("%d lost, %v", f.Lost, err)
	}
	s.events = []bool{false, true}
	if _, err := d.Next(time.Second); !errors.Is(err, ErrSourceChanged) || !strings.Contains(err.Error(), "/dev/video9 (Card)") {
		t.Errorf("streaming: %v", err)
	}
	s.calls = nil
	if _, err := d.Configure(Request{MaxWidth: 640, MaxHeight: 480}); err != nil {
		t.Fatal(err)
	}
	// It has to be stopped and its buffers given back before it is set.
	if got := strings.Join(s.calls[:5], " "); got != "stream requestBuffers watchSource sourceChanged adoptSource" {
		t.Errorf("configured anew by %s", got)
	}
	if err := d.Idle(0); !errors.Is(err, ErrTimeout) {
		t.Errorf("nothing happens: %v", err)
	}
	s.events = []bool{true}
	if err := d.Idle(time.Minute); !errors.Is(err, ErrSourceChanged) {
		t.Errorf("idle: %v", err)
	}
	d.Wake()
	if err := d.Idle(time.Minute); !errors.Is(err, ErrWoken) {
		t.Errorf("after Wake: %v", err)
	}
	s.events, s.fail = []bool{false}, map[string]error{"sourceChanged": unix.ENODEV}
	if err := d.Idle(time.Minute); !errors.Is(err, ErrGone) {
		t.Errorf("unplugged: %v", err)
	}
}

func TestAdoptSource(t *testing.T) {
	offered := []Offer{{Format: pixel.YUYV, Width: 64, Height: 8}}
	configure := func(s *script) (Mode, error) {
		s.offered = offered
		d := &Device{driver: s, camera: Camera{Path: "/dev/video9", Card: "Card"}}
		return d.Configure(Request{MaxWidth: 640, MaxHeight: 480})
	}
	// A driver without a rate of its own has that of the wire.
	s := &script{source: source{input: "HDMI 1", interval: Fraction{1, 60}}}
	if m, err := configure(s); err != nil || m.Interval != (Fraction{1, 60}) {
		t.Errorf("%v, %v", m, err)
	}
	s = &script{source: source{interval: Fraction{1, 60}}, interval: Fraction{1, 30}}
	if m, err := configure(s); err != nil || m.Interval != (Fraction{1, 30}) {
		t.Errorf("%v, %v", m, err)
	}
	// One that scales makes no larger pictures than there are.
	s = &script{source: source{width: 320, height: 200}, offered: []Offer{{Format: pixel.YUYV}}}
	d := &Device{driver: s}
	if m, err := d.Configure(Request{MaxWidth: 640, MaxHeight: 100}); err != nil || m.Width != 320 || m.Height != 100 {
		t.Errorf("%v, %v", m, err)
	}
	if list, err := d.Offers(); err != nil || len(list) != 1 || list[0].Width != 64 || list[0].Height != 48 {
		t.Errorf("it offers %v, %v", list, err)
	}
	for errno, says := range map[error]string{
		unix.ENOLINK: "no signal at HDMI 1 of /dev/video9 (Card): nothing is connected",
		unix.ENOLCK:  "not stable",
		unix.ERANGE:  "outside of what the device can receive",
	} {
		s := &script{source: source{input: "HDMI 1"}, fail: map[string]error{"adoptSource": errno}}
		if _, err := configure(s); !errors.Is(err, ErrNoSignal) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	s = &script{fail: map[string]error{"adoptSource": unix.EIO, "watchSource": unix.ENOTTY}}
	if _, err := configure(s); errors.Is(err, ErrNoSignal) || !errors.Is(err, unix.EIO) {
		t.Errorf("EIO: %v", err)
	}
}

func TestInterval(t *testing.T) {
	for _, test := range []struct {
		timings timings
		want    Fraction
	}{
		// 1080p60 and 1080i50 of CTA-861, and 1080p60 at NTSC's rate.
		{timings{width: 1920, height: 1080, clockLow: 148500000, hFrontPorch: 88, hSync: 44, hBackPorch: 148, vFrontPorch: 4, vSync: 5, vBackPorch: 36}, Fraction{1, 60}},
		{timings{width: 1920, height: 1080, interlaced: 1, clockLow: 74250000, hFrontPorch: 528, hSync: 44, hBackPorch: 148, vFrontPorch: 2, vSync: 5, vBackPorch: 15,
			secondFrontPorch: 2, secondSync: 5, secondBackPorch: 16}, Fraction{1, 25}},
		{timings{width: 1920, height: 1080, clockLow: 148351648, hFrontPorch: 88, hSync: 44, hBackPorch: 148, vFrontPorch: 4, vSync: 5, vBackPorch: 36}, Fraction{50, 2997}},
		{timings{}, Fraction{}},
		{timings{width: 1, height: 1, clockHigh: 1 << 31}, Fraction{}},
	} {
		if got := test.timings.interval(); got != test.want {
			t.Errorf("%dx%d at %d Hz: %v, want %v", test.timings.width, test.timings.height, test.timings.clockLow, got, test.want)
		}
	}
}
