package runtime

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/project"
	"tatolab.com/tatolab/service/reconcile"
)

const (
	// eventQueue is how many events an attachment holds for a client that
	// does not read; log records are dropped before it is full, the few
	// events that must arrive are not.
	eventQueue    = 1024
	eventReserved = 64
	// settleLimit is how long a reload waits for the nodes it replaced
	// before it answers. A setup may take longer; it goes on.
	settleLimit = 20 * time.Second
)

// Attachment is the life of an attached stream: until Close, or until the
// stream is stopped by other means.
type Attachment struct {
	r     *Runtime
	lease string
	req   api.Load

	mu     sync.Mutex
	events chan api.Event
	lost   int // log records dropped since the last one sent
	ended  bool

	// reloading is held during a load, so that saves are taken in turn.
	reloading sync.Mutex
	entry     *entry // nil until a version has loaded; under r.mu
	closed    bool   // under r.mu
}

// Attach loads a stream that lives as long as the Attachment. With req.Wait a
// stream that does not compile yields an Attachment all the same; a name in use
// or a missing .venv, which no save mends, does not.
func (r *Runtime) Attach(ctx context.Context, req api.Load) (*Attachment, error) {
	a := &Attachment{r: r, lease: rand.Text(), req: req, events: make(chan api.Event, eventQueue)}
	if _, err := project.Resolve(req); err != nil {
		if code := api.AsError(err).Code; code == api.BadRequest || code == api.InvalidName {
			return nil, err // of the request itself, which no save mends
		}
	}
	_, err := a.load(ctx)
	switch {
	case err != nil && (!req.Wait || !mendable(err)):
		return nil, err
	case err != nil:
		a.send(api.Event{Kind: api.EventRefused, Lease: a.lease, Error: api.AsError(err)})
	}
	r.mu.Lock()
	r.leases[a.lease] = a
	r.mu.Unlock()
	return a, nil
}

// mendable tells whether saving a file of the project may mend what refused a
// load.
func mendable(err error) bool {
	code := api.AsError(err).Code
	return code != api.NameInUse && code != api.NoEnvironment
}

// Lease is the handle for Reload.
func (a *Attachment) Lease() string { return a.lease }

// Events first yields loaded or refused, then log records; it is closed after
// ended. A runtime that stops closes it without one. A reader that is slow loses
// log records and is told how many.
func (a *Attachment) Events() <-chan api.Event { return a.events }

// Close unloads the stream and returns when nothing of it is left.
func (a *Attachment) Close() {
	a.r.mu.Lock()
	a.closed = true
	e := a.entry
	delete(a.r.leases, a.lease)
	a.r.mu.Unlock()
	if e != nil {
		a.r.hurryUp(e)
		e.op.Lock()
		a.r.drop(e, "")
		e.op.Unlock()
		a.r.collect()
	}
	a.end("")
}

// Reload compiles the stream of a lease again and, if that works, replaces what
// changed. If not, what runs runs on and the error says why.
func (r *Runtime) Reload(ctx context.Context, lease string) (*api.Reload, error) {
	r.mu.Lock()
	a := r.leases[lease]
	r.mu.Unlock()
	if a == nil {
		return nil, api.Errorf(api.NoSuchStream, "there is no lease %s: its stream was stopped", lease)
	}
	return a.load(ctx)
}

// load compiles and loads the stream, the first time or again.
func (a *Attachment) load(ctx context.Context) (*api.Reload, error) {
	a.reloading.Lock()
	defer a.reloading.Unlock()
	began := time.Now()
	r := a.r
	c, err := r.compile(ctx, a.req, r.attachedCode)
	if err != nil {
		a.refuse(err)
		return nil, err
	}
	e, err := a.occupy(c)
	if err != nil {
		r.attachedCode.Release(c.Snapshot)
		a.refuse(err)
		return nil, err
	}
	r.printed(e.name, c.Output)
	first, old := e.run == nil, e.version
	change, err := r.apply(e, r.version(c, e.rulings))
	if err != nil {
		r.attachedCode.Release(c.Snapshot)
		if first {
			r.drop(e, "")
			r.mu.Lock()
			a.entry = nil // the next save loads it as the first did
			r.mu.Unlock()
		}
		e.op.Unlock()
		return nil, err
	}
	if old != nil {
		r.attachedCode.Release(filepath.Base(old.Snapshot))
	}
	r.mu.Lock()
	e.refused, e.saves, e.target, e.compared = "", e.saves+1, c.Target, nil
	shown, run := e.show(), e.run
	r.mu.Unlock()
	e.op.Unlock() // what takes its time from here on must not hold up a stop
	if first {
		a.send(api.Event{Kind: api.EventLoaded, Lease: a.lease, Stream: &shown})
		r.log.Info("loaded", logstore.AttrStream, e.name, "project", e.project, logstore.ID(logstore.StreamLoaded))
		r.publish(Change{Added, e.name})
	} else {
		r.log.Info("loaded anew", logstore.AttrStream, shown.Name, "restarted", join(change.Restarted), logstore.ID(logstore.StreamReloaded))
		settle(ctx, run, settleLimit)
		r.collect() // code that no node runs any more
	}
	nodes, _ := run.Nodes(ctx) // fails for a client that is gone
	return &api.Reload{
		Failing: failing(nodes, append(list(change.Restarted), change.Added...)),
		Stream:  shown, Restarted: list(change.Restarted), Added: list(change.Added), Removed: list(change.Removed),
		TookMS: float64(time.Since(began).Microseconds()) / 1000,
	}, nil
}

// failing are those of some nodes that wait to be started again.
func failing(nodes []api.GraphNode, among []string) []string {
	names := []string{}
	for _, n := range nodes {
		if n.State == api.NodeBackoff && slices.Contains(among, n.Name) {
			names = append(names, n.Name)
		}
	}
	return names
}

func list(names []string) []string { return append([]string{}, names...) }

// occupy takes the name of c for the attachment; its entry's op is held
// afterwards. A function that was renamed moves the stream to its new name.
func (a *Attachment) occupy(c *compiled) (*entry, error) {
	r, name := a.r, c.Graph.Stream
	r.mu.Lock()
	old := a.entry
	r.mu.Unlock()
	if old != nil {
		old.op.Lock()
		if old.gone {
			old.op.Unlock()
			return nil, api.Errorf(api.NoSuchStream, "the stream %s was stopped", old.name)
		}
		if old.name == name {
			return old, nil
		}
	}
	var late bool
	e, _, err := r.claim(name, c, false, func(e *entry) {
		if late = a.closed; !late {
			e.att, a.entry = a, e
			r.watchers.Store(e.name, a)
		}
	})
	if old != nil {
		if err == nil {
			r.drop(old, "")
		}
		old.op.Unlock()
	}
	if err != nil {
		return nil, err
	}
	if late {
		// The client went while its stream compiled.
		r.forget(e)
		e.op.Unlock()
		return nil, api.Errorf(api.Unloadable, "cannot load %s: the command that asked for it is gone", name)
	}
	return e, nil
}

// refuse notes, for `graph`, that the last save was not taken.
func (a *Attachment) refuse(err error) {
	a.r.mu.Lock()
	e := a.entry
	if e != nil {
		e.refused = err.Error()
	}
	a.r.mu.Unlock()
	if e != nil {
		a.r.log.Info("a save was not taken", logstore.AttrStream, e.name, "reason", err, logstore.ID(logstore.StreamRefused))
	}
}

// drop unloads the stream of an entry whose op is held, and frees its name.
// why is told to the client of an attached stream; "" where it knows.
func (r *Runtime) drop(e *entry, why string) string {
	if e.gone {
		return ""
	}
	version := e.version
	note := r.unload(e)
	if version != nil {
		r.log.Info("stopped", logstore.AttrStream, e.name, logstore.ID(logstore.StreamStopped))
	}
	if e.att != nil && version != nil {
		r.attachedCode.Release(filepath.Base(version.Snapshot))
	}
	r.forget(e)
	if e.att != nil && why != "" {
		e.att.end(why)
	}
	return note
}

// unload stops what an entry runs and says which nodes had to be killed. Its op
// is held.
func (r *Runtime) unload(e *entry) (note string) {
	r.mu.Lock()
	run := e.run
	r.mu.Unlock()
	if run == nil {
		return ""
	}
	killed, stuck := run.Stop()
	r.mu.Lock()
	e.run, e.version, e.said = nil, nil, nil
	r.mu.Unlock()
	r.removeCgroup(e.name)
	switch {
	case len(stuck) > 0:
		note = fmt.Sprintf("still not gone, stuck in the kernel: %s", join(stuck))
	case len(killed) > 0:
		note = fmt.Sprintf("had to be killed: %s (no end of callback within %s, or of teardown within %s)",
			join(killed), reconcile.CallbackLimit, reconcile.TeardownLimit)
	}
	if note != "" {
		r.say(slog.LevelWarn, logstore.NodeKilled, e.name, "", note)
	}
	return note
}

// send queues an event. It never blocks.
func (a *Attachment) send(event api.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	if event.Kind == api.EventLog {
		if len(a.events) >= eventQueue-eventReserved {
			a.lost++
			return
		}
		if a.lost > 0 {
			a.events <- api.Event{Kind: api.EventLog, Record: &api.Record{
				Time: time.Now(), Level: "warn", Stream: event.Record.Stream,
				Message: fmt.Sprintf("%d log records were not shown here, since they were not read in time", a.lost),
			}}
			a.lost = 0
		}
	}
	a.events <- event
}

// end closes the events, with a last one that says why.
func (a *Attachment) end(why string) {
	if why != "" {
		a.send(api.Event{Kind: api.EventEnded, Message: why})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		a.ended = true
		close(a.events)
	}
}
