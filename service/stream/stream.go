// Package stream runs one stream: it carries out what the planner
// (service/reconcile) decides about the node processes, and tells it what
// became of them. Everything that belongs to the stream is owned by one
// goroutine; the exported methods post to it.
package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/figures"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/graphics"
	"tatolab.com/tatolab/service/keeper"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/node"
	"tatolab.com/tatolab/service/reconcile"
	"tatolab.com/tatolab/service/switchboard"
)

// StuckLimit is how long Stop waits for a killed process to be gone. Only one
// that is stuck in the kernel, in a driver say, takes that long.
const StuckLimit = 3 * time.Second

// Env is what a stream needs of the runtime.
type Env struct {
	RuntimeID string
	Board     *switchboard.Board
	Book      *figures.Book
	// Log writes a record of a node to the stream's log. Say does so for what
	// the runtime has to tell of the stream or of a node of it, "" for none,
	// and is heard where the runtime logs as well. Neither blocks.
	Log func(api.Record)
	Say func(level slog.Level, id logstore.MessageID, node, message string)
	// Changed is told that a state or the number of nodes changed; it does
	// not block.
	Changed func()
	// Guard runs work that is done for this stream alone, so that a crash in
	// it is counted against the stream.
	Guard func(func())
	// Command returns the program that hosts a node. absent tells that it
	// only stands in for one that is missing: it takes no links, so that
	// nobody makes pictures for it.
	Command func(v *Version, n graph.Node) (argv []string, absent bool)
	// Hold keeps the code at Version.Snapshot until release is called: a node
	// that a reload leaves alone runs on with what it was started with.
	Hold func(snapshot string) (release func())
	// Graphics is where the program that draws effects is, or would be.
	Graphics string
	// Cgroup is the folder of the stream's control group, "" without one.
	Cgroup string
	// KeeperLock is what the stream's keeper holds as long as it lives.
	KeeperLock *os.File
}

// Version is what a stream runs: a compiled graph and the code it came with.
type Version struct {
	Graph   *graph.Graph
	Classes map[string]graph.Class
	// Exposed are the exposures in force: the graph's, and rulings over them.
	Exposed []graph.Exposure
	Project string // absolute folder
	// Interpreter is .venv/bin/python; Snapshot the folder of the code.
	Interpreter, Snapshot string
	Environ               []string
	// Paused are the nodes that are to do nothing for now.
	Paused map[string]bool
	// Base is what was loaded, where this is that with changes to the live graph.
	Base *Version
}

// Stream is a running stream.
type Stream struct {
	name   string
	env    Env
	keeper *keeper.Keeper

	post chan func()
	done chan struct{} // closed when the loop has ended

	// Owned by the loop.
	planner   *reconcile.Planner
	version   *Version
	instances map[reconcile.Instance]*instance
	graphics  *graphics.Graphics
	// configures counts configurations sent; curious wait for their answers.
	// asking counts those who will be told of refusals, see Ask.
	configures uint64
	curious    []chan struct{}
	asking     int
	killed     []string // nodes killed since the last Stop was asked for
	waiters    []chan struct{}
	timer      *time.Timer
	stopping   bool
	abandoned  bool // stopping, but a process is stuck in the kernel
}

// instance is a process of a node.
type instance struct {
	node    string
	class   string // of a built-in node
	id      reconcile.Instance
	version *Version
	said    bucket // how many conditions it may have the log tell
	// What it was spawned as, and the configuration it has now.
	identity, config string
	// asked is the configuration it has not answered yet, 0 for none; refusal why
	// it does not take the last one.
	asked   uint64
	refusal string
	proc    *node.Node
	works   bool // Start was sent
	paused  bool // Pause was sent, and no Resume after it
	absent  bool // see Env.Command
	// condition says why a living node does not deliver; remark is what it
	// tells of itself.
	condition, remark string
	failure           string          // why it could not run, in its own words
	clean             bool            // said stopped
	links             map[uint64]bool // that have a page in the book
	release           func()          // of its code, see Env.Hold
	figureless        bool            // handed over what are no figures
}

// New starts a stream without nodes.
func New(name string, env Env) (*Stream, error) {
	k, err := keeper.Start(keeper.Options{Stream: name, Cgroup: env.Cgroup, Lock: env.KeeperLock})
	if err != nil {
		return nil, err
	}
	s := &Stream{
		name: name, env: env, keeper: k,
		post: make(chan func()), done: make(chan struct{}),
		planner: reconcile.New(), instances: map[reconcile.Instance]*instance{},
		timer: time.NewTimer(time.Hour),
	}
	s.graphics = graphics.New(graphics.Options{
		Stream: name, RuntimeID: env.RuntimeID, Keeper: k, Path: env.Graphics, Log: env.Log, Say: env.Say, Do: s.do,
	})
	go s.loop()
	return s, nil
}

func (s *Stream) loop() {
	defer close(s.done)
	defer s.timer.Stop()
	for {
		select {
		case f := <-s.post:
			s.env.Guard(f)
		case <-s.timer.C:
			s.env.Guard(func() { s.act(s.planner.Tick(time.Now())) })
		}
		if s.planner.Settled() {
			for _, w := range s.waiters {
				close(w)
			}
			s.waiters = nil
		}
		if s.stopping && s.planner.Empty() || s.abandoned {
			return
		}
		if next := s.planner.Next(); next.IsZero() {
			s.timer.Reset(time.Hour)
		} else {
			s.timer.Reset(max(0, time.Until(next)))
		}
	}
}

// do runs f in the loop and waits for it; it reports whether the stream still
// runs.
func (s *Stream) do(f func()) bool { return s.doUntil(context.Background(), f) }

// doUntil is do, unless the loop is busy until ctx ends: then f does not run. It
// is busy for long where the keeper is, which starts a program from a disk that
// does not answer, say.
func (s *Stream) doUntil(ctx context.Context, f func()) bool {
	ran := make(chan struct{})
	select {
	case s.post <- func() { f(); close(ran) }:
	case <-s.done:
		return false
	case <-ctx.Done():
		return false
	}
	<-ran
	return true
}

// Apply makes v the version to run: nodes that are the same in code and
// configuration run on, others are replaced. It returns at once, but for readers
// in other streams that have to be cut off first; Settled waits.
func (s *Stream) Apply(v *Version) reconcile.Change {
	var change reconcile.Change
	cutOff := func() {}
	s.do(func() {
		s.version = v
		cutOff = s.env.Board.Set(s.name, switchboard.Stream{Links: v.Graph.Links, Exposed: v.Exposed, Classes: v.Classes})
		want := map[string]reconcile.Spec{}
		for _, n := range v.Graph.Nodes {
			want[n.Name] = reconcile.Spec{Type: n.Type, Identity: identity(v, n)}
		}
		s.planner.Readers(orderedReaders(v))
		var actions []reconcile.Action
		change, actions = s.planner.Want(want, time.Now())
		s.act(actions)
		s.configure(v)
	})
	// Not in the loop: it is the loop that hears the producers say they have.
	cutOff()
	s.env.Changed()
	return change
}

// orderedReaders are, for each node of a stream, those that read every bag of it.
func orderedReaders(v *Version) map[string][]string {
	readers := map[string][]string{}
	for _, l := range v.Graph.Links {
		if l.Source.Stream != "" {
			continue // loaded on its own
		}
		for _, in := range v.Classes[l.Target.Node].Inputs {
			if in.Port == l.Target.Port && in.Profile == "ordered" {
				readers[l.Source.Node] = append(readers[l.Source.Node], l.Target.Node)
			}
		}
	}
	return readers
}

// inboundNames are the names of the links into each port of a node.
func inboundNames(g *graph.Graph, name string) map[string][]string {
	names := map[string][]string{}
	for _, l := range g.Links {
		if l.Target.Node == name {
			names[l.Target.Port] = append(names[l.Target.Port], l.Source.String())
		}
	}
	return names
}

// Restart replaces the process of every node.
func (s *Stream) Restart() {
	s.do(func() { s.act(s.planner.Restart(time.Now())) })
}

// Revive starts the nodes that ended of their own will again (a window that was
// closed), and names them.
func (s *Stream) Revive() (revived []string) {
	s.do(func() {
		var actions []reconcile.Action
		revived, actions = s.planner.Revive(time.Now())
		s.act(actions)
	})
	return revived
}

// Settled waits until the last Apply or Restart has been carried out as far as
// it will be without waiting for a retry.
func (s *Stream) Settled(ctx context.Context) error {
	settled := make(chan struct{})
	if !s.doUntil(ctx, func() { s.waiters = append(s.waiters, settled) }) {
		return cmp.Or(ctx.Err(), errors.New("the stream was stopped"))
	}
	select {
	case <-settled:
		return nil
	case <-s.done:
		return errors.New("the stream was stopped")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop ends every node and waits until all is gone. It returns the nodes that
// had to be killed, and those whose process is still not gone. It returns in
// any case, and may be called twice.
func (s *Stream) Stop() (killed, stuck []string) {
	s.do(func() {
		if !s.stopping {
			s.killed = nil
		}
		s.stopping = true
		_, actions := s.planner.Want(nil, time.Now())
		s.act(actions)
	})
	limit := time.NewTimer(reconcile.CallbackLimit + reconcile.TeardownLimit + StuckLimit)
	defer limit.Stop()
	select {
	case <-s.done:
	case <-limit.C:
	}
	if err := s.keeper.Close(); err != nil {
		s.env.Say(slog.LevelWarn, "", "", err.Error())
	}
	// The keeper has reported every end it saw; what is left is stuck.
	s.do(func() {
		for _, i := range s.instances {
			if i.proc != nil {
				stuck = append(stuck, fmt.Sprintf("%s (pid %d)", i.node, i.proc.PID()))
			}
			s.forget(i)
		}
		s.abandoned = true
	})
	<-s.done
	s.graphics.Close()
	s.env.Board.Remove(s.name)
	slices.Sort(s.killed)
	slices.Sort(stuck)
	return slices.Compact(s.killed), stuck
}

// act carries out the planner's actions.
func (s *Stream) act(actions []reconcile.Action) {
	// A program on a disk that does not answer holds up the keeper, and with it this
	// loop. What was told to end, or has something to say meanwhile, is not late for that.
	begin := time.Now()
	defer func() { s.planner.Postpone(time.Since(begin)) }()
	// Links first: who is up already is joined before setup runs, and so are
	// those that are started together.
	for _, a := range actions {
		if i := s.instances[a.Instance]; a.Do == reconcile.Start && i != nil && i.proc != nil && !i.absent {
			s.env.Board.Up(s.name, i.node, i.proc)
		}
	}
	for _, a := range actions {
		if a.Do == reconcile.Spawn {
			s.spawn(a)
			continue
		}
		i := s.instances[a.Instance]
		if i == nil || i.proc == nil {
			continue // its start failed, which is about to be booked
		}
		switch a.Do {
		case reconcile.Start:
			i.works = true
			i.proc.Send(&control.Message{Kind: control.Start})
		case reconcile.Stop:
			s.env.Board.Down(s.name, i.node, i.proc)
			i.proc.Send(&control.Message{Kind: control.Stop})
		case reconcile.Kill:
			s.env.Board.Down(s.name, i.node, i.proc)
			if a.Why != "" {
				s.killed = append(s.killed, i.node)
				s.env.Say(slog.LevelWarn, logstore.NodeKilled, i.node, fmt.Sprintf("%s was killed: it %s in time", i.node, a.Why))
			}
			i.proc.Kill(a.Why)
		}
	}
	s.pause()
	if len(actions) > 0 {
		s.env.Changed()
	}
}

func (s *Stream) spawn(a reconcile.Action) {
	v := s.version
	k := slices.IndexFunc(v.Graph.Nodes, func(n graph.Node) bool { return n.Name == a.Node })
	n, class := v.Graph.Nodes[k], v.Classes[a.Node]
	names := inboundNames(v.Graph, n.Name)
	spec := control.Spec{
		RuntimeID: s.env.RuntimeID,
		Instance:  fmt.Sprintf("%s/%s#%d", s.name, n.Name, a.Instance),
		Stream:    s.name, Node: n.Name, Type: n.Type, Config: n.Config,
		Project: v.Project, Snapshot: v.Snapshot, Execution: control.Execution(class.Execution),
		Inputs: []control.Input{}, Outputs: append([]string{}, class.Outputs...),
	}
	for _, in := range class.Inputs {
		spec.Inputs = append(spec.Inputs, control.Input{Port: in.Port, Profile: in.Profile, Links: append([]string{}, names[in.Port]...)})
	}
	i := &instance{node: n.Name, class: n.BuiltinClass(), id: a.Instance, version: v,
		identity: identity(v, n), config: canonical(n.Config), links: map[uint64]bool{}, release: s.env.Hold(v.Snapshot)}
	s.instances[a.Instance] = i
	argv, absent := s.env.Command(v, n)
	i.absent = absent
	proc, err := node.Start(node.Options{
		Keeper: s.keeper, Spec: spec, Argv: argv, Env: v.Environ, Dir: v.Project,
		Log: s.env.Log, Event: func(e node.Event) { s.handle(i, e) },
	})
	if err != nil {
		// Told from outside the loop's turn: the planner is in the middle of
		// its answer.
		go s.do(func() { s.exited(i, err.Error(), false) })
		return
	}
	i.proc = proc
}

// handle takes an event of a node process into the loop.
func (s *Stream) handle(i *instance, e node.Event) {
	runs := s.do(func() {
		now := time.Now()
		switch e := e.(type) {
		case node.Loaded:
			s.act(s.planner.Loaded(i.id, now))
		case node.Ready:
			s.act(s.planner.Ready(i.id, now))
		case node.Stopping:
			s.env.Board.Down(s.name, i.node, i.proc)
			s.act(s.planner.Stopping(i.id, now))
		case node.Stopped:
			i.clean = true
		case node.Failed:
			i.failure = fmt.Sprintf("%s failed: %s", e.Phase, e.Message)
		case node.Condition:
			s.condition(i, e.Condition, e.Message)
			s.tell()
		case node.Configured:
			s.configured(i, e.ID, e.Message)
		case node.Page:
			// Only of a link it reads: one that has been cut meanwhile must not
			// stay in the book, and one it made up could be another's.
			if !s.env.Board.Reader(e.Link, i.proc) {
				e.File.Close()
				break
			}
			s.book(i, s.env.Book.AddPage(e.Link, e.File))
			i.links[e.Link] = true
		case node.Ring:
			if !slices.Contains(i.version.Classes[i.node].Outputs, e.Port) {
				e.File.Close()
				break
			}
			s.book(i, s.env.Book.AddRing(figures.Output{Stream: s.name, Node: i.node, Port: e.Port}, e.File))
		case node.Lost:
			s.unbook(i, e.Link)
			s.env.Board.Lost(e.Link, i.proc)
		case node.Unlinked:
			s.unbook(i, e.Link)
			s.env.Board.Unlinked(e.Link, i.proc)
		case node.Graphics:
			if e.ID != 0 {
				s.graphics.Late(i.node, e.ID)
			} else {
				s.graphics.Connect(i.node, i.proc.Send, i.version.Environ, i.version.Project)
			}
		case node.Exited:
			s.exited(i, e.Cause, e.Exit.OOM)
		}
		s.env.Changed()
	})
	if runs {
		return
	}
	switch e := e.(type) { // nobody else closes them now
	case node.Page:
		e.File.Close()
	case node.Ring:
		e.File.Close()
	}
}

// book notes, once, an error of the figures: the node handed over something
// else.
func (s *Stream) book(i *instance, err error) {
	if err != nil && !i.figureless {
		i.figureless = true
		s.env.Say(slog.LevelWarn, "", i.node, fmt.Sprintf("no figures of %s: %v", i.node, err))
	}
}

// unbook forgets the figures of a link that has ended.
func (s *Stream) unbook(i *instance, link uint64) {
	if i.links[link] { // an output has no page of its own
		s.env.Book.DropPage(link)
		delete(i.links, link)
	}
}

// condition notes why a node does not deliver. The node says it once per
// change, and so does the log.
func (s *Stream) condition(i *instance, condition, message string) {
	var gone, back logstore.MessageID
	if i.class == "CameraSource" {
		gone, back = logstore.CameraLost, logstore.CameraBack
	}
	switch {
	case !i.said.allow(time.Now()):
	case condition != "" && (condition != i.condition || message != i.remark):
		s.env.Say(slog.LevelWarn, gone, i.node, message)
	case condition == "" && i.condition != "":
		again := "delivers again"
		if message != "" {
			again += ": " + message
		}
		s.env.Say(slog.LevelInfo, back, i.node, again)
	}
	// A sink that cannot deliver has no use for what it would read.
	state, _ := s.planner.State(i.node)
	works := i.works && !i.absent && state.Instance == i.id && state.Phase < reconcile.Stopping
	if sink := len(i.version.Classes[i.node].Outputs) == 0; sink && works {
		switch changed := condition != i.condition || message != i.remark; {
		case changed && rests(condition):
			s.env.Board.Rest(s.name, i.node, i.proc, i.node+" waits: "+message)
		case rests(i.condition) && !rests(condition):
			s.env.Board.Up(s.name, i.node, i.proc)
		}
	}
	i.condition, i.remark = condition, message
}

// rests tells whether a sink in this condition has no use for its links. One
// that cannot use what it reads waits for nothing but something else to read.
func rests(condition string) bool {
	return condition != "" && condition != control.Unfit
}

// bucket lets conditionBurst things happen at once, and one more each
// conditionEvery: a node that changes its mind all the time does not fill logs.
type bucket struct {
	used int
	at   time.Time
}

const (
	conditionBurst = 20
	conditionEvery = time.Second
)

func (b *bucket) allow(now time.Time) bool {
	if back := int(now.Sub(b.at) / conditionEvery); back > 0 {
		b.used, b.at = max(0, b.used-back), now
	}
	if b.used >= conditionBurst {
		return false
	}
	b.used++
	return true
}

// forget lets go of what is held for a process.
func (s *Stream) forget(i *instance) {
	delete(s.instances, i.id)
	s.tell()
	i.release()
	if i.proc != nil {
		s.env.Board.Down(s.name, i.node, i.proc)
	}
	for link := range i.links {
		s.env.Book.DropPage(link)
	}
	if i.works {
		s.env.Book.DropRings(s.name, i.node)
	}
}

// exited books the end of a process.
func (s *Stream) exited(i *instance, cause string, outOfMemory bool) {
	s.forget(i)
	message := fmt.Sprintf("%s died: %s", i.node, cause)
	if i.failure != "" {
		// Its own words are in the log already.
		cause, message = i.failure, i.node+" could not be started"
	}
	before, _ := s.planner.State(i.node)
	actions := s.planner.Exited(i.id, i.clean, cause, time.Now())
	after, wanted := s.planner.State(i.node)
	switch {
	case wanted && after.Restarts > before.Restarts:
		id := logstore.NodeDied
		if outOfMemory {
			id = logstore.NodeOutOfMemory
		}
		again := "at once"
		if wait := time.Until(after.Retry).Round(10 * time.Millisecond); !after.Retry.IsZero() && wait > 0 {
			again = "in " + wait.String()
		}
		s.env.Say(slog.LevelError, id, i.node, message+"; it is started again "+again)
	case wanted && after.Ended && !before.Ended:
		s.env.Say(slog.LevelInfo, "", i.node, i.node+" has ended by itself; the stream runs on")
	}
	s.act(actions)
}
