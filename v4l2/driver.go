package v4l2

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	go4vl "github.com/vladimirvivien/go4vl/v4l2"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/v4l2/pixel"
)

// driver is what a device does for Device: the seam where tests put one that
// misbehaves. Errors of the kernel are or wrap a unix.Errno.
type driver interface {
	capability() (capability, error)
	formats() ([]pixel.FourCC, error)
	sizes(pixel.FourCC) ([]sizes, error)
	rates(f pixel.FourCC, width, height int) ([]rates, error)

	// format is what is set.
	format() (granted, error)
	// setFormat asks, and returns what the driver granted.
	setFormat(f pixel.FourCC, width, height int) (granted, error)
	// setInterval asks for a time between frames, if there is such a
	// control, and returns the one that holds now (0/0 unknown).
	setInterval(Fraction) (now Fraction, controlled bool, err error)

	controls() ([]Control, error)
	setControl(id uint32, value int) error

	requestBuffers(count int) (int, error)
	// mapBuffer maps the memory of a buffer, one piece for each plane.
	mapBuffer(index int) ([][]byte, error)
	unmapBuffer([][]byte) error
	queue(index int) error
	dequeue() (*filled, error) // EAGAIN: none is filled
	stream(on bool) error

	// watchSource asks for events of another signal on the input.
	watchSource() error
	// sourceChanged takes the events that wait; changed if one is of that.
	sourceChanged() (changed bool, err error)
	// adoptSource sets a receiver to the signal on its input.
	adoptSource() (source, error)

	// wait returns at an event, at a wake, after timeout, and if frames are
	// waited for when one may be there.
	wait(timeout time.Duration, frames bool) (readiness, error)
	wake()
	close() error
}

// readiness is what a wait ended with; nothing of it: the time is over. A device
// that has gone counts as all that was waited for.
type readiness struct{ frame, event, woken bool }

// capability is what there is to know of a device before choosing it.
type capability struct {
	card, driver, bus string
	flags             uint32 // of this node, not of the whole device
}

func (c capability) captures() bool { return c.bufferType() != 0 && c.flags&go4vl.CapStreaming != 0 }

// bufferType is that of the pictures it captures, 0 if it does not.
func (c capability) bufferType() uint32 {
	switch {
	case c.flags&go4vl.CapVideoCapture != 0:
		return singlePlanar
	// Both ways it is a codec.
	case c.flags&go4vl.CapVideoCaptureMPlane != 0 && c.flags&go4vl.CapVideoOutputMPlane == 0:
		return multiPlanar
	}
	return 0
}

// Fraction is a rational number; as an interval, seconds between frames.
type Fraction struct{ Num, Den uint32 }

// Rate is frames a second, 0 if unknown.
func (f Fraction) Rate() float64 {
	if f.Num == 0 {
		return 0
	}
	return float64(f.Den) / float64(f.Num)
}

// reduced is the same number in the smallest terms.
func (f Fraction) reduced() Fraction {
	a, b := f.Num, f.Den
	for b != 0 {
		a, b = b, a%b
	}
	if a == 0 {
		return f
	}
	return Fraction{f.Num / a, f.Den / a}
}

// sizes is one entry of VIDIOC_ENUM_FRAMESIZES, in pixels; a single size has
// least = greatest.
type sizes struct {
	minWidth, maxWidth, stepWidth    int
	minHeight, maxHeight, stepHeight int
}

// rates is one entry of VIDIOC_ENUM_FRAMEINTERVALS: from the shortest to the
// longest time between frames.
type rates struct{ shortest, longest Fraction }

// granted is the format the driver has set.
type granted struct {
	format                                       pixel.FourCC
	width, height                                int
	memories                                     int // pieces of memory a picture lies in
	strides                                      [pixel.MaxMemories]int
	colorspace, encoding, quantization, transfer uint32
}

// filled is a buffer that the driver gives back.
type filled struct {
	index, flags, sequence uint32
	time                   int64 // nanoseconds, of the clock that flags say
	planes                 [pixel.MaxMemories]extent
}

// extent is where the picture lies in a piece of memory, in bytes.
type extent struct{ from, to int }

// kernel is the driver of a real device.
type kernel struct {
	fd, wakeFD int
	bufferType uint32
	// Here, so that the frame loop allocates nothing.
	buf    buffer
	planes [maxPlanes]plane
	filled filled
	poll   [2]unix.PollFd
}

// openKernel opens a device and asks what it is.
func openKernel(path string) (*kernel, capability, error) {
	fd, err := openRetry(path)
	if err != nil {
		return nil, capability{}, err
	}
	wakeFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, capability{}, fmt.Errorf("eventfd: %w", err)
	}
	k := &kernel{fd: fd, wakeFD: wakeFD}
	c, err := k.capability()
	if err != nil {
		k.close()
		return nil, capability{}, err
	}
	k.bufferType = c.bufferType()
	return k, c, nil
}

func openRetry(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// errno finds the number that go4vl folded away, by asking again.
func (k *kernel) errno(err error) error {
	switch {
	case errors.Is(err, go4vl.ErrorUnsupported):
		return unix.ENOTTY
	case errors.Is(err, go4vl.ErrorBadArgument):
		return unix.EINVAL
	case errors.Is(err, go4vl.ErrorSystem):
		var caps [104]byte
		if e := ioctl(k.fd, vidiocQuerycap, unsafe.Pointer(&caps)); e != 0 {
			return e
		}
		return unix.EIO
	}
	return err
}

func (k *kernel) capability() (capability, error) {
	c, err := go4vl.GetCapability(uintptr(k.fd))
	if err != nil {
		return capability{}, k.errno(err)
	}
	return capability{card: c.Card, driver: c.Driver, bus: c.BusInfo, flags: c.GetCapabilities()}, nil
}

func (k *kernel) formats() ([]pixel.FourCC, error) {
	var out []pixel.FourCC
	for i := range uint32(maxEntries) {
		entry := formatDescription{index: i, kind: k.bufferType}
		errno := ioctl(k.fd, vidiocEnumFmt, unsafe.Pointer(&entry))
		switch {
		case errno == 0:
			out = append(out, pixel.FourCC(entry.pixelFormat))
		case len(out) == 0:
			return nil, errno
		default:
			return out, nil
		}
	}
	return out, nil
}

func (k *kernel) sizes(f pixel.FourCC) ([]sizes, error) {
	list, err := go4vl.GetFormatFrameSizes(uintptr(k.fd), uint32(f))
	if err != nil && len(list) == 0 {
		return nil, k.errno(err)
	}
	out := make([]sizes, len(list))
	for i, s := range list {
		out[i] = sizes{
			int(s.Size.MinWidth), int(s.Size.MaxWidth), max(1, int(s.Size.StepWidth)),
			int(s.Size.MinHeight), int(s.Size.MaxHeight), max(1, int(s.Size.StepHeight)),
		}
	}
	return out, nil
}

// maxEntries bounds the enumeration of a driver that never says "no more".
const maxEntries = 256

// rates is not go4vl's: that one reads stepwise intervals from the wrong place.
func (k *kernel) rates(f pixel.FourCC, width, height int) ([]rates, error) {
	var out []rates
	for i := range uint32(maxEntries) {
		entry := frameInterval{index: i, pixelFormat: uint32(f), width: uint32(width), height: uint32(height)}
		if errno := ioctl(k.fd, vidiocEnumFrameintervals, unsafe.Pointer(&entry)); errno != 0 {
			if len(out) == 0 {
				return nil, errno
			}
			break
		}
		shortest := Fraction{entry.fractions[0], entry.fractions[1]}
		if entry.kind != go4vl.FrameIntervalTypeDiscrete {
			return append(out, rates{shortest, Fraction{entry.fractions[2], entry.fractions[3]}}), nil
		}
		out = append(out, rates{shortest, shortest})
	}
	return out, nil
}

func (k *kernel) setInterval(want Fraction) (Fraction, bool, error) {
	p := captureParameters{kind: k.bufferType}
	switch errno := ioctl(k.fd, vidiocGParm, unsafe.Pointer(&p)); errno {
	case 0:
	case unix.ENOTTY, unix.EINVAL:
		return Fraction{}, false, nil
	default:
		return Fraction{}, false, errno
	}
	controlled := p.capability&go4vl.StreamParamTimePerFrame != 0
	if controlled && want.Num != 0 {
		p = captureParameters{kind: k.bufferType, interval: want}
		if errno := ioctl(k.fd, vidiocSParm, unsafe.Pointer(&p)); errno != 0 {
			return Fraction{}, false, errno
		}
	}
	return p.interval.reduced(), controlled, nil
}

// result makes an error of an error number, nil of 0.
func result(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}

func (k *kernel) requestBuffers(count int) (int, error) {
	r := requestBuffers{count: uint32(count), kind: k.bufferType, memory: go4vl.IOTypeMMAP}
	err := result(ioctl(k.fd, vidiocReqbufs, unsafe.Pointer(&r)))
	return int(r.count), err
}

func (k *kernel) mapBuffer(index int) ([][]byte, error) {
	if errno := k.bufferCall(vidiocQuerybuf, index); errno != 0 {
		return nil, errno
	}
	var memory [][]byte
	for _, p := range k.bufferPlanes() {
		m, err := unix.Mmap(k.fd, int64(p.offset), int(p.length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			k.unmapBuffer(memory)
			return nil, err
		}
		memory = append(memory, m)
	}
	return memory, nil
}

func (k *kernel) unmapBuffer(memory [][]byte) error {
	var errs []error
	for _, m := range memory {
		errs = append(errs, unix.Munmap(m))
	}
	return errors.Join(errs...)
}

func (k *kernel) queue(index int) error { return result(k.bufferCall(vidiocQbuf, index)) }

func (k *kernel) dequeue() (*filled, error) {
	if errno := k.bufferCall(vidiocDqbuf, 0); errno != 0 {
		return nil, errno
	}
	k.filled = filled{
		index: k.buf.index, flags: k.buf.flags, sequence: k.buf.sequence,
		time: k.buf.seconds*1e9 + k.buf.microseconds*1e3,
	}
	for i, p := range k.bufferPlanes() {
		k.filled.planes[i] = extent{int(p.dataOffset), int(p.bytesUsed)}
	}
	return &k.filled, nil
}

func (k *kernel) stream(on bool) error {
	request, kind := uintptr(vidiocStreamoff), k.bufferType
	if on {
		request = vidiocStreamon
	}
	return result(ioctl(k.fd, request, unsafe.Pointer(&kind)))
}

func (k *kernel) wait(timeout time.Duration, frames bool) (readiness, error) {
	events := int16(unix.POLLPRI)
	if frames {
		events |= unix.POLLIN
	}
	for deadline := time.Now().Add(timeout); ; {
		k.poll = [2]unix.PollFd{{Fd: int32(k.fd), Events: events}, {Fd: int32(k.wakeFD), Events: unix.POLLIN}}
		left := max(0, (time.Until(deadline)+time.Millisecond-1)/time.Millisecond)
		n, err := unix.Poll(k.poll[:], int(left))
		switch {
		case err == unix.EINTR: // Go's own signals; not a time-out
			continue
		case err != nil:
			return readiness{}, fmt.Errorf("poll: %w", err)
		case n == 0:
			return readiness{}, nil
		}
		r := readiness{woken: k.poll[1].Revents != 0}
		if r.woken {
			var count [8]byte
			unix.Read(k.wakeFD, count[:])
		}
		// Errors count as ready: dequeueing says which it is.
		is := k.poll[0].Revents
		r.event = is&unix.POLLPRI != 0 || !frames && is != 0
		r.frame = frames && is&^unix.POLLPRI != 0
		return r, nil
	}
}

func (k *kernel) wake() {
	one := [8]byte{1}
	unix.Write(k.wakeFD, one[:])
}

func (k *kernel) close() error {
	unix.Close(k.wakeFD)
	return unix.Close(k.fd)
}
