package datapath

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// RingView is a ring mapped for its figures.
type RingView struct {
	m     []byte
	shape ringShape
}

// OpenRing maps the ring in f, which stays the caller's to close.
func OpenRing(f *os.File) (*RingView, error) {
	m, err := mapShared(int(f.Fd()), "ring")
	if err != nil {
		return nil, err
	}
	shape, err := readShape(m)
	if err != nil {
		_ = unix.Munmap(m)
		return nil, err
	}
	return &RingView{m, shape}, nil
}

// RingFigures are an output's, as of one look.
type RingFigures struct {
	Newest    uint64 // bags published by the output since it began
	Timestamp int64  // of the newest bag
	Refused   uint64 // bags larger than MaxBag
	Moved     bool   // a newer generation has taken over
	SlotSize  int    // bytes
	Touched   int    // slots that take memory
}

// Figures looks at the ring.
func (r *RingView) Figures() RingFigures {
	return RingFigures{
		Newest:    load(r.m, ringNewest),
		Timestamp: int64(load(r.m, ringTimestamp)),
		Refused:   load(r.m, ringRefused),
		Moved:     load(r.m, ringMoved) != 0,
		SlotSize:  r.shape.slotSize,
		Touched:   int(min(load(r.m, ringTouched), uint64(r.shape.slots))),
	}
}

// Format is the pixel format of the ring, 0 for bags alone.
func (r *RingView) Format() Format { return r.shape.format }

// Close unmaps the ring.
func (r *RingView) Close() { _ = unix.Munmap(r.m) }

// PageView is a link's page mapped for its figures.
type PageView struct{ m []byte }

// OpenPage maps the link page in f, which stays the caller's to close.
func OpenPage(f *os.File) (*PageView, error) {
	m, err := mapShared(int(f.Fd()), "link page")
	if err != nil {
		return nil, err
	}
	if len(m) != pageSize || load(m, 0) != pageMagic {
		_ = unix.Munmap(m)
		return nil, fmt.Errorf("this is no link page of data path version %d", Version)
	}
	return &PageView{m}, nil
}

// Close unmaps the page.
func (p *PageView) Close() { _ = unix.Munmap(p.m) }

// LinkFigures are a link's, as of one look.
type LinkFigures struct {
	Sent, Received, Dropped uint64
	Held                    int       // frames the reader holds
	Timestamp               int64     // of the bag read last, 0 before the first
	LastRead                int64     // when that was
	Left                    bool      // the reader has left of its own will
	Latency                 Histogram // from a bag's timestamp to its read
}

// Figures looks at the page. newest is the Newest of the output's ring, or
// what it was when the link ended. Dropped counts what an ordered reader that
// stands still has lost already; once the link has ended (ended, or the
// reader left), all that was not received.
func (p *PageView) Figures(newest uint64, ended bool) LinkFigures {
	f := LinkFigures{
		Received:  load(p.m, pageReceived),
		Dropped:   load(p.m, pageDropped),
		Timestamp: int64(load(p.m, pageTimestamp)),
		LastRead:  int64(load(p.m, pageLastRead)),
		Left:      load(p.m, pageLeft) != 0,
	}
	for i := range MaxHeld {
		if load(p.m, pageCells+8*i) != 0 {
			f.Held++
		}
	}
	for i := range f.Latency {
		f.Latency[i] = load(p.m, pageHistogram+8*i)
	}
	start, cursor := load(p.m, pageStart), load(p.m, pageCursor)
	if f.Left {
		newest = cursor
	}
	newest = max(newest, cursor)
	if cursor < start {
		return f // a broken reader's
	}
	f.Sent = newest - start
	switch {
	case ended || f.Left:
		f.Dropped = f.Sent - min(f.Received, f.Sent)
	default:
		within := uint64(1)
		if load(p.m, pageProfile) == uint64(Ordered) {
			within = Window
		}
		if unread := newest - cursor; unread > within {
			f.Dropped += unread - within
		}
	}
	return f
}

// Histogram counts latencies; docs/data-path.md has its scale.
type Histogram [histogramSize]uint64

// Since is what was counted since an earlier look.
func (h Histogram) Since(earlier Histogram) Histogram {
	for i := range h {
		h[i] -= min(h[i], earlier[i])
	}
	return h
}

// Quantile is the latency in nanoseconds below which the share q of the counts
// lies, 0 without any. It is the upper end of its counter: at most 25 % high.
func (h *Histogram) Quantile(q float64) int64 {
	var total uint64
	for _, n := range h {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := uint64(q * float64(total))
	var seen uint64
	for i, n := range h {
		if seen += n; seen > rank || seen == total {
			return upperEnd(i)
		}
	}
	return upperEnd(histogramSize - 1)
}

// upperEnd is the latency in nanoseconds at which counter i ends.
func upperEnd(i int) int64 {
	i++
	if i < 4 {
		return int64(i) << 10
	}
	e := i/4 + 1
	return int64(4+i%4) << (e - 2) << 10
}
