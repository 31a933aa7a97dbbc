// Package runtime is the collection of streams of one tatolabd: it loads,
// keeps, stops, starts and forgets them. Every face (local API, D-Bus) calls
// its methods and holds no logic of its own. Their errors are *api.Error.
package runtime

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/blame"
	"tatolab.com/tatolab/service/cgroup"
	"tatolab.com/tatolab/service/config"
	"tatolab.com/tatolab/service/figures"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/project"
	"tatolab.com/tatolab/service/record"
	"tatolab.com/tatolab/service/stream"
	"tatolab.com/tatolab/service/switchboard"
)

// leavingPoll is how often a load looks whether a name that is about to be free
// is free.
const leavingPoll = 5 * time.Millisecond

// Options is what a runtime is made of.
type Options struct {
	Paths  *config.Paths
	Config *config.Config
	Logs   *logstore.Store
	// Guard runs work done for one stream alone, so that a crash in it is
	// counted against that stream; Verdict is what came of the last run.
	Guard     func(stream string, work func())
	Verdict   blame.Verdict
	Bootstrap string // path of the lent package's bootstrap.py
	How       string // how the runtime was started, for `status`
	// Lingers tells whether the user's services outlive a logout; known is
	// false where nobody can tell.
	Lingers func() (lingers, known bool)
	// Cgroups is where streams get control groups of their own, nil without
	// delegation.
	Cgroups *cgroup.Tree
	// KeeperLock is held by every keeper, see keeper.AcquireLock.
	KeeperLock *os.File
	// Environ is the environment that projects and their nodes inherit.
	Environ []string
	// Bus says how the runtime is on the session bus, for `status`.
	Bus func() string
}

// Runtime is the streams of this user.
type Runtime struct {
	Options
	id       string
	started  time.Time
	records  *record.Store
	compiler *project.Compiler
	board    *switchboard.Board
	book     *figures.Book
	log      *slog.Logger
	// Where the code of streams lies: of attached ones with the runtime's
	// life, of kept ones on disk.
	attachedCode, keptCode *project.Snapshots

	mu      sync.Mutex
	entries []*entry // in the order of creation
	leases  map[string]*Attachment
	groups  map[string]*cgroup.Group
	closing bool
	taps    int

	// watchers are the attachments by stream, for log records: a map of its
	// own, since records are written under any lock.
	watchers sync.Map

	subscribers subscribers

	// ending is done when Close begins; end does that.
	ending context.Context
	end    context.CancelFunc
}

// entry is a name that is taken, and what stands behind it. It is attached
// (att), kept (rec), or kept with a record that cannot be read (broken).
type entry struct {
	name    string
	project string
	target  string

	// op is held by whoever changes the stream, for as long as that takes.
	// It is taken before Runtime.mu. gone is set under it when the name is
	// free again: who waited for op must not go on.
	op   sync.Mutex
	gone bool
	held string // the snapshot that keptCode holds for it; under op
	// rulings of `expose` on an attached stream; a record has its own. Under op.
	rulings []graph.Exposure

	// Under Runtime.mu.
	att      *Attachment
	rec      *record.Record
	broken   string
	stays    bool           // a broken record that must not be written over
	run      *stream.Stream // nil unless loaded
	version  *stream.Version
	compared *comparison // of the disk with the snapshot
	// hurry ends what holds op only because it waits for a node's answer; nil
	// where nothing does.
	hurry   context.CancelFunc
	refused string // why the last save of an attached stream was not taken
	saves   int    // versions taken since the stream was attached
	// said is how its nodes were when run last answered.
	said []api.GraphNode
}

// New makes a runtime and reads the records; Load loads them.
func New(o Options) (*Runtime, error) {
	records, err := record.Open(o.Paths.Records)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		Options: o, id: rand.Text()[:12], started: time.Now(),
		records: records, leases: map[string]*Attachment{}, groups: map[string]*cgroup.Group{},
		book: figures.NewBook(), log: slog.Default(),
	}
	r.ending, r.end = context.WithCancel(context.Background())
	r.board = switchboard.New(r.linkChanged)
	r.compiler = &project.Compiler{Bootstrap: o.Bootstrap, Environ: o.Environ, Lock: o.KeeperLock}
	r.attachedCode = project.NewSnapshots(o.Paths.RunSnapshots, false)
	r.keptCode = project.NewSnapshots(o.Paths.Snapshots, true)
	entries, strays, err := records.Load()
	if err != nil {
		return nil, err
	}
	for _, file := range strays {
		r.log.Warn("no record: its name is no name of a stream", "file", file)
	}
	for _, e := range entries {
		if e.Record == nil {
			r.keptCode.Hold(e.Gleaned.Snapshot)
			r.entries = append(r.entries, &entry{
				name: e.Name, project: e.Gleaned.Project, broken: e.Reason, stays: e.Stays, held: e.Gleaned.Snapshot})
			r.log.Error("a kept stream cannot be read", "stream", e.Name, "reason", e.Reason, "file", e.File, logstore.ID(logstore.RecordUnreadable))
			continue
		}
		r.keptCode.Hold(e.Record.Snapshot)
		r.entries = append(r.entries, &entry{name: e.Name, project: e.Record.Project, target: e.Record.Target, rec: e.Record, held: e.Record.Snapshot})
	}
	r.judge()
	return r, nil
}

// find returns the entry of a name, nil without one. r.mu is held.
func (r *Runtime) find(name string) *entry {
	i := slices.IndexFunc(r.entries, func(e *entry) bool { return e.name == name })
	if i < 0 {
		return nil
	}
	return r.entries[i]
}

// state of an entry. Runtime.mu is held.
func (e *entry) state() api.State {
	switch {
	case e.att != nil:
		return api.Attached
	case e.broken != "" || e.rec.Failed != "":
		return api.Failed
	case e.rec.Stopped:
		return api.Stopped
	}
	return api.Kept
}

// show is an entry as `streams` lists it. Runtime.mu is held.
func (e *entry) show() api.Stream {
	s := api.Stream{Name: e.name, State: e.state(), Project: e.project}
	if e.run != nil && e.version != nil {
		n := len(e.version.Graph.Nodes)
		s.Nodes = &n
	}
	if s.State == api.Failed {
		if s.Reason = e.broken; s.Reason == "" {
			s.Reason = e.rec.Failed
		}
	}
	return s
}

// Streams lists every stream, in the order of creation.
func (r *Runtime) Streams() []api.Stream {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := []api.Stream{}
	for _, e := range r.entries {
		list = append(list, e.show())
	}
	return list
}

// Stream returns one stream.
func (r *Runtime) Stream(name string) (api.Stream, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.find(name)
	if e == nil {
		return api.Stream{}, r.noSuch(name)
	}
	return e.show(), nil
}

// noSuch is the error for a name that nothing has. Runtime.mu is held.
func (r *Runtime) noSuch(name string) *api.Error {
	err := api.Errorf(api.NoSuchStream, "there is no stream %s", name)
	if len(r.entries) == 0 {
		return err.WithHint("no stream is loaded or kept; `tatolab run` loads one")
	}
	return err.WithHint("`tatolab streams` lists those there are")
}

// open finds a stream and takes its op; release gives it back. Between find and
// lock the stream may have gone, and another of its name come.
func (r *Runtime) open(name string) (e *entry, release func(), err error) {
	for {
		r.mu.Lock()
		e := r.find(name)
		if e == nil {
			defer r.mu.Unlock()
			return nil, nil, r.noSuch(name)
		}
		r.mu.Unlock()
		e.op.Lock()
		if !e.gone {
			return e, e.op.Unlock, nil
		}
		e.op.Unlock()
	}
}

// openToEnd is open for who ends the stream.
func (r *Runtime) openToEnd(name string) (e *entry, release func(), err error) {
	r.mu.Lock()
	e = r.find(name)
	r.mu.Unlock()
	if e != nil {
		r.hurryUp(e)
	}
	return r.open(name)
}

// hurryUp is called before op is taken to end the stream: nobody's question to one
// of its nodes holds that up.
func (r *Runtime) hurryUp(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.hurry != nil {
		e.hurry()
	}
}

// claim takes a name for a new stream, which adopt completes, or returns the
// kept stream that the request replaces. The entry's op is taken.
func (r *Runtime) claim(name string, c *compiled, keep bool, adopt func(*entry)) (e *entry, fresh bool, err error) {
	for {
		r.mu.Lock()
		if r.closing {
			r.mu.Unlock()
			return nil, false, api.Errorf(api.ShuttingDown, "cannot load %s: the runtime is stopping", name)
		}
		e := r.find(name)
		if e == nil {
			e = &entry{name: name, project: c.src.Dir, target: c.Target}
			e.op.Lock()
			adopt(e)
			r.entries = append(r.entries, e)
			r.mu.Unlock()
			return e, true, nil
		}
		if e.att != nil && e.att.closed {
			// Its command is gone, its last processes are about to be.
			r.mu.Unlock()
			time.Sleep(leavingPoll)
			continue
		}
		was, kept, broken, stays := project.Source{Dir: e.project, Target: e.target}, e.att == nil, e.broken != "", e.stays
		r.mu.Unlock() // what follows may look at the disk
		if !keep || !kept || stays || !replaces(c, was, broken) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return nil, false, inUse(e, c.src.Dir)
		}
		e.op.Lock()
		if !e.gone {
			return e, false, nil
		}
		e.op.Unlock()
	}
}

// replaces tells whether `run -d` of c replaces the record of a kept stream: it
// is of the same project and stream function. A record that is broken does not
// say its function; its project has to do.
func replaces(c *compiled, was project.Source, broken bool) bool {
	if broken {
		was.Target = c.Target
	}
	return project.SameFunction(was.Dir, was.Target, c.src.Dir, c.Target)
}

// inUse refuses a name that another stream has. Runtime.mu is held.
func inUse(e *entry, project string) *api.Error {
	if e.stays {
		return api.Errorf(api.NameInUse, "the name %s is in use, and what has it is not written over: %s", e.name, e.broken).
			WithHint("%s, or load this one under another name (`--name %s-2`)", mendBroken(e), e.name)
	}
	where := fmt.Sprintf("project %s", e.project)
	switch e.project {
	case project:
		where = fmt.Sprintf("this project (%s, %s)", e.project, e.target)
	case "": // its record cannot be read
		where = "a project that nobody can tell"
	}
	err := api.Errorf(api.NameInUse, "the name %s is in use: a stream of %s has it (%s)", e.name, where, e.state())
	if e.att != nil {
		return err.WithHint("stop it (`tatolab stop %s`), or load this one under another name (`--name %s-2`)", e.name, e.name)
	}
	return err.WithHint("remove it (`tatolab rm %s`), or load this one under another name (`--name %s-2`)", e.name, e.name)
}

// forget frees the name of an entry whose op is held.
func (r *Runtime) forget(e *entry) {
	r.mu.Lock()
	e.gone = true
	r.watchers.Delete(e.name)
	r.entries = slices.DeleteFunc(r.entries, func(other *entry) bool { return other == e })
	r.mu.Unlock()
	r.publish(Change{Removed, e.name})
}
