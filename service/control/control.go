// Package control is the channel between the runtime and a node process:
// docs/node-protocol.md, version 1. It carries messages and descriptors; what
// they mean is for the two ends.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Protocol is the version of docs/node-protocol.md spoken here.
const Protocol = 1

// Descriptors a node process is started with.
const (
	ChannelFD = 3
	SpecFD    = 4
)

// MaxMessage is the largest datagram, in bytes.
const MaxMessage = 64 << 10

// Kinds of message. The first seven go from the runtime to the node.
const (
	Link      = "link"
	Unlink    = "unlink"
	Start     = "start"
	Configure = "configure"
	Pause     = "pause"
	Resume    = "resume"
	Stop      = "stop"

	Hello      = "hello"
	Configured = "configured"
	Loaded     = "loaded"
	Ready      = "ready"
	Failed     = "failed"
	Error      = "error"
	Log        = "log"
	Condition  = "condition"
	Page       = "page"
	Ring       = "ring"
	Lost       = "lost"
	Unlinked   = "unlinked"
	Stopping   = "stopping"
	Stopped    = "stopped"

	// Graphics goes both ways: a node asks for a connection to tatolab-gl and
	// gets one.
	Graphics = "graphics"
)

// Unfit is the condition of a sink that cannot use what it reads. Unlike in all
// others it goes on reading: another size or kind may come.
const Unfit = "unfit"

// What the runtime knows of tatolab-gl (docs/pictures.md).
const (
	// GraphicsLate is its exit status after a request that took too long.
	GraphicsLate = 3
	// GraphicsPageSize is the size of its page in bytes; the first 64-bit word
	// is the id of the connection it serves, 0 for none.
	GraphicsPageSize = 4096
)

// Message is one datagram. Which fields a kind uses is the table in
// docs/node-protocol.md.
type Message struct {
	Kind string `json:"kind"`

	ID        uint64 `json:"id,omitempty"`
	Port      string `json:"port,omitempty"`
	Name      string `json:"name,omitempty"`
	Direction string `json:"direction,omitempty"`
	Profile   string `json:"profile,omitempty"`
	Format    string `json:"format,omitempty"`
	Retire    bool   `json:"retire,omitempty"`
	Local     bool   `json:"local,omitempty"`
	Process   uint64 `json:"process,omitempty"`

	Protocol int    `json:"protocol,omitempty"`
	Build    string `json:"build,omitempty"`
	PID      int    `json:"pid,omitempty"`

	Phase     string `json:"phase,omitempty"`
	Message   string `json:"message,omitempty"`
	Traceback string `json:"traceback,omitempty"`
	Condition string `json:"condition,omitempty"`

	Config json.RawMessage `json:"config,omitempty"`

	Level  string         `json:"level,omitempty"`
	Fields map[string]any `json:"fields,omitempty"`
	TimeNS int64          `json:"time_ns,omitempty"`

	// File is the descriptor beside the message, nil without one. The
	// receiver owns it.
	File *os.File `json:"-"`
}

// The two directions of a link as one node sees it.
const (
	In  = "in"
	Out = "out"
)

// Spec is what a node process is started with.
type Spec struct {
	Protocol  int             `json:"protocol"`
	Build     string          `json:"build"`
	Instance  string          `json:"instance"`
	RuntimeID string          `json:"runtime_id"`
	Stream    string          `json:"stream"`
	Node      string          `json:"node"`
	Type      string          `json:"type"`
	Config    json.RawMessage `json:"config"`
	Project   string          `json:"project"`
	Snapshot  string          `json:"snapshot"`
	Execution Execution       `json:"execution"`
	Inputs    []Input         `json:"inputs"`
	Outputs   []string        `json:"outputs"`
}

// Execution is how a node's process callback is driven.
type Execution struct {
	Mode       string  `json:"mode"` // reactive, continuous, manual
	IntervalMS float64 `json:"interval_ms"`
}

// Input is an input port and the names of the links the graph gives it.
type Input struct {
	Port    string   `json:"port"`
	Profile string   `json:"profile"` // newest, ordered
	Links   []string `json:"links"`
}

// Conn is one end of the channel. Send may be called from any goroutine,
// Receive from one.
type Conn struct {
	file *os.File
	mu   sync.Mutex
	buf  []byte
}

// Pair makes a channel: the runtime's end, and the file to hand to the process
// as ChannelFD.
func Pair() (*Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a control channel: %w", err)
	}
	// Non-blocking, so that os.File hands it to the netpoller and Close
	// wakes a Receive; the peer's end is a file of its own and may block.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, err
	}
	return newConn(os.NewFile(uintptr(fds[0]), "control")), os.NewFile(uintptr(fds[1]), "control"), nil
}

// Inherited returns the node's end, from the descriptor it was started with.
func Inherited() (*Conn, error) {
	if err := unix.SetNonblock(ChannelFD, true); err != nil {
		return nil, fmt.Errorf("no control channel on descriptor %d: %w", ChannelFD, err)
	}
	unix.CloseOnExec(ChannelFD)
	return newConn(os.NewFile(ChannelFD, "control")), nil
}

func newConn(f *os.File) *Conn {
	return &Conn{file: f, buf: make([]byte, MaxMessage)}
}

// Send sends m, and m.File beside it if there is one (which stays the
// caller's to close). It blocks while the peer's queue is full.
func (c *Conn) Send(m *Message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("cannot send %s: %w", m.Kind, err)
	}
	for len(data) > MaxMessage {
		// Cut the longest text, by more than is over: escapes make the
		// encoded text longer than the plain one.
		over, short := len(data)-MaxMessage, *m
		text := &short.Message
		if len(short.Traceback) > len(short.Message) {
			text = &short.Traceback
		}
		keep := len(*text) - over - 64
		if keep < 0 {
			return fmt.Errorf("cannot send %s: %d bytes, a message has at most %d", m.Kind, len(data), MaxMessage)
		}
		*text = (*text)[:keep] + "… (cut)"
		m = &short
		if data, err = json.Marshal(m); err != nil {
			return fmt.Errorf("cannot send %s: %w", m.Kind, err)
		}
	}
	var rights []byte
	if m.File != nil {
		rights = unix.UnixRights(int(m.File.Fd()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	raw, err := c.file.SyscallConn()
	if err != nil {
		return ErrGone
	}
	if raw.Write(func(fd uintptr) bool {
		for {
			err = unix.Sendmsg(int(fd), data, rights, nil, unix.MSG_NOSIGNAL)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	}) != nil {
		return ErrGone // closed on this side
	}
	switch err {
	case nil:
		return nil
	case unix.EPIPE, unix.ECONNRESET:
		return ErrGone
	}
	return fmt.Errorf("cannot send %s: %w", m.Kind, err)
}

// ErrGone is what Send returns once the channel has ended, on either side. Any
// other error is of the one message, which the peer will never get.
var ErrGone = errors.New("the control channel has ended")

// Receive returns the next message, io.EOF once the peer is gone.
func (c *Conn) Receive() (*Message, error) {
	oob := make([]byte, unix.CmsgSpace(4*4))
	var n, oobn int
	var recvErr error
	raw, err := c.file.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, _, _, recvErr = unix.Recvmsg(int(fd), c.buf, oob, unix.MSG_CMSG_CLOEXEC)
			// A peer that ends without having read all of ours resets the
			// connection, which is told once, before what it said last.
			if recvErr != unix.EINTR && recvErr != unix.ECONNRESET {
				return recvErr != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return nil, err
	case recvErr == nil && n == 0:
		return nil, io.EOF
	case recvErr != nil:
		return nil, recvErr
	}
	file, err := oneFile(oob[:oobn])
	if err != nil {
		return nil, err
	}
	m := &Message{}
	if err := json.Unmarshal(c.buf[:n], m); err != nil {
		if file != nil {
			file.Close()
		}
		return nil, fmt.Errorf("cannot read a control message: %w", err)
	}
	m.File = file
	return m, nil
}

// oneFile takes the descriptor out of a control buffer, closing any beyond
// the first: nobody may fill our descriptor table.
func oneFile(oob []byte) (*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("cannot read a control message: %w", err)
	}
	var file *os.File
	for i := range cmsgs {
		fds, err := unix.ParseUnixRights(&cmsgs[i])
		if err != nil {
			continue
		}
		for _, fd := range fds {
			if file == nil {
				file = os.NewFile(uintptr(fd), "received")
			} else {
				unix.Close(fd)
			}
		}
	}
	return file, nil
}

// Close closes the channel and wakes a Receive.
func (c *Conn) Close() error { return c.file.Close() }

// WriteSpec puts spec into a sealed memfd, to hand to the process as SpecFD.
func WriteSpec(spec *Spec) (*os.File, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot write the spec of %s: %w", spec.Instance, err)
	}
	fd, err := unix.MemfdCreate("tatolab-spec", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot write the spec of %s: memfd_create: %w", spec.Instance, err)
	}
	file := os.NewFile(uintptr(fd), "spec")
	if _, err := file.WriteAt(data, 0); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot write the spec of %s: %w", spec.Instance, err)
	}
	const seals = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		file.Close()
		return nil, fmt.Errorf("cannot seal the spec of %s: %w", spec.Instance, err)
	}
	return file, nil
}

// ReadSpec reads the spec this process was started with.
func ReadSpec() (*Spec, error) {
	file := os.NewFile(SpecFD, "spec")
	defer file.Close()
	var spec Spec
	if err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<30)).Decode(&spec); err != nil {
		return nil, fmt.Errorf("cannot read the spec on descriptor %d: %w", SpecFD, err)
	}
	if spec.Protocol != Protocol {
		return nil, fmt.Errorf("the runtime speaks node protocol %d, this program %d", spec.Protocol, Protocol)
	}
	return &spec, nil
}
