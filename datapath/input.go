package datapath

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Waiter is what the inputs of one process wait on together. It waits with
// poll(2), so Wait keeps its goroutine's thread.
type Waiter struct {
	mu     sync.Mutex // guards all inputs and links of the waiter
	wake   int
	token  uint64
	links  []*inLink
	polls  []unix.PollFd
	polled []*inLink
	closed bool
}

// NewWaiter returns a waiter without inputs.
func NewWaiter() (*Waiter, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot make a wake-up: eventfd: %w", err)
	}
	return &Waiter{wake: fd}, nil
}

// Wake makes the present Wait, or else the next, return. Safe from any
// goroutine.
func (w *Waiter) Wake() {
	_, _ = unix.Write(w.wake, wakeOne[:])
}

// Wait returns once an input has a bag, a link has ended, Wake was called or
// timeout has passed; negative waits for ever. It may return early, and tells
// whether an input has a bag or a link has ended. Extra descriptors to poll
// beside are given with their Events; their Revents are set.
func (w *Waiter) Wait(timeout time.Duration, extra ...unix.PollFd) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	w.token++
	for _, l := range w.links {
		store(l.page, pageWaiting, w.token) // a fence
	}
	news := w.news()
	if news {
		timeout = 0
	}
	w.polls = append(w.polls[:0], unix.PollFd{Fd: int32(w.wake), Events: unix.POLLIN})
	w.polls = append(w.polls, extra...)
	w.polled = w.polled[:0]
	for _, l := range w.links {
		if !l.eof {
			w.polls = append(w.polls, unix.PollFd{Fd: int32(l.socket), Events: unix.POLLIN})
			w.polled = append(w.polled, l)
		}
	}
	w.mu.Unlock()

	if !news || len(extra) > 0 {
		pollFor(w.polls, timeout)
	}
	copy(extra, w.polls[1:])

	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	if w.polls[0].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(w.wake, count[:])
	}
	for _, l := range w.links {
		store(l.page, pageWaiting, 0)
	}
	for i, l := range w.polled {
		if w.polls[1+len(extra)+i].Revents != 0 && !l.closed {
			l.service()
		}
	}
	return news || w.news()
}

// pollFor is poll with a deadline: a signal is no time-out.
func pollFor(fds []unix.PollFd, timeout time.Duration) {
	end := time.Now().Add(timeout)
	for {
		ms := -1
		if timeout >= 0 {
			// Rounded up, or the last millisecond would be spun through.
			ms = int(min((max(0, timeout)+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
		}
		if _, err := unix.Poll(fds, ms); err != unix.EINTR {
			return
		}
		if timeout >= 0 {
			timeout = max(0, time.Until(end))
		}
	}
}

func (w *Waiter) news() bool {
	for _, l := range w.links {
		if l.unread() > 0 || l.eof && !l.reported {
			return true
		}
	}
	return false
}

// Close closes the inputs and wakes a Wait, which must have returned before
// the waiter's descriptor goes; call it from the goroutine that waits.
func (w *Waiter) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return
	}
	for len(w.links) > 0 {
		w.links[0].leave()
	}
	w.closed = true
	unix.Close(w.wake)
}

// Input is the reading end of a port: any number of links.
type Input struct {
	w       *Waiter
	profile Profile
	formats []string
	links   []*inLink
	next    int    // where the next Read begins, so that links take turns
	buf     []byte // the bag read last
}

// NewInput returns an input without links. formats are those it can use, the
// preferred first; none asks for bags alone. Links in other formats are read
// all the same: see Frame.Surface.
func (w *Waiter) NewInput(profile Profile, formats ...Format) *Input {
	in := &Input{w: w, profile: profile}
	for _, f := range formats {
		in.formats = append(in.formats, f.String())
	}
	return in
}

// Bag is what Read returns.
type Bag struct {
	Data      []byte // valid until the next Read of the input
	Timestamp int64
	Sequence  uint64
	Link      string // its name
	LinkID    uint64
	// Frame is the bag's picture, nil without one. It is held until its
	// Release.
	Frame *Frame
}

// Frame is a picture that is held: its pixels neither change nor go until
// Release. A link reuses its Frames, so none may be touched after its Release.
type Frame struct {
	Surface Surface
	// Pixels is read-only memory. Of an owner-resident picture it is what the
	// owner knows the picture by.
	Pixels   []byte
	Owner    string
	Sequence uint64

	link *inLink
	gen  *mapping
	cell int
}

// SurfaceID is the name by which bags know the picture.
func (f *Frame) SurfaceID() string { return SurfaceID(f.Owner, f.Surface.Number) }

// Release lets the picture go.
func (f *Frame) Release() {
	l := f.link
	w := l.in.w
	w.mu.Lock()
	defer w.mu.Unlock()
	f.Pixels = nil
	l.release(f.cell)
}

// mapping is a generation as its reader sees it.
type mapping struct {
	ring, pool []byte
	shape      ringShape
	users      int // frames that hold it, and the link while it reads it
}

func (g *mapping) unuse() {
	if g.users--; g.users == 0 {
		_ = unix.Munmap(g.ring)
		if g.pool != nil {
			_ = unix.Munmap(g.pool)
		}
	}
}

type inLink struct {
	in       *Input
	id       uint64
	name     string
	socket   int
	pageFile *os.File
	page     []byte

	gen  *mapping   // nil before the first
	next []*mapping // received, not yet gone on to
	last uint64     // last sequence dealt with

	frames   [MaxHeld]Frame
	held     int // cells in use
	eof      bool
	reported bool   // by TakeGone
	why      string // why the link was ended, if not by the peer's death
	closed   bool
}

// AddLink takes one end of a link's socket pair, which the input owns from now
// on. Formats are listed before those of the input. The returned file is the
// link's page, for figures: the caller's to close.
func (in *Input) AddLink(id uint64, name string, socket *os.File, formats ...Format) (page *os.File, err error) {
	fd, err := ownSocket(socket)
	if err != nil {
		return nil, err
	}
	l := &inLink{in: in, id: id, name: name, socket: fd}
	l.pageFile, l.page, err = makeShared("tatolab-page", pageSize)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	store(l.page, pageProfile, uint64(in.profile))
	store(l.page, 0, pageMagic)
	w := in.w
	w.mu.Lock()
	defer w.mu.Unlock()
	fail := func(err error) (*os.File, error) {
		unix.Close(fd)
		_ = unix.Munmap(l.page)
		l.pageFile.Close()
		return nil, err
	}
	if w.closed {
		return fail(fmt.Errorf("cannot add link %s: the input is closed", name))
	}
	for _, other := range in.links {
		if other.id == id {
			return fail(fmt.Errorf("link %d is there already", id))
		}
	}
	// Before the hello: a link whose peer is gone has no socket to close any more.
	dup, err := unix.FcntlInt(l.pageFile.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fail(fmt.Errorf("cannot join link %s: %w", name, err))
	}
	page = os.NewFile(uintptr(dup), "page")
	hello := message{Kind: kindHello, Version: Version, Profile: in.profile.String()}
	for _, f := range formats {
		hello.Formats = append(hello.Formats, f.String())
	}
	hello.Formats = append(hello.Formats, in.formats...)
	switch err := send(fd, hello, int(l.pageFile.Fd()), w.wake); err {
	case nil:
	case unix.EPIPE, unix.ECONNRESET:
		l.end() // reported like any other
	default:
		page.Close()
		return fail(fmt.Errorf("cannot join link %s: %w", name, err))
	}
	in.links = append(in.links, l)
	w.links = append(w.links, l)
	w.Wake() // a Wait must poll the new socket too
	return page, nil
}

// RemoveLink leaves a link; what it has not read counts as dropped. One it
// does not know is gone already.
func (in *Input) RemoveLink(id uint64) {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	for _, l := range in.links {
		if l.id == id {
			l.leave()
			return
		}
	}
}

// Gone is a link whose producer has ended.
type Gone struct {
	ID  uint64
	Why string // empty: the peer died or closed the link
}

// TakeGone returns the links whose producer has gone, each once. What they
// published can still be read; after that they are removed.
func (in *Input) TakeGone() []Gone {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	var gone []Gone
	for _, l := range in.links {
		if l.eof && !l.reported {
			l.reported = true
			gone = append(gone, Gone{l.id, l.why})
		}
	}
	in.reap()
	return gone
}

// reap removes links that have ended and have nothing left to read.
func (in *Input) reap() {
	for i := 0; i < len(in.links); {
		if l := in.links[i]; l.reported && l.unread() == 0 {
			l.leave()
		} else {
			i++
		}
	}
}

// Links appends the names of the input's links to dst.
func (in *Input) Links(dst []string) []string {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	for _, l := range in.links {
		dst = append(dst, l.name)
	}
	return dst
}

// HasData tells whether Read would return a bag.
func (in *Input) HasData() bool {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	for _, l := range in.links {
		if l.unread() > 0 {
			return true
		}
	}
	return false
}

// Read returns the next bag in b and whether there was one. Links take turns.
func (in *Input) Read(b *Bag) bool {
	in.w.mu.Lock()
	defer in.w.mu.Unlock()
	for i := range in.links {
		at := (in.next + i) % len(in.links)
		if in.links[at].read(b) {
			in.next = at + 1
			return true
		}
	}
	in.reap()
	return false
}

// Bounds against a producer that floods its link: how many messages one look at
// a socket takes, and how many generations may wait for a reader. A socket holds
// fewer than these while the reader is stopped.
const (
	messagesPerLook = 64
	maxGenerations  = 512
)

// service reads what the socket has.
func (l *inLink) service() {
	for range messagesPerLook {
		if l.eof {
			return
		}
		m, err := receive(l.socket)
		if err == unix.EAGAIN {
			return
		}
		if err != nil {
			if err != io.EOF {
				l.why = err.Error()
			}
			l.end()
			return
		}
		switch m.Kind {
		case kindGeneration:
			err = l.adopt(m)
		case kindRefused:
			err = errors.New(m.Why)
		}
		m.closeFDs()
		if err != nil {
			l.why = err.Error()
			l.end()
		}
	}
}

// end closes the socket; what has been published can still be read.
func (l *inLink) end() {
	if !l.eof {
		l.eof = true
		unix.Close(l.socket)
		l.socket = -1
	}
}

// adopt maps a generation the producer sent.
func (l *inLink) adopt(m *message) error {
	if len(m.fds) < 1 || len(m.fds) > 2 {
		return fmt.Errorf("a generation came with %d descriptors", len(m.fds))
	}
	ring, err := mapShared(m.fds[0], "ring")
	if err != nil {
		return err
	}
	g := &mapping{ring: ring, users: 1}
	if g.shape, err = readShape(ring); err == nil && g.shape.slots > 0 {
		if len(m.fds) < 2 {
			err = fmt.Errorf("a generation of %d slots came without a pool", g.shape.slots)
		} else if g.pool, err = mapShared(m.fds[1], "pool"); err == nil && len(g.pool)/g.shape.slots < g.shape.slotSize {
			err = fmt.Errorf("a pool is smaller than its ring says")
		}
	}
	switch {
	case err != nil:
	case l.gen == nil && len(l.next) == 0:
		if m.Start == nil {
			err = errors.New("the first generation of a link came without its start")
			break
		}
		l.last = *m.Start
		store(l.page, pageCursor, l.last)
		store(l.page, pageStart, l.last)
		l.gen = g
		return nil
	case len(l.next) == maxGenerations:
		err = fmt.Errorf("%d generations wait to be read", maxGenerations)
	default:
		l.next = append(l.next, g)
		return nil
	}
	g.unuse()
	return err
}

// settle goes on to the next generation if it is time to.
func (l *inLink) settle() {
	if l.gen == nil {
		l.service() // whoever only reads must come by its first one too
	}
	for l.gen != nil {
		moved := load(l.gen.ring, ringMoved)
		if moved == 0 {
			return
		}
		if len(l.next) == 0 {
			l.service() // it was sent before moved was set
			if len(l.next) == 0 {
				return
			}
		}
		next := l.next[0]
		if l.last+1 < moved && !(l.in.profile == Newest && load(next.ring, ringNewest) >= moved) {
			return
		}
		l.gen.unuse()
		l.gen = next
		l.next = append(l.next[:0], l.next[1:]...)
	}
}

// unread is the number of bags published and not dealt with, as far as the
// generation that is being read goes.
func (l *inLink) unread() uint64 {
	l.settle()
	if l.gen == nil {
		return 0
	}
	if newest := load(l.gen.ring, ringNewest); newest > l.last {
		return newest - l.last
	}
	return 0
}

func (l *inLink) drop(n uint64) {
	store(l.page, pageDropped, load(l.page, pageDropped)+n)
}

func (l *inLink) advance(to uint64) {
	l.last = to
	store(l.page, pageCursor, to)
}

// read takes the next bag of the link.
func (l *inLink) read(b *Bag) bool {
	window := uint64(Window)
	for failures := 0; failures < patience; {
		unread := l.unread()
		if unread == 0 {
			return false
		}
		g := l.gen
		n := l.last + unread
		if l.in.profile == Ordered {
			if unread > window {
				l.drop(unread - window)
				l.advance(n - window)
			}
			n = l.last + 1
		}
		var e [entryWords]uint64
		ok, err := l.copyEntry(g, n, &e)
		if err != nil {
			l.why = err.Error()
			l.end()
			l.forsake()
			return false
		}
		cell := -1
		if ok && e[entrySlot] != 0 {
			if cell = l.freeCell(); cell < 0 {
				// Eight are held: this one is lost.
				l.drop(n - l.last)
				l.advance(n)
				continue
			}
			ok = l.claim(g, cell, e[entrySlot], n)
		}
		if !ok {
			failures++
			if failures >= 2 {
				window = max(1, window/2)
			}
			continue
		}
		l.deliver(b, g, n, cell, &e)
		return true
	}
	l.why = fmt.Sprintf("its producer never finishes an entry: %d looks failed", patience)
	l.end()
	l.forsake()
	return false
}

// forsake gives up what a broken producer has published: it cannot be read.
func (l *inLink) forsake() {
	if n := l.unread(); n > 0 {
		l.drop(n)
		l.advance(l.last + n)
	}
}

// copyEntry copies entry n, and its bag if it stands there, and tells whether
// it was whole. An error means that it makes no sense.
func (l *inLink) copyEntry(g *mapping, n uint64, e *[entryWords]uint64) (bool, error) {
	at := g.shape.entries + int(n%entryCount)*entrySize
	if load(g.ring, at) != n {
		return false, nil
	}
	order()
	copy(e[:], unsafe.Slice(word(g.ring, at), entryWords))
	length := e[entryBagLength]
	if length <= MaxInline {
		l.in.buf = append(l.in.buf[:0], g.ring[at+entryBag:at+entryBag+int(length)]...)
	}
	order()
	if load(g.ring, at) != n {
		return false, nil
	}
	size, slot := uint64(g.shape.slotSize), e[entrySlot]
	bad := slot > uint64(g.shape.slots) || length > MaxBag || e[entryPixels] > size ||
		e[entryPlanes] > 4 || e[entryWidth] > math.MaxInt32 || e[entryHeight] > math.MaxInt32 ||
		slot == 0 && (length > MaxInline || e[entryPixels] > 0) ||
		length > MaxInline && (e[entryBagAt] > size || e[entryBagAt]+length > size)
	for i := range min(4, int(e[entryPlanes])) {
		offset, stride := e[entryPlane+2*i], e[entryPlane+2*i+1]
		bad = bad || slot != 0 && (offset > e[entryPixels] || stride > e[entryPixels])
	}
	if bad {
		return false, fmt.Errorf("entry %d of its producer makes no sense", n)
	}
	return true, nil
}

func (l *inLink) freeCell() int {
	for i := range MaxHeld {
		if load(l.page, pageCells+8*i) == 0 {
			return i
		}
	}
	return -1
}

// claim puts a slot into a cell and tells whether it still holds n.
func (l *inLink) claim(g *mapping, cell int, slot, n uint64) bool {
	store(l.page, pageCells+8*cell, slot) // a fence
	if load(g.ring, ringStamps+8*int(slot-1)) == n {
		return true
	}
	store(l.page, pageCells+8*cell, 0)
	return false
}

// release empties a cell.
func (l *inLink) release(cell int) {
	store(l.page, pageCells+8*cell, 0)
	l.frames[cell].gen.unuse()
	l.frames[cell].gen = nil
	l.held--
	if l.closed && l.held == 0 {
		l.unmapPage()
	}
}

// deliver makes the bag out of entry n, whose slot cell holds.
func (l *inLink) deliver(b *Bag, g *mapping, n uint64, cell int, e *[entryWords]uint64) {
	*b = Bag{Timestamp: int64(e[entryTimestamp]), Sequence: n, Link: l.name, LinkID: l.id}
	length, pixels := int(e[entryBagLength]), int(e[entryPixels])
	var slot []byte
	if cell >= 0 {
		start := int(e[entrySlot]-1) * g.shape.slotSize
		slot = g.pool[start : start+g.shape.slotSize]
	}
	if length > MaxInline {
		at := int(e[entryBagAt])
		l.in.buf = append(l.in.buf[:0], slot[at:at+length]...)
	}
	b.Data = l.in.buf
	switch {
	case Residency(e[entryResidency]) != NoPicture && pixels > 0 && cell >= 0:
		g.users++
		l.held++
		f := &l.frames[cell]
		*f = Frame{Surface: surfaceOf(e), Pixels: slot[:pixels:pixels], Owner: g.shape.owner, Sequence: n, link: l, gen: g, cell: cell}
		b.Frame = f
	case cell >= 0:
		store(l.page, pageCells+8*cell, 0)
	}
	if skipped := n - l.last - 1; skipped > 0 {
		l.drop(skipped)
	}
	store(l.page, pageReceived, load(l.page, pageReceived)+1)
	l.advance(n)
	now := Now()
	store(l.page, pageLastRead, uint64(now))
	store(l.page, pageTimestamp, e[entryTimestamp])
	at := pageHistogram + 8*bucket(now-b.Timestamp)
	atomic.StoreUint64(word(l.page, at), load(l.page, at)+1)
}

func surfaceOf(e *[entryWords]uint64) Surface {
	s := Surface{
		Number: e[entryNumber], Residency: Residency(e[entryResidency]), Format: Format(e[entryFormat]),
		Width: int(e[entryWidth]), Height: int(e[entryHeight]), Colour: colourOf(e[entryColour]),
		NumPlanes: int(e[entryPlanes]),
	}
	for i := range s.NumPlanes {
		s.Planes[i] = Plane{int(e[entryPlane+2*i]), int(e[entryPlane+2*i+1])}
	}
	return s
}

// leave closes the link for good. Frames held from it stay good.
func (l *inLink) leave() {
	if !l.eof {
		l.service() // generations that are on their way count
	}
	if l.gen != nil {
		newest := max(l.last, load(l.gen.ring, ringNewest))
		for _, g := range l.next {
			newest = max(newest, load(g.ring, ringNewest))
			g.unuse()
		}
		l.drop(newest - l.last)
		l.advance(newest)
		l.gen.unuse()
		l.gen, l.next = nil, nil
	}
	store(l.page, pageLeft, 1)
	l.closed = true
	l.end()
	l.pageFile.Close()
	l.in.links = without(l.in.links, l)
	l.in.w.links = without(l.in.w.links, l)
	if l.held == 0 {
		l.unmapPage()
	}
	l.in.w.Wake()
}

func (l *inLink) unmapPage() {
	_ = unix.Munmap(l.page)
	l.page = nil
}

func without(links []*inLink, l *inLink) []*inLink {
	for i, other := range links {
		if other == l {
			return append(links[:i], links[i+1:]...)
		}
	}
	return links
}
