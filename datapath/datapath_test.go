package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("TATOLAB_DATAPATH_PEER"); role != "" {
		peerMain(role)
		return
	}
	goleak.VerifyTestMain(m)
}

func pair(t testing.TB) (producer, reader *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "producer"), os.NewFile(uintptr(fds[1]), "reader")
}

// rig is an output and inputs in one process.
type rig struct {
	t      testing.TB
	out    *Output
	w      *Waiter
	nextID uint64
	gone   chan End
	rings  chan *os.File
	n      chan int
}

func newRig(t testing.TB, formats ...Format) *rig {
	t.Helper()
	r := &rig{t: t, gone: make(chan End, 100), rings: make(chan *os.File, 1000), n: make(chan int, 1000)}
	var err error
	r.out, err = NewOutput(OutputOptions{
		Owner: "s/n/p", Formats: formats,
		OnReaders:    func(n int) { r.n <- n },
		OnGeneration: func(_ Format, ring *os.File) { r.rings <- ring },
		OnGone:       func(_ uint64, end End) { r.gone <- end },
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.w, err = NewWaiter(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.w.Close()
		r.out.Close()
		for {
			select {
			case f := <-r.rings:
				f.Close()
				continue
			default:
			}
			break
		}
	})
	return r
}

// link adds in as a reader and waits until the output counts it.
func (r *rig) link(in *Input) (uint64, *PageView) {
	r.t.Helper()
	a, b := pair(r.t)
	r.nextID++
	before := r.out.Readers()
	if err := r.out.AddLink(r.nextID, a); err != nil {
		r.t.Fatal(err)
	}
	page, err := in.AddLink(r.nextID, fmt.Sprintf("link%d", r.nextID), b)
	if err != nil {
		r.t.Fatal(err)
	}
	defer page.Close()
	view, err := OpenPage(page)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(view.Close)
	r.eventually("the link joins", func() bool { return r.out.Readers() == before+1 })
	return r.nextID, view
}

func (r *rig) eventually(what string, cond func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("in vain: %s", what)
		}
	}
}

func (r *rig) publish(bag []byte, slots ...Slot) uint64 {
	r.t.Helper()
	n, err := r.out.Publish(bag, Now(), slots...)
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// picture acquires a slot of size bytes filled with b.
func (r *rig) picture(f Format, size int, b byte) Slot {
	r.t.Helper()
	s, err := r.out.Acquire(f, size)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range s.Bytes {
		s.Bytes[i] = b
	}
	s.Surface = Packed(r.out.NewSurface(), f, size/4, 1, 4)
	return s
}

func (r *rig) read(in *Input) (b Bag) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if in.Read(&b) {
			return b
		}
		r.w.Wait(time.Second)
	}
	r.t.Fatal("no bag came")
	return b
}

func TestBagsAndPictures(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Ordered, RGBA)
	_, page := r.link(in)
	for _, size := range []int{0, 1, MaxInline, MaxInline + 1, 100_000} {
		bag := bytes.Repeat([]byte{7}, size)
		r.publish(bag)
		if got := r.read(in); !bytes.Equal(got.Data, bag) || got.Frame != nil || got.Link != "link1" {
			t.Errorf("bag of %d bytes came as %d bytes, frame %v, link %q", size, len(got.Data), got.Frame, got.Link)
		}
		r.publish(bag, r.picture(RGBA, 8000, 9))
		got := r.read(in)
		if !bytes.Equal(got.Data, bag) || got.Frame == nil || !bytes.Equal(got.Frame.Pixels, bytes.Repeat([]byte{9}, 8000)) {
			t.Errorf("bag of %d bytes with a picture came as %d bytes, frame %v", size, len(got.Data), got.Frame)
		}
		if s := got.Frame.Surface; s.Width != 2000 || s.Height != 1 || s.Format != RGBA || s.Colour != SRGB || s.Planes[0].Stride != 8000 {
			t.Errorf("the surface came as %+v", s)
		}
		got.Frame.Release()
	}
	f := page.Figures(r.out.Sequence(), false)
	if f.Sent != 10 || f.Received != 10 || f.Dropped != 0 || f.Held != 0 || f.Latency.Quantile(0.5) == 0 {
		t.Errorf("figures: %+v", f)
	}
}

func TestTooLargeIsRefusedAndCounted(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Newest, RGBA)
	r.link(in)
	r.publish([]byte{1})
	if _, err := r.out.Publish(make([]byte, MaxBag+1), 0); !errors.Is(err, ErrTooLarge) {
		t.Fatalf("a bag above the limit: %v", err)
	}
	ring := <-r.rings
	defer ring.Close()
	view, err := OpenRing(ring)
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if f := view.Figures(); f.Refused != 1 || f.Newest != 1 {
		t.Errorf("figures: %+v", f)
	}
	r.publish(bytes.Repeat([]byte{3}, MaxBag))
	if b := r.read(in); len(b.Data) != MaxBag || b.Sequence != 2 {
		t.Errorf("the largest bag came as %d bytes, sequence %d", len(b.Data), b.Sequence)
	}
}

func TestNewestReturnsEachBagOnceAndCountsWhatItSkips(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Newest, RGBA)
	_, page := r.link(in)
	for range 100 {
		r.publish([]byte{1})
	}
	var b Bag
	if !in.Read(&b) || b.Sequence != 100 {
		t.Fatalf("the newest of 100 bags is %d", b.Sequence)
	}
	if in.Read(&b) || in.HasData() {
		t.Error("a bag came twice")
	}
	if f := page.Figures(r.out.Sequence(), false); f.Sent != 100 || f.Received != 1 || f.Dropped != 99 {
		t.Errorf("figures: %+v", f)
	}
}

func TestOrderedWindow(t *testing.T) {
	// Large slots are owed for the window only, small ones for longer.
	for _, size := range []int{4096, 1 << 20} {
		r := newRig(t, RGBA)
		in := r.w.NewInput(Ordered, RGBA)
		_, page := r.link(in)
		for i := range 40 {
			r.publish([]byte{1}, r.picture(RGBA, size, byte(i+1)))
		}
		if f := page.Figures(40, false); f.Dropped != 40-Window || f.Received != 0 {
			t.Errorf("a reader that stands still: %+v", f)
		}
		var b Bag
		for want := uint64(40 - Window + 1); want <= 40; want++ {
			if !in.Read(&b) || b.Sequence != want || b.Frame.Pixels[0] != byte(want) {
				t.Fatalf("read %d, want %d", b.Sequence, want)
			}
			b.Frame.Release()
		}
		if f := page.Figures(40, false); f.Sent != 40 || f.Received != Window || f.Dropped != 40-Window {
			t.Errorf("figures: %+v", f)
		}
	}
}

func TestLateReaderStartsAtTheNewest(t *testing.T) {
	r := newRig(t, RGBA)
	first := r.w.NewInput(Newest, RGBA)
	r.link(first)
	for range 30 {
		r.publish([]byte{1})
	}
	late := r.w.NewInput(Ordered, RGBA)
	_, page := r.link(late)
	if b := r.read(late); b.Sequence != 30 {
		t.Errorf("a late reader began at %d", b.Sequence)
	}
	if f := page.Figures(r.out.Sequence(), false); f.Sent != 1 || f.Received != 1 || f.Dropped != 0 {
		t.Errorf("figures: %+v", f)
	}
}

func TestHeldFramesCostTheirReaderOnly(t *testing.T) {
	r := newRig(t, RGBA)
	greedy, other := r.w.NewInput(Ordered, RGBA), r.w.NewInput(Ordered, RGBA)
	_, page := r.link(greedy)
	_, otherPage := r.link(other)
	var held []*Frame
	var b Bag
	for i := range 100 {
		r.publish([]byte{1}, r.picture(RGBA, 4096, byte(i)))
		if greedy.Read(&b) {
			held = append(held, b.Frame)
		}
		if !other.Read(&b) {
			t.Fatalf("bag %d did not come", i)
		}
		b.Frame.Release()
	}
	for i, f := range held {
		if !bytes.Equal(f.Pixels, bytes.Repeat([]byte{byte(i)}, 4096)) {
			t.Errorf("held frame %d is another now", i)
		}
	}
	if f := page.Figures(100, false); len(held) != MaxHeld || f.Held != MaxHeld || f.Received != MaxHeld || f.Dropped != 100-MaxHeld {
		t.Errorf("%d held; figures: %+v", len(held), f)
	}
	if f := otherPage.Figures(100, false); f.Received != 100 {
		t.Errorf("the other reader: %+v", f)
	}
	for _, f := range held {
		f.Release()
	}
	r.publish([]byte{1})
	if !greedy.Read(&b) || b.Sequence != 101 {
		t.Error("a reader that let go gets nothing")
	}
}

func TestLinksTakeTurns(t *testing.T) {
	a, b := newRig(t), newRig(t)
	in := a.w.NewInput(Ordered)
	a.link(in)
	b.w.Close()
	b.w = a.w
	b.nextID = 1
	b.link(in)
	for range 10 {
		a.publish([]byte{1})
		b.publish([]byte{2})
	}
	var got Bag
	var order []byte
	for in.Read(&got) {
		order = append(order, got.Data[0])
	}
	if want := bytes.Repeat([]byte{1, 2}, 10); !bytes.Equal(order, want) {
		t.Errorf("read in the order %v", order)
	}
}

func TestFormats(t *testing.T) {
	yuyv, nv12, grey := FourCC("YUYV"), FourCC("NV12"), FourCC("GREY")
	r := newRig(t, yuyv, RGBA)
	bags := r.w.NewInput(Newest)
	wantsRGBA := r.w.NewInput(Newest, nv12, RGBA, yuyv)
	wantsOther := r.w.NewInput(Newest, grey)
	for _, in := range []*Input{bags, wantsRGBA, wantsOther} {
		r.link(in)
	}
	n := r.out.NewSurface()
	a, b := r.picture(RGBA, 400, 1), r.picture(yuyv, 200, 2)
	a.Surface.Number, b.Surface.Number = n, n
	r.publish([]byte{9}, a, b)
	if got := r.read(bags); got.Frame != nil {
		t.Error("a reader of bags got a picture")
	}
	for in, want := range map[*Input]Format{wantsRGBA: RGBA, wantsOther: yuyv} {
		got := r.read(in)
		if got.Frame == nil || got.Frame.Surface.Format != want || got.Frame.SurfaceID() != r.out.SurfaceID(n) {
			t.Errorf("want %s, got %+v", want, got.Frame)
			continue
		}
		got.Frame.Release()
	}
	if _, err := r.out.Acquire(nv12, 10); !errors.Is(err, ErrNotWanted) {
		t.Errorf("a format nobody reads: %v", err)
	}
	// Without slots everybody gets the bag.
	r.publish([]byte{8})
	for _, in := range []*Input{bags, wantsRGBA, wantsOther} {
		if got := r.read(in); got.Data[0] != 8 || got.Frame != nil {
			t.Errorf("a bag without picture came as %+v", got)
		}
	}
}

// TestDemotion keeps what a reader had mapped, as one with ill will would.
func TestDemotion(t *testing.T) {
	r := newRig(t, RGBA)
	demoted, kept := r.w.NewInput(Newest, RGBA), r.w.NewInput(Newest, RGBA)
	id, _ := r.link(demoted)
	_, page := r.link(kept)
	r.publish([]byte{1}, r.picture(RGBA, 4096, 1))
	r.read(demoted).Frame.Release()
	held := r.read(kept).Frame
	ring, err := mapShared(int(r.out.variants[0].gen.ringFile.Fd()), "ring")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(ring)
	pool, err := mapShared(int(r.out.variants[0].gen.poolFile.Fd()), "pool")
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(pool)

	drawing := r.picture(RGBA, 4096, 2) // while the output is demoted
	if err := r.out.RemoveLink(id, true); err != nil {
		t.Fatal(err)
	}
	was := bytes.Clone(pool)
	newest := load(ring, ringNewest)
	for i := range drawing.Bytes {
		drawing.Bytes[i] = 3
	}
	r.publish([]byte{2}, drawing)
	if got := r.read(kept); got.Frame == nil || !bytes.Equal(got.Frame.Pixels, bytes.Repeat([]byte{3}, 4096)) {
		t.Errorf("the picture drawn meanwhile came as %+v", got.Frame)
	} else {
		got.Frame.Release()
	}
	for i := range 50 {
		r.publish([]byte{byte(i)}, r.picture(RGBA, 4096, byte(100+i)))
	}
	if load(ring, ringNewest) != newest || !bytes.Equal(pool, was) {
		t.Error("the old memory shows something new")
	}
	if held.Pixels[0] != 1 || held.Pixels[4095] != 1 {
		t.Error("a frame held from the old memory changed")
	}
	held.Release()
	if got := r.read(kept); got.Data[0] != 49 {
		t.Errorf("the remaining reader got %v", got.Data)
	} else {
		got.Frame.Release()
	}
	if f := page.Figures(r.out.Sequence(), false); f.Sent != f.Received+f.Dropped {
		t.Errorf("figures: %+v", f)
	}
}

// TestNothingIsLostOverGenerations changes them between and under reads: an
// ordered reader misses nothing, a newest one has the newest bag even while
// the new ring is still empty.
func TestNothingIsLostOverGenerations(t *testing.T) {
	r := newRig(t, RGBA)
	ordered, newest := r.w.NewInput(Ordered, RGBA), r.w.NewInput(Newest, RGBA)
	r.link(ordered)
	r.link(newest)
	var b Bag
	next := uint64(1)
	for i := range 200 {
		r.publish([]byte{byte(i)})
		if i%3 == 0 {
			if err := r.out.RemoveLink(0, true); err != nil {
				t.Fatal(err)
			}
		}
		if i%5 == 0 {
			if !newest.Read(&b) || b.Sequence != uint64(i+1) {
				t.Fatalf("the newest after %d is %d", i+1, b.Sequence)
			}
		}
		if i%7 == 0 {
			for ordered.Read(&b) {
				if b.Sequence != next {
					t.Fatalf("%d came, not %d", b.Sequence, next)
				}
				next++
			}
		}
	}
}

func TestProducerGoneIsReportedOnceAndDrained(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Ordered, RGBA)
	id, page := r.link(in)
	for range 5 {
		r.publish([]byte{1}, r.picture(RGBA, 4096, 6))
	}
	r.out.Close()
	r.eventually("the end is seen", func() bool { r.w.Wait(time.Second); return in.links[0].eof })
	if gone := in.TakeGone(); len(gone) != 1 || gone[0].ID != id || gone[0].Why != "" {
		t.Errorf("gone: %v", gone)
	}
	if gone := in.TakeGone(); len(gone) != 0 {
		t.Errorf("gone again: %v", gone)
	}
	var b Bag
	var last *Frame
	for n := range 5 {
		if !in.Read(&b) {
			t.Fatalf("%d bags of 5 could be read", n)
		}
		last = b.Frame
	}
	if in.Read(&b) || len(in.Links(nil)) != 0 {
		t.Error("the link outlives its last bag")
	}
	if last.Pixels[0] != 6 {
		t.Error("a frame does not outlive its producer")
	}
	if f := page.Figures(5, true); f.Sent != 5 || f.Received != 5 || f.Dropped != 0 {
		t.Errorf("figures: %+v", f)
	}
}

// A link whose producer is gone before the reader joins ends like any other, and
// its socket does not stay.
func TestProducerGoneBeforeTheReaderJoins(t *testing.T) {
	r := newRig(t)
	producer, reader := pair(t)
	defer producer.Close()
	// To the reader it is gone, but it can still see the reader go.
	if err := unix.Shutdown(int(producer.Fd()), unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	in := r.w.NewInput(Newest)
	page, err := in.AddLink(1, "link", reader)
	if err != nil {
		t.Fatal(err)
	}
	page.Close()
	polls := []unix.PollFd{{Fd: int32(producer.Fd()), Events: unix.POLLIN}}
	if _, err := unix.Poll(polls, 0); err != nil || polls[0].Revents&unix.POLLHUP == 0 {
		t.Errorf("the reader keeps its socket: %#x, %v", polls[0].Revents, err)
	}
	if gone := in.TakeGone(); len(gone) != 1 || gone[0] != (Gone{ID: 1}) {
		t.Errorf("gone are %+v", gone)
	}
	if links := in.Links(nil); len(links) != 0 {
		t.Errorf("there still are %v", links)
	}
}

func TestReaderLeaves(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Ordered, RGBA)
	id, page := r.link(in)
	for range 20 {
		r.publish([]byte{1})
	}
	var b Bag
	in.Read(&b)
	in.RemoveLink(id)
	if end := <-r.gone; end != (End{Sent: 20, Received: 1, Dropped: 19}) {
		t.Errorf("the producer's account: %+v", end)
	}
	if f := page.Figures(100, false); f.Sent != 20 || f.Received != 1 || f.Dropped != 19 || !f.Left {
		t.Errorf("the page: %+v", f)
	}
	if n := load(page.m, pageDropped); n != 19 {
		t.Errorf("the reader counted %d dropped", n)
	}
	r.eventually("the output has no reader", func() bool { return r.out.Readers() == 0 })
	if _, err := r.out.Acquire(RGBA, 10); !errors.Is(err, ErrNotWanted) || len(r.out.variants) != 0 {
		t.Error("an output without readers keeps memory")
	}
}

// TestWaitIsWoken publishes in lock step: every bag must wake the reader.
func TestWaitIsWoken(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Newest, RGBA)
	other := r.w.NewInput(Newest, RGBA)
	r.link(in)
	r.link(other)
	taken := make(chan uint64)
	go func() {
		defer close(taken)
		var b Bag
		for {
			if in.Read(&b) {
				taken <- b.Sequence
				if b.Sequence == 5000 {
					return
				}
			} else {
				before := Now()
				r.w.Wait(5 * time.Second)
				if Now()-before > int64(4*time.Second) {
					return // the bag, if one is there, woke nobody
				}
			}
			other.Read(&b)
		}
	}()
	for range 5000 {
		n := r.publish([]byte{1})
		if got, ok := <-taken; !ok || got != n {
			t.Fatalf("bag %d woke nobody", n)
		}
	}
}

func TestWake(t *testing.T) {
	w, err := NewWaiter()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	done := make(chan bool)
	go func() { done <- w.Wait(-1) }()
	w.Wake()
	if <-done {
		t.Error("a wake is no news")
	}
	fds, err := unix.Eventfd(1, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds)
	extra := []unix.PollFd{{Fd: int32(fds), Events: unix.POLLIN}}
	w.Wait(-1, extra...)
	if extra[0].Revents&unix.POLLIN == 0 {
		t.Error("a descriptor waited for beside was not told")
	}
}

// TestNoAllocations holds that neither end allocates for a frame.
func TestNoAllocations(t *testing.T) {
	r := newRig(t, RGBA)
	for _, profile := range []Profile{Newest, Ordered} {
		r.link(r.w.NewInput(profile, RGBA))
	}
	inputs := []*Input{r.w.links[0].in, r.w.links[1].in}
	bag := bytes.Repeat([]byte{1}, 200)
	large := bytes.Repeat([]byte{1}, 5000)
	var b Bag
	frame := func() {
		slot, err := r.out.Acquire(RGBA, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		slot.Surface = Packed(1, RGBA, 512, 512, 4)
		if _, err := r.out.Publish(bag, Now(), slot); err != nil {
			t.Fatal(err)
		}
		if _, err := r.out.Publish(large, Now()); err != nil {
			t.Fatal(err)
		}
		r.w.Wait(time.Second)
		for _, in := range inputs {
			for in.Read(&b) {
				if b.Frame != nil {
					b.Frame.Release()
				}
			}
		}
	}
	for range 100 {
		frame()
	}
	if n := testing.AllocsPerRun(1000, frame); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

// TestClaimOfARecycledSlot lets the producer reuse a slot between a reader's
// look at the entry and its claim.
func TestClaimOfARecycledSlot(t *testing.T) {
	r := newRig(t, RGBA)
	in := r.w.NewInput(Newest, RGBA)
	r.link(in)
	n := r.publish([]byte{1}, r.picture(RGBA, 1<<20, 1))
	l := in.links[0]
	if l.unread() != 1 {
		t.Fatal("no bag")
	}
	var e [entryWords]uint64
	if ok, err := l.copyEntry(l.gen, n, &e); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if !l.claim(l.gen, 0, e[entrySlot], n) {
		t.Error("a slot that is there cannot be claimed")
	}
	store(l.page, pageCells, 0)
	for range 30 {
		r.publish([]byte{1}, r.picture(RGBA, 1<<20, 2))
	}
	if l.claim(l.gen, 0, e[entrySlot], n) {
		t.Error("a slot was claimed that holds another picture")
	}
	if load(l.page, pageCells) != 0 {
		t.Error("a claim that failed stays")
	}
}
