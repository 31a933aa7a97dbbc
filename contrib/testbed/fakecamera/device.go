package fakecamera

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// device is a plugged camera.
type device struct {
	mu sync.Mutex
	Camera
	gone      chan struct{} // closed when it is unplugged
	owner     *session      // has buffers; nobody else may
	streaming *session
	frames    int
	granted   Grant
	numerator uint32 // of the interval: numerator/denominator seconds
	denom     uint32
	timings   Signal                // what a receiver is set to
	opened    map[*session]struct{} // who is to hear of events
}

func newDevice(c Camera) *device {
	d := &device{Camera: c, gone: make(chan struct{}), numerator: 1, denom: 30, opened: map[*session]struct{}{}}
	if len(c.Formats) > 0 {
		f := c.Formats[0]
		d.granted = Grant{FourCC: f.FourCC, Width: 640, Height: 480}
		if len(f.Sizes) > 0 {
			d.granted.Width, d.granted.Height = f.Sizes[0].Width, f.Sizes[0].Height
		}
	}
	d.receive(Signal{Width: 640, Height: 480, Rate: 60})
	return d
}

// receive sets a receiver to a signal.
func (d *device) receive(signal Signal) {
	if d.Signal == nil {
		return
	}
	d.timings = signal
	d.granted.Width, d.granted.Height = signal.Width, signal.Height
	d.numerator, d.denom = fraction(signal.Rate)
}

func (d *device) unplug() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.unplugLocked()
}

func (d *device) unplugLocked() {
	select {
	case <-d.gone:
	default:
		close(d.gone)
		for s := range d.opened {
			if d.Output {
				// write(2) is the kernel's, which knows no ENODEV of a file: EPERM.
				unix.FcntlInt(uintptr(s.memory), unix.F_ADD_SEALS, unix.F_SEAL_WRITE)
			}
			s.signal()
		}
	}
}

// connect changes what a receiver receives, and tells who wants to know.
func (d *device) connect(signal Signal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.Signal = &signal
	for s := range d.opened {
		s.event = s.event || s.subscribed
		s.signal()
	}
}

// receives reports whether a receiver has the signal that it is set to; a camera
// always has.
func (d *device) receives() bool { return d.Signal == nil || *d.Signal == d.timings }

func (d *device) isGone() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}

func (d *device) behaviour() Camera {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.Camera
}

// session is one opening of a device: a memfd that the program takes for it.
// What is below device is guarded by its lock.
type session struct {
	number int
	memory int // the memfd
	link   string
	pid    int
	given  atomic.Bool // the program has its descriptor
	ready  int         // an eventfd, readable while poll has something to say of frames
	urgent int         // likewise, of anything else

	device     *device
	nonblock   bool
	buffers    int
	bufferSize int
	mapped     []byte
	content    *content
	queued     []int
	filled     []filledBuffer
	starts     int
	dequeues   int
	subscribed bool          // to events of its source
	event      bool          // one waits
	stop       chan struct{} // ends the frames
	stopped    chan struct{}
}

type filledBuffer struct {
	index, used int
	flags       uint32
	sequence    uint32
	time        int64
}

func newSession(number int, d *device, nonblock bool, tid uint32) (*session, error) {
	name := memoryName + fmt.Sprint(number)
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	ready, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	urgent, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		unix.Close(ready)
		return nil, err
	}
	s := &session{
		number: number, memory: fd, link: "/memfd:" + name + " (deleted)", pid: threadGroup(tid),
		ready: ready, urgent: urgent, device: d, nonblock: nonblock,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opened[s] = struct{}{}
	s.signal()
	return s, nil
}

// held reports whether the program still has the descriptor.
func (s *session) held() bool {
	folder := fmt.Sprintf("/proc/%d/fd", s.pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if link, err := os.Readlink(folder + "/" + e.Name()); err == nil && link == s.link {
			return true
		}
	}
	return false
}

// close forgets the session.
func (s *session) close() {
	s.device.mu.Lock()
	s.streamOff()
	if s.device.owner == s {
		s.device.owner = nil
	}
	delete(s.device.opened, s)
	s.device.mu.Unlock()
	if s.mapped != nil {
		unix.Munmap(s.mapped)
	}
	unix.Close(s.memory)
	unix.Close(s.ready)
	unix.Close(s.urgent)
}

// signal makes ready and urgent tell the truth. The device is locked.
func (s *session) signal() {
	set := func(fd int, events int16) {
		var word [8]byte
		unix.Read(fd, word[:])
		if s.pollState(events) != 0 {
			binary.NativeEndian.PutUint64(word[:], 1)
			unix.Write(fd, word[:])
		}
	}
	set(s.ready, unix.POLLIN)
	set(s.urgent, unix.POLLPRI)
}

func (s *session) revents(events int16) int16 {
	s.device.mu.Lock()
	defer s.device.mu.Unlock()
	return s.pollState(events)
}

// pollState is what poll answers, as videobuf2's does.
func (s *session) pollState(events int16) (is int16) {
	d := s.device
	if d.isGone() {
		return unix.POLLERR | unix.POLLHUP | events&unix.POLLPRI
	}
	if s.event {
		is = events & unix.POLLPRI
	}
	switch {
	case events&unix.POLLIN == 0:
	case d.streaming != s:
		is |= unix.POLLERR
	case len(s.filled) > 0 || d.AlwaysReady:
		is |= unix.POLLIN
	}
	return is
}

// The ioctls that are answered, without direction and size.
const (
	querycap           = 0
	enumFmt            = 2
	getFmt             = 4
	setFmt             = 5
	reqbufs            = 8
	querybuf           = 9
	qbuf               = 15
	dqbuf              = 17
	streamon           = 18
	streamoff          = 19
	getParm            = 21
	setParm            = 22
	enumInput          = 26
	getInput           = 38
	setInput           = 39
	tryFmt             = 64
	setTimings         = 87
	getTimings         = 88
	dqevent            = 89
	subscribeEvent     = 90
	queryTimings       = 99
	enumFramesizes     = 74
	enumFrameintervals = 75
)

var names = map[uint32]string{
	querycap: "QUERYCAP", setFmt: "S_FMT", qbuf: "QBUF", dqbuf: "DQBUF", streamon: "STREAMON", streamoff: "STREAMOFF",
}

const (
	captureType      = 1
	outputType       = 2
	multiplanarType  = 9
	mmapMemory       = 1
	planeSize        = 64 // of struct v4l2_plane
	mostPlanes       = 8
	capCapture       = 0x00000001
	capOutput        = 0x00000002
	capCapturePlanes = 0x00001000
	capMetadata      = 0x00800000
	capReadWrite     = 0x01000000
	capStreaming     = 0x04000000
	capDevice        = 0x80000000

	flagMapped    = 0x1
	flagQueued    = 0x2
	flagError     = 0x40
	flagMonotonic = 0x2000
)

// ioctl answers a V4L2 ioctl on a camera of ours.
func (b *Bed) ioctl(n *notification) {
	s := b.session(n.pid, int(n.args[0]))
	if s == nil {
		b.goOn(n)
		return
	}
	request := uint32(n.args[1])
	argument := make([]byte, request>>16&0x3fff)
	if len(argument) > 0 && !readMemory(n.pid, uintptr(n.args[2]), argument) {
		b.give(n, 0, unix.EFAULT)
		return
	}
	b.hang(s.device, names[request&0xff])
	if request&0xff == qbuf || request&0xff == reqbufs || request&0xff == setFmt || request&0xff == streamon {
		// Whoever had it may have closed it a moment ago.
		b.mu.Lock()
		b.reapLocked()
		b.mu.Unlock()
	}
	w := words{data: argument}
	var planes uintptr
	if code := request & 0xff; s.device.behaviour().Multiplanar && (code == querybuf || code == qbuf || code == dqbuf) {
		planes = uintptr(w.get64(64))
		w.planes = make([]byte, planeSize*min(w.get(72), mostPlanes))
		if len(w.planes) == 0 || !readMemory(n.pid, planes, w.planes) {
			b.give(n, 0, unix.EFAULT)
			return
		}
	}
	var errno unix.Errno
	for {
		s.device.mu.Lock()
		errno = s.do(request&0xff, w)
		s.device.mu.Unlock()
		if request&0xff != dqbuf || errno != unix.EAGAIN || s.nonblock {
			break
		}
		polls := []unix.PollFd{{Fd: int32(s.ready), Events: unix.POLLIN}, {Fd: int32(b.end), Events: unix.POLLIN}}
		if unix.Poll(polls, -1); polls[1].Revents != 0 {
			break
		}
	}
	const read = 2 << 30
	if errno == 0 && request&read != 0 {
		writeMemory(n.pid, uintptr(n.args[2]), argument)
		writeMemory(n.pid, planes, w.planes)
	}
	b.give(n, 0, errno)
}

// hangLook is how often a call that hangs looks whether it is to go on.
const hangLook = 10 * time.Millisecond

// hang returns when an ioctl is to be carried out.
func (b *Bed) hang(d *device, name string) {
	for name != "" && d.behaviour().Hang == name {
		select {
		case <-d.gone:
			return
		case <-b.closed:
			return
		case <-time.After(hangLook):
		}
	}
}

// words is an ioctl's argument; planes is the array that a multi-planar buffer
// points to.
type words struct{ data, planes []byte }

func (w words) get(offset int) uint32      { return binary.NativeEndian.Uint32(w.data[offset:]) }
func (w words) put(offset int, v uint32)   { binary.NativeEndian.PutUint32(w.data[offset:], v) }
func (w words) get64(offset int) uint64    { return binary.NativeEndian.Uint64(w.data[offset:]) }
func (w words) put64(offset int, v uint64) { binary.NativeEndian.PutUint64(w.data[offset:], v) }
func (w words) text(offset, size int, s string) {
	clear(w.data[offset : offset+size])
	copy(w.data[offset:offset+size-1], s)
}

func code(fourcc string) uint32 { return binary.LittleEndian.Uint32([]byte(fourcc)) }

func name(code uint32) string {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], code)
	return string(b[:])
}

// do carries out one ioctl. The device is locked.
func (s *session) do(request uint32, w words) unix.Errno {
	d := s.device
	if d.isGone() {
		return unix.ENODEV
	}
	busy := d.Busy || d.owner != nil && d.owner != s
	if d.Metadata && request != querycap {
		return unix.EINVAL
	}
	if at, ok := typeAt[request]; ok && w.get(at) != d.bufferType() {
		return unix.EINVAL
	}
	switch request {
	case querycap:
		w.text(0, 16, d.Driver)
		w.text(16, 32, d.Card)
		w.text(48, 32, d.Bus)
		w.put(80, 6<<16)
		capture := uint32(capCapture)
		if d.Multiplanar {
			capture = capCapturePlanes
		}
		all, own := capStreaming|capDevice|capture|capMetadata, capStreaming|capture
		if d.Metadata {
			own = capStreaming | capMetadata
		}
		if d.Output {
			own = capOutput | capReadWrite
			all = own | capDevice
		}
		w.put(84, all)
		w.put(88, own)
	case enumFmt:
		i := int(w.get(0))
		if i >= len(d.Formats) {
			return unix.EINVAL
		}
		w.text(12, 32, d.Formats[i].FourCC)
		w.put(44, code(d.Formats[i].FourCC))
	case enumFramesizes:
		return d.enumSizes(w)
	case enumFrameintervals:
		return d.enumIntervals(w)
	case getFmt:
		d.describe(w)
	case setFmt, tryFmt:
		if request == setFmt && (busy || s.buffers > 0) {
			return unix.EBUSY
		}
		g := d.grant(name(w.get(16)), int(w.get(8)), int(w.get(12)))
		before := d.granted
		d.granted = g
		d.describe(w)
		if request == tryFmt {
			d.granted = before
		}
	case enumInput:
		if w.get(0) != 0 {
			return unix.EINVAL
		}
		const camera, hasTimings = 2, 2
		w.text(4, 32, "Camera 1")
		w.put(36, camera)
		if d.Signal != nil {
			w.text(4, 32, "HDMI 1")
			w.put(60, hasTimings)
		}
	case queryTimings, setTimings, getTimings, subscribeEvent, dqevent:
		return s.receiver(request, w, busy)
	case getInput:
		w.put(0, 0)
	case setInput:
		if w.get(0) != 0 {
			return unix.EINVAL
		}
	case getParm:
		if d.Signal != nil {
			return unix.ENOTTY
		}
		d.describeInterval(w)
	case setParm:
		if d.NoRateControl || d.Signal != nil {
			return unix.ENOTTY
		}
		if w.get(12) == 0 || w.get(16) == 0 {
			return unix.EINVAL
		}
		d.setInterval(float64(w.get(16)) / float64(w.get(12)))
		d.describeInterval(w)
	case reqbufs:
		if busy {
			return unix.EBUSY
		}
		return s.requestBuffers(w)
	case querybuf:
		i := int(w.get(0))
		if i >= s.buffers || !s.roomFor(w) {
			return unix.EINVAL
		}
		s.describeBuffer(w, filledBuffer{index: i})
	case qbuf:
		i := int(w.get(0))
		if i >= s.buffers || !s.roomFor(w) {
			return unix.EINVAL
		}
		for _, q := range s.queued {
			if q == i {
				return unix.EINVAL
			}
		}
		s.queued = append(s.queued, i)
		s.describeBuffer(w, filledBuffer{index: i, flags: flagQueued})
	case dqbuf:
		return s.dequeue(w)
	case streamon:
		if busy {
			return unix.EBUSY
		}
		if s.buffers == 0 {
			return unix.EINVAL
		}
		if d.NoBandwidth {
			return unix.ENOSPC
		}
		if d.streaming == nil {
			s.streamOn()
		}
	case streamoff:
		s.streamOff()
	default:
		return unix.ENOTTY
	}
	return 0
}

// receiver carries out what only receivers know. The device is locked.
func (s *session) receiver(request uint32, w words, busy bool) unix.Errno {
	d := s.device
	const sourceChange = 5
	switch request {
	case subscribeEvent:
		if d.Signal == nil || d.NoEvents || w.get(0) != sourceChange || w.get(4) != 0 {
			return unix.EINVAL
		}
		s.subscribed = true
		return 0
	case dqevent:
		if !s.event {
			return unix.ENOENT
		}
		s.event = false
		s.signal()
		clear(w.data)
		const resolution = 1
		w.put(0, sourceChange)
		w.put(8, resolution)
		return 0
	}
	if d.Signal == nil {
		return unix.ENOTTY
	}
	switch request {
	case queryTimings:
		switch {
		case d.Signal.Unstable:
			return unix.ENOLCK
		case d.Signal.TooFast:
			return unix.ERANGE
		case d.Signal.Width == 0:
			return unix.ENOLINK
		}
		d.Signal.describe(w)
	case getTimings:
		d.timings.describe(w)
	case setTimings:
		if busy || s.buffers > 0 {
			return unix.EBUSY
		}
		signal := Signal{Width: int(w.get(4)), Height: int(w.get(8))}
		picture := float64(signal.Width+blankColumns) * float64(signal.Height+blankLines)
		signal.Rate = math.Round(float64(w.get64(20))/picture*1000) / 1000
		d.receive(signal)
	}
	return 0
}

// What is around each picture on the wire, in pixels.
const blankColumns, blankLines = 160, 30

// describe fills in a struct v4l2_dv_timings.
func (g Signal) describe(w words) {
	clear(w.data)
	w.put(4, uint32(g.Width))
	w.put(8, uint32(g.Height))
	w.put64(20, uint64(math.Round(g.Rate*float64(g.Width+blankColumns)*float64(g.Height+blankLines))))
	w.put(32, blankColumns) // horizontal sync
	w.put(44, blankLines)
}

func (d *device) format(code uint32) *Format {
	for i := range d.Formats {
		if d.Formats[i].FourCC == name(code) {
			return &d.Formats[i]
		}
	}
	return nil
}

func (d *device) enumSizes(w words) unix.Errno {
	f, i := d.format(w.get(4)), int(w.get(0))
	switch {
	case f == nil || d.Signal != nil: // a receiver has no choice
		return unix.EINVAL
	case f.Range != nil && i == 0:
		const stepwise = 3
		r := f.Range
		w.put(8, stepwise)
		for j, v := range []int{r.Min.Width, r.Max.Width, r.Step.Width, r.Min.Height, r.Max.Height, r.Step.Height} {
			w.put(12+4*j, uint32(v))
		}
	case i < len(f.Sizes):
		w.put(8, 1)
		w.put(12, uint32(f.Sizes[i].Width))
		w.put(16, uint32(f.Sizes[i].Height))
	default:
		return unix.EINVAL
	}
	return 0
}

func (d *device) enumIntervals(w words) unix.Errno {
	f, i := d.format(w.get(4)), int(w.get(0))
	if f == nil {
		return unix.EINVAL
	}
	rates := d.rates(f, int(w.get(8)), int(w.get(12)))
	if i >= len(rates) {
		return unix.EINVAL
	}
	w.put(16, 1)
	numerator, denominator := fraction(rates[i])
	w.put(20, numerator)
	w.put(24, denominator)
	return 0
}

func (d *device) rates(f *Format, width, height int) []float64 {
	for _, s := range f.Sizes {
		if s.Width == width && s.Height == height {
			return s.Rates
		}
	}
	if f.Range != nil {
		return f.Range.Rates
	}
	return nil
}

// fraction is a rate as an interval.
func fraction(rate float64) (numerator, denominator uint32) {
	if rate == math.Trunc(rate) {
		return 1, uint32(rate)
	}
	return 1000, uint32(math.Round(rate * 1000))
}

// grant is what the driver makes of a wish: the nearest it has.
func (d *device) grant(fourcc string, width, height int) Grant {
	if d.Grant != nil {
		return *d.Grant
	}
	f := d.format(code(fourcc))
	if f == nil {
		f = &d.Formats[0]
	}
	if d.Signal != nil {
		return Grant{FourCC: f.FourCC, Width: d.timings.Width, Height: d.timings.Height}
	}
	g := Grant{FourCC: f.FourCC, Width: width, Height: height}
	if r := f.Range; r != nil {
		g.Width = min(max(width, r.Min.Width), r.Max.Width)
		g.Height = min(max(height, r.Min.Height), r.Max.Height)
		return g
	}
	best := math.MaxInt
	for _, s := range f.Sizes {
		if distance := abs(s.Width-width) + abs(s.Height-height); distance < best {
			best, g.Width, g.Height = distance, s.Width, s.Height
		}
	}
	return g
}

func abs(x int) int { return max(x, -x) }

// bufferType is V4L2_BUF_TYPE_VIDEO_CAPTURE, its multi-planar sister, or
// V4L2_BUF_TYPE_VIDEO_OUTPUT.
func (d *device) bufferType() uint32 {
	switch {
	case d.Output:
		return outputType
	case d.Multiplanar:
		return multiplanarType
	}
	return captureType
}

// typeAt is where arguments name the type of buffer, in bytes.
var typeAt = map[uint32]int{
	enumFmt: 4, getFmt: 0, setFmt: 0, tryFmt: 0, reqbufs: 4, querybuf: 4, qbuf: 4, dqbuf: 4,
	streamon: 0, streamoff: 0, getParm: 0, setParm: 0,
}

// describe fills in a struct v4l2_format.
func (d *device) describe(w words) {
	c := newLayout(&d.Camera, d.granted.FourCC, d.granted.Width, d.granted.Height)
	if d.Multiplanar {
		clear(w.data[8:])
		for i, v := range []uint32{uint32(c.width), uint32(c.height), code(d.granted.FourCC), 1, d.Colorspace} {
			w.put(8+4*i, v)
		}
		for i, m := range c.memories {
			w.put(28+20*i, uint32(m.size))
			w.put(32+20*i, uint32(m.stride))
		}
		w.data[188] = byte(len(c.memories))
		return
	}
	for i, v := range []uint32{
		uint32(c.width), uint32(c.height), code(d.granted.FourCC), 1, // progressive
		uint32(c.line), uint32(c.size), d.Colorspace, 0xfeedcafe, 0, 0, 0, 0,
	} {
		w.put(8+4*i, v)
	}
}

// setInterval takes the rate the camera has that is nearest.
func (d *device) setInterval(rate float64) {
	if f := d.format(code(d.granted.FourCC)); f != nil {
		best := math.Inf(1)
		for _, r := range d.rates(f, d.granted.Width, d.granted.Height) {
			if distance := math.Abs(r - rate); distance < best {
				best = distance
				d.numerator, d.denom = fraction(r)
			}
		}
		if math.IsInf(best, 1) {
			d.numerator, d.denom = fraction(rate)
		}
	}
	if d.Grant != nil && d.Grant.Rate != 0 {
		d.numerator, d.denom = fraction(d.Grant.Rate)
	}
}

func (d *device) describeInterval(w words) {
	clear(w.data[4:])
	if !d.NoRateControl {
		const timePerFrame = 0x1000
		w.put(4, timePerFrame)
	}
	w.put(12, d.numerator)
	w.put(16, d.denom)
}

func (s *session) requestBuffers(w words) unix.Errno {
	d := s.device
	count := int(w.get(0))
	if count == 0 {
		s.streamOff()
		if s.mapped != nil {
			unix.Munmap(s.mapped)
			s.mapped = nil
		}
		s.buffers, d.owner = 0, nil
		return 0
	}
	if d.BuffersAtMost > 0 {
		count = min(count, d.BuffersAtMost)
	}
	s.content = newContent(&d.Camera, d.granted.FourCC, d.granted.Width, d.granted.Height)
	s.bufferSize = pages(s.content.size)
	if err := unix.Ftruncate(s.memory, int64(count*s.bufferSize)); err != nil {
		return unix.ENOMEM
	}
	mapped, err := unix.Mmap(s.memory, 0, count*s.bufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return unix.ENOMEM
	}
	if s.mapped != nil {
		unix.Munmap(s.mapped)
	}
	s.mapped, s.buffers, d.owner = mapped, count, s
	w.put(0, uint32(count))
	return 0
}

// roomFor tells whether a multi-planar buffer has room for the planes there are.
func (s *session) roomFor(w words) bool {
	return !s.device.Multiplanar || len(w.planes) >= planeSize*len(s.content.memories)
}

// describeBuffer fills in a struct v4l2_buffer.
func (s *session) describeBuffer(w words, f filledBuffer) {
	planes := w.get64(64)
	clear(w.data)
	w.put(0, uint32(f.index))
	w.put(4, s.device.bufferType())
	w.put(8, uint32(f.used))
	w.put(12, f.flags|flagMapped)
	w.put(16, 1)
	w.put64(24, uint64(f.time/1e9))
	w.put64(32, uint64(f.time%1e9/1000))
	w.put(56, f.sequence)
	w.put(60, mmapMemory)
	if w.planes == nil {
		w.put64(64, uint64(f.index*s.bufferSize))
		w.put(72, uint32(s.content.size))
		return
	}
	w.put(8, 0)
	w.put64(64, planes)
	w.put(72, uint32(len(s.content.memories)))
	for i, m := range s.content.memories {
		p := words{data: w.planes[planeSize*i:][:planeSize]}
		p.put(0, uint32(m.size*f.used/s.content.size))
		p.put(4, uint32(m.size))
		p.put64(8, uint64(f.index*s.bufferSize+m.offset))
		p.put(16, uint32(m.dataOffset))
	}
}

func (s *session) dequeue(w words) unix.Errno {
	d := s.device
	if d.streaming != s || !s.roomFor(w) {
		return unix.EINVAL
	}
	if len(s.filled) == 0 {
		return unix.EAGAIN
	}
	s.dequeues++
	if d.IOErrorEvery > 0 && s.dequeues%d.IOErrorEvery == 0 {
		return unix.EIO
	}
	f := s.filled[0]
	s.filled = s.filled[1:]
	s.describeBuffer(w, f)
	s.signal()
	return 0
}

func (s *session) streamOn() {
	d := s.device
	d.streaming = s
	s.starts++
	s.stop, s.stopped = make(chan struct{}), make(chan struct{})
	go s.run(s.stop, s.stopped, d.SlowStart, s.starts)
	s.signal()
}

// streamOff gives all buffers back to the program. The device is locked, but
// for the time it takes the frames to end.
func (s *session) streamOff() {
	d := s.device
	if d.streaming != s {
		return
	}
	d.streaming = nil
	close(s.stop)
	d.mu.Unlock()
	<-s.stopped
	d.mu.Lock()
	s.queued, s.filled = nil, nil
	s.signal()
}

// run makes frames until stop is closed.
func (s *session) run(stop, stopped chan struct{}, slowStart float64, start int) {
	defer close(stopped)
	d := s.device
	d.mu.Lock()
	interval := time.Duration(float64(d.numerator) / float64(d.denom) * float64(time.Second))
	d.mu.Unlock()
	begin := time.Now().Add(time.Duration(slowStart * float64(time.Second)))
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 1; ; i++ {
		timer.Reset(time.Until(begin.Add(time.Duration(i) * interval)))
		select {
		case <-stop:
			return
		case <-d.gone:
			return
		case <-timer.C:
		}
		d.mu.Lock()
		if d.streaming == s {
			s.frame(i, start, time.Duration(i)*interval)
		}
		d.mu.Unlock()
	}
}

// frame makes frame i of the stream, as its script wants it. The device is
// locked.
func (s *session) frame(i, start int, at time.Duration) {
	d := s.device
	every := func(n int) bool { return n > 0 && i%n == 0 }
	if !d.receives() || d.Silent || d.WorksOnce && start > 1 || d.StopAfter > 0 && i > d.StopAfter || every(d.LoseEvery) {
		return
	}
	d.frames++
	if d.UnplugAfter > 0 && d.frames > d.UnplugAfter {
		d.UnplugAfter = 0
		d.unplugLocked()
		return
	}
	if len(s.queued) == 0 {
		return // an overrun: the sequence number is missing
	}
	f := filledBuffer{index: s.queued[0], sequence: uint32(i), flags: flagMonotonic}
	s.queued = s.queued[1:]
	buffer := s.mapped[f.index*s.bufferSize:][:s.bufferSize]
	f.used = s.content.frame(buffer, uint32(i), at.Seconds())
	if d.Endless {
		f.used -= len("\xff\xd9")
	}
	switch {
	case every(d.ErrorEvery):
		f.flags |= flagError
		clear(buffer[:f.used/2])
	case every(d.TruncateEvery):
		f.used /= 2
	case every(d.EmptyEvery):
		f.used = 0
	}
	f.time = monotonic()
	switch d.Clock {
	case Realtime:
		f.time = time.Now().UnixNano()
	case Unknown:
		f.time, f.flags = at.Nanoseconds(), f.flags&^flagMonotonic
	case Frozen:
		f.time = 1e9
	case Ahead:
		f.time += 10e9
	}
	s.filled = append(s.filled, f)
	s.signal()
}
