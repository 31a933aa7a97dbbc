package v4l2

import (
	"errors"
	"strings"
	"testing"
	"time"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/pixel"
)

// script is a driver whose dequeues are written down before.
type script struct {
	driver           // what is not scripted is not called
	offered []Offer  // what it lists
	refuse  []string // formats it answers EINVAL to
	answer  func(granted) granted
	control bool // of the rate

	set      granted
	interval Fraction
	queued   []int
	next     []func(*filled) error // for one dequeue each
	waits    int
	woken    bool
	events   []bool // that wait; whether each is a source change
	source   source
	buf      filled
	fail     map[string]error // by call
	calls    []string
}

func (s *script) call(name string) error {
	s.calls = append(s.calls, name)
	return s.fail[name]
}

func (s *script) formats() (list []pixel.FourCC, err error) {
	for _, o := range s.offered {
		list = append(list, o.Format)
	}
	return list, s.call("formats")
}

func (s *script) sizes(f pixel.FourCC) (list []sizes, err error) {
	for _, o := range s.offered {
		if o.Format == f && o.Width > 0 {
			list = append(list, sizes{o.Width, o.Width, 1, o.Height, o.Height, 1})
		}
	}
	return list, nil
}

func (s *script) rates(f pixel.FourCC, width, height int) (list []rates, err error) {
	for _, o := range s.offered {
		if o.Format == f && o.Width == width && o.Height == height {
			for _, i := range o.Intervals {
				list = append(list, rates{i, i})
			}
		}
	}
	return list, nil
}

func (s *script) format() (granted, error) { return granted{width: 64, height: 48}, nil }

func (s *script) setFormat(f pixel.FourCC, width, height int) (granted, error) {
	if err := s.call("setFormat"); err != nil {
		return granted{}, err
	}
	for _, r := range s.refuse {
		if r == f.String() {
			return granted{}, unix.EINVAL
		}
	}
	s.set = granted{format: f, width: width, height: height, memories: 1, strides: [pixel.MaxMemories]int{4 * width}}
	if s.answer != nil {
		s.set = s.answer(s.set)
	}
	return s.set, nil
}

func (s *script) setInterval(f Fraction) (Fraction, bool, error) {
	if s.control {
		s.interval = f
	}
	return s.interval, s.control, s.call("setInterval")
}

func (s *script) requestBuffers(n int) (int, error) { return n, s.call("requestBuffers") }
func (s *script) mapBuffer(int) ([][]byte, error)   { return [][]byte{make([]byte, 1000)}, nil }
func (s *script) unmapBuffer([][]byte) error        { return nil }
func (s *script) queue(i int) error                 { s.queued = append(s.queued, i); return s.call("queue") }
func (s *script) stream(on bool) error              { return s.call("stream") }
func (s *script) close() error                      { return s.call("close") }
func (s *script) wake()                             { s.woken = true }

func (s *script) wait(_ time.Duration, frames bool) (readiness, error) {
	r := readiness{frame: frames && len(s.next) > 0, event: len(s.events) > 0, woken: s.woken}
	s.woken = false
	s.waits++
	return r, nil
}

func (s *script) watchSource() error           { return s.call("watchSource") }
func (s *script) adoptSource() (source, error) { return s.source, s.call("adoptSource") }

func (s *script) sourceChanged() (changed bool, err error) {
	for _, changes := range s.events {
		changed = changed || changes
	}
	s.events = nil
	return changed, s.call("sourceChanged")
}

func (s *script) dequeue() (*filled, error) {
	do := s.next[0]
	s.next = s.next[1:]
	s.buf = filled{flags: go4vl.BufFlagTimestampMonotonic, time: monotonicNow()}
	s.buf.planes[0].to = 100
	if err := do(&s.buf); err != nil {
		return nil, err
	}
	return &s.buf, nil
}

func frame(sequence uint32) func(*filled) error {
	return func(b *filled) error {
		b.sequence = sequence
		return nil
	}
}

func fails(err error) func(*filled) error { return func(*filled) error { return err } }

func streaming(t *testing.T, s *script) *Device {
	t.Helper()
	s.offered = []Offer{{Format: pixel.YUYV, Width: 64, Height: 8}}
	d := &Device{driver: s, camera: Camera{Path: "/dev/video9", Card: "Card"}}
	if _, err := d.Configure(Request{MaxWidth: 640, MaxHeight: 480}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// Frames that are missing, by sequence number or because the driver marked
// them, are counted with the next good one.
func TestNextCountsWhatIsLost(t *testing.T) {
	damaged := func(sequence uint32) func(*filled) error {
		return func(b *filled) error {
			b.sequence, b.flags = sequence, b.flags|go4vl.BufFlagError
			return nil
		}
	}
	empty := func(sequence uint32) func(*filled) error {
		return func(b *filled) error {
			b.sequence, b.planes[0].to = sequence, 0
			return nil
		}
	}
	s := &script{next: []func(*filled) error{
		frame(7), frame(8), // the first number is what it is
		frame(11),              // 9, 10 missing
		damaged(12), frame(13), // one damaged
		empty(15), damaged(16), frame(18), // 14 and 17 missing, 15 empty, 16 damaged
		fails(unix.EAGAIN), fails(unix.EIO), frame(19),
		frame(3),                   // the driver began anew
		frame(1<<32 - 1), frame(0), // wraps: the first is a jump back, too
	}}
	d := streaming(t, s)
	for _, want := range []struct {
		sequence uint32
		lost     int
	}{{7, 0}, {8, 0}, {11, 2}, {13, 1}, {18, 4}, {19, 0}, {3, 0}, {1<<32 - 1, 0}, {0, 0}} {
		f, err := d.Next(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if d.sequence != want.sequence || f.Lost != want.lost {
			t.Errorf("frame %d with %d lost, want %d with %d", d.sequence, f.Lost, want.sequence, want.lost)
		}
		if len(f.Planes[0]) != 100 {
			t.Errorf("%d bytes, want the 100 used", len(f.Planes[0]))
		}
	}
	if _, err := d.Next(0); !errors.Is(err, ErrTimeout) {
		t.Errorf("without a frame: %v", err)
	}
	// 4 at the start, and the damaged and empty ones at once.
	if len(s.queued) != 4+3 {
		t.Errorf("%d buffers were queued, want 7", len(s.queued))
	}
}

func TestNextErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		next func(*filled) error
		is   error
		says string
	}{
		{"unplugged", fails(unix.ENODEV), ErrGone, "/dev/video9 (Card) was unplugged"},
		{"not streaming", fails(unix.EINVAL), unix.EINVAL, "cannot read from /dev/video9 (Card)"},
		{"index of no buffer", func(b *filled) error { b.index = 4; return nil }, nil, "returned buffer 4 of 4"},
	} {
		d := streaming(t, &script{next: []func(*filled) error{test.next}})
		_, err := d.Next(time.Second)
		if err == nil || test.is != nil && !errors.Is(err, test.is) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	// A driver that fails for ever is given up.
	s := &script{}
	for range 1000 {
		s.next = append(s.next, fails(unix.EIO))
	}
	if _, err := streaming(t, s).Next(time.Minute); err == nil || !strings.Contains(err.Error(), "64 bad frames in a row") {
		t.Errorf("endless errors: %v", err)
	}
	s = &script{}
	d := streaming(t, s)
	d.Wake()
	if _, err := d.Next(time.Minute); !errors.Is(err, ErrWoken) {
		t.Errorf("after Wake: %v", err)
	}
	// More than was mapped is not read.
	d = streaming(t, &script{next: []func(*filled) error{func(b *filled) error { b.planes[0].to = 1 << 30; return nil }}})
	if f, err := d.Next(time.Second); err != nil || len(f.Planes[0]) != 1000 {
		t.Errorf("a frame of 1 GiB in a buffer of 1000 bytes: %d, %v", len(f.Planes[0]), err)
	}
}

func TestNextAllocatesNothing(t *testing.T) {
	s := &script{}
	d := streaming(t, s)
	n := uint32(0)
	next := func(b *filled) error { n++; b.sequence = n; return nil }
	backing := []func(*filled) error{next}
	s.queued = make([]int, 0, 1<<16)
	s.calls = make([]string, 0, 1<<16)
	if got := testing.AllocsPerRun(100, func() {
		s.next = backing
		f, err := d.Next(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Requeue(f); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations a frame", got)
	}
}

func TestConfigure(t *testing.T) {
	offered := []Offer{
		{Format: pixel.MJPG, Width: 1280, Height: 720, Intervals: []Fraction{{1, 30}}},
		{Format: pixel.YUYV, Width: 1280, Height: 720, Intervals: []Fraction{{1, 30}}},
	}
	t.Run("a refused format is not the end", func(t *testing.T) {
		d := &Device{driver: &script{offered: offered, refuse: []string{"YUYV"}}}
		if m, err := d.Configure(Request{MaxWidth: 1920, MaxHeight: 1080}); err != nil || m.FourCC != pixel.MJPG {
			t.Errorf("%v, %v", m, err)
		}
	})
	t.Run("all refused", func(t *testing.T) {
		d := &Device{driver: &script{offered: offered, refuse: []string{"YUYV", "MJPG"}}, camera: Camera{Path: "/dev/video9", Card: "C"}}
		if _, err := d.Configure(Request{MaxWidth: 1920, MaxHeight: 1080}); err == nil || err.Error() != "cannot configure /dev/video9 (C): the driver refuses MJPG" {
			t.Error(err)
		}
	})
	t.Run("what cannot be converted is not asked for, and named", func(t *testing.T) {
		const other = pixel.FourCC(0x34363248) // H264
		s := &script{offered: []Offer{{Format: other, Width: 640, Height: 480}, offered[0]}}
		want := Request{MaxWidth: 1280, MaxHeight: 720}
		if list, err := offers(s, want, want.takes); err != nil || len(list) != 1 || list[0].Format != pixel.MJPG {
			t.Errorf("%v, %v", list, err)
		}
		if _, err := (&Device{driver: s}).Configure(Request{MaxWidth: 320, MaxHeight: 240}); err == nil || !strings.Contains(err.Error(), "it offers H264 640x480, MJPG 1280x720") {
			t.Error(err)
		}
	})
	t.Run("what is granted counts", func(t *testing.T) {
		s := &script{offered: offered, control: true, answer: func(g granted) granted {
			g.width, g.strides[0], g.colorspace = 800, 1600, colorspace709
			return g
		}}
		m, err := (&Device{driver: s}).Configure(Request{MaxWidth: 1920, MaxHeight: 1080, FPS: 30})
		if err != nil || m.Width != 800 || m.Strides[0] != 1600 || m.Matrix != pixel.BT709 || m.FullRange || m.Interval != (Fraction{1, 30}) || !m.RateControl {
			t.Errorf("%+v, %v", m, err)
		}
		if m.String() != "800x720 YUYV 30/1" {
			t.Errorf("it is called %s", m)
		}
	})
	t.Run("planes where they are not looked for", func(t *testing.T) {
		s := &script{offered: offered[1:], answer: func(g granted) granted { g.memories = 2; return g }}
		if _, err := (&Device{driver: s}).Configure(Request{MaxWidth: 1920, MaxHeight: 1080}); err == nil || !strings.Contains(err.Error(), "YUYV in 2 pieces of memory, not 1") {
			t.Error(err)
		}
	})
	for call, says := range map[string]string{
		"setFormat": "is held by", "requestBuffers": "is held by",
	} {
		s := &script{offered: offered, fail: map[string]error{call: unix.EBUSY}}
		_, err := (&Device{driver: s, camera: Camera{Path: "/dev/video9", Card: "C"}}).Configure(Request{MaxWidth: 1920, MaxHeight: 1080})
		var busy *BusyError
		if !errors.As(err, &busy) || !strings.Contains(err.Error(), says) {
			t.Errorf("EBUSY of %s: %v", call, err)
		}
	}
}

// Whatever a device does when it has gone, closing it gets to the end.
func TestCloseOfADeviceThatIsGone(t *testing.T) {
	s := &script{}
	d := streaming(t, s)
	s.fail = map[string]error{"stream": unix.ENODEV, "requestBuffers": unix.ENODEV, "close": unix.ENODEV}
	if err := d.Stop(); !errors.Is(err, ErrGone) {
		t.Errorf("Stop: %v", err)
	}
	d.Close()
	if s.calls[len(s.calls)-1] != "close" {
		t.Errorf("it was not closed: %v", s.calls)
	}
}

func TestClock(t *testing.T) {
	const now = int64(1000e9)
	stamp := func(ns int64, flags uint32) filled { return filled{time: ns, flags: flags} }
	const good = go4vl.BufFlagTimestampMonotonic
	for _, test := range []struct {
		name string
		b    filled
		want int64
		own  bool
	}{
		{"good", stamp(now-30e6, good), now - 30e6, false},
		{"a little ahead", stamp(now+2e6, good), now, false},
		{"far ahead", stamp(now+1e9, good), now, true},
		{"old", stamp(now-3e9, good), now, true},
		{"zero", stamp(0, good), now, true},
		{"not monotonic", stamp(now-30e6, 0), now, true},
		{"copied", stamp(now-30e6, go4vl.BufFlagTimestampCopy), now, true},
	} {
		var c clock
		if got := c.stamp(test.b.time, test.b.flags, now); got != test.want || c.own != test.own {
			t.Errorf("%s: %d, own %v, want %d, %v", test.name, got-now, c.own, test.want-now, test.own)
		}
	}
	var c clock
	first := c.stamp(now-30e6, good, now)
	if second := c.stamp(now-30e6, good, now+10); second <= first || !c.own {
		t.Errorf("a clock that stands: %d after %d, own %v", second, first, c.own)
	}
	if third := c.stamp(now+20, good, now+20); third != now+20 {
		t.Errorf("once wrong, the driver's clock is used again")
	}
}
