// Package hosttest runs the process of a built-in node for a test, which stands
// in the place of the runtime: it drives the control channel and reads the
// outputs.
package hosttest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/tinylib/msgp/msgp"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/nodes/testpattern/pattern"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
)

// Patience is how long tests wait for what takes no time: this machine may be
// busy with others.
const Patience = 60 * time.Second

// Process is a node process.
type Process struct {
	testing.TB
	Cmd    *exec.Cmd
	Exited chan error // holds what Wait returned, once
	Waiter *datapath.Waiter

	conn   *control.Conn
	output *syncBuffer

	mu       sync.Mutex
	messages []*control.Message // all there were
	news     chan struct{}

	input *datapath.Input
	links uint64
}

// syncBuffer is what the process prints; the test may look while it runs.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Prepare makes ready a process: command line args, of a node with that spec
// (of which protocol and build are filled in) and configuration.
func Prepare(t testing.TB, spec control.Spec, config any, args ...string) *Process {
	t.Helper()
	p := &Process{TB: t, output: &syncBuffer{}, Exited: make(chan error, 1), news: make(chan struct{}, 1)}
	raw, err := json.Marshal(config)
	p.Must(err)
	conn, theirs, err := control.Pair()
	p.Must(err)
	p.conn = conn
	spec.Protocol, spec.Config = control.Protocol, raw
	if spec.Build == "" {
		spec.Build = build.ID()
	}
	file, err := control.WriteSpec(&spec)
	p.Must(err)
	p.Cmd = exec.Command(args[0], args[1:]...)
	p.Cmd.Stdout, p.Cmd.Stderr = p.output, p.output
	p.Cmd.ExtraFiles = []*os.File{theirs, file}
	p.Waiter, err = datapath.NewWaiter()
	p.Must(err)
	return p
}

// Launch starts the process, by Cmd.Start or something in its place. When the
// test ends the process is killed.
func (p *Process) Launch(start func(*exec.Cmd) error) {
	p.Helper()
	files := p.Cmd.ExtraFiles
	p.Must(start(p.Cmd))
	for _, f := range files {
		f.Close()
	}
	go func() { p.Exited <- p.Cmd.Wait() }()
	go p.receive()
	p.Cleanup(func() {
		p.Cmd.Process.Signal(syscall.SIGKILL)
		<-p.Exited
		p.conn.Close()
		p.Waiter.Close()
	})
}

// Start launches the process and brings it up to ready.
func (p *Process) Start(start func(*exec.Cmd) error) {
	p.Helper()
	p.Launch(start)
	p.AwaitKind(control.Loaded)
	p.Tell(&control.Message{Kind: control.Start})
	p.AwaitKind(control.Ready)
}

// Output is what the process has printed.
func (p *Process) Output() string { return p.output.String() }

// Hangup closes the control channel, as the runtime's death does.
func (p *Process) Hangup() { p.conn.Close() }

// Must ends the test on an error.
func (p *Process) Must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *Process) receive() {
	for {
		m, err := p.conn.Receive()
		if err != nil {
			return
		}
		if m.File != nil {
			m.File.Close()
		}
		p.mu.Lock()
		p.messages = append(p.messages, m)
		p.mu.Unlock()
		select {
		case p.news <- struct{}{}:
		default:
		}
	}
}

// Tell sends the node a message.
func (p *Process) Tell(m *control.Message) {
	p.Helper()
	p.Must(p.conn.Send(m))
}

// All returns the messages so far that satisfy is.
func (p *Process) All(is func(*control.Message) bool) (list []*control.Message) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.messages {
		if is(m) {
			list = append(list, m)
		}
	}
	return list
}

// Await waits until a message of that sort has come, now or before.
func (p *Process) Await(what string, is func(*control.Message) bool) *control.Message {
	p.Helper()
	for deadline := time.Now().Add(Patience); ; {
		if list := p.All(is); len(list) > 0 {
			return list[0]
		}
		select {
		case <-p.news:
		case <-time.After(time.Until(deadline)):
			p.Fatalf("no %s within %v; there were %s\nand it printed: %s", what, Patience, p.Transcript(), p.output)
		}
	}
}

// Forget drops the messages there were.
func (p *Process) Forget() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages = nil
}

// Transcript is what the node has said, for a failed test.
func (p *Process) Transcript() string {
	var b strings.Builder
	for _, m := range p.All(func(*control.Message) bool { return true }) {
		fmt.Fprintf(&b, "\n  %s %s %s %q %v", m.Kind, m.Phase, m.Condition, m.Message, m.Fields)
	}
	return b.String()
}

// AwaitKind waits for a message of a kind.
func (p *Process) AwaitKind(kind string) *control.Message {
	p.Helper()
	return p.Await(kind, func(m *control.Message) bool { return m.Kind == kind })
}

// Condition waits for a condition whose message contains text.
func (p *Process) Condition(condition, text string) *control.Message {
	p.Helper()
	return p.Await(fmt.Sprintf("condition %q with %q", condition, text), func(m *control.Message) bool {
		return m.Kind == control.Condition && m.Condition == condition && strings.Contains(m.Message, text)
	})
}

// Said waits for a line of the log.
func (p *Process) Said(text string) *control.Message {
	p.Helper()
	return p.Await(fmt.Sprintf("log with %q", text), func(m *control.Message) bool {
		return m.Kind == control.Log && strings.Contains(m.Message, text)
	})
}

// Link makes a link from one of the node's outputs to the test, and returns its
// id.
func (p *Process) Link(port string, profile datapath.Profile, formats ...datapath.Format) uint64 {
	p.Helper()
	if p.input == nil {
		p.input = p.Waiter.NewInput(profile, formats...)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	p.Must(err)
	theirs := os.NewFile(uintptr(pair[0]), "link")
	p.links++
	p.Tell(&control.Message{Kind: control.Link, ID: p.links, Port: port, Name: "link", Direction: control.Out, File: theirs})
	theirs.Close()
	page, err := p.input.AddLink(p.links, "link", os.NewFile(uintptr(pair[1]), "link"))
	p.Must(err)
	page.Close()
	return p.links
}

// Unlink ends a link, and waits until the node has left it.
func (p *Process) Unlink(id uint64) {
	p.Helper()
	p.input.RemoveLink(id)
	p.Tell(&control.Message{Kind: control.Unlink, ID: id})
	p.Await("unlinked", func(m *control.Message) bool { return m.Kind == control.Unlinked && m.ID == id })
}

// Picture is a frame as a reader sees it.
type Picture struct {
	Bag           map[string]any
	Counter       uint32 // of the test pattern
	Counted       bool   // it could be read: the frame is whole
	Width, Height int    // 0 if the bag came alone
	Timestamp     int64
	Age           time.Duration // from its timestamp to its arrival
	Pixels        []byte        // RGBA, without padding
	Address       uintptr       // where the reader has them, before they were copied here
}

// Next reads the next frame, nil if there is none within patience.
func (p *Process) Next(patience time.Duration) *Picture {
	p.Helper()
	var bag datapath.Bag
	for deadline := time.Now().Add(patience); ; {
		if p.input.Read(&bag) {
			break
		}
		if time.Now().After(deadline) {
			return nil
		}
		p.Waiter.Wait(time.Until(deadline))
	}
	decoded, _, err := msgp.ReadIntfBytes(bag.Data)
	p.Must(err)
	picture := &Picture{Bag: decoded.(map[string]any), Timestamp: bag.Timestamp, Age: time.Duration(datapath.Now() - bag.Timestamp)}
	if f := bag.Frame; f != nil {
		defer f.Release()
		picture.Width, picture.Height = f.Surface.Width, f.Surface.Height
		picture.Counter, picture.Counted = pattern.Counter(f.Pixels, f.Surface.Planes[0].Stride, picture.Width, picture.Height)
		picture.Pixels, picture.Address = bytes.Clone(f.Pixels), uintptr(unsafe.Pointer(unsafe.SliceData(f.Pixels)))
		if id := f.SurfaceID(); picture.Bag["surface_id"] != id {
			p.Errorf("the bag names %v, the picture is %s", picture.Bag["surface_id"], id)
		}
	}
	return picture
}

// Frame reads the next frame and insists on it.
func (p *Process) Frame() *Picture {
	p.Helper()
	picture := p.Next(Patience)
	if picture == nil {
		p.Fatalf("no frame within %v; there were %s\nand it printed: %s", Patience, p.Transcript(), p.output)
	}
	return picture
}

// Stop asks the node to end and returns how long it took.
func (p *Process) Stop() time.Duration {
	p.Helper()
	begin := time.Now()
	p.Tell(&control.Message{Kind: control.Stop})
	select {
	case err := <-p.Exited:
		p.Exited <- err
		if err != nil {
			p.Errorf("the process ended with %v: %s", err, p.output)
		}
	case <-time.After(Patience):
		p.Fatalf("the process does not end; there were %s", p.Transcript())
	}
	return time.Since(begin)
}

// CPU is what the node has used so far.
func (p *Process) CPU() time.Duration {
	p.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Cmd.Process.Pid))
	p.Must(err)
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	var user, system int64
	fmt.Sscan(fields[11], &user)
	fmt.Sscan(fields[12], &system)
	const hertz = 100 // USER_HZ
	return time.Duration(user+system) * time.Second / hertz
}
