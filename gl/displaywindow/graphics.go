package displaywindow

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/dmabuf"
	"tatolab.com/tatolab/gl/shader"
	"tatolab.com/tatolab/gl/window"
	"tatolab.com/tatolab/nodes/host"
)

const (
	// answerLimit is how long tatolab-gl may take for an answer: it is drawing
	// for others too, and ends what takes too long itself.
	answerLimit = 15 * time.Second
	// connectAgain is how long to wait after a connection that could not be had.
	connectAgain = time.Second
	// unseen is how many pictures later a memory that was not among them is let
	// go of; a producer uses its own in turn.
	unseen = 64
	// maxAnswer is the longest datagram, in bytes.
	maxAnswer = 160 << 10
)

// errLost is a picture that has gone with its tatolab-gl.
var errLost = errors.New("the picture is lost")

// graphics has the pictures that stay in the stream's tatolab-gl
// (docs/pictures.md): by the memory they lie in, else read back. It belongs to the
// drawing thread, and ends with the process.
type graphics struct {
	host *host.Host

	socket      *os.File // nil without a connection
	id, process uint64
	last        uint64 // request
	data        []byte // of the last answer, maxAnswer of it
	tried       time.Time

	shares   bool
	shown    uint64               // pictures so far
	imported map[uint64]*imported // by their number at tatolab-gl

	memory []byte // where pictures are read back to, nil before the first
}

// imported is memory of tatolab-gl.
type imported struct {
	texture *shader.Texture
	shown   uint64 // when it was used last
}

// question is a request to tatolab-gl, answer its reply; which fields a kind has
// is the table in docs/pictures.md.
type question struct {
	ID       uint64 `json:"id"`
	Kind     string `json:"kind"`
	Picture  uint64 `json:"picture,omitempty"`
	Memory   int    `json:"memory,omitempty"`
	Size     int    `json:"size,omitempty"`
	Writable bool   `json:"writable,omitempty"`
	Into     *place `json:"into,omitempty"`
}

type place struct {
	Memory int `json:"memory"`
	Offset int `json:"offset"`
	Stride int `json:"stride"`
}

type answer struct {
	ID       uint64         `json:"id"`
	Kind     string         `json:"kind"`
	Error    string         `json:"error"`
	Lost     bool           `json:"lost"`
	Unshared string         `json:"unshared"`
	Buffer   uint64         `json:"buffer"`
	Layout   *dmabuf.Layout `json:"layout"`

	file *os.File
}

// find gives p, whose size is known, the picture that reference names.
func (g *graphics) find(p *window.Picture, reference []byte) error {
	if len(reference) < 16 {
		return fmt.Errorf("a picture in OpenGL is named by %d bytes, not 16", len(reference))
	}
	process, number := binary.NativeEndian.Uint64(reference), binary.NativeEndian.Uint64(reference[8:])
	if g.socket != nil && process < g.process {
		return errLost
	}
	if g.socket == nil || process > g.process {
		if err := g.connect(); err != nil {
			return err
		}
		if process != g.process {
			return errLost
		}
	}
	g.shown++
	if g.shares {
		err := g.share(p, number)
		if err == nil || errors.Is(err, errLost) || g.socket == nil {
			return err
		}
		// That one cannot be, for its size maybe.
	}
	return g.read(p, number)
}

// connect gets a connection, and finds out whether memory can be shared by it.
func (g *graphics) connect() error {
	if time.Since(g.tried) < connectAgain {
		return errLost // what is wrong has been said
	}
	g.close()
	g.tried = time.Now()
	id, process, socket, err := g.host.Graphics()
	if err != nil {
		return err
	}
	g.id, g.process, g.socket = id, process, socket
	limit := unix.NsecToTimeval(int64(answerLimit))
	if err := unix.SetsockoptTimeval(int(socket.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
		return fmt.Errorf("cannot use a connection to tatolab-gl: %w", err)
	}
	hello, err := g.receive()
	if err != nil {
		return err
	}
	if hello.Error != "" {
		g.close()
		return fmt.Errorf("tatolab-gl: %s", hello.Error)
	}
	g.tried = time.Time{}
	why := errors.New(hello.Unshared)
	if hello.Unshared == "" {
		why = g.probe()
	}
	if g.socket == nil {
		return errLost
	}
	g.shares = why == nil
	how := "pictures of tatolab-gl are where it draws them"
	if why != nil {
		how = fmt.Sprintf("pictures of tatolab-gl are copied: %v", why)
	}
	g.host.Log("debug", how, nil)
	return nil
}

// probe returns why memory cannot be shared: it looks at a sample.
func (g *graphics) probe() error {
	a, err := g.ask(question{Kind: "share"}, nil)
	if err != nil {
		return err
	}
	t, err := a.texture()
	if err != nil {
		return err
	}
	defer t.Delete()
	return dmabuf.IsSample(t)
}

func (a *answer) texture() (*shader.Texture, error) {
	if a.file == nil || a.Layout == nil {
		return nil, errors.New("tatolab-gl named no memory")
	}
	defer a.file.Close()
	return dmabuf.Import(a.file, *a.Layout)
}

// share finds a picture by the memory it lies in.
func (g *graphics) share(p *window.Picture, number uint64) error {
	a, err := g.ask(question{Kind: "share", Picture: number}, nil)
	if err != nil {
		return err
	}
	known := g.imported[a.Buffer]
	if known == nil {
		t, err := a.texture()
		if err != nil {
			return err
		}
		known = &imported{texture: t}
		g.imported[a.Buffer] = known
	} else if a.file != nil {
		a.file.Close()
	}
	if known.texture.Width != p.Width || known.texture.Height != p.Height {
		return fmt.Errorf("a picture of %d×%d is %d×%d at tatolab-gl", p.Width, p.Height, known.texture.Width, known.texture.Height)
	}
	known.shown = g.shown
	for buffer, i := range g.imported {
		if g.shown-i.shown > unseen {
			i.texture.Delete()
			delete(g.imported, buffer)
		}
	}
	p.Texture = known.texture
	return nil
}

// read has a picture read back.
func (g *graphics) read(p *window.Picture, number uint64) error {
	if size := 4 * p.Width * p.Height; size > len(g.memory) {
		if err := g.allocate(size); err != nil {
			return err
		}
	}
	if _, err := g.ask(question{Kind: "read", Picture: number, Into: &place{Stride: 4 * p.Width}}, nil); err != nil {
		return err
	}
	p.Pixels, p.Stride = g.memory, 4*p.Width
	return nil
}

// allocate makes memory, and makes tatolab-gl know it.
func (g *graphics) allocate(size int) error {
	g.unmap()
	fd, err := unix.MemfdCreate("tatolab-window", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "memory")
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		return fmt.Errorf("cannot seal memory: %w", err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	g.memory = memory
	if _, err := g.ask(question{Kind: "memory", Size: size, Writable: true}, file); err != nil {
		g.unmap()
		return err
	}
	return nil
}

func (g *graphics) unmap() {
	if g.memory != nil {
		_ = unix.Munmap(g.memory)
		g.memory = nil
	}
}

// ask sends a request, with a file if there is one, and waits for the answer.
// Without an answer the connection is closed, and errLost returned.
func (g *graphics) ask(q question, file *os.File) (*answer, error) {
	g.last++
	q.ID = g.last
	data, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if err := unix.Sendmsg(int(g.socket.Fd()), data, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		g.close()
		return nil, errLost
	}
	for {
		a, err := g.receive()
		switch {
		case err != nil:
			return nil, err
		case a.ID != q.ID:
			continue
		case a.Lost:
			return nil, errLost
		case a.Error != "":
			return nil, errors.New(a.Error)
		}
		return a, nil
	}
}

// receive reads a datagram. At the end of the connection that is closed.
func (g *graphics) receive() (*answer, error) {
	if g.data == nil {
		g.data = make([]byte, maxAnswer)
	}
	rights := make([]byte, unix.CmsgSpace(4))
	var n, r int
	var err error
	for {
		n, r, _, _, err = unix.Recvmsg(int(g.socket.Fd()), g.data, rights, unix.MSG_CMSG_CLOEXEC)
		if err != unix.EINTR {
			break
		}
	}
	if err == unix.EAGAIN {
		g.host.GraphicsLate(g.id)
	}
	if err != nil || n == 0 {
		g.close()
		return nil, errLost
	}
	a := &answer{}
	if messages, err := unix.ParseSocketControlMessage(rights[:r]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil && len(fds) == 1 {
			a.file = os.NewFile(uintptr(fds[0]), "picture")
		}
	}
	if err := json.Unmarshal(g.data[:n], a); err != nil {
		g.close()
		return nil, fmt.Errorf("an answer of tatolab-gl makes no sense: %w", err)
	}
	return a, nil
}

// close lets go of the connection and all that came by it.
func (g *graphics) close() {
	if g.socket != nil {
		g.socket.Close()
		g.socket = nil
	}
	for _, i := range g.imported {
		i.texture.Delete()
	}
	g.imported, g.shares = map[uint64]*imported{}, false
	g.unmap()
}
