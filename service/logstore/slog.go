package logstore

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/journal"
	"github.com/lmittmann/tint"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
)

// Attributes with a meaning of their own.
const (
	// AttrStream and AttrNode say what a record is about. One about a stream
	// stands in the stream's log too.
	AttrStream = "stream"
	AttrNode   = "node"
	attrID     = "message_id"
)

// ID is the attribute that gives a record its identity in the journal.
func ID(id MessageID) slog.Attr { return slog.String(attrID, string(id)) }

// StderrIsJournal says whether stderr goes to the journal, as systemd tells in
// JOURNAL_STREAM (systemd.exec(5)). Then a store with Options.Journal says more
// than lines on stderr can.
func StderrIsJournal() bool {
	is, err := journal.StderrIsJournalStream()
	return err == nil && is && journal.Enabled()
}

// Handler returns the handler of the runtime's own logger: records go to the
// runtime's log, and to the journal if the store has it, else to stderr, in
// colour on a terminal.
func (s *Store) Handler(stderr *os.File, level slog.Leveler) slog.Handler {
	h := &handler{store: s, level: level}
	if s.journal == nil {
		h.text = tint.NewTextHandler(consoleWriter{s, stderr}, &tint.Options{
			Level:      level,
			TimeFormat: time.TimeOnly,
			NoColor:    !isTerminal(stderr) || os.Getenv("NO_COLOR") != "",
			ReplaceAttr: func(groups []string, a slog.Attr) slog.Attr {
				if len(groups) == 0 && a.Key == attrID {
					return slog.Attr{}
				}
				return a
			},
		})
	}
	return h
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// consoleWriter writes to a terminal that its user may hold (Ctrl-S).
type consoleWriter struct {
	store  *Store
	stderr *os.File
}

func (w consoleWriter) Write(line []byte) (int, error) {
	line = slices.Clone(line)
	if dropped := w.store.console.do(func() { w.stderr.Write(line) }); dropped > 0 {
		w.store.console.do(func() { fmt.Fprintf(w.stderr, "(%d lines are missing here)\n", dropped) })
	}
	return len(line), nil
}

type handler struct {
	store  *Store
	level  slog.Leveler
	text   slog.Handler // nil: the journal
	attrs  []slog.Attr
	prefix string // of groups, with a dot after each
}

func (h *handler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level.Level() }

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = slices.Clone(h.attrs)
	for _, a := range attrs {
		a.Key = h.prefix + a.Key
		c.attrs = append(c.attrs, a)
	}
	if h.text != nil {
		c.text = h.text.WithAttrs(attrs)
	}
	return &c
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.prefix = h.prefix + name + "."
	if h.text != nil {
		c.text = h.text.WithGroup(name)
	}
	return &c
}

func (h *handler) Handle(ctx context.Context, sr slog.Record) error {
	r := api.Record{Time: sr.Time, Level: levelName(sr.Level), Message: sr.Message}
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	var id MessageID
	add := func(a slog.Attr) { id = addAttr(&r, id, "", a) }
	for _, a := range h.attrs {
		add(a)
	}
	sr.Attrs(func(a slog.Attr) bool {
		a.Key = h.prefix + a.Key
		add(a)
		return true
	})
	h.store.append("", r)
	if r.Stream != "" {
		h.store.append(r.Stream, r)
	}
	if h.text == nil {
		h.store.toJournal(r, id)
		return nil
	}
	return h.text.Handle(ctx, sr)
}

func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelDebug:
		return "trace"
	case l < slog.LevelInfo:
		return "debug"
	case l < slog.LevelWarn:
		return "info"
	case l < slog.LevelError:
		return "warn"
	}
	return "error"
}

// addAttr puts an attribute where it belongs in r.
func addAttr(r *api.Record, id MessageID, prefix string, a slog.Attr) MessageID {
	v := a.Value.Resolve()
	key := prefix + a.Key
	switch {
	case v.Kind() == slog.KindGroup:
		if key != "" {
			key += "."
		}
		for _, member := range v.Group() {
			id = addAttr(r, id, key, member)
		}
	case key == "":
	case key == AttrStream:
		r.Stream = v.String()
	case key == AttrNode:
		r.Node = v.String()
	case key == attrID:
		return MessageID(v.String())
	default:
		if r.Fields == nil {
			r.Fields = make(map[string]any)
		}
		r.Fields[key] = plain(v)
	}
	return id
}

// plain is a value as JSON should show it: errors and durations as text.
func plain(v slog.Value) any {
	switch v.Kind() {
	case slog.KindDuration:
		return v.Duration().String()
	case slog.KindAny:
		switch x := v.Any().(type) {
		case error:
			return x.Error()
		case fmt.Stringer:
			return x.String()
		}
	}
	return v.Any()
}

var priorities = map[string]journal.Priority{
	"trace": journal.PriDebug, "debug": journal.PriDebug, "info": journal.PriInfo,
	"warn": journal.PriWarning, "error": journal.PriErr,
}

// toJournal queues r for the journal, if the store has one.
func (s *Store) toJournal(r api.Record, id MessageID) {
	if s.journal == nil {
		return
	}
	dropped := s.journal.do(func() { send(r, id) })
	if dropped > 0 {
		s.journal.do(func() { send(incomplete(dropped, "the journal was too slow"), LogIncomplete) })
	}
}

// send writes one record to the journal; what it means for the record if the
// journal is away, nobody is left to be told.
func send(r api.Record, id MessageID) {
	fields := map[string]string{"SYSLOG_IDENTIFIER": "tatolabd"}
	set := func(key, value string) {
		if value != "" {
			fields[key] = value
		}
	}
	set("TATOLAB_STREAM", r.Stream)
	set("TATOLAB_NODE", r.Node)
	set("MESSAGE_ID", string(id))
	message := r.Message
	if traceback, ok := r.Fields["traceback"].(string); ok {
		message += "\n" + traceback
	}
	if len(r.Fields) > 0 {
		if data, err := json.Marshal(r.Fields); err == nil {
			set("TATOLAB_FIELDS", string(data))
		}
	}
	priority, ok := priorities[r.Level]
	if !ok {
		priority = journal.PriInfo
	}
	_ = journal.Send(message, priority, fields)
}
