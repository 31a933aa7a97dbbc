// Package reconcile decides what happens to the node processes of one stream.
//
// A Planner is told which nodes are wanted and what becomes of the processes,
// and answers each time with the actions to take. It has no clock, starts no
// process and no goroutine: time comes in with every call, so every race is a
// sequence of calls that a test can play. Loading a stream, reloading it,
// stopping it and retrying a dead node are the same thing here: the difference
// between what is wanted and what there is.
package reconcile

import (
	"cmp"
	"slices"
	"time"
)

// How long things may take.
const (
	// LoadLimit bounds the import of a node's code. Compiling the stream
	// has imported the same code before, so this is generous.
	LoadLimit = 2 * time.Minute
	// CallbackLimit is how long after `stop` a node may go on before it says
	// `stopping`: its own interrupt comes after 1 s.
	CallbackLimit = 2 * time.Second
	// TeardownLimit is how long after `stopping` the process may live.
	TeardownLimit = 5 * time.Second

	// ReaderLimit is how long a node that has loaded waits for those that read
	// every bag of it and still load, so that they get the first.
	ReaderLimit = 2 * time.Second

	// FirstBackoff doubles with each death up to LastBackoff, and starts
	// anew once a process has run for Stable.
	FirstBackoff = 200 * time.Millisecond
	LastBackoff  = 30 * time.Second
	Stable       = 10 * time.Second
)

// Instance identifies one process of a node. It is never used twice by one
// Planner.
type Instance uint64

// Spec is what matters of a wanted node: whether it is still the same one.
type Spec struct {
	// Type is the node's class. A process of a type is only started when no
	// process of that type is on its way out: a renamed camera node must
	// not open the device before the old one has closed it.
	Type string
	// Identity changes when the node's code or configuration does.
	Identity string
}

// Action is something the executor has to do. Exactly one kind is set.
type Action struct {
	Do       Do
	Node     string
	Instance Instance
	// Why says, for Kill, what the process failed to do.
	Why string
}

// Do is a kind of action.
type Do int

// The kinds of action.
const (
	// Spawn starts the process of an instance; it loads its code and waits.
	Spawn Do = iota
	// Start lets it work.
	Start
	// Stop asks it to end.
	Stop
	// Kill ends it.
	Kill
)

func (d Do) String() string { return [...]string{"spawn", "start", "stop", "kill"}[d] }

// Phase is how far a process has come.
type Phase int

// The phases, in the order in which a process goes through them.
const (
	Loading  Phase = iota // spawned, imports
	Loaded                // waits for Start
	Starting              // setup runs
	Running               // setup has returned
	Stopping              // Stop was sent
	Ending                // said stopping: teardown runs
	Killed                // Kill was sent
)

type process struct {
	instance Instance
	spec     Spec
	phase    Phase
	since    time.Time // of the phase
	ready    time.Time // when it became Running
	asked    bool      // Stop or Kill was sent: its end is no death
	until    time.Time // it waits for its readers, at most so long
}

// deadline is when the process has to be killed, and why; zero for never.
func (p *process) deadline() (time.Time, string) {
	switch p.phase {
	case Loading:
		return p.since.Add(LoadLimit), "did not finish importing"
	case Stopping:
		return p.since.Add(CallbackLimit), "did not return from its callback"
	case Ending:
		return p.since.Add(TeardownLimit), "did not finish its teardown"
	}
	return time.Time{}, ""
}

func (p *process) enter(phase Phase, now time.Time) {
	p.phase, p.since = phase, now
}

// leaving tells that the process has been told to end.
func (p *process) leaving() bool { return p.phase >= Stopping }

// node is a name: what is wanted under it and the processes there are.
type node struct {
	name string
	want *Spec
	// current is the process that owns what the node owns. next, if any,
	// loads code to take its place.
	current, next *process
	deaths        int
	retryAt       time.Time // no process is spawned before
	reason        string    // of the last death
	restarts      int
	ended         *Spec // this version ended of its own will: not started again but by Revive
}

// Planner holds the nodes of one stream.
type Planner struct {
	nodes   map[string]*node
	readers map[string][]string
	last    Instance
}

// New returns a planner of a stream without nodes.
func New() *Planner { return &Planner{nodes: map[string]*node{}} }

// Readers says, of the version wanted next, which nodes read every bag of a node.
func (p *Planner) Readers(of map[string][]string) { p.readers = of }

// Change says what a Want changes.
type Change struct{ Added, Restarted, Removed []string }

// Want sets the nodes that shall run; none stops the stream.
func (p *Planner) Want(want map[string]Spec, now time.Time) (Change, []Action) {
	var change Change
	for _, n := range p.sorted() {
		spec, wanted := want[n.name]
		switch {
		case !wanted && n.want != nil:
			change.Removed = append(change.Removed, n.name)
			n.want = nil
		case wanted && n.want == nil:
			change.Added = append(change.Added, n.name)
			n.expect(spec)
		case wanted && *n.want != spec:
			change.Restarted = append(change.Restarted, n.name)
			n.expect(spec)
		}
	}
	for name, spec := range want {
		if p.nodes[name] == nil {
			n := &node{name: name}
			n.expect(spec)
			p.nodes[name] = n
			change.Added = append(change.Added, name)
		}
	}
	slices.Sort(change.Added)
	return change, p.plan(now)
}

// expect makes spec the wanted version; deaths of another version, or before a
// restart by hand, do not count against it.
func (n *node) expect(spec Spec) {
	n.want, n.deaths, n.restarts, n.retryAt, n.reason, n.ended = &spec, 0, 0, time.Time{}, "", nil
	if n.current != nil && n.current.leaving() {
		n.current.asked = true // if it was taking leave: it has a successor now
	}
}

// Restart replaces the processes of all nodes by new ones of the same version.
func (p *Planner) Restart(now time.Time) []Action {
	var actions []Action
	for _, n := range p.sorted() {
		if n.want == nil {
			continue
		}
		n.expect(*n.want)
		if n.current != nil && !n.current.leaving() {
			actions = append(actions, n.end(n.current, now))
		}
	}
	return append(actions, p.plan(now)...)
}

// Revive starts the nodes that ended of their own will again, and names them.
func (p *Planner) Revive(now time.Time) (revived []string, actions []Action) {
	for _, n := range p.sorted() {
		if n.want != nil && n.ended != nil {
			n.expect(*n.want)
			revived = append(revived, n.name)
		}
	}
	return revived, p.plan(now)
}

// Loaded says that an instance has imported its code.
func (p *Planner) Loaded(i Instance, now time.Time) []Action {
	if _, proc := p.find(i); proc != nil && proc.phase == Loading {
		proc.enter(Loaded, now)
	}
	return p.plan(now)
}

// Ready says that an instance's setup has returned.
func (p *Planner) Ready(i Instance, now time.Time) []Action {
	if n, proc := p.find(i); proc != nil && proc.phase == Starting {
		proc.enter(Running, now)
		proc.ready = now
		n.reason = ""
	}
	return p.plan(now)
}

// Stopping says that an instance has left its callbacks and tears down.
func (p *Planner) Stopping(i Instance, now time.Time) []Action {
	if _, proc := p.find(i); proc != nil && proc.phase < Ending {
		proc.enter(Ending, now)
	}
	return p.plan(now)
}

// Exited says that an instance's process is gone, all it started included.
// clean tells that it went through its teardown: unasked, that is a node that
// took leave (a closed window) and no death. cause is for people.
func (p *Planner) Exited(i Instance, clean bool, cause string, now time.Time) []Action {
	n, proc := p.find(i)
	if proc == nil {
		return nil
	}
	if n.current == proc {
		n.current = nil
	} else {
		n.next = nil
	}
	if n.want == nil || *n.want != proc.spec {
		return p.plan(now) // an old version: no matter how it ended
	}
	switch {
	case proc.asked:
		// Stopped for a restart: its successor owes nothing.
	case clean:
		n.ended, n.reason = n.want, "ended by itself"
	default:
		if !proc.ready.IsZero() && now.Sub(proc.ready) >= Stable {
			n.deaths = 0
		}
		n.deaths++
		n.restarts++
		n.retryAt = now.Add(backoff(n.deaths))
		n.reason = cause
	}
	return p.plan(now)
}

func backoff(deaths int) time.Duration {
	d := FirstBackoff << min(deaths-1, 20)
	return min(d, LastBackoff)
}

// Tick does what is due.
func (p *Planner) Tick(now time.Time) []Action { return p.plan(now) }

// Postpone gives every process so much more time for what it does: who carries
// out actions was held up by something else.
func (p *Planner) Postpone(by time.Duration) {
	for _, n := range p.nodes {
		for _, proc := range []*process{n.current, n.next} {
			if proc != nil {
				proc.since = proc.since.Add(by)
			}
		}
	}
}

// Next is when Tick is next due; zero when nothing is.
func (p *Planner) Next() time.Time {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	for _, n := range p.nodes {
		for _, proc := range []*process{n.current, n.next} {
			if proc != nil {
				t, _ := proc.deadline()
				earlier(t)
				earlier(proc.until)
			}
		}
		if n.lacks() {
			earlier(n.retryAt)
		}
	}
	return next
}

// lacks tells that a process of the wanted version has to be spawned. One that
// leaves unasked has none after it until its end has told why.
func (n *node) lacks() bool {
	return n.want != nil && n.next == nil && n.ended == nil &&
		(n.current == nil || n.current.leaving() && n.current.asked || n.current.spec != *n.want)
}

// plan compares what is wanted with what there is.
func (p *Planner) plan(now time.Time) []Action {
	var actions []Action
	for _, n := range p.sorted() {
		for _, proc := range []*process{n.current, n.next} {
			if proc == nil {
				continue
			}
			if at, why := proc.deadline(); !at.IsZero() && !now.Before(at) {
				actions = append(actions, n.kill(proc, why, now))
			}
		}
		// A process that only loads code has nothing to tear down.
		if n.next != nil && (n.want == nil || n.next.spec != *n.want) && n.next.phase != Killed {
			actions = append(actions, n.kill(n.next, "", now))
		}
		if n.current != nil && !n.current.leaving() && p.outdated(n) {
			actions = append(actions, n.end(n.current, now))
		}
		if n.lacks() && !now.Before(n.retryAt) {
			p.last++
			proc := &process{instance: p.last, spec: *n.want, phase: Loading, since: now}
			if n.current == nil {
				n.current = proc
			} else {
				n.next = proc
			}
			actions = append(actions, Action{Do: Spawn, Node: n.name, Instance: proc.instance})
		}
	}
	// A second pass, when it is known which processes are on their way out.
	for _, n := range p.sorted() {
		if n.current == nil && n.next != nil {
			n.current, n.next = n.next, nil
		}
		if n.want == nil && n.current == nil && n.next == nil {
			delete(p.nodes, n.name)
			continue
		}
		if n.current != nil {
			n.current.until = p.awaits(n, now)
		}
		if c := n.current; c != nil && c.phase == Loaded && c.until.IsZero() && !p.leaves(c) {
			c.enter(Starting, now)
			actions = append(actions, Action{Do: Start, Node: n.name, Instance: c.instance})
		}
	}
	return actions
}

// awaits is how long a node that has loaded waits for its readers; zero for not
// at all. One that has died before is not waited for.
func (p *Planner) awaits(n *node, now time.Time) time.Time {
	until := n.current.since.Add(ReaderLimit)
	if n.current.phase != Loaded || !now.Before(until) {
		return time.Time{}
	}
	for _, name := range p.readers[n.name] {
		reader := p.nodes[name]
		if reader == nil || reader == n || reader.deaths > 0 {
			continue
		}
		for _, proc := range []*process{reader.current, reader.next} {
			if proc != nil && proc.phase == Loading {
				return until
			}
		}
	}
	return time.Time{}
}

// outdated tells that the current process has to go now: nothing is wanted
// any more, or its successor is ready to be started.
func (p *Planner) outdated(n *node) bool {
	switch {
	case n.want == nil:
		return true
	case n.current.spec == *n.want:
		return false
	case n.current.phase < Starting:
		return true // it has not begun to work, and is of no use to anybody
	case n.next == nil || n.next.phase != Loaded:
		return false // until its successor has loaded, the old version works on
	}
	// All of a type go together: two cameras may have changed places, and
	// neither could start while the other's old version is at work.
	for _, other := range p.nodes {
		if other.replaced() && other.current.spec.Type == n.next.spec.Type && (other.next == nil || other.next.phase != Loaded) {
			return false
		}
	}
	return true
}

// replaced tells that the current process has to make room for a new version.
// One that cannot be loaded is not waited for.
func (n *node) replaced() bool {
	return n.want != nil && n.current != nil && n.current.spec != *n.want && n.deaths == 0
}

// leaves tells whether another process of the type of proc is on its way out.
func (p *Planner) leaves(proc *process) bool {
	for _, n := range p.nodes {
		for _, other := range []*process{n.current, n.next} {
			if other != nil && other != proc && other.spec.Type == proc.spec.Type &&
				(other.leaving() || n.want == nil || other == n.current && n.replaced()) {
				return true
			}
		}
	}
	return false
}

// end ends a process the way its phase asks for: one that only loads code has
// nothing to tear down, and does not listen before it has.
func (n *node) end(proc *process, now time.Time) Action {
	if proc.phase <= Loaded {
		return n.kill(proc, "", now)
	}
	return n.stop(proc, now)
}

func (n *node) stop(proc *process, now time.Time) Action {
	proc.asked = true
	proc.enter(Stopping, now)
	return Action{Do: Stop, Node: n.name, Instance: proc.instance}
}

func (n *node) kill(proc *process, why string, now time.Time) Action {
	// Killed for having hung on its own account, an import say, is a death.
	proc.asked = proc.asked || why == ""
	proc.enter(Killed, now)
	return Action{Do: Kill, Node: n.name, Instance: proc.instance, Why: why}
}

func (p *Planner) find(i Instance) (*node, *process) {
	for _, n := range p.nodes {
		if n.current != nil && n.current.instance == i {
			return n, n.current
		}
		if n.next != nil && n.next.instance == i {
			return n, n.next
		}
	}
	return nil, nil
}

func (p *Planner) sorted() []*node {
	nodes := make([]*node, 0, len(p.nodes))
	for _, n := range p.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
	return nodes
}

// Settled tells that nothing is under way: every wanted node runs in the wanted
// version, has died of it at least once, or has ended, and nothing else is
// left. A reload is done then.
func (p *Planner) Settled() bool {
	for _, n := range p.nodes {
		runs := n.want != nil && n.next == nil && n.current != nil &&
			n.current.spec == *n.want && n.current.phase == Running
		if !runs && (n.want == nil || n.ended == nil && n.deaths == 0) {
			return false
		}
	}
	return true
}

// Empty tells that no process is left and none is wanted.
func (p *Planner) Empty() bool { return len(p.nodes) == 0 }

// State is what a person sees of a node.
type State struct {
	// Phase of the process that works, or -1 without one.
	Phase    Phase
	Instance Instance
	// Retry is when a dead node is started again, zero unless it waits.
	Retry    time.Time
	Reason   string
	Restarts int
	Ended    bool
	// Replacing tells that a new version is being loaded.
	Replacing bool
}

// None is the Phase of a node without a process.
const None Phase = -1

// State returns the state of a wanted node.
func (p *Planner) State(name string) (State, bool) {
	n := p.nodes[name]
	if n == nil || n.want == nil {
		return State{}, false
	}
	s := State{Phase: None, Reason: n.reason, Restarts: n.restarts, Ended: n.ended != nil, Replacing: n.next != nil}
	if n.current != nil {
		s.Phase, s.Instance = n.current.phase, n.current.instance
	} else if n.ended == nil {
		s.Retry = n.retryAt
	}
	return s, true
}
