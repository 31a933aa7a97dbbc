package dbus

import (
	"encoding/json"
	"reflect"

	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// view is the properties of a stream's object, as they are at one moment.
type view struct {
	Name         string
	State        string
	NodeCount    uint32
	Project      string
	FailedReason string
	Exposed      []exposed
	Graph        string
}

// exposed is an entry of the property Exposed, (sss) on the bus.
type exposed struct{ Node, Port, Level string }

// graphView is the property Graph: the live graph without what changes all
// the time.
type graphView struct {
	Version int              `json:"version"`
	Stream  string           `json:"stream"`
	State   api.State        `json:"state"`
	Project string           `json:"project"`
	Nodes   []graphNode      `json:"nodes"`
	Links   []graphLink      `json:"links"`
	Exposed []graph.Exposure `json:"exposed"`
	Notes   []string         `json:"notes,omitempty"`
}

type graphNode struct {
	graph.Node
	State  api.NodeState `json:"state"`
	Reason string        `json:"reason,omitempty"`
}

type graphLink struct {
	graph.Link
	State   api.LinkState `json:"state"`
	Reason  string        `json:"reason,omitempty"`
	Profile string        `json:"profile,omitempty"`
}

// view looks at a stream.
func (b *Bus) view(s api.Stream) view {
	v := view{
		Name: text(s.Name), State: string(s.State), Project: text(s.Project), FailedReason: text(s.Reason),
		Exposed: []exposed{},
	}
	if s.Nodes != nil {
		v.NodeCount = uint32(*s.Nodes)
	}
	g := graphView{
		Version: 1, Stream: s.Name, State: s.State, Project: s.Project,
		Nodes: []graphNode{}, Links: []graphLink{}, Exposed: []graph.Exposure{},
	}
	// A stream that is not loaded may have no graph: an empty one says so.
	if live, err := b.service.Graph(s.Name); err == nil {
		g.Version, g.Notes = live.Version, live.Notes
		for _, n := range live.Nodes {
			g.Nodes = append(g.Nodes, graphNode{n.Node, n.State, n.Reason})
		}
		for _, l := range live.Links {
			g.Links = append(g.Links, graphLink{l.Link, l.State, l.Reason, l.Profile})
		}
		for _, e := range live.Exposed {
			g.Exposed = append(g.Exposed, e)
			v.Exposed = append(v.Exposed, exposed{text(e.Node), text(e.Port), string(e.Level)})
		}
	}
	data, err := json.Marshal(g)
	if err != nil {
		// Only a node's configuration that is no JSON does that, and a
		// compiled graph has none.
		data = []byte("{}")
	}
	v.Graph = text(string(data))
	return v
}

// properties are all properties, by name.
func (v view) properties() map[string]godbus.Variant {
	all := map[string]godbus.Variant{}
	value := reflect.ValueOf(v)
	for i := range value.NumField() {
		all[value.Type().Field(i).Name] = godbus.MakeVariant(value.Field(i).Interface())
	}
	return all
}

// differs returns the properties whose new value a signal carries.
func (v view) differs(before view) map[string]godbus.Variant {
	changed := map[string]godbus.Variant{}
	now, then := reflect.ValueOf(v), reflect.ValueOf(before)
	for i := range now.NumField() {
		name := now.Type().Field(i).Name
		if name != "Graph" && !reflect.DeepEqual(now.Field(i).Interface(), then.Field(i).Interface()) {
			changed[name] = godbus.MakeVariant(now.Field(i).Interface())
		}
	}
	return changed
}

// streamInterfaces are the interfaces of a stream's object that ObjectManager
// names.
var streamInterfaces = []string{streamInterface, propertiesInterface, introspectInterface, peerInterface}

func (v view) interfaces() map[string]map[string]godbus.Variant {
	all := map[string]map[string]godbus.Variant{}
	for _, name := range streamInterfaces {
		all[name] = map[string]godbus.Variant{}
	}
	all[streamInterface] = v.properties()
	return all
}
