// Package dbus is the runtime's face on the session bus: com.tatolab.Runtime1.
// It translates between the bus and the runtime's methods and holds no logic of
// its own. The interfaces are the XML files beside this one.
//
// A bus that is absent, lost, or whose name is taken costs the runtime
// nothing else: the control socket works on, and name and objects come back
// with the bus.
package dbus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// Time-outs and intervals of this package.
const (
	// firstTry is how long a start waits for the bus before it goes on without.
	firstTry = 3 * time.Second
	// retryMin and retryMax bound the wait before a lost bus is tried again.
	retryMin = 250 * time.Millisecond
	retryMax = 10 * time.Second
	// callTimeout bounds calls to the bus itself.
	callTimeout = 10 * time.Second
	// writeTimeout is how long the bus may leave a message unread before it
	// counts as lost.
	writeTimeout = 20 * time.Second
	// changeInterval is the least time between two rounds of signals: what
	// changes more often is told in one signal.
	changeInterval = 100 * time.Millisecond
	// graphInterval is the least time between two signals that a graph changed.
	graphInterval = time.Second
)

// Service is what this package translates for: *runtime.Runtime, and the small
// one of its tests. A is the service's own type of an attachment.
type Service[A Attachment] interface {
	service
	Attach(ctx context.Context, req api.Load) (A, error)
}

type service interface {
	Keep(ctx context.Context, req api.Load) (*api.Done, error)
	Streams() []api.Stream
	Stream(name string) (api.Stream, error)
	Stop(ctx context.Context, name string) (*api.Done, error)
	Start(ctx context.Context, name string) (*api.Done, error)
	Restart(ctx context.Context, name string) (*api.Done, error)
	Remove(ctx context.Context, name string) (*api.Done, error)
	Expose(ctx context.Context, stream string, end graph.End, level graph.Level) (*api.Done, error)
	ApplyChanges(ctx context.Context, name string, changes []byte) (*api.Done, error)
	Graph(name string) (*api.Graph, error)
	Log(name string, f api.LogFilter) ([]api.Record, error)
	Cameras() ([]api.Camera, error)
	About() (release, socket string)
	ReloadConfig() error
}

// Attachment is an attached stream: its events begin with loaded or refused and
// are closed after ended; Close unloads it and may be called twice.
type Attachment interface {
	Events() <-chan api.Event
	Close()
}

// Bus is the runtime on the bus.
type Bus struct {
	service service
	attach  func(context.Context, api.Load) (Attachment, error)
	say     func(message string)

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{} // closed when run has ended

	mu      sync.Mutex
	session *session // nil while there is no bus
	status  string
}

// New returns a Bus for s that is not connected yet: Start does that, and Changed
// wants to be told of every change. It tells say what becomes of the
// connection, once per change. The end of ctx leaves the bus, as Close does.
func New[A Attachment](ctx context.Context, s Service[A], say func(message string)) *Bus {
	b := &Bus{
		service: s, say: say, done: make(chan struct{}),
		attach: func(ctx context.Context, req api.Load) (Attachment, error) { return s.Attach(ctx, req) },
		status: "not connected",
	}
	b.ctx, b.cancel = context.WithCancel(ctx)
	return b
}

// Start connects, in the background from then on, and returns when the name is
// there or known to be not to be had, so that READY can follow.
func (b *Bus) Start() {
	tried := make(chan struct{})
	go b.run(sync.OnceFunc(func() { close(tried) }))
	select {
	case <-tried:
	case <-time.After(firstTry):
	}
}

// Close leaves the bus and unloads the streams that are attached over it. Start
// must have been called.
func (b *Bus) Close() {
	b.cancel()
	<-b.done
}

// Status is the bus name, or why the runtime is not on the bus, for `status`.
func (b *Bus) Status() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// Changed notes that a stream has come, has changed, or, with gone, is no more. It
// never blocks; signals follow, however often it is called.
func (b *Bus) Changed(stream string, gone bool) {
	b.mu.Lock()
	s := b.session
	b.mu.Unlock()
	if s != nil {
		s.changed(stream, gone)
	}
}

// CamerasChanged tells the bus that cameras have come or gone.
func (b *Bus) CamerasChanged() {
	b.mu.Lock()
	s := b.session
	b.mu.Unlock()
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.emit(Path, managerInterface+".CamerasChanged")
	}
}

func (b *Bus) setStatus(status string) {
	b.mu.Lock()
	news := b.status != status
	b.status = status
	b.mu.Unlock()
	if news {
		b.say("D-Bus: " + status)
	}
}

func (b *Bus) setSession(s *session) {
	b.mu.Lock()
	b.session = s
	b.mu.Unlock()
}

// run keeps the runtime on the bus until Close.
func (b *Bus) run(tried func()) {
	defer close(b.done)
	defer tried()
	retry := retryMin
	for {
		began := time.Now()
		err := b.serve(tried)
		if b.ctx.Err() != nil {
			return
		}
		b.setStatus(err.Error())
		tried()
		if time.Since(began) > retryMax {
			retry = retryMin
		}
		select {
		case <-time.After(retry):
		case <-b.ctx.Done():
			return
		}
		retry = min(2*retry, retryMax)
	}
}

// serve is one connection to the bus, from its beginning to its end.
func (b *Bus) serve(tried func()) error {
	address, err := sessionBus()
	if err != nil {
		return err
	}
	conn, hangUp, err := dial(b.ctx, address)
	if err != nil {
		return fmt.Errorf("cannot connect to the session bus: %w", err)
	}
	s, err := newSession(b, conn)
	if err != nil {
		hangUp()
		return err
	}
	defer s.close(hangUp)
	// Changes are noted before the streams are listed, so that none is lost.
	b.setSession(s)
	defer b.setSession(nil)
	s.fill()
	signals := make(chan *godbus.Signal, 16)
	conn.Signal(signals)
	own := []godbus.MatchOption{
		godbus.WithMatchSender("org.freedesktop.DBus"), godbus.WithMatchInterface("org.freedesktop.DBus"),
		godbus.WithMatchMember("NameOwnerChanged"), godbus.WithMatchArg(0, BusName),
	}
	ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
	defer cancel()
	if err := conn.AddMatchSignalContext(ctx, own...); err != nil {
		return fmt.Errorf("cannot watch the session bus: %w", err)
	}
	if err := b.takeName(ctx, conn); err != nil {
		return err
	}
	tried()
	go s.tell()
	for {
		select {
		case <-b.ctx.Done():
			return nil
		case signal, ok := <-signals:
			if !ok {
				return errors.New("the session bus is gone; waiting for it to come back")
			}
			var name, before, after string
			if signal.Name != "org.freedesktop.DBus.NameOwnerChanged" || signal.Sender != "org.freedesktop.DBus" ||
				godbus.Store(signal.Body, &name, &before, &after) != nil || after != "" {
				continue
			}
			if name != BusName {
				s.clientGone(name)
				continue
			}
			ctx, cancel := context.WithTimeout(b.ctx, callTimeout)
			err := b.takeName(ctx, conn)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

// takeName asks for the name. That another program has it is no error: the
// runtime stays without, until the name is free.
func (b *Bus) takeName(ctx context.Context, conn *godbus.Conn) error {
	var reply uint32
	err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.RequestName", 0, BusName, uint32(godbus.NameFlagDoNotQueue)).Store(&reply)
	if err != nil {
		return fmt.Errorf("cannot take the name %s: %w", BusName, err)
	}
	switch godbus.RequestNameReply(reply) {
	case godbus.RequestNameReplyPrimaryOwner, godbus.RequestNameReplyAlreadyOwner:
		b.setStatus(BusName)
	default:
		b.setStatus(fmt.Sprintf("the name %s is taken by %s; running without D-Bus until it is free", BusName, owner(ctx, conn)))
	}
	return nil
}

func owner(ctx context.Context, conn *godbus.Conn) string {
	var pid uint32
	if conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.GetConnectionUnixProcessID", 0, BusName).Store(&pid) != nil {
		return "another program"
	}
	return fmt.Sprintf("pid %d", pid)
}

// sessionBus is the address of this user's bus. Nothing is launched.
func sessionBus() (string, error) {
	if address := os.Getenv("DBUS_SESSION_BUS_ADDRESS"); address != "" {
		return address, nil
	}
	// The user bus of systemd, which is there for a program started at boot too.
	path := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "bus")
	if info, err := os.Stat(path); err != nil || info.Mode().Type() != os.ModeSocket {
		return "", fmt.Errorf("there is no session bus: DBUS_SESSION_BUS_ADDRESS is not set and nothing is at %s", path)
	}
	return "unix:path=" + godbus.EscapeBusAddressValue(path), nil
}

// dial connects to the first Unix socket of address. hangUp ends the connection
// at once, which godbus's own Close does not where a write is stuck.
func dial(ctx context.Context, address string) (conn *godbus.Conn, hangUp func(), err error) {
	dialer := net.Dialer{Timeout: callTimeout}
	err = fmt.Errorf("the address %q names no Unix socket", address)
	var wire net.Conn
	for _, one := range strings.Split(address, ";") {
		socket := unixSocket(one)
		if socket == "" {
			continue
		}
		if wire, err = dialer.DialContext(ctx, "unix", socket); err == nil {
			break
		}
	}
	if err != nil {
		return nil, nil, err
	}
	// Auth and Hello wait for answers and know no context.
	deadline := time.AfterFunc(callTimeout, func() { wire.Close() })
	defer deadline.Stop()
	defer context.AfterFunc(ctx, func() { wire.Close() })()
	conn, err = godbus.NewConn(&patientWire{wire}, godbus.WithSignalHandler(godbus.NewSequentialSignalHandler()))
	if err != nil {
		wire.Close()
		return nil, nil, err
	}
	hangUp = func() {
		wire.Close()
		conn.Close()
	}
	if err = conn.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err == nil {
		err = conn.Hello()
	}
	if err != nil {
		hangUp()
		return nil, nil, err
	}
	return conn, hangUp, nil
}

// unixSocket is the socket of one "unix:path=…" or "unix:abstract=…" of a bus
// address, "" for another kind.
func unixSocket(address string) string {
	rest, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return ""
	}
	for _, pair := range strings.Split(rest, ",") {
		key, value, _ := strings.Cut(pair, "=")
		value, err := godbus.UnescapeBusAddressValue(value)
		switch {
		case err != nil:
		case key == "path":
			return value
		case key == "abstract":
			return "@" + value
		}
	}
	return ""
}

// patientWire is the connection to a bus that may be stopped. Half a message
// cannot be taken back, so a write that failed ends the connection.
type patientWire struct{ net.Conn }

func (w *patientWire) Write(data []byte) (int, error) {
	_ = w.SetWriteDeadline(time.Now().Add(writeTimeout))
	n, err := w.Conn.Write(data)
	if err != nil {
		w.Conn.Close()
	}
	return n, err
}
