package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/project"
	"tatolab.com/tatolab/service/stream"
)

// ApplyChanges changes the live graph of a stream: api.Changes as JSON. The
// record of a kept stream stays as it is, so a restart undoes them. All of them
// are applied, or none: what a node refuses that is asked while it runs (a camera
// its controls) is taken back.
func (r *Runtime) ApplyChanges(ctx context.Context, name string, changes []byte) (*api.Done, error) {
	var c api.Changes
	d := json.NewDecoder(bytes.NewReader(changes))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, api.Errorf(api.BadRequest, "cannot read the changes to %s: %v", name, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, api.Errorf(api.BadRequest, "cannot read the changes to %s: there is more after their end", name)
	}
	e, v, release, err := r.openChanged(ctx, name, &c)
	if err != nil {
		return nil, err
	}
	defer release()
	defer e.run.Ask()()
	old := e.version
	change, err := r.apply(e, v)
	if err != nil {
		return nil, err
	}
	defer r.publish(Change{Changed, name})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	e.hurry = cancel
	r.mu.Unlock()
	refused, later := e.run.Configured(ctx, slices.Collect(maps.Keys(c.Set)))
	r.mu.Lock()
	e.hurry = nil
	r.mu.Unlock()
	if len(refused) > 0 {
		if _, err := r.apply(e, old); err != nil {
			return nil, err
		}
		return nil, api.Errorf(api.BadRequest, "cannot change %s: %s", name, each(refused, "refuses"))
	}
	var parts []string
	for _, part := range []struct {
		what  string
		names []string
	}{{"restarted", change.Restarted}, {"added", change.Added}, {"removed", change.Removed}, {"paused", c.Pause}, {"resumed", c.Resume}} {
		if len(part.names) > 0 {
			parts = append(parts, part.what+": "+join(part.names))
		}
	}
	if parts == nil {
		parts = []string{"no node restarted"}
	}
	if len(later) > 0 {
		parts = append(parts, each(later, "takes it later"))
	}
	return r.done(e, strings.Join(parts, "; ")), nil
}

// each says what nodes do, and why, in the order of their names.
func each(why map[string]string, do string) string {
	var parts []string
	for _, node := range slices.Sorted(maps.Keys(why)) {
		lines := slices.Sorted(strings.SplitSeq(why[node], "\n"))
		parts = append(parts, fmt.Sprintf("%s %s: %s", node, do, strings.Join(lines, "; ")))
	}
	return strings.Join(parts, "; ")
}

// openChanged opens a stream that runs, and returns what it is to run after the
// changes. The configurations of nodes are checked with the project's own code
// before, and without holding up who would stop the stream.
func (r *Runtime) openChanged(ctx context.Context, name string, c *api.Changes) (*entry, *stream.Version, func(), error) {
	var checked *stream.Version
	for {
		e, release, err := r.open(name)
		if err != nil {
			return nil, nil, nil, err
		}
		old := e.version
		if old == nil {
			release()
			return nil, nil, nil, api.Errorf(api.Unloadable, "cannot change %s: it is not running", name).
				WithHint("`tatolab start %s` starts it", name)
		}
		v, err := changed(old, c)
		if err != nil {
			release()
			refusal := api.Errorf(api.BadRequest, "cannot change %s: %v", name, err)
			if errors.As(err, new(noNode)) {
				var nodes []string
				for _, n := range old.Graph.Nodes {
					nodes = append(nodes, n.Name)
				}
				refusal = refusal.WithHint("its nodes: %s", join(nodes))
			}
			return nil, nil, nil, refusal
		}
		nodes := configured(v, c)
		if old == checked || len(nodes) == 0 {
			return e, v, release, nil
		}
		done := r.use(old.Snapshot)
		release()
		err = r.checkConfigs(ctx, v, nodes)
		done()
		if err != nil {
			return nil, nil, nil, err
		}
		checked = old // once more, unless another version runs by now
	}
}

// configured are the nodes of v that the changes give a configuration.
func configured(v *stream.Version, c *api.Changes) []graph.Node {
	added := func(name string) bool {
		return slices.ContainsFunc(c.Add, func(n graph.Node) bool { return n.Name == name })
	}
	var nodes []graph.Node
	for _, n := range v.Graph.Nodes {
		if c.Set[n.Name] != nil || added(n.Name) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// checkConfigs asks the classes of nodes whether they take their configurations.
func (r *Runtime) checkConfigs(ctx context.Context, v *stream.Version, nodes []graph.Node) error {
	compiler := project.Compiler{Bootstrap: r.Bootstrap, Environ: v.Environ, Lock: r.KeeperLock}
	src := &project.Source{Dir: v.Project, Interpreter: v.Interpreter, Target: v.Graph.Stream}
	ctx, cancel := r.whileItRuns(ctx)
	defer cancel()
	err := compiler.Check(ctx, src, v.Snapshot, nodes)
	if err == nil {
		return nil
	}
	refusal := *api.AsError(err)
	why := strings.TrimPrefix(refusal.Message, "cannot compile "+src.Target+": ") // nothing is compiled
	refusal.Message = fmt.Sprintf("cannot change %s: %s", v.Graph.Stream, why)
	return &refusal
}

// noNode says for what a node was named that is not there.
type noNode string

func (e noNode) Error() string { return string(e) }

func noNodef(format string, args ...any) error { return noNode(fmt.Sprintf(format, args...)) }

// changed returns v with changes applied to a copy of its graph.
func changed(v *stream.Version, c *api.Changes) (*stream.Version, error) {
	next := *v
	if next.Base == nil {
		next.Base = v
	}
	g := &graph.Graph{
		Stream: v.Graph.Stream, Nodes: slices.Clone(v.Graph.Nodes), Links: slices.Clone(v.Graph.Links),
		Exposed: slices.Clone(v.Graph.Exposed),
	}
	next.Graph, next.Classes, next.Exposed = g, maps.Clone(v.Classes), slices.Clone(v.Exposed)
	next.Paused = map[string]bool{}
	maps.Copy(next.Paused, v.Paused)

	for _, name := range c.Remove {
		i := slices.IndexFunc(g.Nodes, func(n graph.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, noNodef("there is no node %s to remove", name)
		}
		g.Nodes = slices.Delete(g.Nodes, i, i+1)
		delete(next.Classes, name)
		delete(next.Paused, name)
		g.Links = slices.DeleteFunc(g.Links, func(l graph.Link) bool {
			return l.Target.Node == name || !l.Source.Remote() && l.Source.Node == name
		})
		of := func(x graph.Exposure) bool { return x.Node == name }
		g.Exposed, next.Exposed = slices.DeleteFunc(g.Exposed, of), slices.DeleteFunc(next.Exposed, of)
	}
	for _, n := range c.Add {
		class, ok := classOf(v, n.Type)
		if !ok {
			return nil, fmt.Errorf("cannot add node %s: no node of the stream is of type %q, so its code is not loaded", n.Name, n.Type)
		}
		if len(n.Config) == 0 {
			n.Config = json.RawMessage("{}")
		}
		g.Nodes = append(g.Nodes, n)
		next.Classes[n.Name] = class
	}
	for name, values := range c.Set {
		i := slices.IndexFunc(g.Nodes, func(n graph.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, noNodef("there is no node %s to configure", name)
		}
		config, err := merge(g.Nodes[i].Config, values)
		if err != nil {
			return nil, fmt.Errorf("cannot configure node %s: %w", name, err)
		}
		g.Nodes[i].Config = config
	}
	for _, p := range []struct {
		names  []string
		paused bool
		what   string
	}{{c.Pause, true, "pause"}, {c.Resume, false, "resume"}} {
		for _, name := range p.names {
			if !slices.ContainsFunc(g.Nodes, func(n graph.Node) bool { return n.Name == name }) {
				return nil, noNodef("there is no node %s to %s", name, p.what)
			}
			next.Paused[name] = p.paused
		}
	}
	for _, l := range c.Unlink {
		i := slices.Index(g.Links, l)
		if i < 0 {
			return nil, fmt.Errorf("there is no link %s → %s to remove", l.Source, l.Target)
		}
		g.Links = slices.Delete(g.Links, i, i+1)
	}
	g.Links = append(g.Links, c.Link...)
	if err := g.Check(); err != nil {
		return nil, err
	}
	return &next, checkPorts(&next)
}

// classOf finds the class of a type that the stream uses.
func classOf(v *stream.Version, kind string) (graph.Class, bool) {
	for _, n := range v.Graph.Nodes {
		if n.Type == kind {
			return v.Classes[n.Name], true
		}
	}
	return graph.Class{}, false
}

// merge changes a configuration as a JSON merge patch does (RFC 7396): objects
// key by key, null takes a key out.
func merge(config json.RawMessage, patch map[string]json.RawMessage) (json.RawMessage, error) {
	var merged map[string]json.RawMessage
	if json.Unmarshal(config, &merged) != nil || merged == nil {
		merged = map[string]json.RawMessage{} // what is no object, null included, is replaced by one
	}
	for key, value := range patch {
		var inner map[string]json.RawMessage
		switch {
		case string(value) == "null":
			delete(merged, key)
		case json.Unmarshal(value, &inner) == nil:
			object, err := merge(merged[key], inner)
			if err != nil {
				return nil, err
			}
			merged[key] = object
		default:
			merged[key] = value
		}
	}
	return json.Marshal(merged)
}

// checkPorts returns an error unless every port that links within the stream
// name is there.
func checkPorts(v *stream.Version) error {
	for _, l := range v.Graph.Links {
		if !slices.ContainsFunc(v.Classes[l.Target.Node].Inputs, func(in graph.Input) bool { return in.Port == l.Target.Port }) {
			return fmt.Errorf("node %s has no input %s", l.Target.Node, l.Target.Port)
		}
		if !l.Source.Remote() && !slices.Contains(v.Classes[l.Source.Node].Outputs, l.Source.Port) {
			return fmt.Errorf("node %s has no output %s", l.Source.Node, l.Source.Port)
		}
	}
	return nil
}
