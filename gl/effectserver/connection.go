package effectserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/dmabuf"
	"tatolab.com/tatolab/gl/effect"
)

// MaxRequest is the largest datagram, in bytes.
const MaxRequest = 160 << 10

// request is any of a client's datagrams; which fields a kind uses is the
// table in docs/pictures.md.
type request struct {
	ID   uint64   `json:"id"`
	Kind string   `json:"kind"`
	Drop []uint64 `json:"drop"`

	Effect  int           `json:"effect"`
	Text    string        `json:"text"`
	Dials   []effect.Dial `json:"dials"`
	Values  effect.Values `json:"values"`
	Elapsed float64       `json:"elapsed"`

	Memory   int   `json:"memory"`
	Size     int64 `json:"size"`
	Writable bool  `json:"writable"`

	Source uint64 `json:"source"`
	From   *place `json:"from"`

	Picture uint64 `json:"picture"`
	Into    *place `json:"into"`

	// file came beside the request, nil without one.
	file *os.File
}

// place is where pixels lie.
type place struct {
	Memory int   `json:"memory"`
	Offset int64 `json:"offset"`
	Stride int   `json:"stride"`
	Width  int   `json:"width"`
	Height int   `json:"height"`
}

// reply answers a request, or, of kind hello, says who speaks.
type reply struct {
	Kind  string `json:"kind"`
	ID    uint64 `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	Lost  bool   `json:"lost,omitempty"`
	Ended bool   `json:"ended,omitempty"`

	Protocol  int    `json:"protocol,omitempty"`
	Renderer  string `json:"renderer,omitempty"`
	MaxExtent int    `json:"max_extent,omitempty"`
	// Unshared is why pictures cannot be shared, "" where they can.
	Unshared string `json:"unshared,omitempty"`

	Source     uint64      `json:"source,omitempty"`
	Picture    uint64      `json:"picture,omitempty"`
	Statistics *statistics `json:"statistics,omitempty"`

	Buffer uint64         `json:"buffer,omitempty"`
	Layout *dmabuf.Layout `json:"layout,omitempty"`
	// file goes beside the reply, nil without one.
	file *os.File
}

type statistics struct {
	Uploads     uint64 `json:"uploads"`
	Draws       uint64 `json:"draws"`
	Readbacks   uint64 `json:"readbacks"`
	Shares      uint64 `json:"shares"`
	Pictures    int    `json:"pictures"`
	Connections int    `json:"connections"`
}

// connection is a node's, with what is its own.
type connection struct {
	id       uint64
	socket   int
	effects  map[int]*effect.Program
	memories map[int]memory
	data     []byte
	rights   []byte
}

// memory is a memfd of the client's, mapped.
type memory struct {
	data     []byte
	writable bool
}

// newConnection takes the socket out of file, which stays the caller's.
func newConnection(id uint64, file *os.File) *connection {
	socket, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		socket = -1 // found at the first use
	}
	return &connection{
		id: id, socket: socket,
		effects: map[int]*effect.Program{}, memories: map[int]memory{},
		data: make([]byte, MaxRequest), rights: make([]byte, unix.CmsgSpace(4*4)),
	}
}

// close frees what is the connection's own, on the thread that draws.
func (c *connection) close() {
	for _, p := range c.effects {
		p.Delete()
	}
	for _, m := range c.memories {
		_ = unix.Munmap(m.data)
	}
	if c.socket >= 0 {
		unix.Close(c.socket)
	}
}

// send never waits: a client that does not take its answers is left.
func (c *connection) send(r reply) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(data) > MaxRequest {
		// A compiler's messages, then: the first ones say what is wrong.
		r.Error = r.Error[:MaxRequest/8] + "… (cut)"
		if data, err = json.Marshal(r); err != nil {
			return err
		}
	}
	var rights []byte
	if r.file != nil {
		rights = unix.UnixRights(int(r.file.Fd()))
	}
	for {
		if err := unix.Sendmsg(c.socket, data, rights, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != unix.EINTR {
			return err
		}
	}
}

// receive returns the next request, nil if there is none, io.EOF at the end.
func (c *connection) receive() (*request, error) {
	var n, rights, flags int
	var err error
	for {
		n, rights, flags, _, err = unix.Recvmsg(c.socket, c.data, c.rights, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err != unix.EINTR {
			break
		}
	}
	switch {
	case err == unix.EAGAIN:
		return nil, nil
	case err != nil:
		return nil, err
	case n == 0:
		return nil, io.EOF
	}
	r := &request{file: firstFile(c.rights[:rights])}
	if flags&unix.MSG_TRUNC != 0 {
		err = fmt.Errorf("longer than %d bytes", MaxRequest)
	} else {
		err = json.Unmarshal(c.data[:n], r)
	}
	if err != nil {
		if r.file != nil {
			r.file.Close()
		}
		return nil, err
	}
	return r, nil
}

// firstFile takes the descriptor beside a request and closes any more.
func firstFile(oob []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var file *os.File
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			if file == nil {
				file = os.NewFile(uintptr(fd), "memory")
			} else {
				unix.Close(fd)
			}
		}
	}
	return file
}

func (c *connection) mapMemory(r *request) error {
	if r.file == nil {
		return errors.New("no descriptor came with the memory")
	}
	// Beyond the end of a file a map faults, and ends everybody's effects.
	if seals, err := unix.FcntlInt(r.file.Fd(), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return errors.New("the memory is no memfd with a seal against shrinking")
	}
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	if r.Size < 1 || info.Size() < r.Size || r.Size != int64(int(r.Size)) {
		return fmt.Errorf("the memory has %d bytes, not %d", info.Size(), r.Size)
	}
	protection := unix.PROT_READ
	if r.Writable {
		protection |= unix.PROT_WRITE
	}
	data, err := unix.Mmap(int(r.file.Fd()), 0, int(r.Size), protection, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("cannot map memory: %w", err)
	}
	if err := c.unmapMemory(r.Memory); err != nil {
		return err
	}
	c.memories[r.Memory] = memory{data, r.Writable}
	return nil
}

func (c *connection) unmapMemory(number int) error {
	m, ok := c.memories[number]
	if !ok {
		return nil
	}
	delete(c.memories, number)
	return unix.Munmap(m.data)
}

// place returns the memory from where p begins.
func (c *connection) place(p *place, write bool) ([]byte, error) {
	if p == nil {
		return nil, errors.New("it is not said where the pixels lie")
	}
	m, ok := c.memories[p.Memory]
	switch {
	case !ok:
		return nil, fmt.Errorf("there is no memory %d", p.Memory)
	case write && !m.writable:
		return nil, fmt.Errorf("memory %d is read-only", p.Memory)
	case p.Offset < 0 || p.Offset >= int64(len(m.data)):
		return nil, fmt.Errorf("memory %d ends before offset %d", p.Memory, p.Offset)
	}
	return m.data[p.Offset:], nil
}
