// Package effectserver is the program tatolab-gl: it draws the effects of one
// stream, asked by the stream's nodes over a socket each. The protocol, and
// why it is as it is, are in docs/pictures.md.
package effectserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/go-gl/gl/v3.3-core/gl"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/dmabuf"
	"tatolab.com/tatolab/gl/effect"
	"tatolab.com/tatolab/gl/offscreen"
	"tatolab.com/tatolab/gl/shader"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
)

// Protocol is the version spoken on a connection.
const Protocol = 2

const (
	// idleLimit is how long the process stays without a connection.
	idleLimit = 10 * time.Second
	// orphanLimit is how long the pictures of a connection outlive it: for
	// readers that are in the middle of one.
	orphanLimit = 2 * time.Second
)

// Main is tatolab-gl and returns its exit status. It is to be called from main
// itself: OpenGL keeps the thread.
func Main() int {
	runtime.LockOSThread()
	if kind, err := unix.GetsockoptInt(control.ChannelFD, unix.SOL_SOCKET, unix.SO_TYPE); err != nil || kind != unix.SOCK_SEQPACKET {
		fmt.Fprintln(os.Stderr, "tatolab-gl draws the effects of a stream and is started by tatolabd; it has no use on its own")
		return 2
	}
	greeting := reply{Kind: "hello", Protocol: Protocol}
	context, err := offscreen.Open()
	if err != nil {
		// A driver too old for us may stand before Mesa's software renderer,
		// which is not. Nothing has been said or read yet: the next image
		// begins like this one.
		const software = "LIBGL_ALWAYS_SOFTWARE"
		if os.Getenv(software) == "" {
			if self, execErr := os.Executable(); execErr == nil {
				err = errors.Join(err, unix.Exec(self, os.Args, append(os.Environ(), software+"=1")))
			}
		}
		greeting.Error = err.Error()
	} else {
		defer context.Close()
		greeting.Renderer, greeting.MaxExtent = gl.GoStr(gl.GetString(gl.RENDERER)), shader.MaxExtent()
		if context.Unshared != nil {
			greeting.Unshared = context.Unshared.Error()
		}
	}
	if err := serve(greeting, context); err != nil {
		fmt.Fprintln(os.Stderr, "tatolab-gl:", err)
		return 1
	}
	return 0
}

// serve draws until nobody is connected any more. context is nil if OpenGL
// cannot be had.
func serve(greeting reply, context *offscreen.Context) error {
	channel, err := control.Inherited()
	if err != nil {
		return err
	}
	if _, err := control.ReadSpec(); err != nil {
		return err
	}
	page, file, err := makePage()
	if err != nil {
		return err
	}
	defer file.Close()
	for _, m := range []*control.Message{
		{Kind: control.Hello, Protocol: control.Protocol, Build: build.ID(), PID: os.Getpid()},
		{Kind: control.Page, File: file},
	} {
		if err := channel.Send(m); err != nil {
			return err
		}
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	s := &server{
		greeting: greeting, watch: newWatchdog(page), wake: wake,
		// As many as one datagram each may wait in the channel besides.
		incoming: make(chan *connection, 16),
		pictures: map[uint64]*picture{}, alone: time.Now(),
	}
	if context != nil {
		s.canvas = effect.NewCanvas()
		s.canvas.Device = context.Device
	}
	go s.listen(channel)
	return s.run()
}

// picture is one that OpenGL holds.
type picture struct {
	texture *shader.Texture
	maker   *connection
	// orphaned is when its maker went.
	orphaned time.Time
}

type server struct {
	greeting reply
	watch    *watchdog
	wake     int // an eventfd: somebody is incoming
	incoming chan *connection

	// The thread that draws alone.
	canvas      *effect.Canvas // nil if OpenGL cannot be had
	connections []*connection
	pictures    map[uint64]*picture
	last        uint64    // number of a picture
	shares      uint64    // so far, of pictures
	orphans     bool      // some picture is one
	alone       time.Time // since when there is no connection
}

// listen takes connections from the runtime. The runtime's end ends the
// process, whatever OpenGL is doing: nobody waits for it any more.
func (s *server) listen(channel *control.Conn) {
	for {
		m, err := channel.Receive()
		if err != nil {
			os.Exit(0)
		}
		switch {
		case m.Kind == control.Stop:
			os.Exit(0)
		case m.Kind == control.Graphics && m.File != nil:
			s.incoming <- newConnection(m.ID, m.File)
			_, _ = unix.Write(s.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
		if m.File != nil {
			m.File.Close()
		}
	}
}

// run serves whoever asks, one request each in turn, until nobody has been
// connected for a while.
func (s *server) run() error {
	var fds []unix.PollFd
	for {
		fds = append(fds[:0], unix.PollFd{Fd: int32(s.wake), Events: unix.POLLIN})
		for _, c := range s.connections {
			fds = append(fds, unix.PollFd{Fd: int32(c.socket), Events: unix.POLLIN})
		}
		_, err := unix.Poll(fds, s.patience())
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		// Of a copy: who is gone is taken off the list meanwhile.
		for i, c := range append([]*connection(nil), s.connections...) {
			if fds[i+1].Revents == 0 {
				continue
			}
			if err := s.turn(c); err != nil {
				if !errors.Is(err, io.EOF) && err != unix.ECONNRESET && err != unix.EPIPE {
					fmt.Fprintln(os.Stderr, "tatolab-gl: a connection was closed:", err)
				}
				s.leave(c)
			}
		}
		if fds[0].Revents != 0 {
			s.greet()
		}
		s.bury(time.Now())
		if len(s.connections) == 0 && time.Since(s.alone) >= idleLimit {
			return nil
		}
	}
}

// patience is how long to wait for a request, in milliseconds.
func (s *server) patience() int {
	var wait time.Duration
	switch {
	case s.orphans:
		wait = orphanLimit
	case len(s.connections) == 0:
		wait = idleLimit - time.Since(s.alone)
	default:
		return -1
	}
	return int(max(0, wait)/time.Millisecond) + 1
}

// greet says hello to those who came.
func (s *server) greet() {
	var rung [8]byte
	_, _ = unix.Read(s.wake, rung[:])
	for {
		select {
		case c := <-s.incoming:
			s.connections = append(s.connections, c)
			if err := c.send(s.greeting); err != nil || s.canvas == nil {
				s.leave(c)
			}
		default:
			return
		}
	}
}

// leave forgets a connection and what is its own; its pictures become orphans.
func (s *server) leave(c *connection) {
	for i, other := range s.connections {
		if other == c {
			s.connections = append(s.connections[:i], s.connections[i+1:]...)
			break
		}
	}
	c.close()
	s.alone = time.Now()
	for _, p := range s.pictures {
		if p.maker == c {
			p.maker, p.orphaned, s.orphans = nil, s.alone, true
		}
	}
}

// bury forgets the orphans whose time is over.
func (s *server) bury(now time.Time) {
	if !s.orphans {
		return
	}
	s.orphans = false
	for number, p := range s.pictures {
		switch {
		case p.maker != nil:
		case now.Sub(p.orphaned) >= orphanLimit:
			s.forget(number)
		default:
			s.orphans = true
		}
	}
}

func (s *server) forget(number uint64) {
	s.canvas.Recycle(s.pictures[number].texture)
	delete(s.pictures, number)
}

// turn serves one request of a connection. An error is the end of the
// connection.
func (s *server) turn(c *connection) error {
	r, err := c.receive()
	if err != nil || r == nil {
		return err
	}
	if r.file != nil {
		defer r.file.Close()
	}
	answer := reply{Kind: "reply", ID: r.ID}
	defer func() {
		if answer.file != nil {
			answer.file.Close()
		}
	}()
	s.watch.begin(c, r.ID, s.limit(r))
	err = s.serve(c, r, &answer)
	s.watch.end()
	if err != nil {
		answer.Error = err.Error()
		var lost *lostError
		answer.Lost = errors.As(err, &lost)
	}
	return c.send(answer)
}

// lostError is a request for a picture that is not there.
type lostError struct{ number uint64 }

func (e *lostError) Error() string { return fmt.Sprintf("there is no picture %d", e.number) }

func (s *server) serve(c *connection, r *request, answer *reply) error {
	for _, number := range r.Drop {
		if p := s.pictures[number]; p != nil && p.maker == c {
			s.forget(number)
		}
	}
	switch r.Kind {
	case "compile":
		return s.compile(c, r)
	case "memory":
		return c.mapMemory(r)
	case "forget":
		return c.unmapMemory(r.Memory)
	case "upload":
		_, number, err := s.upload(c, r.From)
		answer.Picture = number
		return err
	case "copy":
		p := s.pictures[r.Source]
		if p == nil {
			return &lostError{r.Source}
		}
		t, err := s.canvas.Copy(p.texture)
		if err != nil {
			return err
		}
		gl.Finish()
		answer.Picture = s.keep(c, t)
		return nil
	case "apply":
		return s.apply(c, r, answer)
	case "read":
		p := s.pictures[r.Picture]
		if p == nil {
			return &lostError{r.Picture}
		}
		pixels, err := c.place(r.Into, true)
		if err != nil {
			return err
		}
		return s.canvas.Read(p.texture, pixels, r.Into.Stride)
	case "share":
		return s.share(r.Picture, answer)
	case "statistics":
		answer.Statistics = &statistics{
			s.canvas.Uploads, s.canvas.Draws, s.canvas.Readbacks, s.shares, len(s.pictures), len(s.connections),
		}
		return nil
	}
	return fmt.Errorf("there is no request %q", r.Kind)
}

func (s *server) compile(c *connection, r *request) error {
	p, err := effect.Compile(r.Text, r.Dials)
	if err != nil {
		return err
	}
	if err := s.canvas.Warm(p); err != nil {
		p.Delete()
		return err
	}
	if old := c.effects[r.Effect]; old != nil {
		old.Delete()
	}
	c.effects[r.Effect] = p
	return nil
}

// keep numbers a picture.
func (s *server) keep(c *connection, t *shader.Texture) uint64 {
	s.last++
	s.pictures[s.last] = &picture{texture: t, maker: c}
	return s.last
}

// share gives another process the memory of a picture, or of a sample by which
// it finds out whether it sees what is drawn there.
func (s *server) share(number uint64, answer *reply) (err error) {
	p := s.pictures[number]
	var t *shader.Texture
	switch {
	case s.canvas.Device == nil:
		return fmt.Errorf("pictures cannot be shared: %s", s.greeting.Unshared)
	case number == 0:
		if t, err = s.canvas.Device.Sample(); err != nil {
			return err
		}
		defer t.Delete() // its memory lives on in the descriptor
	case p == nil:
		return &lostError{number}
	default:
		t = p.texture
		s.shares++
		p.orphaned = time.Now() // it is in use, if it is one
	}
	var layout dmabuf.Layout
	answer.file, layout, err = dmabuf.Export(t)
	answer.Buffer, answer.Layout = t.Number, &layout
	return err
}

func (s *server) upload(c *connection, from *place) (*shader.Texture, uint64, error) {
	pixels, err := c.place(from, false)
	if err != nil {
		return nil, 0, err
	}
	t, err := s.canvas.Upload(pixels, from.Stride, from.Width, from.Height)
	if err != nil {
		return nil, 0, err
	}
	return t, s.keep(c, t), nil
}

func (s *server) apply(c *connection, r *request, answer *reply) error {
	program := c.effects[r.Effect]
	if program == nil {
		return fmt.Errorf("there is no effect %d", r.Effect)
	}
	var source *shader.Texture
	var err error
	if r.From != nil {
		if source, answer.Source, err = s.upload(c, r.From); err != nil {
			return err
		}
	} else {
		p := s.pictures[r.Source]
		if p == nil {
			return &lostError{r.Source}
		}
		source = p.texture
	}
	result, err := s.canvas.Apply(program, source, r.Values, r.Elapsed)
	if err != nil {
		if r.From != nil {
			s.forget(answer.Source)
			answer.Source = 0
		}
		return err
	}
	gl.Finish() // a draw that does not end is this request's, not the next one's
	answer.Picture = s.keep(c, result)
	return nil
}
