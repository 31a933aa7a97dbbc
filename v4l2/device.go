package v4l2

import (
	"errors"
	"fmt"
	"time"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/pixel"
)

// buffers is how many the driver fills in turn: one being filled, one full, one
// being copied, and one to spare for a late wake-up.
const buffers = 4

// maxBadInARow is how many dequeues may fail in a row before the stream is
// given up. The driver answers such a dequeue at once, so without a bound a
// broken one would keep a core busy.
const maxBadInARow = 64

// Mode is what a camera has been set to, as its driver reports it.
type Mode struct {
	pixel.Format
	// Interval is the time between frames, 0/0 if the driver does not tell;
	// RateControl is whether it takes orders about it.
	Interval    Fraction
	RateControl bool
	// Colour is what the pixels mean once they are RGB: colour primaries,
	// transfer characteristics, matrix and full range, by ITU-T H.273.
	Colour [4]int
}

// String is the mode for people: "1280x720 YUYV 30/1".
func (m Mode) String() string {
	s := fmt.Sprintf("%dx%d %v", m.Width, m.Height, m.FourCC)
	if m.Interval.Num != 0 {
		s += fmt.Sprintf(" %d/%d", m.Interval.Den, m.Interval.Num)
	}
	return s
}

// Frame is one picture in the driver's own buffer.
type Frame struct {
	// Planes are its pieces of memory, one for most formats (pixel.Memories).
	// They are valid until Requeue, and only one frame's at a time.
	Planes      [][]byte
	TimestampNS int64 // CLOCK_MONOTONIC
	// Lost is how many frames went missing since the one before, by the
	// driver's sequence numbers, or were marked damaged by it.
	Lost  int
	index int
}

// Device is an open camera. Its methods are for one goroutine, but for Wake.
type Device struct {
	camera    Camera
	driver    driver
	mode      Mode
	mapped    [][][]byte // by buffer and plane
	frame     [pixel.MaxMemories][]byte
	streaming bool

	clock    clock
	started  bool   // a frame has come since Start
	sequence uint32 // of the last frame
	damaged  int    // frames marked damaged since the last good one
}

// Open opens a camera that Find returned. That holds it; Configure makes it
// ours alone.
func Open(c Camera) (*Device, error) {
	k, capability, err := openKernel(c.Path)
	if err != nil {
		return nil, openError(c, err)
	}
	// Between finding and opening another device may have got the name.
	if capability.card != c.Card || capability.bus != c.Bus || !capability.captures() {
		k.close()
		return nil, fmt.Errorf("%w: %s is now %q", ErrGone, c.Path, capability.card)
	}
	return &Device{camera: c, driver: k}, nil
}

// openError makes what open(2) says clear.
func openError(c Camera, err error) error {
	switch {
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return denied(c.Path)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%w: %s", ErrGone, c)
	case errors.Is(err, unix.EBUSY):
		return &BusyError{Path: c.Path, Card: c.Card, Holders: Holders(c.Path)}
	}
	return fmt.Errorf("cannot open %s: %w", c, err)
}

// explain makes an error of a driver call clear, and one of the kinds that
// callers tell apart where it is one.
func (d *Device) explain(what string, err error) error {
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%w: %s was unplugged", ErrGone, d.camera)
	case errors.Is(err, unix.EBUSY):
		return &BusyError{Path: d.camera.Path, Card: d.camera.Card, Holders: Holders(d.camera.Path)}
	case errors.Is(err, unix.ENOSPC):
		return fmt.Errorf("cannot %s %s: its USB bus has no bandwidth left; ask for a smaller picture or a lower rate, or plug one of the cameras in elsewhere: %w", what, d.camera, err)
	}
	return fmt.Errorf("cannot %s %s: %w", what, d.camera, err)
}

// Camera is the device that was opened.
func (d *Device) Camera() Camera { return d.camera }

// Mode is what Configure settled on.
func (d *Device) Mode() Mode { return d.mode }

// Offers lists what the device can be set to. Of a range of sizes it names the
// largest; a receiver that lists none has the one it is set to.
func (d *Device) Offers() ([]Offer, error) {
	list, err := offers(d.driver, Request{MaxWidth: pixel.MaxWidth, MaxHeight: pixel.MaxWidth}, anyFormat)
	if err != nil {
		return nil, d.explain("ask", err)
	}
	for i := range list {
		if list[i].proposed {
			if g, err := d.driver.format(); err == nil {
				list[i].Width, list[i].Height = g.width, g.height
			}
		}
	}
	return list, nil
}

// Configure sets the cheapest format that gives the size and rate wanted, or
// what comes nearest, reads back what the driver made of it, and maps the
// buffers. A driver that grants something else is believed, as long as it can
// be converted. A receiver is set to what it receives before; without a signal
// that is ErrNoSignal. What was configured before is given up.
func (d *Device) Configure(want Request) (Mode, error) {
	d.release()
	// Not every driver has events. What comes from here on is about what is
	// asked for next.
	_ = d.driver.watchSource()
	if _, err := d.driver.sourceChanged(); err != nil {
		return Mode{}, d.explain("ask", err)
	}
	source, err := d.adoptSource()
	if err != nil {
		return Mode{}, err
	}
	want = source.bound(want)
	list, err := offers(d.driver, want, want.takes)
	if err != nil {
		return Mode{}, d.explain("configure", err)
	}
	choices, err := choose(list, want)
	if err != nil {
		// The message names what there is besides.
		if list, listErr := offers(d.driver, want, anyFormat); listErr == nil {
			_, err = choose(list, want)
		}
		return Mode{}, d.explain("configure", err)
	}
	var refused error
	for _, c := range choices {
		g, err := d.driver.setFormat(c.Format, c.Width, c.Height)
		if errors.Is(err, unix.EINVAL) {
			refused = fmt.Errorf("the driver refuses %v", c.Format)
			continue
		}
		if err != nil {
			return Mode{}, d.explain("configure", err)
		}
		mode := g.mode()
		converter, err := pixel.NewConverter(mode.Format)
		if err != nil {
			refused = fmt.Errorf("it answers %v to %v: %w", g.format, c.Format, err)
			continue
		}
		converter.Close()
		if n := pixel.Memories(g.format); g.memories != n {
			refused = fmt.Errorf("it has %v in %d pieces of memory, not %d", g.format, g.memories, n)
			continue
		}
		if mode.Interval, mode.RateControl, err = d.driver.setInterval(c.interval); err != nil {
			return Mode{}, d.explain("set the frame rate of", err)
		}
		if mode.Interval.Num == 0 {
			mode.Interval = source.interval
		}
		d.mode = mode
		return mode, d.mapBuffers()
	}
	return Mode{}, d.explain("configure", refused)
}

func (d *Device) mapBuffers() error {
	n, err := d.driver.requestBuffers(buffers)
	if err != nil {
		return d.explain("get buffers of", err)
	}
	if n < 2 {
		return d.explain("get buffers of", fmt.Errorf("the driver gives %d", n))
	}
	for i := range n {
		b, err := d.driver.mapBuffer(i)
		if err != nil {
			return d.explain("map buffers of", err)
		}
		d.mapped = append(d.mapped, b)
	}
	return nil
}

// Start hands all buffers to the driver and begins streaming.
func (d *Device) Start() error {
	d.clock, d.started, d.damaged = clock{last: d.clock.last}, false, 0
	for i := range d.mapped {
		if err := d.driver.queue(i); err != nil {
			return d.explain("queue buffers of", err)
		}
	}
	if err := d.driver.stream(true); err != nil {
		return d.explain("start", err)
	}
	d.streaming = true
	return nil
}

// Stop ends streaming; the device and its buffers stay ours. Every frame is
// requeued or forgotten before.
func (d *Device) Stop() error {
	if !d.streaming {
		return nil
	}
	d.streaming = false
	if err := d.driver.stream(false); err != nil {
		return d.explain("stop", err)
	}
	return nil
}

// Next waits for a frame. Each one is given back by Requeue, soon: the driver
// has three others. It returns ErrTimeout if none comes within timeout, ErrWoken
// after Wake, ErrSourceChanged when a receiver has to be configured anew, ErrGone
// once the device is unplugged.
func (d *Device) Next(timeout time.Duration) (Frame, error) {
	deadline := time.Now().Add(timeout)
	for bad := 0; bad < maxBadInARow; {
		ready, err := d.driver.wait(max(0, time.Until(deadline)), true)
		switch {
		case err != nil:
			return Frame{}, d.explain("wait for", err)
		case ready.woken:
			return Frame{}, ErrWoken
		case ready == readiness{}:
			return Frame{}, ErrTimeout
		case ready.event:
			if err := d.sourceChanged(); err != nil {
				return Frame{}, err
			}
		}
		b, err := d.driver.dequeue()
		switch {
		case errors.Is(err, unix.EAGAIN):
			// Another thread of the driver took it back; or a poll that
			// is always ready, which must not keep a core busy.
			bad++
			time.Sleep(time.Millisecond)
			continue
		case errors.Is(err, unix.EIO):
			bad++ // "temporary problems like signal loss"
			continue
		case err != nil:
			return Frame{}, d.explain("read from", err)
		case int(b.index) >= len(d.mapped):
			return Frame{}, d.explain("read from", fmt.Errorf("the driver returned buffer %d of %d", b.index, len(d.mapped)))
		}
		lost := 0
		if gap := b.sequence - d.sequence - 1; d.started && gap < 1<<31 {
			lost = int(gap)
		}
		d.started, d.sequence = true, b.sequence
		planes := d.planes(b)
		if b.flags&go4vl.BufFlagError != 0 || planes == nil {
			d.damaged += lost + 1
			bad++
			if err := d.driver.queue(int(b.index)); err != nil {
				return Frame{}, d.explain("requeue to", err)
			}
			continue
		}
		lost += d.damaged
		d.damaged = 0
		return Frame{
			Planes:      planes,
			TimestampNS: d.clock.stamp(b.time, b.flags, monotonicNow()),
			Lost:        lost,
			index:       int(b.index),
		}, nil
	}
	return Frame{}, d.explain("read from", fmt.Errorf("%d bad frames in a row", maxBadInARow))
}

// planes are the bytes of a picture, nil if any plane has none.
func (d *Device) planes(b *filled) [][]byte {
	memory := d.mapped[b.index]
	for i, m := range memory {
		from, to := b.planes[i].from, min(b.planes[i].to, len(m))
		if from >= to {
			return nil
		}
		d.frame[i] = m[from:to]
	}
	return d.frame[:len(memory)]
}

// OwnClock reports whether the driver's timestamps turned out not to be the
// present by CLOCK_MONOTONIC, so that frames carry the time of their arrival.
func (d *Device) OwnClock() bool { return d.clock.own }

// Requeue gives a frame's buffer back to the driver.
func (d *Device) Requeue(f Frame) error {
	if err := d.driver.queue(f.index); err != nil {
		return d.explain("requeue to", err)
	}
	return nil
}

// Alive asks the driver whether the device is still there; for while it does not
// stream.
func (d *Device) Alive() error {
	if _, err := d.driver.capability(); err != nil {
		return d.explain("ask", err)
	}
	return nil
}

// Wake ends a Next, the one under way or the one to come. Any goroutine may
// call it while the device is open.
func (d *Device) Wake() { d.driver.wake() }

// Close lets go of the device. Errors are of no use any more: a device that was
// unplugged answers ENODEV to everything.
func (d *Device) Close() {
	d.release()
	d.driver.close()
}

// release gives the buffers back, with which the device is anybody's to set.
func (d *Device) release() {
	if d.streaming {
		d.driver.stream(false)
	}
	for _, b := range d.mapped {
		d.driver.unmapBuffer(b)
	}
	if d.mapped != nil {
		d.driver.requestBuffers(0)
	}
	d.mapped, d.streaming = nil, false
}
