package v4l2

import (
	"errors"
	"fmt"
	"unsafe"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/pixel"
)

// ErrNotOutput: the device is there, but takes no pictures.
var ErrNotOutput = errors.New("not an output device")

// Constants of linux/videodev2.h.
const (
	privateExtended = 0xfeedcafe // V4L2_PIX_FMT_PRIV_MAGIC: the fields after it are meant
	transferSRGB    = 2
)

func (c capability) takes() bool {
	return c.flags&go4vl.CapVideoOutput != 0 && c.flags&go4vl.CapReadWrite != 0
}

// FindOutput looks for the device that takes pictures and answers to a name, as
// Find does for cameras. Empty means the first there is.
//
// One that v4l2loopback announces as one thing at a time is an output only as
// long as nobody writes to it: then the error is a BusyError.
func FindOutput(device string) (Camera, error) {
	var others []Camera
	list, err := devices(func(path string) (Camera, bool) {
		c, is, ok := ask(path)
		if ok && c.Err == nil && !is.takes() {
			others = append(others, c)
			return Camera{}, false
		}
		return c, ok
	})
	if err != nil {
		return Camera{}, err
	}
	return findOutput(list, others, device)
}

func findOutput(list, others []Camera, device string) (Camera, error) {
	c, err := find(list, device, nil)
	if !errors.Is(err, ErrNotFound) {
		return c, err
	}
	if device == "" {
		return Camera{}, fmt.Errorf("%w: there is no V4L2 output device", ErrNotFound)
	}
	if same := named(others, device); len(same) > 0 {
		c := same[0]
		if holders := Holders(c.Path); len(holders) > 0 {
			return Camera{}, &BusyError{Path: c.Path, Card: c.Card, Holders: holders}
		}
		return Camera{}, fmt.Errorf("%w: %s", ErrNotOutput, c)
	}
	return Camera{}, fmt.Errorf("%w: %s", ErrNotFound, device)
}

// Output is a device that takes pictures, in YUYV, which every program that reads
// cameras knows. It is for one goroutine.
type Output struct {
	camera        Camera
	fd            int
	Width, Height int // of what Write takes; the width is even
	written       bool
}

// OpenOutput opens a device that FindOutput returned and sets the size of its
// pictures; an odd width is rounded down.
func OpenOutput(c Camera, width, height int) (*Output, error) {
	fd, err := openRetry(c.Path)
	if err != nil {
		return nil, openError(c, err)
	}
	o := &Output{camera: c, fd: fd, Width: width &^ 1, Height: height}
	f := pixelFormat{
		kind: uint32(go4vl.BufTypeVideoOutput), width: uint32(o.Width), height: uint32(o.Height),
		fourCC: uint32(pixel.YUYV), field: uint32(go4vl.FieldNone), stride: uint32(2 * o.Width), size: uint32(2 * o.Width * o.Height),
		colorspace: colorspaceSRGB, private: privateExtended, encoding: encoding601, colourRange: quantizationLim, transfer: transferSRGB,
	}
	if errno := ioctl(fd, vidiocSFmt, unsafe.Pointer(&f)); errno != 0 {
		o.Close()
		return nil, o.explain("set the format of", errno)
	}
	if granted := pixel.FourCC(f.fourCC); granted != pixel.YUYV || int(f.width) != o.Width || int(f.height) != o.Height || int(f.stride) != 2*o.Width {
		o.Close()
		err := fmt.Errorf("%w %dx%d %v", ErrKeeps, f.width, f.height, granted)
		if holders := Holders(c.Path); len(holders) > 0 {
			err = fmt.Errorf("%w, as long as it is open in %s", err, holders[0])
		}
		return nil, o.explain(fmt.Sprintf("set %dx%d YUYV on", o.Width, o.Height), err)
	}
	return o, nil
}

func (o *Output) explain(what string, err error) error {
	return (&Device{camera: o.camera}).explain(what, err)
}

// Write gives a picture of 2 × Width × Height bytes to whoever reads the device.
// It waits for none of them.
func (o *Output) Write(picture []byte) error {
	n, err := unix.Write(o.fd, picture)
	for err == unix.EINTR {
		n, err = unix.Write(o.fd, picture)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return nil // the device has no room: its reader misses one
	case err != nil:
		return o.explain("write to", err)
	case n < len(picture):
		return o.explain("write to", fmt.Errorf("it took %d of %d bytes", n, len(picture)))
	}
	if !o.written {
		o.written = true
		// Only from this does v4l2loopback 0.12 know who writes, and that the
		// device can be written to again once it is closed. Others answer that
		// there is nothing to start.
		kind := uint32(go4vl.BufTypeVideoOutput)
		ioctl(o.fd, vidiocStreamon, unsafe.Pointer(&kind))
	}
	return nil
}

// Camera is the device that was opened.
func (o *Output) Camera() Camera { return o.camera }

// Close lets go of the device.
func (o *Output) Close() { unix.Close(o.fd) }
