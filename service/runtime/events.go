package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/switchboard"
)

// ChangeKind is what happened to a stream.
type ChangeKind int

// The kinds of change. Changed is of state, node count, exposures, or of the
// graph's structure or link states.
const (
	Added ChangeKind = iota
	Changed
	Removed
)

// Change is what a subscriber is told.
type Change struct {
	Kind   ChangeKind
	Stream string
}

type subscribers struct {
	mu   sync.Mutex
	next int
	all  map[int]func(Change)
}

// Subscribe calls f for every change until cancel is called. f must neither
// block nor call back into the Runtime: it may hold any lock.
func (r *Runtime) Subscribe(f func(Change)) (cancel func()) {
	s := &r.subscribers
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all == nil {
		s.all = map[int]func(Change){}
	}
	s.next++
	id := s.next
	s.all[id] = f
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, id)
	}
}

func (r *Runtime) publish(c Change) {
	s := &r.subscribers
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.all {
		f(c)
	}
}

// linkChanged is told by the switchboard. It holds the board's lock.
func (r *Runtime) linkChanged(name string, s switchboard.Status) {
	if strings.Contains(name, "#") {
		return // a reader that is no stream
	}
	if s.State == api.LinkAwaitingRemote {
		r.say(slog.LevelInfo, "", name, s.Link.Target.Node, fmt.Sprintf("input %s waits: it %s", s.Link.Target.Port, s.Reason))
	} else if s.State == api.LinkWired && s.Link.Source.Remote() {
		r.say(slog.LevelInfo, "", name, s.Link.Target.Node, fmt.Sprintf("input %s reads %s", s.Link.Target.Port, s.Link.Source))
	}
	r.publish(Change{Changed, name})
}

// writeLog writes a record of a node to its stream's log, and shows it to the
// command that the stream is attached to. It does not block.
func (r *Runtime) writeLog(rec api.Record) {
	r.Logs.Append(rec)
	r.show(rec)
}

func (r *Runtime) show(rec api.Record) {
	if a, ok := r.watchers.Load(rec.Stream); ok {
		a.(*Attachment).send(api.Event{Kind: api.EventLog, Record: &rec})
	}
}

// say tells something of a stream, or of a node of it: in the stream's log, in
// the runtime's, and to the command that the stream is attached to.
func (r *Runtime) say(level slog.Level, id logstore.MessageID, stream, node, message string) {
	attrs := []slog.Attr{slog.String(logstore.AttrStream, stream)}
	if node != "" {
		attrs = append(attrs, slog.String(logstore.AttrNode, node))
	}
	if id != "" {
		attrs = append(attrs, logstore.ID(id))
	}
	r.log.LogAttrs(context.Background(), level, message, attrs...)
	r.show(api.Record{Time: time.Now(), Level: strings.ToLower(level.String()), Stream: stream, Node: node, Message: message})
}

func join(names []string) string { return strings.Join(names, ", ") }
