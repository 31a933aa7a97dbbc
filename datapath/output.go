package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrTooLarge is returned by Publish for a bag above MaxBag.
var ErrTooLarge = errors.New("the bag is larger than 64 MiB")

// OutputOptions configure NewOutput. The functions may be nil; they are
// called one at a time, in order, on a goroutine of the output's own, and may
// block.
type OutputOptions struct {
	Owner   string   // address of the output, "stream/node/port"
	Formats []Format // formats it can make, its own first

	// OnReaders tells how many links read the output.
	OnReaders func(n int)
	// OnGeneration brings the ring of a new generation, for figures; the
	// file is the callee's to close.
	OnGeneration func(format Format, ring *os.File)
	// OnGone tells that the peer of a link is gone, and what it had.
	OnGone func(id uint64, end End)
}

// End is the final account of a link: Sent = Received + Dropped.
type End struct {
	Sent, Received, Dropped uint64
	// Why is set when the link was ended for another reason than the
	// peer's death.
	Why string
}

// Output is the producing end. All methods may be called from any goroutine;
// none waits for a reader.
type Output struct {
	opt    OutputOptions
	events *events

	mu       sync.Mutex
	sequence uint64 // last published
	number   uint64 // last surface
	refused  uint64
	readers  int // links that have said hello
	variants []*variant
	links    map[uint64]*outLink
	closed   bool
	serving  sync.WaitGroup
}

// variant is the ring and pool of one format.
type variant struct {
	format Format
	gen    *generation // nil until the first publication
	links  []*outLink

	// what Publish has prepared
	slot          int
	bagAt, pixels int
	surface       Surface
	pictured      bool
}

type outLink struct {
	id      uint64
	file    *os.File // in the netpoller; closing it ends serve
	socket  int
	variant *variant
	page    []byte
	wake    int
	ordered bool
	woken   uint64 // the token woken last
	start   uint64
	started bool
	left    bool // RemoveLink or Close wanted it gone: not reported
	why     string
}

// NewOutput returns an output without readers.
func NewOutput(opt OutputOptions) (*Output, error) {
	if len(opt.Owner) > maxOwner {
		return nil, fmt.Errorf("output address %q is longer than %d bytes", opt.Owner, maxOwner)
	}
	o := &Output{
		opt: opt, events: newEvents(),
		links:  map[uint64]*outLink{},
		number: uint64(Now() / 1000),
	}
	return o, nil
}

// AddLink takes one end of a link's socket pair, which it owns from now on,
// and serves it until the peer goes or RemoveLink.
func (o *Output) AddLink(id uint64, socket *os.File) error {
	fd, err := ownSocket(socket)
	if err != nil {
		return err
	}
	l := &outLink{id: id, socket: fd, file: os.NewFile(uintptr(fd), "link"), wake: -1}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, taken := o.links[id]; taken || o.closed {
		l.file.Close()
		if taken {
			return fmt.Errorf("link %d is there already", id)
		}
		return fmt.Errorf("cannot add link %d: the output is closed", id)
	}
	o.links[id] = l
	o.serving.Add(1)
	go o.serve(l)
	return nil
}

// serve reads a link's socket: the hello, then its end.
func (o *Output) serve(l *outLink) {
	defer o.serving.Done()
	raw, err := l.file.SyscallConn()
	for err == nil {
		var m *message
		var failed error
		err = raw.Read(func(fd uintptr) bool {
			m, failed = receive(int(fd))
			return failed != unix.EAGAIN
		})
		if err == nil {
			err = failed
		}
		if err == nil {
			if m.Kind == kindHello {
				err = o.join(l, m)
			}
			m.closeFDs()
		}
	}
	o.leave(l, err)
}

// join makes a reader of a link that has said hello.
func (o *Output) join(l *outLink, m *message) error {
	refuse := func(format string, args ...any) error {
		err := refusal(fmt.Sprintf(format, args...))
		_ = send(l.socket, message{Kind: kindRefused, Why: string(err)})
		return err
	}
	if m.Version != Version {
		return refuse("the reader speaks data path version %d, this output %d", m.Version, Version)
	}
	profile, err := ParseProfile(m.Profile)
	if err != nil {
		return refuse("%v", err)
	}
	if len(m.fds) != 2 || l.page != nil {
		return refuse("a hello comes once, with a page and a wake-up")
	}
	page, err := mapShared(m.fds[0], "link page")
	if err != nil {
		return refuse("%v", err)
	}
	if len(page) != pageSize || load(page, 0) != pageMagic {
		_ = unix.Munmap(page)
		return refuse("what came as a link page is none")
	}
	if err := checkWakeUp(m.fds[1]); err != nil {
		_ = unix.Munmap(page)
		return refuse("%v", err)
	}

	o.mu.Lock()
	defer o.mu.Unlock()
	l.page, l.wake, l.ordered = page, m.fds[1], profile == Ordered
	m.fds = m.fds[:1]
	if l.left || o.closed {
		return nil // serve sees the closed socket next
	}
	v := o.variantFor(o.choose(m.Formats))
	l.variant = v
	v.links = append(v.links, l)
	o.readers++
	o.tellReaders()
	if v.gen != nil {
		o.introduce(l, v.gen)
		if len(v.links) > v.gen.links {
			// The pool may be too small for one more: nothing is
			// published in it any more, so that this does not matter.
			return o.renew(v, v.gen.slotSize)
		}
	}
	return nil
}

type refusal string

func (r refusal) Error() string { return string(r) }

// checkWakeUp makes sure that writing to fd is harmless: it must be an eventfd
// that does not block.
func checkWakeUp(fd int) error {
	target, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return fmt.Errorf("cannot check a wake-up: %w", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || target != "anon_inode:[eventfd]" || flags&unix.O_NONBLOCK == 0 {
		return fmt.Errorf("a wake-up must be a non-blocking eventfd, not %s", target)
	}
	return nil
}

// choose answers the formats a reader would like.
func (o *Output) choose(wanted []string) Format {
	if len(wanted) == 0 || len(o.opt.Formats) == 0 {
		return 0
	}
	for _, name := range wanted {
		for _, have := range o.opt.Formats {
			if have.String() == name {
				return have
			}
		}
	}
	return o.opt.Formats[0]
}

func (o *Output) variantFor(f Format) *variant {
	for _, v := range o.variants {
		if v.format == f {
			return v
		}
	}
	v := &variant{format: f}
	o.variants = append(o.variants, v)
	return v
}

// introduce sends a generation to a link that is on its variant's list.
func (o *Output) introduce(l *outLink, g *generation) {
	m := message{Kind: kindGeneration}
	if !l.started {
		// The newest bag is the first a late reader gets, if there is one.
		newest, first := load(g.ring, ringNewest), load(g.ring, ringFirst)
		l.start = newest
		if newest >= first {
			l.start--
		}
		l.started = true
		m.Start = &l.start
	}
	var err error
	if g.poolFile != nil {
		err = send(l.socket, m, int(g.ringFile.Fd()), int(g.poolFile.Fd()))
	} else {
		err = send(l.socket, m, int(g.ringFile.Fd()))
	}
	if err != nil {
		l.why = "it does not take its descriptors: " + err.Error()
		// serve sees the end and drops the link; until then the link
		// counts, which is only careful.
		_ = unix.Shutdown(l.socket, unix.SHUT_RDWR)
	}
}

// renew gives a variant a fresh generation and sends its readers there.
func (o *Output) renew(v *variant, slotSize int) error {
	g, err := newGeneration(o.opt.Owner, v.format, o.sequence+1, len(v.links), slotSize, o.refused)
	if err != nil {
		return fmt.Errorf("cannot renew the memory of %s: %w", o.opt.Owner, err)
	}
	for _, l := range v.links {
		o.introduce(l, g)
	}
	before := v.gen
	v.gen = g
	if o.opt.OnGeneration != nil {
		if fd, err := unix.FcntlInt(g.ringFile.Fd(), unix.F_DUPFD_CLOEXEC, 3); err == nil {
			ring, format := os.NewFile(uintptr(fd), "ring"), v.format
			o.events.post(func() { o.opt.OnGeneration(format, ring) })
		}
	}
	if before != nil {
		store(before.ring, ringMoved, o.sequence+1)
		for _, l := range v.links {
			l.wakeUp()
		}
		return before.supersede()
	}
	return nil
}

// wakeOne is a native 1, what an eventfd wants.
var wakeOne = func() (b [8]byte) { binary.NativeEndian.PutUint64(b[:], 1); return }()

// wakeUp wakes the reader if it waits and was not woken from this wait. The
// caller has passed a fence since it stored the news.
func (l *outLink) wakeUp() {
	token := load(l.page, pageWaiting)
	if token == 0 || token == l.woken {
		return
	}
	l.woken = token
	// It cannot block (checkWakeUp), so the scheduler need not know: it may
	// take a while to wake another CPU, and the thread would be left without
	// its P. Fails only when the counter is full, and then the reader is awake.
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(l.wake), uintptr(unsafe.Pointer(&wakeOne)), uintptr(len(wakeOne)))
}

// leave drops a link whose socket has ended, or that is broken.
func (o *Output) leave(l *outLink, cause error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r, ok := cause.(refusal); ok {
		l.why = string(r)
	}
	o.drop(l)
	l.file.Close()
}

// drop takes a link off all lists. Its socket is not closed.
func (o *Output) drop(l *outLink) {
	if o.links[l.id] == l {
		delete(o.links, l.id)
	}
	end := End{Why: l.why}
	if v := l.variant; v != nil {
		l.variant = nil
		for i, other := range v.links {
			if other == l {
				v.links = append(v.links[:i], v.links[i+1:]...)
				break
			}
		}
		if l.started {
			end.Sent = o.sequence - l.start
			end.Received = min(load(l.page, pageReceived), end.Sent)
			end.Dropped = end.Sent - end.Received
		}
		if len(v.links) == 0 {
			o.discard(v)
		}
		o.readers--
		o.tellReaders()
	}
	if l.page != nil {
		_ = unix.Munmap(l.page)
		l.page = nil
	}
	if l.wake >= 0 {
		unix.Close(l.wake)
		l.wake = -1
	}
	if !l.left && o.opt.OnGone != nil {
		o.events.post(func() { o.opt.OnGone(l.id, end) })
	}
}

// discard frees the memory of a variant nobody reads.
func (o *Output) discard(v *variant) {
	for i, other := range o.variants {
		if other == v {
			o.variants = append(o.variants[:i], o.variants[i+1:]...)
			break
		}
	}
	if v.gen != nil {
		// Nobody is left to show a half-drawn picture to, but for a reader
		// that was demoted and kept its map: hence not just an unmap.
		_ = v.gen.supersede()
		v.gen = nil
	}
}

func (o *Output) tellReaders() {
	if o.opt.OnReaders != nil {
		n := o.readers
		o.events.post(func() { o.opt.OnReaders(n) })
	}
}

// RemoveLink ends a link; one it does not know is gone already. With retire,
// the readers that remain are moved to fresh memory before it returns, so that
// whatever the leaving reader still has mapped shows nothing new.
func (o *Output) RemoveLink(id uint64, retire bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if l := o.links[id]; l != nil {
		l.left = true
		o.drop(l)
		_ = unix.Shutdown(l.socket, unix.SHUT_RDWR) // ends serve
	}
	if !retire {
		return nil
	}
	var err error
	for _, v := range o.variants {
		if v.gen != nil {
			err = errors.Join(err, o.renew(v, v.gen.slotSize))
		}
	}
	return err
}

// Readers is the number of links that read.
func (o *Output) Readers() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.readers
}

// Joining is the number of links whose reader has not said hello yet.
func (o *Output) Joining() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.links) - o.readers
}

// Sequence is the sequence of the last publication, 0 before the first.
func (o *Output) Sequence() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.sequence
}

// NewSurface returns the number for the next picture. The picture has the same
// in all its formats, and its bag names it by SurfaceID.
func (o *Output) NewSurface() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.number++
	return o.number
}

// SurfaceID is the name of the surface of this output with that number.
func (o *Output) SurfaceID(number uint64) string { return SurfaceID(o.opt.Owner, number) }

// A Slot is memory for one picture in one format. Fill Bytes, describe them in
// Surface, and give it to Publish, or to Release.
type Slot struct {
	Bytes   []byte
	Surface Surface

	gen    *generation
	index  int
	format Format
}

// ErrNotWanted is returned by Acquire for a format nobody reads.
var ErrNotWanted = errors.New("nobody reads this format")

// Acquire returns a slot with size bytes for a picture in format f. What is in
// them is undefined.
func (o *Output) Acquire(f Format, size int) (Slot, error) {
	if size <= 0 || size > MaxPixels {
		return Slot{}, fmt.Errorf("cannot make a picture of %d bytes: the limit is %d", size, MaxPixels)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, v := range o.variants {
		if v.format == f && f != 0 {
			index, err := o.claim(v, size)
			if err != nil {
				return Slot{}, err
			}
			v.gen.pending++
			return Slot{Bytes: v.gen.slot(index)[:size:size], gen: v.gen, index: index, format: f}, nil
		}
	}
	return Slot{}, ErrNotWanted
}

// claim takes a free slot of at least size bytes, in a new generation if the
// present one has none of that size.
func (o *Output) claim(v *variant, size int) (int, error) {
	if v.gen == nil || v.gen.slotSize < size {
		if err := o.renew(v, max(4096, ceilPower(size))); err != nil {
			return -1, err
		}
	}
	if index := v.gen.take(v.links); index >= 0 {
		return index, nil
	}
	return -1, fmt.Errorf("no slot of %s is free: more than %d were acquired and neither published nor released", o.opt.Owner, MaxPending)
}

// Release gives a slot back that is not going to be published.
func (o *Output) Release(s Slot) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.giveBack(&s, true)
}

// giveBack ends the acquisition of a slot; free tells that it holds nothing.
func (o *Output) giveBack(s *Slot, free bool) {
	g := s.gen
	if g == nil {
		return
	}
	g.pending--
	switch {
	case g.old && g.pending == 0:
		g.unmapPool()
	case !g.old && free:
		g.free = append(g.free, s.index)
	}
	s.gen = nil
}

// Publish gives a bag to every reader, with a slot for each format the picture
// was made in (none for a bag without one), and returns its sequence. A reader
// whose format is missing gets the bag alone. The slots are the output's again,
// whatever is returned. An error means that nobody got the bag.
func (o *Output) Publish(bag []byte, timestamp int64, slots ...Slot) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.publish(bag, timestamp, slots)
	for i := range slots {
		o.giveBack(&slots[i], true) // those publish did not use
	}
	return n, err
}

func (o *Output) publish(bag []byte, timestamp int64, slots []Slot) (uint64, error) {
	if o.closed {
		return 0, fmt.Errorf("%s is closed", o.opt.Owner)
	}
	if len(bag) > MaxBag {
		o.refused++
		for _, v := range o.variants {
			if v.gen != nil {
				store(v.gen.ring, ringRefused, o.refused)
			}
		}
		return 0, fmt.Errorf("cannot publish on %s: %w (%d bytes)", o.opt.Owner, ErrTooLarge, len(bag))
	}
	// First everything that can fail, so that all variants get the bag or
	// none does: sequences have no holes.
	for i, v := range o.variants {
		if err := o.prepare(v, bag, slots); err != nil {
			for _, done := range o.variants[:i] {
				if done.slot >= 0 {
					done.gen.free = append(done.gen.free, done.slot)
				}
			}
			return 0, fmt.Errorf("cannot publish on %s: %w", o.opt.Owner, err)
		}
	}
	o.sequence++
	n := o.sequence
	for _, v := range o.variants {
		var surface *Surface
		if v.pictured {
			surface = &v.surface
		}
		v.gen.write(n, bag, timestamp, v.slot, v.bagAt, v.pixels, surface)
		v.gen.retire(n, v.links)
		// Every store above is a full fence (sync/atomic).
		for _, l := range v.links {
			l.wakeUp()
		}
	}
	return n, nil
}

// prepare settles in which slot of v the bag and its picture go, and puts
// them there.
func (o *Output) prepare(v *variant, bag []byte, slots []Slot) error {
	v.slot, v.bagAt, v.pixels, v.pictured = -1, 0, 0, false
	var picture *Slot
	for i := range slots {
		s := &slots[i]
		if s.gen != nil && s.format == v.format {
			picture = s
		}
	}
	need := 0
	if picture != nil {
		v.pixels = len(picture.Bytes)
		v.surface, v.pictured = picture.Surface, true
		v.surface.Residency = InSlot
		if v.format == Resident {
			v.surface.Residency = OwnerResident // the slot only names it
		}
		need = v.pixels
	}
	if len(bag) > MaxInline {
		v.bagAt = roundUp(need, 64)
		need = v.bagAt + len(bag)
	}
	if need == 0 {
		if v.gen == nil {
			return o.renew(v, 0)
		}
		return nil
	}
	if picture != nil && picture.gen == v.gen && need <= v.gen.slotSize {
		v.slot = picture.index
		o.giveBack(picture, false)
	} else {
		index, err := o.claim(v, need)
		if err != nil {
			return err
		}
		v.slot = index
		if picture != nil {
			// It was drawn in memory that has been replaced since.
			copy(v.gen.slot(index), picture.Bytes)
		}
	}
	if len(bag) > MaxInline {
		copy(v.gen.slot(v.slot)[v.bagAt:], bag)
	}
	return nil
}

// Close ends all links and frees everything. It waits for callbacks.
func (o *Output) Close() {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return
	}
	o.closed = true
	for _, l := range o.links {
		l.left = true
		o.drop(l)
		_ = unix.Shutdown(l.socket, unix.SHUT_RDWR)
	}
	o.mu.Unlock()
	o.serving.Wait()
	o.events.close()
}

// events runs functions in order on a goroutine of its own, so that whoever
// posts them never waits.
type events struct {
	mu     sync.Mutex
	more   *sync.Cond
	queue  []func()
	closed bool
	done   chan struct{}
}

func newEvents() *events {
	e := &events{done: make(chan struct{})}
	e.more = sync.NewCond(&e.mu)
	go e.run()
	return e
}

func (e *events) post(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.queue = append(e.queue, f)
	e.more.Signal()
}

func (e *events) run() {
	defer close(e.done)
	for {
		e.mu.Lock()
		for len(e.queue) == 0 && !e.closed {
			e.more.Wait()
		}
		queue := e.queue
		e.queue = nil
		e.mu.Unlock()
		if len(queue) == 0 {
			return
		}
		for _, f := range queue {
			f()
		}
	}
}

func (e *events) close() {
	e.mu.Lock()
	e.closed = true
	e.more.Signal()
	e.mu.Unlock()
	<-e.done
}
