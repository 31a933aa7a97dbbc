package datapath

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestBrokenReader lets a reader fill its page with nonsense: the producer and
// the other reader must not notice.
func TestBrokenReader(t *testing.T) {
	r := newRig(t, RGBA)
	broken, good := r.w.NewInput(Ordered, RGBA), r.w.NewInput(Ordered, RGBA)
	r.link(broken)
	r.link(good)
	page := broken.links[0].page
	for _, nonsense := range []uint64{0, 1, 5, 1 << 40, 1<<64 - 1} {
		for at := 8; at < pageSize; at += 8 {
			store(page, at, nonsense)
		}
		for i := range 100 {
			n := r.publish([]byte{1}, r.picture(RGBA, 4096, byte(i)))
			b := r.read(good)
			if b.Sequence != n || b.Frame == nil || b.Frame.Pixels[100] != byte(i) {
				t.Fatalf("with %#x in a page, %d came as %d", nonsense, n, b.Sequence)
			}
			b.Frame.Release()
		}
	}
	for i := range broken.links[0].frames {
		store(page, pageCells+8*i, 0)
	}
	store(page, pageReceived, 1<<50)
	r.out.mu.Lock()
	l := r.out.variants[0].links[0]
	r.out.mu.Unlock()
	_ = unix.Shutdown(l.socket, unix.SHUT_RDWR)
	if end := <-r.gone; end.Sent != end.Received+end.Dropped {
		t.Errorf("the account of a broken reader: %+v", end)
	}
}

// forge makes a ring as a producer would, writable.
func forge(t *testing.T, slotSize int) (*generation, func(in *Input) (*inLink, *os.File)) {
	t.Helper()
	g, err := newGeneration("s/n/p", RGBA, 1, 1, slotSize, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.close)
	return g, func(in *Input) (*inLink, *os.File) {
		a, b := pair(t)
		page, err := in.AddLink(1, "forged", b)
		if err != nil {
			t.Fatal(err)
		}
		page.Close()
		start := uint64(0)
		if err := send(int(a.Fd()), message{Kind: kindGeneration, Start: &start}, int(g.ringFile.Fd()), int(g.poolFile.Fd())); err != nil {
			t.Fatal(err)
		}
		return in.links[0], a
	}
}

// TestBrokenProducer lets a producer write entries that make no sense: its
// link ends with the reason, and nothing else happens.
func TestBrokenProducer(t *testing.T) {
	for name, breakIt := range map[string]func(g *generation, entry int){
		"slot out of range":     func(g *generation, e int) { store(g.ring, e+8*entrySlot, uint64(g.slots)+1) },
		"slot far out of range": func(g *generation, e int) { store(g.ring, e+8*entrySlot, 1<<63) },
		"bag too long":          func(g *generation, e int) { store(g.ring, e+8*entryBagLength, MaxBag+1) },
		"bag beyond its slot": func(g *generation, e int) {
			store(g.ring, e+8*entryBagLength, 5000)
			store(g.ring, e+8*entryBagAt, uint64(g.slotSize)-4999)
		},
		"bag offset overflows": func(g *generation, e int) {
			store(g.ring, e+8*entryBagLength, 5000)
			store(g.ring, e+8*entryBagAt, 1<<64-4000)
		},
		"long bag without slot": func(g *generation, e int) {
			store(g.ring, e+8*entryBagLength, 5000)
			store(g.ring, e+8*entrySlot, 0)
		},
		"pixels beyond the slot":  func(g *generation, e int) { store(g.ring, e+8*entryPixels, uint64(g.slotSize)+1) },
		"five planes":             func(g *generation, e int) { store(g.ring, e+8*entryPlanes, 5) },
		"plane beyond the pixels": func(g *generation, e int) { store(g.ring, e+8*entryPlane, 1<<40) },
		"entry never finished":    func(g *generation, e int) { store(g.ring, e, 0) },
		"newest ran away":         func(g *generation, e int) { store(g.ring, ringNewest, 1<<63) },
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			w, err := NewWaiter()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			in := w.NewInput(Newest, RGBA)
			g, join := forge(t, 8192)
			surface := Packed(1, RGBA, 1024, 2, 4)
			g.write(1, []byte{1}, Now(), g.take(nil), 0, 8192, &surface)
			breakIt(g, g.entries+entrySize)
			_, socket := join(in)
			defer socket.Close()
			var b Bag
			for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
				if in.Read(&b) {
					t.Fatalf("read %+v", b)
				}
				if gone := in.TakeGone(); len(gone) == 1 {
					if gone[0].Why == "" {
						t.Error("the link ended without a reason")
					}
					return
				}
				w.Wait(100 * time.Millisecond)
			}
			t.Fatal("the link does not end")
		})
	}
}

// TestUnsealedMemoryIsRefused: a peer could shrink it under our map.
func TestUnsealedMemoryIsRefused(t *testing.T) {
	fd, err := unix.MemfdCreate("loose", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	loose := os.NewFile(uintptr(fd), "loose")
	defer loose.Close()
	if err := loose.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenRing(loose); err == nil || !strings.Contains(err.Error(), "shrinking") {
		t.Errorf("an unsealed ring: %v", err)
	}
	plain, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := OpenPage(plain); err == nil {
		t.Error("/dev/null is a link page")
	}
}

// TestHelloIsChecked says hello in ways that must be refused, with the reason.
func TestHelloIsChecked(t *testing.T) {
	r := newRig(t, RGBA)
	page, m, err := makeShared("page", pageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer page.Close()
	defer unix.Munmap(m)
	store(m, 0, pageMagic)
	blocking, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(blocking)
	good := int(page.Fd())
	for name, c := range map[string]struct {
		m   message
		fds []int
		why string
	}{
		"version":          {message{Version: 2, Profile: "newest"}, []int{good, r.w.wake}, "version 2"},
		"profile":          {message{Version: 1, Profile: "latest"}, []int{good, r.w.wake}, "latest"},
		"no descriptors":   {message{Version: 1, Profile: "newest"}, nil, "page and a wake-up"},
		"page swapped":     {message{Version: 1, Profile: "newest"}, []int{r.w.wake, good}, "memfd"},
		"blocking wake-up": {message{Version: 1, Profile: "newest"}, []int{good, blocking}, "non-blocking eventfd"},
	} {
		a, b := pair(t)
		r.nextID++
		if err := r.out.AddLink(r.nextID, a); err != nil {
			t.Fatal(err)
		}
		c.m.Kind = kindHello
		if err := send(int(b.Fd()), c.m, c.fds...); err != nil {
			t.Fatal(err)
		}
		if end := <-r.gone; !strings.Contains(end.Why, c.why) {
			t.Errorf("%s: ended because %q", name, end.Why)
		}
		answer, err := receive(int(b.Fd()))
		if err != nil || answer.Kind != kindRefused || !strings.Contains(answer.Why, c.why) {
			t.Errorf("%s: answered %+v, %v", name, answer, err)
		}
		b.Close()
	}
	if r.out.Readers() != 0 {
		t.Error("a refused reader counts")
	}
}
