package dbus

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	systemdbus "github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// session is one connection to the bus and the objects on it. All signals are
// sent from here, under mu, so that their order is that of what happened.
//
// The objects are exported once, as subtrees, and look at the runtime when they are
// asked. To export an object per stream, and use godbus's prop for the
// signals, would change godbus's object table while Introspect reads it; as of
// version 5.2.4 that table has no lock.
type session struct {
	bus  *Bus
	conn *godbus.Conn

	ctx    context.Context // ends with the connection
	cancel context.CancelFunc

	workMu sync.Mutex
	work   sync.WaitGroup // calls and attached streams, see begin

	mu    sync.Mutex
	known map[string]*told // streams the bus has been told of, by name

	pendingMu sync.Mutex
	pending   map[string]bool // streams that changed; true: gone in between
	wake      chan struct{}

	clientsMu sync.Mutex
	clients   map[string]*client // by unique name
}

// told is what the bus has been told of a stream.
type told struct {
	view
	graphTold time.Time
	graphWait bool // the graph is looked at again when graphInterval has passed
}

func newSession(b *Bus, conn *godbus.Conn) (*session, error) {
	s := &session{
		bus: b, conn: conn, known: map[string]*told{}, pending: map[string]bool{}, wake: make(chan struct{}, 1),
		clients: map[string]*client{},
	}
	s.ctx, s.cancel = context.WithCancel(b.ctx)
	m, streams := &manager{s}, &streams{s}
	for _, export := range []func() error{
		func() error { return conn.Export(m, Path, managerInterface) },
		func() error { return conn.Export(m, Path, objectManagerInterface) },
		func() error { return conn.Export(managerProperties{s}, Path, propertiesInterface) },
		func() error { return conn.Export(managerIntrospection{}, Path, introspectInterface) },
		func() error { return conn.ExportSubtree(streams, StreamsPath, streamInterface) },
		func() error { return conn.ExportSubtree(streamProperties{s}, StreamsPath, propertiesInterface) },
		func() error { return conn.ExportSubtree(streamIntrospection{s}, StreamsPath, introspectInterface) },
	} {
		if err := export(); err != nil {
			return nil, fmt.Errorf("cannot put the objects on the bus: %w", err)
		}
	}
	return s, nil
}

// close ends what the session began; the wire is cut first, so that nothing is stuck
// in a write. The streams attached over this
// connection go with it: their clients' names mean nothing any more.
func (s *session) close(hangUp func()) {
	s.workMu.Lock()
	s.cancel()
	s.workMu.Unlock()
	hangUp()
	s.work.Wait()
}

// begin counts a piece of work that the session's end waits for, until
// s.work.Done. It is false when the end has come.
func (s *session) begin() bool {
	s.workMu.Lock()
	defer s.workMu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.work.Add(1)
	return true
}

// fill takes the streams there are for told: nobody can have asked yet.
func (s *session) fill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, stream := range s.bus.service.Streams() {
		s.known[stream.Name] = &told{view: s.bus.view(stream)}
	}
}

func (s *session) changed(stream string, gone bool) {
	s.pendingMu.Lock()
	s.pending[stream] = s.pending[stream] || gone
	s.pendingMu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tell sends signals as streams change, in rounds.
func (s *session) tell() {
	if !s.begin() {
		return
	}
	defer s.work.Done()
	for {
		select {
		case <-s.wake:
		case <-s.ctx.Done():
			return
		}
		s.mu.Lock()
		s.tellPending()
		s.mu.Unlock()
		select {
		case <-time.After(changeInterval):
		case <-s.ctx.Done():
			return
		}
	}
}

// tellPending tells the bus of all that changed. s.mu is held.
func (s *session) tellPending() {
	s.pendingMu.Lock()
	pending := s.pending
	s.pending = map[string]bool{}
	s.pendingMu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(pending)) {
		s.tellOf(name, pending[name])
	}
}

// announce makes sure that the bus knows a stream before its path is given out.
func (s *session) announce(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tellOf(name, false)
}

// tellOf tells the bus how a stream is now. gone says that it was gone in
// between, so that one there now is another. s.mu is held.
func (s *session) tellOf(name string, gone bool) {
	stream, err := s.bus.service.Stream(name)
	before := s.known[name]
	if before != nil && (gone || err != nil) {
		delete(s.known, name)
		s.emit(Path, objectManagerInterface+".InterfacesRemoved", pathOf(name), streamInterfaces)
		before = nil
	}
	if err != nil {
		return
	}
	now := s.bus.view(stream)
	if before == nil {
		s.known[name] = &told{view: now, graphTold: time.Now()}
		s.emit(Path, objectManagerInterface+".InterfacesAdded", pathOf(name), now.interfaces())
		return
	}
	changed, invalidated := now.differs(before.view), []string{}
	if now.Graph != before.Graph {
		if wait := graphInterval - time.Since(before.graphTold); wait > 0 {
			// Told later; until then this graph is not the one told.
			now.Graph = before.Graph
			if !before.graphWait {
				before.graphWait = true
				time.AfterFunc(wait, func() {
					s.mu.Lock()
					before.graphWait = false
					s.mu.Unlock()
					s.changed(name, false)
				})
			}
		} else {
			invalidated = append(invalidated, "Graph")
			before.graphTold = time.Now()
		}
	}
	before.view = now
	if len(changed) > 0 || len(invalidated) > 0 {
		s.emit(pathOf(name), propertiesInterface+".PropertiesChanged", streamInterface, changed, invalidated)
	}
}

// emit sends a signal. What fails here is the connection, whose end is seen
// elsewhere.
func (s *session) emit(path godbus.ObjectPath, name string, values ...any) {
	if s.ctx.Err() == nil {
		_ = s.conn.Emit(path, name, values...)
	}
}

// pathOf is the object of a stream.
func pathOf(stream string) godbus.ObjectPath {
	return StreamsPath + "/" + godbus.ObjectPath(systemdbus.PathBusEscape(stream))
}

// nameOf is the reverse: sd_bus_path_decode(3).
func nameOf(path godbus.ObjectPath) (string, bool) {
	label, ok := strings.CutPrefix(string(path), StreamsPath+"/")
	if !ok || strings.Contains(label, "/") {
		return "", false
	}
	var name strings.Builder
	for i := 0; i < len(label); i++ {
		if label[i] != '_' {
			name.WriteByte(label[i])
			continue
		}
		if i+3 > len(label) {
			return "", false
		}
		b, err := strconv.ParseUint(label[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		name.WriteByte(byte(b))
		i += 2
	}
	// One stream has one path.
	return name.String(), pathOf(name.String()) == path
}
