// Package switchboard joins outputs to the inputs that want to read them,
// within a stream and across streams. It makes the socket pair of a link,
// hands an end to each process and steps aside; docs/data-path.md is what the
// two then say to each other.
//
// A link is wanted by the stream that owns its input. It is wired as soon as
// both processes work and the output may be read, and again whenever that
// becomes true anew: the order in which streams start does not matter.
package switchboard

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/graph"
)

const (
	// rewireDelay is how long a link that was lost although both processes
	// live stays unwired: long enough for a death to be seen first. It doubles up
	// to lastRewireDelay for one that does not last as long as that.
	rewireDelay     = 200 * time.Millisecond
	lastRewireDelay = 5 * time.Second
	// cutLimit is how long a producer may take to cut a reader off.
	cutLimit = 5 * time.Second
	// goneLimit is how long one that was killed for it may take to be gone. A
	// process that takes longer is stuck in the kernel, and writes nothing.
	goneLimit = 2 * time.Second
)

// Host is a node process that takes ends of links. Send must neither block nor
// call back into the Board; the message's file becomes the host's.
type Host interface {
	Send(*control.Message)
	// Kill ends the process; why is for its log.
	Kill(why string)
}

// Stream is what a stream wants of the board.
type Stream struct {
	Links   []graph.Link
	Exposed []graph.Exposure
	Classes map[string]graph.Class
}

// Status is the state of one link.
type Status struct {
	Link    graph.Link
	Profile string
	State   api.LinkState
	Reason  string
	// Hidden tells that all that is missing is the exposure.
	Hidden bool
	// ID of the wire, 0 unless wired.
	ID uint64
}

// Board is the switchboard of a runtime.
type Board struct {
	// changed is told of every change of a link's state, with mu held: it
	// must neither block nor call back.
	changed func(stream string, s Status)

	mu      sync.Mutex
	streams map[string]*stream
	wires   map[uint64]*wire
	cuts    map[uint64]cut
	last    uint64
}

type stream struct {
	links   []*link
	exposed map[graph.End]graph.Level
	classes map[string]graph.Class
	hosts   map[string]Host
	resting map[string]rest // nodes that take no links
}

// rest is a process that works and takes no links for now, and why.
type rest struct {
	host Host
	why  string
}

type link struct {
	graph.Link
	owner   string
	profile string
	state   api.LinkState
	reason  string
	hidden  bool
	wire    *wire
	// Of a link that was lost, as long as both its processes live.
	notUntil time.Time
	delay    time.Duration
}

type wire struct {
	id             uint64
	link           *link
	source, target Host
	since          time.Time
	crosses        bool // from one stream into another
}

// New returns a board without streams.
func New(changed func(stream string, s Status)) *Board {
	return &Board{
		changed: changed,
		streams: map[string]*stream{},
		wires:   map[uint64]*wire{},
		cuts:    map[uint64]cut{},
	}
}

// Set gives a stream its links and exposures, or replaces them; links that
// stay the same stay wired. Names with a "#" are readers that are no streams
// (`tatolab read`): they have links but nothing to expose.
//
// Readers that no longer may read are told so; cutOff returns when they are cut
// off, as Expose does. It waits for what Unlinked and Down are told, so who
// tells them must not be the one who waits.
func (b *Board) Set(name string, want Stream) (cutOff func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name]
	if s == nil {
		s = &stream{hosts: map[string]Host{}, resting: map[string]rest{}}
		b.streams[name] = s
	}
	s.classes = want.Classes
	s.exposed = map[graph.End]graph.Level{}
	for _, e := range want.Exposed {
		s.exposed[graph.End{Node: e.Node, Port: e.Port}] = e.Level
	}
	old := map[graph.Link]*link{}
	for _, l := range s.links {
		old[l.Link] = l
	}
	s.links = nil
	for _, l := range want.Links {
		profile := profileOf(want.Classes[l.Target.Node], l.Target.Port)
		if have := old[l]; have != nil && have.profile == profile {
			delete(old, l)
			s.links = append(s.links, have)
			continue
		}
		s.links = append(s.links, &link{Link: l, owner: name, profile: profile})
	}
	for _, l := range old {
		b.unwire(l)
	}
	cuts := b.cutForbidden(name)
	b.settle()
	return func() { await(cuts) }
}

func profileOf(class graph.Class, port string) string {
	for _, in := range class.Inputs {
		if in.Port == port {
			return in.Profile
		}
	}
	return "newest"
}

// Remove forgets a stream: its links are cut, links from it wait.
func (b *Board) Remove(name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name]
	if s == nil {
		return
	}
	delete(b.streams, name)
	for _, l := range s.links {
		b.unwire(l)
	}
	for _, w := range b.wires {
		if w.link.Source.Stream == name {
			b.unwire(w.link)
		}
	}
	b.settle()
}

// Up says that a node's process works: links may be handed to it.
func (b *Board) Up(name, node string, h Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.streams[name]; s != nil {
		s.hosts[node] = h
		delete(s.resting, node)
		b.settle()
	}
}

// Rest says that a node that works has no use for its links for now: whoever
// makes pictures for it alone need not. It may be said again, for another
// reason; Up ends it.
func (b *Board) Rest(name, node string, h Host, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.streams[name]; s != nil && (s.hosts[node] == h || s.resting[node].host == h) {
		b.unwireAll(s, node, h)
		s.resting[node] = rest{h, why}
		b.settle()
	}
}

// Down says that a node's process is ending or gone. It may be said twice.
func (b *Board) Down(name, node string, h Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, c := range b.cuts {
		if c.source == h {
			delete(b.cuts, id)
			close(c.done)
		}
	}
	s := b.streams[name]
	switch {
	case s == nil:
		return
	case s.hosts[node] == h:
		b.unwireAll(s, node, h)
	case s.resting[node].host == h:
		delete(s.resting, node)
	default:
		return
	}
	b.settle()
}

func (b *Board) unwireAll(s *stream, node string, h Host) {
	delete(s.hosts, node)
	for _, w := range b.wires {
		if w.source == h || w.target == h {
			b.unwire(w.link)
		}
	}
}

// Lost says that a process saw the other end of a link go. While both live
// the link is wired again after a moment.
func (b *Board) Lost(id uint64, h Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.wires[id]
	if w == nil || w.source != h && w.target != h {
		return
	}
	l := w.link
	if time.Since(w.since) >= lastRewireDelay {
		l.delay = 0
	}
	l.delay = min(max(rewireDelay, 2*l.delay), lastRewireDelay)
	l.notUntil = time.Now().Add(l.delay)
	b.unwire(l)
	b.settle()
	time.AfterFunc(l.delay, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.settle()
	})
}

// Unlinked says that a process has left a link, as it was told to. What a cut
// waits for is the producer: that the reader has left proves nothing.
func (b *Board) Unlinked(id uint64, h Host) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c, ok := b.cuts[id]; ok && c.source == h {
		delete(b.cuts, id)
		close(c.done)
	}
}

// Expose sets the level of an output. When it returns, no reader that may no
// longer read gets anything new: the producer has cut it off and moved the
// others to fresh memory, or is gone.
func (b *Board) Expose(name string, end graph.End, level graph.Level) {
	b.mu.Lock()
	s := b.streams[name]
	if s == nil {
		b.mu.Unlock()
		return
	}
	s.exposed[end] = level
	cuts := b.cutForbidden(name)
	b.settle()
	b.mu.Unlock()
	await(cuts)
}

// cut is a reader that a producer was told to cut off.
type cut struct {
	source Host
	done   chan struct{} // closed when it has, or is gone
}

// cutForbidden cuts the wires that lead out of a stream and no longer may.
func (b *Board) cutForbidden(name string) []cut {
	var cuts []cut
	for _, w := range b.wires {
		src := w.link.Source
		if !w.crosses || src.Stream != name || b.streams[name].level(graph.End{Node: src.Node, Port: src.Port}) != graph.Internal {
			continue
		}
		c := cut{source: w.source, done: make(chan struct{})}
		b.cuts[w.id] = c
		cuts = append(cuts, c)
		b.drop(w)
		w.source.Send(&control.Message{Kind: control.Unlink, ID: w.id, Retire: true})
		w.target.Send(&control.Message{Kind: control.Unlink, ID: w.id})
	}
	return cuts
}

// await waits until the producers have cut, and ends those that do not.
func await(cuts []cut) {
	limit, cancel := context.WithTimeout(context.Background(), cutLimit)
	defer cancel()
	var late []cut
	for _, c := range cuts {
		select {
		case <-c.done:
			continue
		case <-limit.Done():
		}
		select {
		case <-c.done: // while another one was waited for
		default:
			c.source.Kill(fmt.Sprintf("it did not cut a reader off within %s", cutLimit))
			late = append(late, c)
		}
	}
	if len(late) == 0 {
		return
	}
	gone, cancel := context.WithTimeout(context.Background(), goneLimit)
	defer cancel()
	for _, c := range late {
		select {
		case <-c.done:
		case <-gone.Done():
		}
	}
}

// settle wires what can be wired and says of the rest what it waits for.
func (b *Board) settle() {
	now := time.Now()
	for name, s := range b.streams {
		for _, l := range s.links {
			if l.wire != nil {
				continue
			}
			source, state, reason := b.source(name, l)
			target := s.hosts[l.Target.Node]
			switch {
			case source == nil:
				l.notUntil, l.delay = time.Time{}, 0
			case target == nil:
				l.notUntil, l.delay = time.Time{}, 0
				state, reason = api.LinkWaiting, cmp.Or(s.resting[l.Target.Node].why, l.Target.Node+" is not running")
			case now.Before(l.notUntil):
				state, reason = api.LinkWaiting, "the link broke and is made again"
			default:
				if err := b.connect(l, source, target); err != nil {
					state, reason = api.LinkWaiting, err.Error()
				} else {
					state, reason = api.LinkWired, ""
				}
			}
			b.enter(l, state, reason)
		}
	}
}

func (b *Board) enter(l *link, state api.LinkState, reason string) {
	if l.state == state && l.reason == reason {
		return
	}
	l.state, l.reason = state, reason
	b.changed(l.owner, l.status())
}

func (l *link) status() Status {
	s := Status{Link: l.Link, Profile: l.profile, State: l.state, Reason: l.reason, Hidden: l.hidden}
	if l.wire != nil {
		s.ID = l.wire.id
	}
	return s
}

// source finds the process behind a link's source, or says why there is none
// that may be read.
func (b *Board) source(owner string, l *link) (Host, api.LinkState, string) {
	src := l.Source
	l.hidden = false
	if src.Machine != "" {
		return nil, api.LinkAwaitingRemote, fmt.Sprintf("needs %s: reading from other machines is not built yet", src)
	}
	if !src.Remote() || src.Stream == owner {
		if host := b.streams[owner].hosts[src.Node]; host != nil {
			return host, "", ""
		}
		return nil, api.LinkWaiting, src.Node + " is not running"
	}
	wait := func(format string, args ...any) (Host, api.LinkState, string) {
		return nil, api.LinkAwaitingRemote, fmt.Sprintf("needs %s: ", src) + fmt.Sprintf(format, args...)
	}
	s := b.streams[src.Stream]
	if s == nil {
		return wait("no stream %s is running", src.Stream)
	}
	class, ok := s.classes[src.Node]
	if !ok {
		return wait("%s has no node %s", src.Stream, src.Node)
	}
	if !slices.Contains(class.Outputs, src.Port) {
		return wait("%s/%s has no output %s", src.Stream, src.Node, src.Port)
	}
	if level := s.level(graph.End{Node: src.Node, Port: src.Port}); level == graph.Internal {
		l.hidden = true
		return wait("it is not exposed, its level is internal")
	}
	if host := s.hosts[src.Node]; host != nil {
		return host, "", ""
	}
	return wait("%s/%s is not running", src.Stream, src.Node)
}

func (s *stream) level(end graph.End) graph.Level {
	if level, ok := s.exposed[end]; ok {
		return level
	}
	return graph.Internal
}

// connect makes the pair of a link and hands its ends out.
func (b *Board) connect(l *link, source, target Host) error {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot make a link: %w", err)
	}
	out, in := os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link")
	b.last++
	w := &wire{id: b.last, link: l, source: source, target: target, since: time.Now(), crosses: l.Source.Remote() && l.Source.Stream != l.owner}
	// A process that is on its way out drops its end, and the other sees that.
	target.Send(&control.Message{Kind: control.Link, ID: w.id, Port: l.Target.Port, Name: l.Source.String(),
		Direction: control.In, Profile: l.profile, Local: !w.crosses, File: in})
	source.Send(&control.Message{Kind: control.Link, ID: w.id, Port: l.Source.Port, Name: l.owner + "/" + l.Target.String(),
		Direction: control.Out, File: out})
	l.wire = w
	b.wires[w.id] = w
	return nil
}

// unwire cuts a link, if it is wired, and tells both ends.
func (b *Board) unwire(l *link) {
	w := l.wire
	if w == nil {
		return
	}
	b.drop(w)
	w.source.Send(&control.Message{Kind: control.Unlink, ID: w.id})
	w.target.Send(&control.Message{Kind: control.Unlink, ID: w.id})
}

func (b *Board) drop(w *wire) {
	delete(b.wires, w.id)
	w.link.wire = nil
	// The state is entered anew by settle, whatever it will be.
	w.link.state = ""
}

// Links returns the links a stream owns, in the order of its graph.
func (b *Board) Links(name string) []Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.streams[name]
	if s == nil {
		return nil
	}
	status := make([]Status, len(s.links))
	for i, l := range s.links {
		status[i] = l.status()
	}
	return status
}

// Reader tells whether h is the reading end of a link.
func (b *Board) Reader(id uint64, h Host) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.wires[id]
	return w != nil && w.target == h
}

// Reads tells whether anybody reads an output of a stream.
func (b *Board) Reads(name string, end graph.End) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.wires {
		src := w.link.Source
		if src.Node == end.Node && src.Port == end.Port && cmp.Or(src.Stream, w.link.owner) == name {
			return true
		}
	}
	return false
}

// Exposed returns the exposures of a stream that are wider than internal.
func (b *Board) Exposed(name string) []graph.Exposure {
	b.mu.Lock()
	defer b.mu.Unlock()
	exposed := []graph.Exposure{}
	if s := b.streams[name]; s != nil {
		for end, level := range s.exposed {
			if level != graph.Internal && slices.Contains(s.classes[end.Node].Outputs, end.Port) {
				exposed = append(exposed, graph.Exposure{Node: end.Node, Port: end.Port, Level: level})
			}
		}
	}
	slices.SortFunc(exposed, func(a, b graph.Exposure) int {
		if a.Node != b.Node {
			return strings.Compare(a.Node, b.Node)
		}
		return strings.Compare(a.Port, b.Port)
	})
	return exposed
}
