// Package graphics is the runtime's handle on tatolab-gl, the program that
// draws the effects of a stream (docs/pictures.md): it starts the program when
// a node first asks for it, hands out connections, and says how it ended and
// who was hurt.
package graphics

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/keeper"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/node"
)

// Name of the program, and of what it logs in a stream's log.
const Name = "tatolab-gl"

const (
	// A node that crashed the program is refused for firstRest, doubling up to
	// lastRest; one that did not for forgiven begins anew.
	firstRest = time.Second
	lastRest  = time.Minute
	forgiven  = 5 * time.Minute
)

// Options say how the program of a stream is started.
type Options struct {
	Stream, RuntimeID string
	Keeper            *keeper.Keeper
	// Path is where the program is, or would be if it were installed.
	Path string
	// Log receives its output, Say what the runtime has to tell of it; neither
	// blocks.
	Log func(api.Record)
	Say func(level slog.Level, id logstore.MessageID, node, message string)
	// Do runs f where the methods of Graphics are called, and waits; it
	// reports false, and does not, when the stream has ended.
	Do func(f func()) bool
}

// Graphics is the tatolab-gl of a stream, running or not. Its methods are
// called one at a time.
type Graphics struct {
	options   Options
	current   *process
	processes uint64 // so far
	ids       uint64 // of connections, so far
	rests     map[string]rest
	broken    string // why the last one ended before it said hello
}

// process is one tatolab-gl.
type process struct {
	node  *node.Node
	greet bool     // it said hello
	page  *os.File // nil before it came
	names map[uint64]string
}

// rest is what became of a node for crashing the program.
type rest struct {
	since  time.Time
	length time.Duration
}

// New returns the handle; nothing is started yet.
func New(o Options) *Graphics { return &Graphics{options: o, rests: map[string]rest{}} }

// Connect gives a node a connection, or tells it why it gets none: environ and
// dir are what the program is started with if it does not run.
func (g *Graphics) Connect(name string, send func(*control.Message), environ []string, dir string) {
	m, err := g.connect(name, environ, dir)
	if err != nil {
		m = &control.Message{Kind: control.Graphics, Message: err.Error()}
	}
	send(m)
}

func (g *Graphics) connect(name string, environ []string, dir string) (*control.Message, error) {
	if r := g.rests[name]; time.Since(r.since) < r.length {
		return nil, fmt.Errorf("%s crashed when it drew for %s; it is tried again in %s",
			Name, name, (r.length - time.Since(r.since)).Round(time.Second))
	}
	if g.current == nil {
		if broken := g.broken; broken != "" {
			g.broken = "" // said once; then it is tried again
			return nil, fmt.Errorf("%s does not start: %s", Name, broken)
		}
		if err := g.start(environ, dir); err != nil {
			return nil, err
		}
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", Name, err)
	}
	g.ids++
	g.current.names[g.ids] = name
	g.current.node.Send(&control.Message{Kind: control.Graphics, ID: g.ids, File: os.NewFile(uintptr(fds[0]), Name)})
	return &control.Message{Kind: control.Graphics, ID: g.ids, Process: g.processes, File: os.NewFile(uintptr(fds[1]), Name)}, nil
}

func (g *Graphics) start(environ []string, dir string) error {
	if _, err := os.Stat(g.options.Path); err != nil {
		return fmt.Errorf("effects need the program %s (%s does not exist): install the package tatolab-gui", Name, g.options.Path)
	}
	g.processes++
	p := &process{names: map[uint64]string{}}
	var err error
	p.node, err = node.Start(node.Options{
		Keeper: g.options.Keeper, Argv: []string{g.options.Path}, Env: environ, Dir: dir, Log: g.options.Log,
		Spec: control.Spec{
			// No node's instance ends so.
			Instance: fmt.Sprintf("%s/%s#gl-%d", g.options.Stream, Name, g.processes),
			Stream:   g.options.Stream, Node: Name, RuntimeID: g.options.RuntimeID,
		},
		Event: func(e node.Event) {
			if !g.options.Do(func() { g.handle(p, e) }) {
				if e, ok := e.(node.Page); ok {
					e.File.Close()
				}
			}
		},
	})
	if err != nil {
		return err
	}
	g.current = p
	return nil
}

func (g *Graphics) handle(p *process, e node.Event) {
	switch e := e.(type) {
	case node.Hello:
		p.greet = true
	case node.Page:
		if p.page != nil {
			p.page.Close()
		}
		p.page = e.File
	case node.Ring:
		e.File.Close()
	case node.Exited:
		g.exited(p, e)
	}
}

// Late says that a node waits in vain for an answer on a connection. The
// program is killed: it is stopped, or stuck where its own watchdog is too.
func (g *Graphics) Late(name string, id uint64) {
	if p := g.current; p != nil && p.names[id] == name {
		p.node.Kill("it did not answer " + name)
	}
}

// Close lets go of what the handle has, when the stream has ended and with it
// the program.
func (g *Graphics) Close() {
	if g.current != nil && g.current.page != nil {
		g.current.page.Close()
	}
	g.current = nil
}

// exited says how the program ended. Who connects next gets another one.
func (g *Graphics) exited(p *process, e node.Exited) {
	if g.current == p {
		g.current = nil
	}
	served, err := p.served()
	if p.page != nil {
		p.page.Close()
	}
	const again = "; it is started again when it is needed"
	fault := e.Exit.Signal == 0 && e.Exit.Code != 0 || keeper.Fault(e.Exit.Signal)
	switch {
	case e.Exit.Signal == 0 && e.Exit.Code == 0:
		// Nobody had been connected for a while.
	case !p.greet:
		g.broken = e.Cause
		g.options.Say(slog.LevelError, logstore.NodeDied, Name, fmt.Sprintf("%s does not start: %s", Name, e.Cause))
	case e.Exit.Signal == 0 && e.Exit.Code == control.GraphicsLate:
		g.options.Say(slog.LevelWarn, logstore.NodeKilled, Name,
			fmt.Sprintf("%s was ended: what it drew for %s took too long%s", Name, served, again))
	case fault && served != "":
		r := g.rest(served)
		g.options.Say(slog.LevelError, logstore.NodeDied, served,
			fmt.Sprintf("%s died when it drew for %s: %s; %s draws again in %s", Name, served, e.Cause, served, r))
	default:
		if err != nil {
			g.options.Say(slog.LevelWarn, "", Name, err.Error())
		}
		g.options.Say(slog.LevelError, logstore.NodeDied, Name, fmt.Sprintf("%s died: %s%s", Name, e.Cause, again))
	}
}

// rest sends a node to rest and says for how long.
func (g *Graphics) rest(name string) time.Duration {
	r := g.rests[name]
	if time.Since(r.since) > r.length+forgiven {
		r.length = 0
	}
	r = rest{time.Now(), min(max(firstRest, 2*r.length), lastRest)}
	g.rests[name] = r
	return r.length
}

// served is the node that was drawn for when the process ended, "" if none was.
func (p *process) served() (string, error) {
	if p.page == nil {
		return "", nil
	}
	var word [8]byte
	if _, err := p.page.ReadAt(word[:], 0); err != nil {
		return "", fmt.Errorf("cannot read whom %s served: %w", Name, api.Reason(err))
	}
	return p.names[binary.NativeEndian.Uint64(word[:])], nil
}
