// Package host is a built-in node's end of the control channel
// (docs/node-protocol.md): it reads the spec, climbs the ladder from hello to
// stopped, joins links to the node's ports, and reports on them. What is left
// to the node is its work.
package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
)

// stopGrace is how long Run may go on after stop. A node still in it then is
// stuck, in a driver most likely; the process ends without it, before the
// runtime kills it for not having said stopping (2 s).
const stopGrace = 1500 * time.Millisecond

// graphicsLimit is how long the runtime may take to answer Graphics.
const graphicsLimit = 5 * time.Second

// readersLimit is how long a node waits for those that are to read it from its
// first bag on, readersLook how often it looks.
const (
	readersLimit = 2 * time.Second
	readersLook  = 2 * time.Millisecond
)

// Exit statuses.
const (
	exitOK       = 0
	exitFailed   = 1 // the node failed; the reason has been sent
	exitProtocol = 2 // not started by a runtime, or by one of another build
	exitOrphaned = 3 // the runtime is gone
	exitStuck    = 4 // stop was answered without the node
)

// Node is what the host runs. Setup, Run and Teardown are called once each, in
// this order, on the goroutine that called Main.
type Node interface {
	// Setup prepares the node; its error fails it.
	Setup(*Host) error
	// Run works until ctx is done. If it returns earlier without an error,
	// the node has ended of its own will (a window was closed); with one,
	// it has failed and is started again by the runtime.
	Run(ctx context.Context) error
	// Teardown lets go of everything; it is called if Setup succeeded.
	Teardown()
}

// Configurer is a Node that takes a new configuration while it runs. Configure
// is called from a goroutine of the host's, maybe before Setup; it does not wait.
// The node calls done, from any goroutine, when it has taken the configuration,
// or with why it does not; not at all where a later one came before.
type Configurer interface {
	Configure(config json.RawMessage, done func(error))
}

// Ports are a node's ports, each with the pixel formats it makes or reads, the
// preferred first. A nil map takes whatever ports the spec has, for bags alone.
type Ports struct {
	Outputs, Inputs map[string][]datapath.Format
	// Changed, if set, is told that readers came or went, or that the node
	// was paused or resumed: Active may answer otherwise. It is called from
	// goroutines of the host's, maybe before Setup.
	Changed func()
	// Later: the node calls Join when it knows what it can read; links that
	// it reads wait for that.
	Later bool
}

// Host is one node process.
type Host struct {
	Spec *control.Spec
	// Inputs wait together on this.
	Waiter *datapath.Waiter

	node    Node
	conn    *control.Conn
	ports   Ports
	outputs map[string]*datapath.Output
	inputs  map[string]*datapath.Input
	paused  atomic.Bool
	started chan struct{}
	// graphics is the runtime's answer to Graphics.
	graphics chan *control.Message

	mu    sync.Mutex
	links map[uint64]link    // there are, by id
	early []*control.Message // of links in, until Join
	later bool
	local []datapath.Format // first of what links of the same stream list
}

type link struct {
	port      string
	direction string
}

// Main runs a node on the descriptors this process was started with, and
// returns the process's exit status.
func Main(node Node, ports Ports) int {
	h, status, err := connect(node, ports)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return status
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	left := make(chan struct{}) // Run has returned, or was never called
	go h.receive(cancel)
	go h.watchStop(ctx, left)

	select {
	case <-h.started:
	case <-ctx.Done():
		close(left)
		return h.end(nil)
	}
	if err := node.Setup(h); err != nil {
		close(left)
		h.send(&control.Message{Kind: control.Failed, Phase: "setup", Message: err.Error()})
		return exitFailed
	}
	h.send(&control.Message{Kind: control.Ready})
	h.awaitReaders(ctx)
	err = node.Run(ctx)
	close(left)
	if err != nil && ctx.Err() == nil {
		h.send(&control.Message{Kind: control.Error, Phase: "process", Message: err.Error()})
		node.Teardown()
		return exitFailed
	}
	return h.end(node.Teardown)
}

// connect reads the spec, makes the ports, and says hello and loaded.
func connect(node Node, ports Ports) (*Host, int, error) {
	// Started by hand, the descriptor is closed, or the Go runtime's own.
	if kind, err := unix.GetsockoptInt(control.ChannelFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		return nil, exitProtocol, fmt.Errorf("cannot run: this is started by tatolabd, not by hand: there is no control channel on descriptor %d", control.ChannelFD)
	}
	conn, err := control.Inherited()
	if err != nil {
		return nil, exitProtocol, err
	}
	spec, err := control.ReadSpec()
	if err != nil {
		return nil, exitProtocol, err
	}
	h := &Host{
		Spec: spec, node: node, conn: conn, ports: ports,
		outputs: map[string]*datapath.Output{}, inputs: map[string]*datapath.Input{},
		links: map[uint64]link{}, started: make(chan struct{}),
		graphics: make(chan *control.Message, 1), later: ports.Later,
	}
	h.send(&control.Message{Kind: control.Hello, Protocol: control.Protocol, Build: build.ID(), PID: os.Getpid()})
	if spec.Build != build.ID() {
		return nil, exitProtocol, fmt.Errorf("cannot run %s: this program is of build %s, the runtime of build %s", spec.Instance, build.ID(), spec.Build)
	}
	if err := h.open(); err != nil {
		h.send(&control.Message{Kind: control.Failed, Phase: "load", Message: err.Error()})
		return nil, exitFailed, err
	}
	h.send(&control.Message{Kind: control.Loaded})
	return h, exitOK, nil
}

// open makes an output or input for each port of the spec.
func (h *Host) open() (err error) {
	if h.Waiter, err = datapath.NewWaiter(); err != nil {
		return err
	}
	for _, port := range h.Spec.Outputs {
		formats, ok := h.ports.Outputs[port]
		if !ok && h.ports.Outputs != nil {
			return fmt.Errorf("%s has no output %q", h.Spec.Type, port)
		}
		h.outputs[port], err = datapath.NewOutput(datapath.OutputOptions{
			Owner:     h.Spec.Stream + "/" + h.Spec.Node + "/" + port,
			Formats:   formats,
			OnReaders: func(int) { h.changed() },
			OnGeneration: func(f datapath.Format, ring *os.File) {
				h.send(&control.Message{Kind: control.Ring, Port: port, Format: f.String(), File: ring})
				ring.Close()
			},
			OnGone: func(id uint64, end datapath.End) { h.lost(id, end.Why) },
		})
		if err != nil {
			return err
		}
	}
	for _, in := range h.Spec.Inputs {
		formats, ok := h.ports.Inputs[in.Port]
		if !ok && h.ports.Inputs != nil {
			return fmt.Errorf("%s has no input %q", h.Spec.Type, in.Port)
		}
		profile, err := datapath.ParseProfile(in.Profile)
		if err != nil {
			return fmt.Errorf("input %q: %w", in.Port, err)
		}
		h.inputs[in.Port] = h.Waiter.NewInput(profile, formats...)
	}
	return nil
}

// end says stopping and stopped around teardown.
func (h *Host) end(teardown func()) int {
	h.send(&control.Message{Kind: control.Stopping})
	if teardown != nil {
		teardown()
	}
	for _, o := range h.outputs {
		o.Close()
	}
	h.Waiter.Close()
	h.send(&control.Message{Kind: control.Stopped})
	return exitOK
}

// awaitReaders waits until whoever was linked to an output before start reads
// it, so that it gets the first bag.
func (h *Host) awaitReaders(ctx context.Context) {
	limit := time.Now().Add(readersLimit)
	for {
		joining := 0
		for _, o := range h.outputs {
			joining += o.Joining()
		}
		if joining == 0 || ctx.Err() != nil {
			return
		}
		if time.Now().After(limit) {
			h.Log("warn", fmt.Sprintf("%d readers have not joined within %v: they miss the first bags", joining, readersLimit), nil)
			return
		}
		time.Sleep(readersLook)
	}
}

// watchStop ends the process if Run does not return after stop.
func (h *Host) watchStop(ctx context.Context, left <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-left:
		return
	}
	h.Waiter.Wake()
	select {
	case <-left:
	case <-time.After(stopGrace):
		h.Log("warn", fmt.Sprintf("did not stop within %v, ends without cleaning up", stopGrace), nil)
		os.Exit(exitStuck)
	}
}

// receive obeys the runtime until it is gone.
func (h *Host) receive(stop context.CancelFunc) {
	started := false
	for {
		m, err := h.conn.Receive()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			os.Exit(exitOrphaned)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitProtocol)
		}
		switch m.Kind {
		case control.Link:
			h.mu.Lock()
			if h.later && m.Direction == control.In {
				h.early = append(h.early, m)
				h.mu.Unlock()
				continue
			}
			h.join(m)
			h.mu.Unlock()
		case control.Unlink:
			h.mu.Lock()
			h.leave(m)
			h.mu.Unlock()
		case control.Graphics:
			h.forgetGraphics()
			h.graphics <- m
			continue
		case control.Start:
			if !started {
				started = true
				close(h.started)
			}
		case control.Configure:
			h.configure(m)
		case control.Pause, control.Resume:
			h.paused.Store(m.Kind == control.Pause)
			h.changed()
		case control.Stop:
			stop()
		}
		if m.File != nil {
			m.File.Close()
		}
	}
}

func (h *Host) configure(m *control.Message) {
	done := func(err error) {
		answer := &control.Message{Kind: control.Configured, ID: m.ID}
		if err != nil {
			answer.Message = err.Error()
		}
		h.send(answer)
	}
	if n, ok := h.node.(Configurer); ok {
		n.Configure(m.Config, done)
	} else {
		done(errors.New("it takes no configuration while it runs"))
	}
}

// Join joins the links that waited for it, and from then on links as they come.
// Those of the same stream list formats of local before the port's own.
func (h *Host) Join(local ...datapath.Format) {
	h.mu.Lock()
	defer h.mu.Unlock()
	early := h.early
	h.early, h.later, h.local = nil, false, local
	for _, m := range early {
		h.join(m)
	}
}

// Graphics asks the runtime for a connection to the stream's tatolab-gl: its
// number, that of the process, and the socket. It is for one goroutine at a time.
func (h *Host) Graphics() (id, process uint64, socket *os.File, err error) {
	h.forgetGraphics()
	h.send(&control.Message{Kind: control.Graphics})
	select {
	case m := <-h.graphics:
		if m.File == nil {
			return 0, 0, nil, errors.New(m.Message)
		}
		return m.ID, m.Process, m.File, nil
	case <-time.After(graphicsLimit):
		return 0, 0, nil, fmt.Errorf("cannot connect to tatolab-gl: the runtime did not answer within %v", graphicsLimit)
	}
}

// GraphicsLate tells the runtime that a connection is not answered.
func (h *Host) GraphicsLate(id uint64) { h.send(&control.Message{Kind: control.Graphics, ID: id}) }

// forgetGraphics lets go of an answer nobody waited for.
func (h *Host) forgetGraphics() {
	select {
	case m := <-h.graphics:
		if m.File != nil {
			m.File.Close()
		}
	default:
	}
}

// join takes one end of a link to its port. h.mu is locked, as for leave.
func (h *Host) join(m *control.Message) {
	socket := m.File
	if socket == nil {
		h.Log("error", fmt.Sprintf("link %s came without a socket", m.Name), nil)
		return
	}
	m.File = nil // the port owns it from here on
	output, input := h.outputs[m.Port], h.inputs[m.Port]
	var err error
	switch {
	case m.Direction == control.Out && output != nil:
		err = output.AddLink(m.ID, socket)
	case m.Direction == control.In && input != nil:
		var page *os.File
		var formats []datapath.Format
		if m.Local {
			formats = h.local
		}
		if page, err = input.AddLink(m.ID, m.Name, socket, formats...); err == nil {
			h.send(&control.Message{Kind: control.Page, ID: m.ID, File: page})
			page.Close()
			h.Waiter.Wake() // a Wait under way does not know the link
		}
	default:
		socket.Close()
		err = fmt.Errorf("there is no port %q in direction %q", m.Port, m.Direction)
	}
	if err != nil {
		h.Log("error", fmt.Sprintf("cannot join link %s: %v", m.Name, err), nil)
		return
	}
	h.links[m.ID] = link{m.Port, m.Direction}
}

// leave ends a link. One that is gone already is answered all the same.
func (h *Host) leave(m *control.Message) {
	l := h.links[m.ID]
	delete(h.links, m.ID)
	h.early = slices.DeleteFunc(h.early, func(early *control.Message) bool {
		if early.ID != m.ID {
			return false
		}
		if early.File != nil {
			early.File.Close()
		}
		return true
	})
	if output := h.outputs[l.port]; output != nil && l.direction == control.Out {
		if err := output.RemoveLink(m.ID, m.Retire); err != nil {
			// Readers that remain could see what they no longer may, or a
			// reader was lost: nothing is left to serve either.
			fmt.Fprintf(os.Stderr, "cannot give %s fresh memory: %v\n", l.port, err)
			os.Exit(exitFailed)
		}
	}
	if input := h.inputs[l.port]; input != nil && l.direction == control.In {
		input.RemoveLink(m.ID)
	}
	h.send(&control.Message{Kind: control.Unlinked, ID: m.ID})
}

func (h *Host) lost(id uint64, why string) {
	if why != "" {
		h.Log("warn", "a link has ended: "+why, nil)
	}
	h.send(&control.Message{Kind: control.Lost, ID: id})
}

func (h *Host) changed() {
	if h.ports.Changed != nil {
		h.ports.Changed()
	}
	h.Waiter.Wake()
}

// send sends to the runtime. That the runtime is gone, receive sees. A message
// that cannot be sent is one that the runtime would wait for: the process fails,
// and is started again. A report goes to the stream's log by the other way.
func (h *Host) send(m *control.Message) {
	switch err := h.conn.Send(m); {
	case err == nil, errors.Is(err, control.ErrGone):
	case m.Kind == control.Log, m.Kind == control.Error:
		fmt.Fprintf(os.Stderr, "%s (%v)\n", m.Message, err)
	default:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
}

// Config decodes the node's configuration into v, a pointer to a struct that
// holds the defaults. A key that v does not have is an error.
func (h *Host) Config(v any) error {
	if err := Decode(h.Spec.Config, v); err != nil {
		return fmt.Errorf("cannot use the configuration of %s: %w", h.Spec.Node, err)
	}
	return nil
}

// Decode decodes a configuration as Host.Config does.
func Decode(config json.RawMessage, v any) error {
	if len(config) == 0 || string(config) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// Between returns an error that names key unless its value is from least to most.
// The limits are those of the node's class in tatolab.stream, where a stream is
// refused that breaks them; here they meet what was recorded under other limits.
func Between(key string, value, least, most float64) error {
	if value >= least && value <= most {
		return nil
	}
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	return fmt.Errorf("%s is %s, not between %s and %s", key, number(value), number(least), number(most))
}

// Output returns the output of that name, which the spec must have.
func (h *Host) Output(port string) *datapath.Output { return h.outputs[port] }

// Input returns the input of that name, which the spec must have.
func (h *Host) Input(port string) *datapath.Input { return h.inputs[port] }

// Active reports whether to work for an output: somebody reads it, and the
// node is not paused.
func (h *Host) Active(port string) bool {
	o := h.outputs[port]
	return o != nil && !h.paused.Load() && o.Readers() > 0
}

// Paused reports whether the node is to do nothing for now.
func (h *Host) Paused() bool { return h.paused.Load() }

// Wait waits for bags as Waiter.Wait does, and reports links whose producer has
// gone. It is for the goroutine that reads the inputs.
func (h *Host) Wait(timeout time.Duration, extra ...unix.PollFd) bool {
	news := h.Waiter.Wait(timeout, extra...)
	for _, in := range h.inputs {
		for _, gone := range in.TakeGone() {
			h.lost(gone.ID, gone.Why)
		}
	}
	return news
}

// Log sends a record to the stream's log. Levels are trace, debug, info, warn
// and error.
func (h *Host) Log(level, message string, fields map[string]any) {
	h.send(&control.Message{Kind: control.Log, Level: level, Message: message, Fields: fields, TimeNS: datapath.Now()})
}

// Waiting tells that the node lives but does not deliver. condition is one
// word for it, message a sentence for people, which the runtime logs.
func (h *Host) Waiting(condition, message string) {
	h.send(&control.Message{Kind: control.Condition, Condition: condition, Message: message})
}

// Delivers ends a condition. remark is shown with the node, for example what a
// camera is set to.
func (h *Host) Delivers(remark string) {
	h.send(&control.Message{Kind: control.Condition, Message: remark})
}
