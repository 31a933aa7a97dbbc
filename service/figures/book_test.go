package figures

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/service/api"
)

// port is the output of these tests.
var port = Output{"watcher", "camera", "video"}

// flow is an output whose rings go into a book, and its readers.
type flow struct {
	t      *testing.T
	book   *Book
	out    *datapath.Output
	waiter *datapath.Waiter
	links  uint64
}

func newFlow(t *testing.T) *flow {
	f := &flow{t: t, book: NewBook()}
	var err error
	if f.waiter, err = datapath.NewWaiter(); err != nil {
		t.Fatal(err)
	}
	f.out, err = datapath.NewOutput(datapath.OutputOptions{
		Owner: "watcher/camera/video", Formats: []datapath.Format{datapath.RGBA},
		OnGeneration: func(_ datapath.Format, ring *os.File) {
			if err := f.book.AddRing(port, ring); err != nil {
				t.Error(err)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.waiter.Close(); f.out.Close(); f.book.DropRings("watcher", "camera") })
	return f
}

// join adds a reader; none of formats asks for bags alone.
func (f *flow) join(formats ...datapath.Format) (in *datapath.Input, link uint64) {
	f.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.links++
	in = f.waiter.NewInput(datapath.Ordered, formats...)
	readers := f.out.Readers()
	if err := f.out.AddLink(f.links, os.NewFile(uintptr(pair[0]), "out")); err != nil {
		f.t.Fatal(err)
	}
	page, err := in.AddLink(f.links, "reader", os.NewFile(uintptr(pair[1]), "in"))
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.book.AddPage(f.links, page); err != nil {
		f.t.Fatal(err)
	}
	f.await("the reader has joined", func() bool { return f.out.Readers() == readers+1 })
	return in, f.links
}

// rings is how many are mapped.
func (f *flow) rings() int {
	f.book.mu.Lock()
	defer f.book.mu.Unlock()
	if out := f.book.outputs[port]; out != nil {
		return len(out.rings)
	}
	return 0
}

func (f *flow) await(what string, true func() bool) {
	f.t.Helper()
	for limit := time.Now().Add(20 * time.Second); !true(); time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			f.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// send publishes n bags, and has each read at once.
func (f *flow) send(n int, readers ...*datapath.Input) {
	f.t.Helper()
	var b datapath.Bag
	for range n {
		if _, err := f.out.Publish([]byte{0x80}, datapath.Now()); err != nil {
			f.t.Fatal(err)
		}
		for _, in := range readers {
			f.await("the bag is read", func() bool { return in.Read(&b) })
		}
	}
}

// The figures of an output are those of the ring that is written, whichever was
// made last.
func TestReadersOfOneFormatLeave(t *testing.T) {
	f := newFlow(t)
	stays, link := f.join(datapath.RGBA)
	f.send(3, stays)
	visits, visit := f.join()
	f.send(2, stays, visits)
	f.await("both rings are in the book", func() bool { return f.rings() == 2 })
	visits.RemoveLink(visit)
	f.book.DropPage(visit)
	f.await("the reader has left", func() bool { return f.out.Readers() == 1 })
	f.send(100, stays)

	out, ok := f.book.Output(port)
	if !ok || out.Sent != 105 {
		t.Errorf("of an output that has sent 105: %+v", out)
	}
	var l api.GraphLink
	f.book.Link(link, port, &l)
	if l.Sent != 105 || l.Received != 105 || l.Dropped != 0 {
		t.Errorf("of a reader that has read all 105: %+v", l)
	}
	if rings := f.rings(); rings != 1 {
		t.Errorf("%d rings are mapped, of one that is written", rings)
	}
}

// A look right after another speaks of the same time, not of the moment between
// the two.
func TestRatesOfTwoLooks(t *testing.T) {
	begun := time.Now() // before the time that rates are of
	f := newFlow(t)
	in, link := f.join()
	f.send(1, in) // makes the ring: what is sent before the book has it is of no rate
	f.await("the ring is in the book", func() bool { return f.rings() == 1 })
	f.send(499, in)
	time.Sleep(sampleAge)
	look := func() (out, read float64) {
		o, _ := f.book.Output(port)
		var l api.GraphLink
		f.book.Link(link, port, &l)
		if l.LatencyP50MS <= 0 || l.LatencyP99MS < l.LatencyP50MS {
			t.Errorf("latencies of 500 bags: %+v", l)
		}
		return o.Rate, l.Rate
	}
	for range 3 {
		out, read := look()
		least := 500 / time.Since(begun).Seconds() // of a time that ends after the look
		for _, rate := range []float64{out, read} {
			if rate < least*0.99 || rate > 500/sampleAge.Seconds() {
				t.Errorf("500 bags within %s make a rate of %.1f", time.Since(begun), rate)
			}
		}
	}
}

// What was sent while nobody read is no rate of the time since somebody does.
func TestUnreadIsNoRate(t *testing.T) {
	f := newFlow(t)
	in, link := f.join()
	f.send(10, in)
	in.RemoveLink(link)
	f.await("the reader has left", func() bool { return f.out.Readers() == 0 })
	f.send(100_000)
	in, _ = f.join()
	f.send(10, in)
	time.Sleep(sampleAge)
	if out, _ := f.book.Output(port); out.Sent != 100_020 || out.Rate > 1000 {
		t.Errorf("10 bags were read since a reader came: %+v", out)
	}
}
