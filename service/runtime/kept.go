package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/project"
	"tatolab.com/tatolab/service/record"
)

const (
	// loadAtOnce is how many kept streams load side by side at the start.
	loadAtOnce = 8
	// suspectLimit is how long a stream under suspicion has to itself.
	suspectLimit = 10 * time.Second
	// diskLimit is how long the disk that a project is on may take to say that it is
	// there.
	diskLimit = 5 * time.Second
	// crashesToFail: a stream involved in so many crashes of the runtime in a
	// row is not loaded any more.
	crashesToFail = 2
)

// Keep records a stream and loads it. For the same project and stream function
// it replaces the record and what runs.
func (r *Runtime) Keep(ctx context.Context, req api.Load) (*api.Done, error) {
	c, err := r.compile(ctx, req, r.keptCode)
	if err != nil {
		return nil, err
	}
	name := c.Graph.Stream
	fresh := r.newRecord(c, req)
	e, created, err := r.claim(name, c, true, func(e *entry) { e.rec = fresh })
	if err != nil {
		r.keptCode.Release(c.Snapshot)
		return nil, err
	}
	defer e.op.Unlock()
	if !created {
		r.mu.Lock()
		if e.rec != nil {
			fresh.Created, fresh.Rulings = e.rec.Created, e.rec.Rulings
		}
		r.mu.Unlock()
	}
	// The record first: when the command returns, the stream is kept.
	if err := r.records.Write(fresh); err != nil {
		r.keptCode.Release(c.Snapshot)
		if created {
			r.forget(e)
		}
		return nil, recordFailed("keep", name, err)
	}
	r.hold(e, c.Snapshot)
	r.printed(name, c.Output)
	r.mu.Lock()
	e.rec, e.broken, e.project, e.target = fresh, "", c.src.Dir, c.Target
	r.mu.Unlock()
	change := Change{Changed, name}
	if created {
		change.Kind = Added
	}
	r.log.Info("kept", logstore.AttrStream, name, "project", c.src.Dir, logstore.ID(logstore.StreamKept))
	if _, err := r.apply(e, r.recorded(fresh)); err != nil {
		r.fail(e, err.Error())
	}
	r.publish(change)
	done := r.done(e, "")
	if lingers, known := r.Lingers(); known && !lingers {
		done.Hint = "lingering is off: at logout the runtime ends, and with it this stream. `loginctl enable-linger` keeps it running"
	}
	r.collect()
	return done, nil
}

// hold notes the snapshot that a kept stream runs, held already, and lets go of
// the one it ran before.
func (r *Runtime) hold(e *entry, snapshot string) {
	if e.held != "" {
		r.keptCode.Release(e.held)
	}
	e.held = snapshot
	r.mu.Lock()
	e.compared = nil
	r.mu.Unlock()
}

func recordFailed(what, name string, err error) *api.Error {
	return api.Errorf(api.RecordFailed, "cannot %s %s: %v", what, name, err).
		WithHint("the stream is as it was: mend the cause and try again")
}

// newRecord is the record of a compiled stream.
func (r *Runtime) newRecord(c *compiled, req api.Load) *record.Record {
	return &record.Record{
		Version: record.Version, Name: c.Graph.Stream, Created: time.Now(),
		Project: c.src.Dir, Interpreter: c.src.Interpreter, Target: c.Target,
		Graph: c.Graph, Nodes: c.Nodes, Snapshot: c.Snapshot, CodeHash: c.CodeHash,
		Env: req.Env, ProjectEnv: c.Env,
	}
}

// rule lays rulings by `expose` over what the graph exposes.
func rule(exposed, rulings []graph.Exposure) []graph.Exposure {
	ruled := slices.Clone(rulings)
	for _, e := range exposed {
		if !slices.ContainsFunc(rulings, func(r graph.Exposure) bool { return r.Node == e.Node && r.Port == e.Port }) {
			ruled = append(ruled, e)
		}
	}
	return ruled
}

// Load loads the kept streams, side by side; one that cannot be loaded delays
// none. Streams under suspicion of having crashed the runtime come afterwards,
// one at a time, so that the next crash tells which it was. It returns when all
// have been started.
func (r *Runtime) Load(ctx context.Context) {
	var first, suspects []*entry
	r.mu.Lock()
	for _, e := range r.entries {
		switch {
		case e.state() != api.Kept:
		case slices.Contains(r.Verdict.Suspects, e.name):
			suspects = append(suspects, e)
		default:
			first = append(first, e)
		}
	}
	r.mu.Unlock()
	var all sync.WaitGroup
	slots := make(chan struct{}, loadAtOnce)
	for _, e := range first {
		all.Go(func() { r.loadKept(e, slots) })
	}
	all.Wait()
	for _, e := range suspects {
		r.log.Warn("loading by itself a stream that may have crashed the runtime", "stream", e.name)
		r.loadKept(e, slots)
		r.mu.Lock()
		run := e.run
		r.mu.Unlock()
		settle(ctx, run, suspectLimit)
	}
	r.collect()
}

// waiting returns the record of a kept stream that is still to be loaded, or nil.
func (r *Runtime) waiting(e *entry) *record.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.run != nil || r.closing || e.gone || e.state() != api.Kept {
		return nil
	}
	return e.rec
}

// loadKept loads a kept stream if it is still to run, when there is a slot. Its disk
// may come late: nobody else waits for it.
func (r *Runtime) loadKept(e *entry, slots chan struct{}) {
	rec := r.waiting(e)
	if rec == nil {
		return
	}
	unloadable := r.loadable(r.ending, rec)
	slots <- struct{}{}
	defer func() { <-slots }()
	e.op.Lock()
	defer e.op.Unlock()
	if rec = r.waiting(e); rec == nil { // with what was ruled meanwhile
		return
	}
	if unloadable != nil {
		r.fail(e, unloadable.Error())
		return
	}
	if _, err := r.apply(e, r.recorded(rec)); err != nil {
		r.fail(e, err.Error())
		return
	}
	r.publish(Change{Changed, e.name})
}

// loadable says why a recorded stream cannot be loaded at all. A disk that does not
// answer holds it up until ctx, made of r.ending, is done.
func (r *Runtime) loadable(ctx context.Context, rec *record.Record) error {
	found := make(chan error, 1)
	go func() { found <- r.there(rec) }()
	select {
	case err := <-found:
		return err
	case <-ctx.Done():
	}
	if r.ending.Err() != nil {
		return api.Errorf(api.ShuttingDown, "the runtime is stopping")
	}
	return api.Errorf(api.Unloadable, "its project %s has not answered for %s: see to the disk or server that it lies on", rec.Project, diskLimit)
}

// loadableNow is loadable for who holds op, which whoever stops the stream waits for.
func (r *Runtime) loadableNow(rec *record.Record) error {
	ctx, cancel := context.WithTimeout(r.ending, diskLimit)
	defer cancel()
	return r.loadable(ctx, rec)
}

// there says what of a recorded stream is not on disk.
func (r *Runtime) there(rec *record.Record) error {
	if _, err := os.Stat(rec.Project); err != nil {
		return api.Errorf(api.Unloadable, "its project is not there: %v", err)
	}
	if _, err := project.Interpreter(rec.Project); err != nil {
		return err
	}
	if err := r.keptCode.Check(rec.Snapshot); err != nil {
		return api.Errorf(api.Unloadable, "the code it was kept with is not there (%v); keep it again with `tatolab run -d`", err)
	}
	return nil
}

// fail marks a kept stream failed, and unloads it. Its op is held.
func (r *Runtime) fail(e *entry, reason string) {
	r.unload(e)
	if r.isClosing() {
		return // that is why; the next start loads it
	}
	r.note(e, func(rec *record.Record) { rec.Failed = reason })
	r.say(slog.LevelError, logstore.StreamFailed, e.name, "", "failed: "+reason)
	r.publish(Change{Changed, e.name})
}

// amend changes a kept stream's record, on disk first. An error leaves both as
// they were.
func (r *Runtime) amend(e *entry, change func(*record.Record)) error {
	rec := r.amended(e, change)
	if err := r.records.Write(rec); err != nil {
		r.log.Error("cannot write a record", "stream", e.name, "error", err)
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.rec = rec
	return nil
}

// note is amend for what has happened already, whether the disk takes it or not:
// then it holds as long as this runtime.
func (r *Runtime) note(e *entry, change func(*record.Record)) {
	if r.amend(e, change) == nil {
		return
	}
	rec := r.amended(e, change)
	r.mu.Lock()
	defer r.mu.Unlock()
	e.rec = rec
}

func (r *Runtime) amended(e *entry, change func(*record.Record)) *record.Record {
	r.mu.Lock()
	rec := *e.rec
	r.mu.Unlock()
	rec.Rulings = slices.Clone(rec.Rulings)
	change(&rec)
	return &rec
}

// judge books the last end of the runtime on the streams that were involved.
// Nobody else has the runtime yet.
func (r *Runtime) judge() {
	v := r.Verdict
	if v.Unknown() {
		return
	}
	for _, e := range r.entries {
		if e.rec == nil {
			continue
		}
		involved := v.Crashed && (slices.Contains(v.Guilty, e.name) || slices.Contains(v.Suspects, e.name))
		crashes := 0
		if involved {
			crashes = e.rec.Crashes + 1
		}
		if crashes == e.rec.Crashes {
			continue
		}
		failed := e.rec.Failed
		if crashes >= crashesToFail && failed == "" {
			failed = fmt.Sprintf("it was involved in the runtime's last %d crashes (%s)", crashes, v.Cause)
			r.say(slog.LevelError, logstore.StreamFailed, e.name, "", "failed: "+failed)
		}
		r.note(e, func(rec *record.Record) { rec.Crashes, rec.Failed = crashes, failed })
	}
}

// Stop unloads a stream. A kept one stays stopped until it is started; an
// attached one ends.
func (r *Runtime) Stop(ctx context.Context, name string) (*api.Done, error) {
	e, release, err := r.openToEnd(name)
	if err != nil {
		return nil, err
	}
	defer release()
	r.mu.Lock()
	state := e.state()
	r.mu.Unlock()
	switch state {
	case api.Attached:
		note := r.drop(e, fmt.Sprintf("%s was stopped", name))
		return &api.Done{Note: note}, nil
	case api.Stopped:
		return r.unchanged(e, name+" is stopped already"), nil
	case api.Failed:
		return r.unchanged(e, name+" has failed: it does not run"), nil
	}
	if err := r.amend(e, func(rec *record.Record) { rec.Stopped = true }); err != nil {
		return nil, recordFailed("stop", name, err)
	}
	note := r.unload(e)
	r.log.Info("stopped", logstore.AttrStream, name, logstore.ID(logstore.StreamStopped))
	r.publish(Change{Changed, name})
	return r.done(e, note), nil
}

// Start loads a stopped stream again, or retries a failed one.
func (r *Runtime) Start(ctx context.Context, name string) (*api.Done, error) {
	e, release, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer release()
	return r.start(e)
}

func (r *Runtime) start(e *entry) (*api.Done, error) {
	r.mu.Lock()
	state, run, rec := e.state(), e.run, e.rec
	r.mu.Unlock()
	if run != nil {
		if revived := run.Revive(); len(revived) > 0 {
			return r.done(e, "again: "+strings.Join(revived, ", ")), nil
		}
		return r.unchanged(e, e.name+" is running already"), nil
	}
	if rec == nil {
		return nil, api.Errorf(api.Unloadable, "cannot start %s: %s", e.name, e.broken).WithHint("%s", mendBroken(e))
	}
	if err := r.loadableNow(rec); err != nil {
		if state == api.Failed {
			r.note(e, func(rec *record.Record) { rec.Failed = err.Error() })
			r.publish(Change{Changed, e.name})
		}
		return nil, api.Errorf(api.AsError(err).Code, "cannot start %s: %v", e.name, err)
	}
	if err := r.amend(e, func(rec *record.Record) { rec.Stopped, rec.Failed, rec.Crashes = false, "", 0 }); err != nil {
		return nil, recordFailed("start", e.name, err)
	}
	r.mu.Lock()
	rec = e.rec
	r.mu.Unlock()
	if _, err := r.apply(e, r.recorded(rec)); err != nil {
		r.fail(e, err.Error())
		return nil, api.Errorf(api.AsError(err).Code, "cannot start %s: %v", e.name, err)
	}
	r.publish(Change{Changed, e.name})
	return r.done(e, ""), nil
}

// mendBroken says what to do about a record that cannot be used.
func mendBroken(e *entry) string {
	switch {
	case e.stays:
		return fmt.Sprintf("use the version of tatolab that wrote it, or mend the file, and restart the runtime; `tatolab rm %s` forgets it", e.name)
	case e.project == "": // then run -d cannot tell that it is the same stream
		return fmt.Sprintf("`tatolab rm %s` forgets it, and `tatolab run -d` in its project then keeps it anew", e.name)
	}
	return fmt.Sprintf("`tatolab run -d` in its project keeps it anew, `tatolab rm %s` forgets it", e.name)
}

// Restart replaces the process of every node, and takes back what ApplyChanges did;
// a stopped or failed stream is started. What could not be loaded again runs on.
func (r *Runtime) Restart(ctx context.Context, name string) (*api.Done, error) {
	e, release, err := r.open(name)
	if err != nil {
		return nil, err
	}
	run := e.run
	if run == nil {
		defer release()
		return r.start(e)
	}
	if e.rec != nil {
		if err := r.loadableNow(e.rec); err != nil {
			release()
			return nil, api.Errorf(api.AsError(err).Code, "cannot restart %s, which runs on: %v", name, err)
		}
	}
	if base := e.version.Base; base != nil {
		loaded, rulings := *base, e.rulings
		if e.rec != nil {
			rulings = e.rec.Rulings
		}
		loaded.Exposed = rule(loaded.Graph.Exposed, rulings)
		if _, err := r.apply(e, &loaded); err != nil {
			release()
			return nil, err
		}
	}
	run.Restart()
	release() // what takes its time from here on must not hold up a stop
	settle(ctx, run, settleLimit)
	return r.done(e, ""), nil
}

// Remove unloads a kept stream and forgets it.
func (r *Runtime) Remove(ctx context.Context, name string) (*api.Done, error) {
	e, release, err := r.openToEnd(name)
	if err != nil {
		return nil, err
	}
	defer release()
	if e.att != nil {
		return nil, api.Errorf(api.NotKept, "cannot remove %s: it is attached, not kept", name).
			WithHint("it ends with the command that loaded it, or with `tatolab stop %s`", name)
	}
	if err := r.records.Remove(name); err != nil {
		return nil, recordFailed("remove", name, err)
	}
	note := r.drop(e, "")
	r.hold(e, "") // only now: a teardown may import
	if err := r.Logs.Remove(name); err != nil {
		r.log.Warn("cannot remove a log", "stream", name, "error", err)
	}
	r.collect()
	r.log.Info("removed", "name", name, logstore.ID(logstore.StreamRemoved))
	return &api.Done{Note: note}, nil
}

// Expose sets who may read an output; "" takes a ruling back. When it returns,
// no reader that may no longer read gets anything new.
func (r *Runtime) Expose(ctx context.Context, name string, end graph.End, level graph.Level) (*api.Done, error) {
	if level != "" && !level.Valid() {
		return nil, api.Errorf(api.BadRequest, "exposure level %q is none of internal, private, public", level)
	}
	e, release, err := r.open(name)
	if err != nil {
		return nil, err
	}
	defer release()
	g, classes := e.content()
	if g == nil {
		return nil, api.Errorf(api.Unloadable, "cannot expose an output of %s: %s", name, e.broken)
	}
	class, ok := classes[end.Node]
	// A ruling outlives its node (run -d of another version), and can still be taken back.
	if !(ok && slices.Contains(class.Outputs, end.Port)) && !(level == "" && e.ruledOn(end)) {
		return nil, noSuchPort(name, end, g, classes)
	}
	if e.att != nil {
		e.rulings = ruled(e.rulings, end, level)
	} else {
		// On disk before it takes effect: a restriction that a crash undid
		// would show what must not be seen.
		err := r.amend(e, func(rec *record.Record) { rec.Rulings = ruled(rec.Rulings, end, level) })
		if err != nil {
			return nil, recordFailed("change", name, err)
		}
	}
	if level == "" {
		level = graph.Internal
		for _, x := range g.Exposed {
			if x.Node == end.Node && x.Port == end.Port {
				level = x.Level
			}
		}
	}
	// In the version too: the next live change starts from that.
	r.mu.Lock()
	if e.version != nil {
		v := *e.version
		v.Exposed = rule(v.Exposed, []graph.Exposure{{Node: end.Node, Port: end.Port, Level: level}})
		e.version = &v
	}
	r.mu.Unlock()
	r.board.Expose(name, end, level)
	r.publish(Change{Changed, name})
	return r.done(e, fmt.Sprintf("%s/%s is %s", name, end, level)), nil
}

// ruledOn tells whether `expose` ruled on an output. The entry's op is held.
func (e *entry) ruledOn(end graph.End) bool {
	rulings := e.rulings
	if e.rec != nil {
		rulings = e.rec.Rulings
	}
	return slices.ContainsFunc(rulings, func(x graph.Exposure) bool { return x.Node == end.Node && x.Port == end.Port })
}

// ruled returns rulings with that of one output replaced; level "" takes it out.
func ruled(rulings []graph.Exposure, end graph.End, level graph.Level) []graph.Exposure {
	rulings = slices.DeleteFunc(slices.Clone(rulings), func(x graph.Exposure) bool { return x.Node == end.Node && x.Port == end.Port })
	if level != "" {
		rulings = append(rulings, graph.Exposure{Node: end.Node, Port: end.Port, Level: level})
	}
	return rulings
}

func noSuchPort(name string, end graph.End, g *graph.Graph, classes map[string]graph.Class) *api.Error {
	var outputs []string
	for _, n := range g.Nodes {
		for _, port := range classes[n.Name].Outputs {
			outputs = append(outputs, n.Name+"/"+port)
		}
	}
	err := api.Errorf(api.NoSuchPort, "%s has no output %s", name, end)
	if len(outputs) == 0 {
		return err.WithHint("it has no outputs")
	}
	return err.WithHint("its outputs: %s", join(outputs))
}

// content is the graph of an entry, loaded or not; nil for a record that cannot
// be read. The entry's op is held.
func (e *entry) content() (*graph.Graph, map[string]graph.Class) {
	switch {
	case e.version != nil:
		return e.version.Graph, e.version.Classes
	case e.rec != nil:
		return e.rec.Graph, e.rec.Nodes
	}
	return nil, nil
}

// done answers for an entry.
func (r *Runtime) done(e *entry, note string) *api.Done {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := e.show()
	return &api.Done{Stream: &s, Note: note}
}

// unchanged answers where there was nothing to do.
func (r *Runtime) unchanged(e *entry, why string) *api.Done {
	done := r.done(e, why)
	done.Unchanged = true
	return done
}

// collect removes snapshots that nothing uses.
func (r *Runtime) collect() {
	for _, code := range []*project.Snapshots{r.attachedCode, r.keptCode} {
		if err := code.Collect(); err != nil {
			r.log.Warn("cannot remove old snapshots", "error", err)
		}
	}
}
