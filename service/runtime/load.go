package runtime

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/project"
	"tatolab.com/tatolab/service/reconcile"
	"tatolab.com/tatolab/service/record"
	"tatolab.com/tatolab/service/stream"
)

// compiled is a stream that was compiled, where it came from and where its code
// lies.
type compiled struct {
	*project.Compiled
	src  *project.Source
	code *project.Snapshots
}

// compile finds and compiles what a request names. The snapshot in code is held.
func (r *Runtime) compile(ctx context.Context, req api.Load, code *project.Snapshots) (*compiled, error) {
	src, err := project.Resolve(req)
	if err != nil {
		return nil, err
	}
	ctx, cancel := r.whileItRuns(ctx)
	defer cancel()
	c, err := r.compiler.Compile(ctx, src, code)
	switch {
	case err != nil && r.isClosing():
		return nil, api.Errorf(api.ShuttingDown, "cannot load %s: the runtime is stopping", src.Target)
	case err != nil:
		return nil, err
	}
	return &compiled{c, src, code}, nil
}

// whileItRuns is ctx, ended when the runtime stops too: what a project's code
// takes its time for must not hold that up.
func (r *Runtime) whileItRuns(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	release := context.AfterFunc(r.ending, cancel)
	return ctx, func() { release(); cancel() }
}

// version is what a compiled stream runs.
func (r *Runtime) version(c *compiled, rulings []graph.Exposure) *stream.Version {
	return &stream.Version{
		Graph: c.Graph, Classes: c.Nodes, Exposed: rule(c.Graph.Exposed, rulings),
		Project: c.src.Dir, Interpreter: c.src.Interpreter, Snapshot: c.code.Path(c.Snapshot),
		Environ: project.Environ(r.Environ, c.Env, c.src.Env),
	}
}

// recorded is what a kept stream runs.
func (r *Runtime) recorded(rec *record.Record) *stream.Version {
	return &stream.Version{
		Graph: rec.Graph, Classes: rec.Nodes, Exposed: rule(rec.Graph.Exposed, rec.Rulings),
		Project: rec.Project, Interpreter: rec.Interpreter, Snapshot: r.keptCode.Path(rec.Snapshot),
		Environ: project.Environ(r.Environ, rec.ProjectEnv, rec.Env),
	}
}

// apply makes v what the stream of an entry runs. The entry's op is held, so
// that Close, which takes it too, comes after it or has been seen.
func (r *Runtime) apply(e *entry, v *stream.Version) (change reconcile.Change, err error) {
	if r.isClosing() {
		return change, api.Errorf(api.ShuttingDown, "cannot load %s: the runtime is stopping", e.name)
	}
	r.Guard(e.name, func() {
		fault(e.name)
		run := e.run
		if run == nil {
			if run, err = stream.New(e.name, r.env(e)); err != nil {
				r.removeCgroup(e.name)
				err = api.Errorf(api.Unloadable, "cannot load %s: %v", e.name, err)
				return
			}
		}
		r.mu.Lock()
		e.run, e.version = run, v
		r.mu.Unlock()
		change = run.Apply(v)
	})
	return change, err
}

// settle waits until a stream, nil for one that could not be loaded, has done what
// it was last told. What takes longer than limit goes on, and shows in the log.
func settle(ctx context.Context, run *stream.Stream, limit time.Duration) {
	if run == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = run.Settled(ctx)
}

// env is what the stream of an entry needs of the runtime.
func (r *Runtime) env(e *entry) stream.Env {
	return stream.Env{
		RuntimeID: r.id,
		Board:     r.board,
		Book:      r.book,
		Log:       r.writeLog,
		Say: func(level slog.Level, id logstore.MessageID, node, message string) {
			r.say(level, id, e.name, node, message)
		},
		Changed:  func() { r.publish(Change{Changed, e.name}) },
		Guard:    func(f func()) { r.Guard(e.name, f) },
		Command:  r.command,
		Graphics: graphics(),
		Cgroup:   r.makeCgroup(e.name),

		Hold:       r.use,
		KeeperLock: r.KeeperLock,
	}
}

// use keeps the code in a snapshot's folder until release is called.
func (r *Runtime) use(snapshot string) (release func()) {
	code, hash := r.attachedCode, filepath.Base(snapshot)
	if snapshot == r.keptCode.Path(hash) {
		code = r.keptCode
	}
	code.Hold(hash)
	return func() { code.Release(hash) }
}

// printed writes what a project's code printed while it compiled to the
// stream's log.
func (r *Runtime) printed(name, output string) {
	for text := range strings.Lines(output) {
		r.writeLog(api.Record{Time: time.Now(), Level: "info", Stream: name, Message: strings.TrimRight(text, "\r\n")})
	}
}

func (r *Runtime) isClosing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.closing
}

// Close stops every stream; nothing is loaded afterwards. Attached ones end
// without a last event, which tells their clients that the runtime went.
func (r *Runtime) Close() {
	r.mu.Lock()
	r.closing = true
	r.end()
	entries := append([]*entry(nil), r.entries...)
	r.mu.Unlock()
	done := make(chan struct{})
	for _, e := range entries {
		go func() {
			r.hurryUp(e)
			e.op.Lock()
			r.unload(e)
			e.op.Unlock()
			if att := e.att; att != nil {
				att.end("")
			}
			done <- struct{}{}
		}()
	}
	for range entries {
		<-done
	}
}
