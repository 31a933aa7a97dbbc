package v4l2

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A receiver (HDMI, SDI, composite) is a camera whose pictures come from
// elsewhere: it has to be set to the signal that is on its input, and again
// whenever that changes, while it does not stream (V4L2 documentation, "Digital
// Video (DV) Timings" and VIDIOC_DQEVENT, V4L2_EVENT_SOURCE_CHANGE). The input is
// the one that is selected.

// source is what a device receives. The zero value is a camera's own picture.
type source struct {
	input         string   // the driver's name for the input
	width, height int      // pixels; 0 unknown
	interval      Fraction // between frames, as timed on the wire; 0/0 unknown
}

// bound keeps a wish to the size of the source: a driver that scales would make
// larger pictures of it, with nothing more in them.
func (s source) bound(want Request) Request {
	if s.width > 0 {
		want.MaxWidth, want.MaxHeight = min(want.MaxWidth, s.width), min(want.MaxHeight, s.height)
	}
	return want
}

// noSignal is why a receiver has no pictures, by what VIDIOC_QUERY_DV_TIMINGS
// answers.
var noSignal = map[unix.Errno]string{
	unix.ENOLINK: "nothing is connected, or it is switched off",
	unix.ENOLCK:  "what is connected is not stable",
	unix.ERANGE:  "what is connected is outside of what the device can receive",
}

// adoptSource sets the device to what it receives.
func (d *Device) adoptSource() (source, error) {
	s, err := d.driver.adoptSource()
	var errno unix.Errno
	if errors.As(err, &errno) && noSignal[errno] != "" {
		return s, fmt.Errorf("%w at %s of %s: %s", ErrNoSignal, s.input, d.camera, noSignal[errno])
	}
	if err != nil {
		return s, d.explain("adopt the signal of", err)
	}
	return s, nil
}

// spurious is how long a driver is left alone that says it has something to
// say and does not.
const spurious = 100 * time.Millisecond

// Idle waits while the device does not stream, for what there is to wait for
// then. It returns ErrTimeout if nothing happens, ErrWoken after Wake,
// ErrSourceChanged, or ErrGone.
func (d *Device) Idle(timeout time.Duration) error {
	for deadline := time.Now().Add(timeout); ; {
		ready, err := d.driver.wait(max(0, time.Until(deadline)), false)
		switch {
		case err != nil:
			return d.explain("wait for", err)
		case ready.woken:
			return ErrWoken
		case ready == readiness{}:
			return ErrTimeout
		}
		if err := d.sourceChanged(); err != nil {
			return err
		}
		if err := d.Alive(); err != nil {
			return err
		}
		time.Sleep(spurious)
	}
}

// sourceChanged takes the events that wait, and returns ErrSourceChanged if one
// is of that.
func (d *Device) sourceChanged() error {
	changed, err := d.driver.sourceChanged()
	switch {
	case err != nil:
		return d.explain("ask", err)
	case changed:
		return fmt.Errorf("%w: %s", ErrSourceChanged, d.camera)
	}
	return nil
}

// What linux/videodev2.h calls V4L2_EVENT_SOURCE_CHANGE, V4L2_IN_CAP_DV_TIMINGS,
// V4L2_IN_CAP_STD, V4L2_STD_525_60.
const (
	eventSourceChange = 5
	inputHasTimings   = 2
	inputHasStandards = 4
	standards525      = 0xf900
)

func (k *kernel) watchSource() error {
	var index uint32 // that of the only input, where inputs cannot be asked for
	ioctl(k.fd, vidiocGInput, unsafe.Pointer(&index))
	// Once for each input: what is subscribed already stays as it is.
	s := eventSubscription{kind: eventSourceChange, id: index}
	return result(ioctl(k.fd, vidiocSubscribeEvent, unsafe.Pointer(&s)))
}

func (k *kernel) sourceChanged() (changed bool, err error) {
	for {
		var e event
		switch errno := ioctl(k.fd, vidiocDqevent, unsafe.Pointer(&e)); errno {
		case 0:
			changed = changed || e.kind == eventSourceChange
		case unix.ENOENT, unix.EAGAIN, unix.ENOTTY, unix.EINVAL: // there are none, or none at all
			return changed, nil
		default:
			return changed, errno
		}
	}
}

func (k *kernel) adoptSource() (source, error) {
	var in input
	if ioctl(k.fd, vidiocGInput, unsafe.Pointer(&in.index)) != 0 || ioctl(k.fd, vidiocEnuminput, unsafe.Pointer(&in)) != 0 {
		return source{}, nil // a device without inputs is its own
	}
	s := source{input: unix.ByteSliceToString(in.name[:])}
	switch {
	case in.capabilities&inputHasTimings != 0:
		var t timings
		switch errno := ioctl(k.fd, vidiocQueryDVTimings, unsafe.Pointer(&t)); errno {
		case 0:
			s.width, s.height, s.interval = int(t.width), int(t.height), t.interval()
			return s, result(ioctl(k.fd, vidiocSDVTimings, unsafe.Pointer(&t)))
		case unix.ENOTTY, unix.ENODATA, unix.EINVAL: // it cannot find out
			return s, nil
		default:
			return s, errno
		}
	case in.capabilities&inputHasStandards != 0:
		var set, there uint64
		if ioctl(k.fd, vidiocGStd, unsafe.Pointer(&set)) != 0 {
			return s, nil
		}
		// Without a signal drivers answer no standard, or all of them.
		if ioctl(k.fd, vidiocQuerystd, unsafe.Pointer(&there)) == 0 && there != 0 && there&set == 0 {
			if errno := ioctl(k.fd, vidiocSStd, unsafe.Pointer(&there)); errno != 0 {
				return s, errno
			}
			set = there
		}
		// As ITU-R BT.601 samples them.
		if s.width, s.height = 720, 576; set&standards525 != 0 {
			s.height = 480
		}
	}
	return s, nil
}

// interval is the time between frames: of all pixels, the blank ones too, at
// the pixel clock; to a thousandth of a frame a second.
func (t *timings) interval() Fraction {
	frame := float64(t.width+t.hFrontPorch+t.hSync+t.hBackPorch) *
		float64(t.height+t.vFrontPorch+t.vSync+t.vBackPorch+t.secondFrontPorch+t.secondSync+t.secondBackPorch)
	clock := float64(uint64(t.clockHigh)<<32 | uint64(t.clockLow)) // Hz
	millihertz := math.Round(1000 * clock / frame)
	if !(millihertz >= 1 && millihertz <= math.MaxUint32) {
		return Fraction{}
	}
	return Fraction{1000, uint32(millihertz)}.reduced()
}
