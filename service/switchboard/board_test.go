package switchboard

import (
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/graph"
)

// fakeHost is a node process that holds the ends it was handed.
type fakeHost struct {
	mu    sync.Mutex
	ends  map[uint64]string // id → direction
	board *Board
	deaf  bool // does not answer unlink
	dead  bool // was killed
}

func (h *fakeHost) Send(m *control.Message) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch m.Kind {
	case control.Link:
		if h.ends[m.ID] != "" {
			panic("an end handed out twice")
		}
		h.ends[m.ID] = m.Direction
		m.File.Close()
	case control.Unlink:
		delete(h.ends, m.ID)
		if !h.deaf {
			go h.board.Unlinked(m.ID, h)
		}
	}
}

func (h *fakeHost) Kill(string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = true
}

func (h *fakeHost) killed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.dead
}

func (h *fakeHost) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ends)
}

func newHost(b *Board) *fakeHost { return &fakeHost{ends: map[uint64]string{}, board: b} }

var (
	watcherOutput = graph.End{Node: "detector", Port: "motion"}
	watcher       = Stream{
		Links:   []graph.Link{{Source: graph.Source{Node: "camera", Port: "video"}, Target: graph.End{Node: "detector", Port: "video"}}},
		Exposed: []graph.Exposure{{Node: "detector", Port: "motion", Level: graph.Private}},
		Classes: map[string]graph.Class{
			"camera":   {Outputs: []string{"video"}},
			"detector": {Inputs: []graph.Input{{Port: "video", Profile: "newest"}}, Outputs: []string{"motion"}},
		},
	}
	reader = Stream{
		Links: []graph.Link{{Source: graph.Source{Stream: "watcher", Node: "detector", Port: "motion"},
			Target: graph.End{Node: "log", Port: "motion"}}},
		Classes: map[string]graph.Class{"log": {Inputs: []graph.Input{{Port: "motion", Profile: "ordered"}}}},
	}
)

func only(t *testing.T, b *Board, stream string) Status {
	t.Helper()
	links := b.Links(stream)
	if len(links) != 1 {
		t.Fatalf("%s has %d links", stream, len(links))
	}
	return links[0]
}

func TestAwaitingRemoteSaysWhatIsMissing(t *testing.T) {
	b := New(func(string, Status) {})
	log, detector := newHost(b), newHost(b)
	expect := func(state api.LinkState, reason string) {
		t.Helper()
		if s := only(t, b, "log"); s.State != state || !strings.Contains(s.Reason, reason) {
			t.Fatalf("%s (%s), want %s (…%s…)", s.State, s.Reason, state, reason)
		}
	}
	b.Set("log", reader)
	expect(api.LinkAwaitingRemote, "no stream watcher is running")
	b.Up("log", "log", log)
	expect(api.LinkAwaitingRemote, "no stream watcher is running")

	other := watcher
	other.Classes = map[string]graph.Class{"camera": {}}
	other.Links, other.Exposed = nil, nil
	b.Set("watcher", other)
	expect(api.LinkAwaitingRemote, "watcher has no node detector")
	other.Classes = map[string]graph.Class{"detector": {Outputs: []string{"x"}}}
	b.Set("watcher", other)
	expect(api.LinkAwaitingRemote, "watcher/detector has no output motion")
	other = watcher
	other.Exposed = nil
	b.Set("watcher", other)
	expect(api.LinkAwaitingRemote, "its level is internal")
	b.Set("watcher", watcher)
	expect(api.LinkAwaitingRemote, "watcher/detector is not running")
	b.Up("watcher", "detector", detector)
	expect(api.LinkWired, "")
	if log.ends[only(t, b, "log").ID] != control.In || detector.ends[only(t, b, "log").ID] != control.Out {
		t.Fatal("an end is missing, or at the wrong process")
	}
	b.Remove("watcher")
	expect(api.LinkAwaitingRemote, "no stream watcher is running")
	if log.count() != 0 {
		t.Fatal("the reader still holds its end")
	}
}

func TestExposeCutsBeforeItReturns(t *testing.T) {
	b := New(func(string, Status) {})
	log, detector := newHost(b), newHost(b)
	b.Set("watcher", watcher)
	b.Set("log", reader)
	b.Up("watcher", "detector", detector)
	b.Up("log", "log", log)
	if s := only(t, b, "log"); s.State != api.LinkWired {
		t.Fatalf("not wired: %s", s.Reason)
	}
	b.Expose("watcher", watcherOutput, graph.Internal)
	if detector.count() != 0 || log.count() != 0 {
		t.Fatal("Expose returned before the reader was cut off")
	}
	b.Expose("watcher", watcherOutput, graph.Public)
	if s := only(t, b, "log"); s.State != api.LinkWired {
		t.Fatalf("not wired again: %s", s.Reason)
	}
	// A reload that no longer exposes cuts as well.
	narrower := watcher
	narrower.Exposed = nil
	b.Set("watcher", narrower)()
	if log.count() != 0 {
		t.Fatal("the reload left the reader wired")
	}
}

// A stream tells the board from one goroutine what its processes say, and gives
// it its links from the same one: that must not be held up by the answer.
func TestSetDoesNotWaitForTheAnswer(t *testing.T) {
	b := New(func(string, Status) {})
	log, detector := newHost(b), newHost(b)
	detector.deaf = true
	b.Set("watcher", watcher)
	b.Set("log", reader)
	b.Up("watcher", "detector", detector)
	b.Up("log", "log", log)
	id := only(t, b, "log").ID
	if !b.Reader(id, log) || b.Reader(id, detector) || b.Reader(id+1, log) {
		t.Error("who reads the link is not known")
	}
	narrower := watcher
	narrower.Exposed = nil
	cutOff := b.Set("watcher", narrower)
	if b.cutting() != 1 {
		t.Fatal("the reader is not being cut off")
	}
	b.Unlinked(id, log) // the reader has left, too
	if b.cutting() != 1 {
		t.Fatal("what the reader says ends the cut")
	}
	b.Unlinked(id, detector)
	cutOff()
	if b.Reader(id, log) {
		t.Error("a link that was cut has a reader")
	}
	if detector.killed() {
		t.Fatal("a producer that cut its reader off was killed for not having done so")
	}
}

func TestADeadProducerDoesNotHoldExpose(t *testing.T) {
	b := New(func(string, Status) {})
	log, detector := newHost(b), newHost(b)
	detector.deaf = true
	b.Set("watcher", watcher)
	b.Set("log", reader)
	b.Up("watcher", "detector", detector)
	b.Up("log", "log", log)
	done := make(chan struct{})
	go func() { b.Expose("watcher", watcherOutput, graph.Internal); close(done) }()
	for b.cutting() == 0 {
		time.Sleep(time.Millisecond)
	}
	b.Down("watcher", "detector", detector)
	select {
	case <-done:
	case <-time.After(cutLimit - time.Second):
		t.Fatal("Expose waits for a process that is gone")
	}
}

// Of several producers that are to cut a reader off, only the one that does not is
// killed, in whatever order they are waited for.
func TestOnlyTheLateProducerIsKilled(t *testing.T) {
	b := New(func(string, Status) {})
	var cuts []cut
	var hosts []*fakeHost
	for i := range 12 {
		h, done := newHost(b), make(chan struct{})
		hosts = append(hosts, h)
		cuts = append(cuts, cut{source: h, done: done})
		if i > 0 {
			time.AfterFunc(100*time.Millisecond, func() { close(done) })
		}
	}
	await(cuts)
	for i, h := range hosts {
		if h.killed() != (i == 0) {
			t.Errorf("producer %d: killed %v", i, h.killed())
		}
	}
}

// A node that takes no links for now says why; once its process is gone that is
// the reason.
func TestRestEndsWithTheProcess(t *testing.T) {
	b := New(func(string, Status) {})
	camera, detector := newHost(b), newHost(b)
	b.Set("watcher", watcher)
	b.Up("watcher", "camera", camera)
	b.Up("watcher", "detector", detector)
	expect := func(reason string) {
		t.Helper()
		if s := only(t, b, "watcher"); s.State != api.LinkWaiting || s.Reason != reason {
			t.Errorf("%s: %s, want %s", s.State, s.Reason, reason)
		}
	}
	b.Rest("watcher", "detector", detector, "detector waits: for a display")
	expect("detector waits: for a display")
	if camera.count()+detector.count() != 0 {
		t.Error("an end is still held")
	}
	b.Down("watcher", "detector", newHost(b)) // a process before it
	expect("detector waits: for a display")
	b.Down("watcher", "detector", detector)
	expect("detector is not running")
}

func (b *Board) cutting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.cuts)
}

func TestALostLinkIsMadeAgain(t *testing.T) {
	b := New(func(string, Status) {})
	camera, detector := newHost(b), newHost(b)
	b.Set("watcher", watcher)
	b.Up("watcher", "camera", camera)
	b.Up("watcher", "detector", detector)
	first := only(t, b, "watcher").ID
	b.Lost(first, newHost(b))
	if s := only(t, b, "watcher"); s.ID != first {
		t.Fatal("a process that has no end of the link cut it")
	}
	b.Lost(first, detector)
	if s := only(t, b, "watcher"); s.State != api.LinkWaiting {
		t.Fatalf("lost: %s", s.State)
	}
	for deadline := time.Now().Add(20 * time.Second); only(t, b, "watcher").State != api.LinkWired; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never wired again")
		}
	}
	again := only(t, b, "watcher").ID
	if again == first {
		t.Fatal("an id was used twice")
	}
	// One that breaks as soon as it is made is left alone for longer; new
	// processes are not made to wait for that.
	lost := time.Now()
	b.Lost(again, camera)
	time.Sleep(rewireDelay + rewireDelay/2)
	if s := only(t, b, "watcher"); s.State != api.LinkWaiting && time.Since(lost) < 2*rewireDelay {
		t.Errorf("a link that does not last: %s", s.State)
	}
	b.Down("watcher", "camera", camera)
	b.Up("watcher", "camera", newHost(b))
	if s := only(t, b, "watcher"); s.State != api.LinkWired {
		t.Errorf("a new camera waits for the old one's link: %s, %s", s.State, s.Reason)
	}
}

// Whatever happens in whatever order, a link is wired exactly when both
// processes work and the output may be read, and nobody holds an end of a
// link that is not wired.
func TestRandomOrders(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	b := New(func(string, Status) {})
	names := []string{"a", "b", "c"}
	loaded, up, exposed := map[string]bool{}, map[string]*fakeHost{}, map[string]bool{}
	var hosts []*fakeHost
	for range 2000 {
		n := names[r.IntN(3)]
		switch r.IntN(5) {
		case 0:
			var links []graph.Link
			for _, other := range names {
				if other != n {
					links = append(links, graph.Link{Source: graph.Source{Stream: other, Node: "n", Port: "out"}, Target: graph.End{Node: "n", Port: "in"}})
				}
			}
			s := Stream{Links: links, Classes: map[string]graph.Class{"n": {Inputs: []graph.Input{{Port: "in", Profile: "newest"}}, Outputs: []string{"out"}}}}
			exposed[n] = r.IntN(2) == 0
			if exposed[n] {
				s.Exposed = []graph.Exposure{{Node: "n", Port: "out", Level: graph.Private}}
			}
			b.Set(n, s)
			loaded[n] = true
		case 1:
			b.Remove(n)
			loaded[n], exposed[n] = false, false
			delete(up, n)
		case 2:
			if loaded[n] {
				if old := up[n]; old != nil {
					b.Down(n, "n", old)
				}
				up[n] = newHost(b)
				hosts = append(hosts, up[n])
				b.Up(n, "n", up[n])
			}
		case 3:
			if h := up[n]; h != nil {
				b.Down(n, "n", h)
				delete(up, n)
			}
		case 4:
			if loaded[n] {
				exposed[n] = !exposed[n]
				level := graph.Internal
				if exposed[n] {
					level = graph.Private
				}
				b.Expose(n, graph.End{Node: "n", Port: "out"}, level)
			}
		}
		ends := 0
		for _, n := range names {
			for _, s := range b.Links(n) {
				want := up[n] != nil && up[s.Link.Source.Stream] != nil && exposed[s.Link.Source.Stream]
				if (s.State == api.LinkWired) != want || want != (s.ID != 0) {
					t.Fatalf("%s of %s is %s (%s)", s.Link.Source, n, s.State, s.Reason)
				}
				if want {
					ends += 2
				}
			}
		}
		held := 0
		for _, h := range hosts {
			held += h.count()
		}
		if held != ends {
			t.Fatalf("%d ends are held, %d are wired", held, ends)
		}
	}
}
