// Package figures reads what the data path keeps in shared memory anyway: how
// many bags went over a link, how late, how many were dropped. Looking is a few
// loads from read-only maps; the processes of a stream do not notice.
package figures

import (
	"fmt"
	"os"
	"sync"
	"time"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/service/api"
)

// sampleAge is the least time that rates and latencies are of, once a link is as
// old. The most is the time between two looks, and at least twice as long.
const sampleAge = time.Second

// maxRings is how many formats of one output are looked at: readers ask for a
// handful, and maps are a resource of the whole runtime (vm.max_map_count).
const maxRings = 32

// idleAfter is how long a reader may leave bags unread before that is said.
const idleAfter = 5 * time.Second

// Output names an output port.
type Output struct{ Stream, Node, Port string }

// Book holds the maps of every link page and ring of a runtime.
type Book struct {
	mu      sync.Mutex
	pages   map[uint64]*page
	outputs map[Output]*output
}

type page struct {
	view  *datapath.PageView
	added time.Time
	samples[datapath.LinkFigures]
}

// output has a ring for each format that somebody reads, or has read.
type output struct {
	rings map[datapath.Format]*datapath.RingView
	// Of bags sent.
	samples[uint64]
}

// samples are what was seen at two earlier looks. The later one becomes the
// earlier when it is of age, so that a look right after another still speaks of a
// whole sampleAge, not of the moment between the two.
type samples[F any] struct{ earlier, later sample[F] }

type sample[F any] struct {
	at      time.Time
	figures F
}

func begin[F any](figures F) samples[F] {
	now := sample[F]{time.Now(), figures}
	return samples[F]{now, now}
}

// look returns the sample to compare now with, and takes a new one when that is
// due.
func (s *samples[F]) look(now time.Time, figures F) sample[F] {
	if now.Sub(s.later.at) >= sampleAge {
		s.earlier, s.later = s.later, sample[F]{now, figures}
	}
	return s.earlier
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{pages: map[uint64]*page{}, outputs: map[Output]*output{}}
}

// AddPage maps the page of a link, and closes f.
func (b *Book) AddPage(link uint64, f *os.File) error {
	defer f.Close()
	view, err := datapath.OpenPage(f)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropPage(link)
	b.pages[link] = &page{view, time.Now(), begin(datapath.LinkFigures{})}
	return nil
}

// DropPage forgets a link.
func (b *Book) DropPage(link uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropPage(link)
}

func (b *Book) dropPage(link uint64) {
	if p := b.pages[link]; p != nil {
		p.view.Close()
		delete(b.pages, link)
	}
}

// AddRing maps the newest ring of one format of an output, and closes f.
func (b *Book) AddRing(o Output, f *os.File) error {
	defer f.Close()
	view, err := datapath.OpenRing(f)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	out, first := b.outputs[o], view.Figures().Newest
	if out == nil {
		out = &output{map[datapath.Format]*datapath.RingView{}, begin(first)}
		b.outputs[o] = out
	} else if _, known := out.look(); first > known.Newest+1 && !known.Moved {
		out.samples = begin(first) // nobody read meanwhile: that was no rate
	}
	old := out.rings[view.Format()]
	if old == nil && len(out.rings) >= maxRings {
		view.Close()
		return fmt.Errorf("output %s has more than %d formats", o.Port, maxRings)
	}
	if old != nil {
		old.Close()
	}
	out.rings[view.Format()] = view
	return nil
}

// DropRings forgets the outputs of a node.
func (b *Book) DropRings(stream, node string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for o, out := range b.outputs {
		if o.Stream == stream && o.Node == node {
			for _, ring := range out.rings {
				ring.Close()
			}
			delete(b.outputs, o)
		}
	}
}

// look returns the figures of the rings that are written. Every bag goes into
// each of them in turn, so one that is two behind has lost its last reader, and is
// forgotten here as it was by its output.
func (o *output) look() (rings []datapath.RingFigures, newest datapath.RingFigures) {
	for _, ring := range o.rings {
		if f := ring.Figures(); f.Newest >= newest.Newest {
			newest = f
		}
	}
	for format, ring := range o.rings {
		f := ring.Figures()
		if f.Newest+1 < newest.Newest {
			ring.Close()
			delete(o.rings, format)
			continue
		}
		rings = append(rings, f)
	}
	return rings, newest
}

// Link fills in the figures of a wired link from an output.
func (b *Book) Link(id uint64, source Output, l *api.GraphLink) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.pages[id]
	if p == nil {
		return
	}
	var newest uint64
	if out := b.outputs[source]; out != nil {
		_, ring := out.look()
		newest = ring.Newest
	}
	now, f := time.Now(), p.view.Figures(newest, false)
	before := p.look(now, f)
	l.Sent, l.Received, l.Dropped = f.Sent, f.Received, f.Dropped
	l.Rate = rate(f.Received-before.figures.Received, now.Sub(before.at))
	latency := f.Latency.Since(before.figures.Latency)
	l.LatencyP50MS = milliseconds(latency.Quantile(0.50))
	l.LatencyP99MS = milliseconds(latency.Quantile(0.99))
	if unread := f.Sent - min(f.Received+f.Dropped, f.Sent); unread > 0 {
		idle := min(time.Duration(datapath.Now()-f.LastRead), now.Sub(p.added)).Truncate(time.Second)
		if idle >= idleAfter {
			l.Reason = fmt.Sprintf("nothing was read for %s: does its callback return?", idle)
		}
	}
}

// Output returns the figures of an output; ok is false when nobody has read it
// yet.
func (b *Book) Output(o Output) (figures api.GraphOutput, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.outputs[o]
	if out == nil {
		return figures, false
	}
	rings, newest := out.look()
	now := time.Now()
	before := out.samples.look(now, newest.Newest)
	figures = api.GraphOutput{Port: o.Port, Sent: newest.Newest, Rate: rate(newest.Newest-min(before.figures, newest.Newest), now.Sub(before.at))}
	for _, ring := range rings {
		figures.PoolBytes += int64(ring.Touched) * int64(ring.SlotSize)
	}
	if newest.Timestamp != 0 {
		figures.AgeMS = milliseconds(datapath.Now() - newest.Timestamp)
	}
	return figures, true
}

func rate(count uint64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return float64(count) / over.Seconds()
}

func milliseconds(ns int64) float64 { return float64(ns) / 1e6 }
