package runtime

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/figures"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/project"
	streams "tatolab.com/tatolab/service/stream"
)

// looksPatience is how long a look at streams waits for them to say how they are.
const looksPatience = 200 * time.Millisecond

// nodes are the nodes of those of some streams that run, by stream. The streams
// are asked side by side. One that is too busy to say is not waited for: its nodes
// are as it last said, and it is among busy.
func (r *Runtime) nodes(names ...string) (nodes map[string][]api.GraphNode, busy []string) {
	ctx, cancel := context.WithTimeout(context.Background(), looksPatience)
	defer cancel()
	nodes = map[string][]api.GraphNode{}
	var asked sync.WaitGroup
	for _, name := range names {
		r.mu.Lock()
		e := r.find(name)
		if e == nil || e.run == nil {
			r.mu.Unlock()
			continue
		}
		run := e.run
		r.mu.Unlock()
		asked.Go(func() {
			said, err := run.Nodes(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			switch {
			case e.run != run: // unloaded meanwhile
				return
			case errors.Is(err, streams.ErrEmpty):
				said = e.nodesThatAre(api.NodeStarting)
			case errors.Is(err, streams.ErrEnded):
				said = e.nodesThatAre(api.NodeStopping)
			case err != nil:
				said, busy = e.lastNodes(), append(busy, name)
			default:
				e.said = said
			}
			nodes[name] = said
		})
	}
	asked.Wait()
	return nodes, busy
}

// lastNodes are the nodes of what an entry runs as its stream last said they were;
// those it has said nothing of yet are about to be started. Runtime.mu is held.
func (e *entry) lastNodes() (nodes []api.GraphNode) {
	for _, n := range e.version.Graph.Nodes {
		last := api.GraphNode{State: api.NodeStarting}
		if i := slices.IndexFunc(e.said, func(g api.GraphNode) bool { return g.Name == n.Name }); i >= 0 {
			last = e.said[i]
		}
		last.Node = n
		nodes = append(nodes, last)
	}
	return nodes
}

// nodesThatAre are the nodes of what an entry runs, all in one state. Runtime.mu is
// held.
func (e *entry) nodesThatAre(state api.NodeState) (nodes []api.GraphNode) {
	for _, n := range e.version.Graph.Nodes {
		nodes = append(nodes, api.GraphNode{Node: n, State: state})
	}
	return nodes
}

// List is Streams, with what ails those that run.
func (r *Runtime) List() []api.Stream {
	list := r.Streams()
	nodes, _ := r.nodes(namesOf(list)...)
	for i, s := range list {
		var died []string
		for _, n := range nodes[s.Name] {
			if n.State == api.NodeBackoff && n.Reason != "" {
				died = append(died, fmt.Sprintf("%s waits to be started again: %s", n.Name, n.Reason))
			}
		}
		if died != nil {
			list[i].Reason = strings.Join(died, "; ")
		}
	}
	return list
}

func namesOf(list []api.Stream) (names []string) {
	for _, s := range list {
		names = append(names, s.Name)
	}
	return names
}

// Graph is the graph of a stream: live where it runs, as recorded where not.
func (r *Runtime) Graph(name string) (*api.Graph, error) {
	r.mu.Lock()
	e := r.find(name)
	if e == nil {
		defer r.mu.Unlock()
		return nil, r.noSuch(name)
	}
	out := &api.Graph{Version: 1, Stream: name, State: e.state(), Project: e.project,
		Nodes: []api.GraphNode{}, Links: []api.GraphLink{}, Exposed: []graph.Exposure{}}
	run, version, rec, refused, saves, broken := e.run, e.version, e.rec, e.refused, e.saves, e.broken
	r.mu.Unlock()

	switch {
	case broken != "":
		out.Notes = append(out.Notes, broken)
	case run == nil && rec != nil:
		for _, n := range rec.Graph.Nodes {
			out.Nodes = append(out.Nodes, api.GraphNode{Node: n, State: api.NodeStopped})
		}
		for _, l := range rec.Graph.Links {
			out.Links = append(out.Links, api.GraphLink{Link: l, State: api.LinkWaiting, Reason: name + " does not run"})
		}
		out.Exposed = append(out.Exposed, rule(rec.Graph.Exposed, rec.Rulings)...)
	case run != nil && version != nil:
		nodes, busy := r.nodes(name)
		if nodes[name] == nil && len(version.Graph.Nodes) > 0 {
			return r.Graph(name) // it was unloaded meanwhile
		}
		if busy != nil {
			out.Notes = append(out.Notes, fmt.Sprintf("%s is too busy to say how its nodes are: this is how they last were", name))
		}
		out.Nodes = append(out.Nodes, nodes[name]...)
		for i := range out.Nodes {
			n := &out.Nodes[i]
			n.Outputs = slices.DeleteFunc(slices.Clone(n.Outputs), func(o api.GraphOutput) bool { return !r.board.Reads(name, graph.End{Node: n.Name, Port: o.Port}) })
		}
		out.Usage = r.usage(name, out.Nodes)
		out.Exposed = r.board.Exposed(name)
		for _, s := range r.board.Links(name) {
			l := api.GraphLink{Link: s.Link, State: s.State, Reason: s.Reason, Profile: s.Profile}
			if s.State == api.LinkAwaitingRemote && s.Link.Source.Machine == "" {
				if why := r.absent(s.Link.Source.Stream); why != "" {
					l.Reason = fmt.Sprintf("needs %s: %s", s.Link.Source, why)
				}
			}
			if s.ID != 0 {
				source := figures.Output{Stream: s.Link.Source.Stream, Node: s.Link.Source.Node, Port: s.Link.Source.Port}
				if source.Stream == "" {
					source.Stream = name
				}
				r.book.Link(s.ID, source, &l)
			}
			out.Links = append(out.Links, l)
		}
	}
	if refused != "" {
		out.Notes = append(out.Notes, fmt.Sprintf("version %d runs; the save after it was not taken: %s", saves, refused))
	}
	if run != nil && version != nil {
		out.Differences = differences(version)
	}
	var changed []string // on disk
	switch {
	case rec != nil:
		if changed = r.differs(e, r.keptCode, rec.Snapshot); changed != nil {
			out.Notes = append(out.Notes, fmt.Sprintf("the project differs from what was kept (%s); `tatolab run -d` keeps it as it is now", join(changed)))
		}
	case version != nil && refused == "":
		if changed = r.differs(e, r.attachedCode, filepath.Base(version.Snapshot)); changed != nil {
			out.Notes = append(out.Notes, fmt.Sprintf("the project differs from what runs (%s)", join(changed)))
		}
	}
	for _, file := range changed {
		out.Differences = append(out.Differences, api.Difference{What: "file " + file, Now: "changed on disk"})
	}
	return out, nil
}

// differences of what runs from what it was compiled to.
func differences(v *streams.Version) (list []api.Difference) {
	if v.Base == nil {
		return nil
	}
	base := v.Base.Graph
	find := func(g *graph.Graph, name string) *graph.Node {
		if i := slices.IndexFunc(g.Nodes, func(n graph.Node) bool { return n.Name == name }); i >= 0 {
			return &g.Nodes[i]
		}
		return nil
	}
	for _, n := range v.Graph.Nodes {
		switch was := find(base, n.Name); {
		case was == nil:
			list = append(list, api.Difference{What: "node " + n.Name, Now: "added"})
		case !sameJSON(n.Config, was.Config):
			list = append(list, api.Difference{What: "node " + n.Name, Now: string(n.Config), Before: string(was.Config)})
		}
		if v.Paused[n.Name] {
			list = append(list, api.Difference{What: "node " + n.Name, Now: "paused"})
		}
	}
	for _, n := range base.Nodes {
		if find(v.Graph, n.Name) == nil {
			list = append(list, api.Difference{What: "node " + n.Name, Now: "removed"})
		}
	}
	for _, of := range []struct {
		links, others []graph.Link
		now           string
	}{{v.Graph.Links, base.Links, "added"}, {base.Links, v.Graph.Links, "removed"}} {
		for _, l := range of.links {
			if !slices.Contains(of.others, l) {
				list = append(list, api.Difference{What: fmt.Sprintf("link %s → %s", l.Source, l.Target), Now: of.now})
			}
		}
	}
	return list
}

// sameJSON tells whether two texts are one value.
func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

const (
	// diskEvery is how often the disk is compared with what was kept, at most;
	// diskPatience is how long a look at a graph waits for that.
	diskEvery    = 2 * time.Second
	diskPatience = 200 * time.Millisecond
)

// comparison is of a project's files with a snapshot of them.
type comparison struct {
	at      time.Time
	done    chan struct{} // closed when files is there
	changed []string
}

// differs lists the files of a stream's project that are not what its snapshot holds.
// Looks come often and disks hang: it compares now and then, and a disk that
// takes long is not waited for.
func (r *Runtime) differs(e *entry, code *project.Snapshots, snapshot string) []string {
	r.mu.Lock()
	c := e.compared
	if c == nil || time.Since(c.at) > diskEvery && closed(c.done) {
		c = &comparison{at: time.Now(), done: make(chan struct{})}
		e.compared = c
		go func() {
			c.changed, _ = code.Differs(snapshot)
			close(c.done)
		}()
	}
	r.mu.Unlock()
	select {
	case <-c.done:
		return c.changed
	case <-time.After(diskPatience):
		return nil
	}
}

func closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// absent says why a stream is not loaded, "" of one that is.
func (r *Runtime) absent(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.find(name)
	switch {
	case e == nil:
		return "no stream " + name + " is running"
	case e.run != nil:
		return ""
	case e.state() == api.Stopped:
		return name + " is stopped"
	case e.state() == api.Failed:
		return name + " has failed: " + e.show().Reason
	}
	return name + " is not running yet"
}

// About is what of Status asks no stream.
func (r *Runtime) About() (release, socket string) { return build.Version, r.Paths.Socket }

// Status is what `tatolab status` shows.
func (r *Runtime) Status() api.Status {
	release, socket := r.About()
	s := api.Status{
		Version: 1, Release: release, Build: build.ID(), PID: os.Getpid(), RuntimeID: r.id,
		Started: r.started, How: r.How, Socket: socket, LastCrash: r.Verdict.Cause,
		Streams: map[api.State]int{}, Usage: map[string]api.Usage{}, Confined: r.confined(),
	}
	if r.Bus != nil {
		s.DBus = r.Bus()
	}
	list := r.Streams()
	for _, stream := range list {
		s.Streams[stream.State]++
	}
	nodes, _ := r.nodes(namesOf(list)...)
	for name, of := range nodes {
		s.Usage[name] = r.usage(name, of)
	}
	return s
}

// usage is what a stream with these nodes uses.
func (r *Runtime) usage(name string, nodes []api.GraphNode) (u api.Usage) {
	for _, n := range nodes {
		if n.PID != 0 {
			u.CPUms, u.Memory, u.Processes = u.CPUms+n.CPUms, u.Memory+n.RSS, u.Processes+1
		}
	}
	r.mu.Lock()
	group := r.groups[name]
	r.mu.Unlock()
	if group == nil {
		return u
	}
	// Figures of controllers that are missing are 0: what is known stays.
	g := group.Usage()
	return api.Usage{
		CPUms:     max(g.CPU.Milliseconds(), u.CPUms),
		Memory:    cmp.Or(g.Memory, u.Memory),
		Processes: cmp.Or(g.Processes, u.Processes),
	}
}

// Check returns when the runtime can answer at all, for the watchdog.
func (r *Runtime) Check() {
	for _, s := range r.Streams() {
		r.board.Links(s.Name)
	}
}

// Log returns records of a stream's log; name "" is the runtime's own.
func (r *Runtime) Log(name string, f api.LogFilter) ([]api.Record, error) {
	if err := r.checkLog(name, f); err != nil {
		return nil, err
	}
	return r.Logs.Read(name, f)
}

// FollowLog yields what Log does, then every new record until ctx ends.
func (r *Runtime) FollowLog(ctx context.Context, name string, f api.LogFilter) (<-chan api.Record, error) {
	if err := r.checkLog(name, f); err != nil {
		return nil, err
	}
	return r.Logs.Follow(ctx, name, f)
}

// checkLog refuses a level that is none, and the log of a stream, or of a node of
// it, that never was; what has ended or was taken out can still be read.
func (r *Runtime) checkLog(name string, f api.LogFilter) error {
	node := f.Node
	if f.Level != "" && !slices.Contains(api.Levels, f.Level) {
		return api.Errorf(api.BadRequest, "level %q is none of %s", f.Level, join(api.Levels))
	}
	if name == "" { // the runtime's own
		return nil
	}
	var nodes []string
	r.mu.Lock()
	e := r.find(name)
	if e != nil {
		if g, _ := e.content(); g != nil {
			for _, n := range g.Nodes {
				nodes = append(nodes, n.Name)
			}
		}
	}
	r.mu.Unlock()
	if slices.Contains(nodes, node) || e != nil && node == "" || r.hasLog(name, node) { // which reads the disk
		return nil
	}
	if e == nil && (node == "" || !r.hasLog(name, "")) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.noSuch(name)
	}
	err := api.Errorf(api.BadRequest, "%s has no node %s, and had none that logged", name, node)
	if len(nodes) > 0 {
		err = err.WithHint("its nodes: %s", join(nodes))
	}
	return err
}

// Nodes lists the node classes a project can use.
func (r *Runtime) Nodes(ctx context.Context, dir string) (*api.Catalog, error) {
	return r.compiler.Catalog(ctx, dir)
}

func (r *Runtime) hasLog(name, node string) bool {
	records, err := r.Logs.Read(name, api.LogFilter{Node: node, Last: 1})
	return err == nil && len(records) > 0
}
