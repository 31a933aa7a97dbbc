// Package graph is the data a stream function compiles to: nodes, links and
// exposures. It is what the Python package emits, what a record holds and what
// the runtime reconciles towards. It knows nothing of processes.
package graph

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"tatolab.com/tatolab/service/name"
)

// Graph is one stream as its function built it.
type Graph struct {
	Stream  string     `json:"stream"`
	Nodes   []Node     `json:"nodes"`
	Links   []Link     `json:"links"`
	Exposed []Exposure `json:"exposed"`
}

// Node is one instance of a node class.
type Node struct {
	Name string `json:"name"`
	// Type is "module:Class"; built-in nodes are "tatolab.stream:Class".
	Type   string          `json:"type"`
	Config json.RawMessage `json:"config"`
}

// Builtin is the module of the node types the runtime itself provides.
const Builtin = "tatolab.stream"

// BuiltinClass returns the class name of a built-in type, or "" for a node
// class of the user.
func (n Node) BuiltinClass() string {
	if class, ok := strings.CutPrefix(n.Type, Builtin+":"); ok {
		return class
	}
	return ""
}

// Link joins an output to an input. The stream that holds the input owns it.
type Link struct {
	Source Source `json:"source"`
	Target End    `json:"target"`
}

// End is a port of a node of the same stream.
type End struct {
	Node string `json:"node"`
	Port string `json:"port"`
}

func (e End) String() string { return e.Node + "/" + e.Port }

// Source is an output: of this stream where Stream is empty, else of another
// stream, on another machine where Machine is set.
type Source struct {
	Machine string `json:"machine,omitempty"`
	Stream  string `json:"stream,omitempty"`
	Node    string `json:"node"`
	Port    string `json:"port"`
}

// Remote tells whether the source lies outside the stream that reads it.
func (s Source) Remote() bool { return s.Stream != "" }

// String is the source's address as far as it is given, "stream/node/port".
func (s Source) String() string {
	var parts []string
	for _, part := range []string{s.Machine, s.Stream, s.Node, s.Port} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "/")
}

// Level says who outside the stream may read an output.
type Level string

// The exposure levels, narrowest first.
const (
	Internal Level = "internal" // nobody: the default
	Private  Level = "private"  // other streams of this machine
	Public   Level = "public"   // other machines too
)

// Valid tells whether l is one of the three levels.
func (l Level) Valid() bool { return l == Internal || l == Private || l == Public }

// Exposure is the level of one output; an output not listed is Internal.
type Exposure struct {
	Node  string `json:"node"`
	Port  string `json:"port"`
	Level Level  `json:"level"`
}

// ParseAddress reads "stream/node/port" or "machine/stream/node/port". Every
// part is cast as names are.
func ParseAddress(address string) (Source, error) {
	parts := strings.Split(address, "/")
	if len(parts) != 3 && len(parts) != 4 {
		return Source{}, fmt.Errorf("%q is no address: an address is stream/node/port (or machine/stream/node/port)", address)
	}
	for i, part := range parts {
		cast, err := name.Cast(part)
		if err != nil {
			return Source{}, fmt.Errorf("address %q: %w", address, err)
		}
		parts[i] = cast
	}
	var s Source
	if len(parts) == 4 {
		s.Machine, parts = parts[0], parts[1:]
	}
	s.Stream, s.Node, s.Port = parts[0], parts[1], parts[2]
	return s, nil
}

// Decode reads a graph and checks it. A field it does not know is refused by
// name: a graph that a newer version wrote must not be half understood.
func Decode(data []byte) (*Graph, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var g Graph
	if err := d.Decode(&g); err != nil {
		return nil, fmt.Errorf("cannot read graph: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("cannot read graph: there is more after its end")
	}
	return &g, g.Check()
}

// Check returns the first thing that makes g no graph.
func (g *Graph) Check() error {
	if err := name.Check(g.Stream); err != nil {
		return fmt.Errorf("graph: stream: %w", err)
	}
	nodes := map[string]bool{}
	for _, n := range g.Nodes {
		if err := name.Check(n.Name); err != nil {
			return fmt.Errorf("graph of %s: node: %w", g.Stream, err)
		}
		if nodes[n.Name] {
			return fmt.Errorf("graph of %s: two nodes are named %s", g.Stream, n.Name)
		}
		nodes[n.Name] = true
		module, class, ok := strings.Cut(n.Type, ":")
		if !ok || module == "" || class == "" {
			return fmt.Errorf("graph of %s: node %s: type %q is not module:Class", g.Stream, n.Name, n.Type)
		}
	}
	known := func(node, port, what string) error {
		if !nodes[node] {
			return fmt.Errorf("graph of %s: %s names node %q, which it does not have", g.Stream, what, node)
		}
		if err := name.Check(port); err != nil {
			return fmt.Errorf("graph of %s: %s: port: %w", g.Stream, what, err)
		}
		return nil
	}
	links := map[Link]bool{}
	for _, l := range g.Links {
		if err := known(l.Target.Node, l.Target.Port, "a link"); err != nil {
			return err
		}
		if l.Source.Machine != "" && l.Source.Stream == "" {
			return fmt.Errorf("graph of %s: a link's source names machine %q but no stream", g.Stream, l.Source.Machine)
		}
		if !l.Source.Remote() {
			if err := known(l.Source.Node, l.Source.Port, "a link"); err != nil {
				return err
			}
		}
		if links[l] {
			return fmt.Errorf("graph of %s: %s is linked to %s twice", g.Stream, l.Source, l.Target)
		}
		links[l] = true
	}
	exposed := map[End]bool{}
	for _, e := range g.Exposed {
		if err := known(e.Node, e.Port, "an exposure"); err != nil {
			return err
		}
		if !e.Level.Valid() {
			return fmt.Errorf("graph of %s: %s/%s: exposure level %q is none of internal, private, public", g.Stream, e.Node, e.Port, e.Level)
		}
		if end := (End{e.Node, e.Port}); exposed[end] {
			return fmt.Errorf("graph of %s: %s is exposed twice", g.Stream, end)
		} else {
			exposed[end] = true
		}
	}
	return nil
}
