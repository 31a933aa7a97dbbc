// Package node is the runtime's handle on one node process, an *instance*: it
// starts it, speaks docs/node-protocol.md with it, reads its output line by
// line, and says how it ended. It decides nothing about the node's life; that
// is the planner's.
//
// Whatever the process does (floods, stops reading, lies, leaves children that
// hold its pipes), the runtime neither blocks nor grows: every queue is bounded,
// every wait has a limit, and who exceeds them is slowed, cut or killed, and
// named.
package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/keeper"
)

const (
	// sendQueue is how many messages may wait for a node to read its control
	// channel, beyond the kernel's own queue. A node is sent a few for each
	// link, so one that lets so many wait does not read.
	sendQueue = 256
	// drainTimeout is how long output is still read after the process has
	// ended: what it wrote is there already, so only a pipe that another
	// process holds open takes longer.
	drainTimeout = 200 * time.Millisecond
	// channelGrace is how long a process may live without its control channel
	// before it is killed: nothing else can stop it.
	channelGrace = time.Second
	// messagesPerSecond is how fast messages of a node are read in the long
	// run; one that sends more waits in its send. messageBurst may come at once.
	messagesPerSecond = 1000
	messageBurst      = 4000
)

// Options say what to start.
type Options struct {
	Keeper *keeper.Keeper
	// Spec is the spec of docs/node-protocol.md; Protocol and Build are
	// filled in.
	Spec control.Spec
	Argv []string // Argv[0] is the path of the program
	Env  []string
	Dir  string

	// Log receives each line of output and each record of the node's own,
	// from several goroutines. It must not block.
	Log func(api.Record)
	// Event receives what the process says, in order, one call at a time, and
	// in the end one Exited; the first may come before Start has returned. It
	// must not block.
	Event func(Event)
}

// Event is what a node process said or did: Hello, Loaded, Ready, Failed,
// Error, Condition, Configured, Page, Ring, Lost, Unlinked, Graphics, Stopping, Stopped,
// Exited.
type Event interface{ event() }

// The events but for Exited are the messages of docs/node-protocol.md. Those
// that mark a step of the node's life come at most once each, and never before
// what they must follow. Failed and Error have been logged already.
type (
	Hello     struct{}
	Loaded    struct{}
	Ready     struct{}
	Failed    struct{ Phase, Message, Traceback string }
	Error     struct{ Phase, Message, Traceback string }
	Condition struct{ Condition, Message string }
	// Configured answers the `configure` of that ID; Message says why the node
	// does not take it, "" where it does.
	Configured struct {
		ID      uint64
		Message string
	}
	// Page hands over the page of the link, Ring the newest ring of the
	// output. File is the receiver's to close.
	Page struct {
		Link uint64
		File *os.File
	}
	Ring struct {
		Port, Format string
		File         *os.File
	}
	Lost     struct{ Link uint64 }
	Unlinked struct{ Link uint64 }
	// Graphics asks for a connection to tatolab-gl, or, with the ID of one,
	// says that it is not answered.
	Graphics struct{ ID uint64 }
	Stopping struct{}
	Stopped  struct{}
	// Exited is the last event: the process, what it left behind and its
	// output are gone.
	Exited struct {
		Exit  keeper.Exit
		Cause string // for people: "segmentation fault (core dumped)"
	}
)

func (Hello) event()      {}
func (Loaded) event()     {}
func (Ready) event()      {}
func (Failed) event()     {}
func (Error) event()      {}
func (Condition) event()  {}
func (Configured) event() {}
func (Page) event()       {}
func (Ring) event()       {}
func (Lost) event()       {}
func (Unlinked) event()   {}
func (Graphics) event()   {}
func (Stopping) event()   {}
func (Stopped) event()    {}
func (Exited) event()     {}

// Node is one node process. Its methods may be called from any goroutine, at
// any time, and do not block, but for Kill while the keeper does not listen.
type Node struct {
	spec    control.Spec
	event   func(Event)
	log     *limiter
	process *keeper.Process
	conn    *control.Conn
	outputs [2]*os.File
	queue   chan *control.Message
	readers sync.WaitGroup
	exited  chan struct{} // the process is gone; output may remain

	started atomic.Bool // `start` was sent

	mu     sync.Mutex
	ended  bool
	killed string // why the runtime killed it
}

// Start starts a node process. After an error there is no process and no
// event follows.
func Start(o Options) (*Node, error) {
	o.Spec.Protocol, o.Spec.Build = control.Protocol, build.ID()
	n := &Node{
		spec:   o.Spec,
		event:  o.Event,
		log:    &limiter{stream: o.Spec.Stream, node: o.Spec.Node, out: o.Log},
		queue:  make(chan *control.Message, sendQueue),
		exited: make(chan struct{}),
	}
	if err := n.spawn(o); err != nil {
		return nil, err
	}
	n.readers.Add(3)
	go n.receive()
	go n.readLines(n.outputs[0], "info")
	go n.readLines(n.outputs[1], "warn")
	go n.follow()
	return n, nil
}

func (n *Node) spawn(o Options) (err error) {
	var close []*os.File // the process's ends
	defer func() {
		for _, f := range close {
			f.Close()
		}
		if err != nil {
			n.closeAll()
		}
	}()
	files := make([]*os.File, control.SpecFD+1)
	if files[0], err = os.Open(os.DevNull); err != nil {
		return err
	}
	close = append(close, files[0])
	for i := range n.outputs {
		if n.outputs[i], files[i+1], err = keeper.Pipe(); err != nil {
			return fmt.Errorf("cannot start %s: %w", o.Spec.Instance, err)
		}
		close = append(close, files[i+1])
	}
	if n.conn, files[control.ChannelFD], err = control.Pair(); err != nil {
		return err
	}
	close = append(close, files[control.ChannelFD])
	if files[control.SpecFD], err = control.WriteSpec(&o.Spec); err != nil {
		return err
	}
	close = append(close, files[control.SpecFD])
	n.process, err = o.Keeper.Spawn(keeper.Command{
		Instance: o.Spec.Instance, Argv: o.Argv, Env: o.Env, Dir: o.Dir, Files: files,
	})
	return err
}

func (n *Node) closeAll() {
	if n.conn != nil {
		n.conn.Close()
	}
	for _, f := range n.outputs {
		if f != nil {
			f.Close()
		}
	}
}

// PID of the process.
func (n *Node) PID() int { return n.process.PID }

// Send queues a message to the node; m.File becomes the node's. A node that
// does not read is killed. To a process that has ended nothing is sent.
func (n *Node) Send(m *control.Message) {
	if m.Kind == control.Start {
		n.started.Store(true)
	}
	n.mu.Lock()
	sent, full := false, false
	if !n.ended {
		select {
		case n.queue <- m:
			sent = true
		default:
			full = true
		}
	}
	n.mu.Unlock()
	if !sent && m.File != nil {
		m.File.Close()
	}
	if full {
		// Not by the caller, who may hold the locks of the whole switchboard: the
		// keeper may be slow to hear of it.
		go n.Kill(fmt.Sprintf("it does not read its control channel: %d messages wait", sendQueue))
	}
}

// Kill kills the process. The reason becomes its cause, unless an earlier one
// did.
func (n *Node) Kill(reason string) {
	n.mu.Lock()
	first := n.killed == "" && !n.ended
	if first {
		n.killed = reason
	}
	n.mu.Unlock()
	if !first {
		return
	}
	// An error means that the keeper is gone, and the process with it.
	_ = n.process.Kill()
}

// write sends what is queued.
func (n *Node) write() {
	broken := false
	for m := range n.queue {
		if !broken {
			err := n.conn.Send(m)
			broken = err != nil
			if broken && err != control.ErrGone {
				n.Kill(err.Error()) // it would wait for what never comes
			}
		}
		if m.File != nil {
			m.File.Close()
		}
	}
}

// follow waits for the end of the process and reports it, as the last event.
func (n *Node) follow() {
	var writer sync.WaitGroup
	writer.Go(n.write)

	exit := <-n.process.Exited()
	close(n.exited)
	cut := time.AfterFunc(drainTimeout, n.closeAll)
	n.readers.Wait()
	cut.Stop()

	n.mu.Lock()
	n.ended = true
	close(n.queue)
	killed := n.killed
	n.mu.Unlock()
	n.closeAll()
	writer.Wait()

	cause := exit.Cause()
	switch {
	case exit.Killed && killed != "":
		cause = "killed: " + killed
	case exit.Killed:
		cause = "killed"
	}
	if left := exit.LeftBehind(); left != "" {
		n.log.record(api.Record{Level: "warn", Message: left})
	}
	n.log.end()
	n.event(Exited{Exit: exit, Cause: cause})
}

// receive passes on what the process says, until it or its channel is gone.
func (n *Node) receive() {
	defer n.readers.Done()
	life := life{build: n.spec.Build, started: &n.started}
	rate := bucket{rate: messagesPerSecond, burst: messageBurst}
	for {
		m, err := n.conn.Receive()
		if err != nil {
			n.channelEnded(err)
			return
		}
		if wait := rate.take(time.Now()); wait > 0 {
			select {
			case <-time.After(wait):
			case <-n.exited:
			}
		}
		if wrong := life.check(m); wrong != "" {
			closeFile(m)
			n.log.record(api.Record{Level: "error", Message: wrong})
			n.Kill(wrong)
			return
		}
		n.deliver(m, &life)
	}
}

// channelEnded is the end of the channel: of the process too, shortly, or it
// is killed.
func (n *Node) channelEnded(err error) {
	reason := "it closed its control channel"
	if !isEOF(err) {
		reason = err.Error()
	}
	select {
	case <-n.exited:
	case <-time.After(channelGrace):
		n.Kill(reason)
	}
}

func (n *Node) deliver(m *control.Message, life *life) {
	switch m.Kind {
	case control.Page:
		if m.File != nil {
			n.event(Page{Link: m.ID, File: m.File})
		}
		return
	case control.Ring:
		if m.File != nil {
			n.event(Ring{Port: m.Port, Format: m.Format, File: m.File})
		}
		return
	}
	closeFile(m)
	switch m.Kind {
	case control.Log:
		n.log.record(api.Record{
			Time: wallClock(m.TimeNS), Level: level(m.Level), Message: m.Message, Fields: m.Fields,
		})
	case control.Error:
		n.logFailure(m)
		n.event(Error{m.Phase, m.Message, m.Traceback})
	case control.Condition:
		n.event(Condition{m.Condition, m.Message})
	case control.Configured:
		n.event(Configured{m.ID, m.Message})
	case control.Lost:
		n.event(Lost{m.ID})
	case control.Unlinked:
		n.event(Unlinked{m.ID})
	case control.Graphics:
		n.event(Graphics{m.ID})
	default:
		if !life.step(m.Kind) {
			return // unknown, repeated or too early: see docs/node-protocol.md
		}
		switch m.Kind {
		case control.Hello:
			n.event(Hello{})
		case control.Loaded:
			n.event(Loaded{})
		case control.Ready:
			n.event(Ready{})
		case control.Failed:
			n.logFailure(m)
			n.event(Failed{m.Phase, m.Message, m.Traceback})
		case control.Stopping:
			n.event(Stopping{})
		case control.Stopped:
			n.event(Stopped{})
		}
	}
}

// logFailure logs what failed or went wrong; the traceback is a field, as its
// lines are one record.
func (n *Node) logFailure(m *control.Message) {
	r := api.Record{Level: "error", Message: m.Phase + ": " + m.Message}
	if m.Traceback != "" {
		r.Fields = map[string]any{"traceback": m.Traceback}
	}
	n.log.record(r)
}

// life checks that a process says the steps of its life in order.
type life struct {
	build   string
	started *atomic.Bool
	said    map[string]bool
}

// check returns what is so wrong with a message that its process has to go.
func (l *life) check(m *control.Message) string {
	switch {
	case m.Kind != control.Hello && !l.said[control.Hello]:
		return fmt.Sprintf("it began with %q instead of hello: it speaks no node protocol", m.Kind)
	case m.Kind == control.Hello && m.Protocol != control.Protocol:
		return fmt.Sprintf("it speaks node protocol %d, the runtime %d: restart the runtime after an upgrade", m.Protocol, control.Protocol)
	case m.Kind == control.Hello && m.Build != l.build:
		return fmt.Sprintf("it is of build %s, the runtime of %s: restart the runtime after an upgrade", m.Build, l.build)
	}
	return ""
}

// step says whether a step may be taken now, and notes it.
func (l *life) step(kind string) bool {
	switch kind {
	case control.Hello, control.Loaded, control.Failed, control.Stopping, control.Stopped:
	case control.Ready:
		if !l.started.Load() {
			return false
		}
	default:
		return false
	}
	if l.said == nil {
		l.said = make(map[string]bool)
	}
	if l.said[kind] {
		return false
	}
	l.said[kind] = true
	return true
}

func closeFile(m *control.Message) {
	if m.File != nil {
		m.File.Close()
		m.File = nil
	}
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed)
}
