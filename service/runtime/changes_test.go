package runtime

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/stream"
	"tatolab.com/tatolab/service/switchboard"
)

func watcher() *stream.Version {
	return &stream.Version{
		Graph: &graph.Graph{
			Stream: "watcher",
			Nodes: []graph.Node{
				{Name: "camera", Type: "tatolab.stream:CameraSource", Config: json.RawMessage(`{"fps": 30}`)},
				{Name: "detector", Type: "nodes:Detector", Config: json.RawMessage(`{"sensitivity": 0.02, "window": 3}`)},
			},
			Links: []graph.Link{{Source: graph.Source{Node: "camera", Port: "video"}, Target: graph.End{Node: "detector", Port: "video"}}},
		},
		Classes: map[string]graph.Class{
			"camera":   {Outputs: []string{"video"}},
			"detector": {Inputs: []graph.Input{{Port: "video", Profile: "newest"}}, Outputs: []string{"motion"}},
		},
		Exposed: []graph.Exposure{{Node: "detector", Port: "motion", Level: graph.Private}},
	}
}

// What `expose` has restricted stays so when the live graph is edited.
func TestAChangeKeepsRulings(t *testing.T) {
	e := &entry{name: "watcher", att: &Attachment{}, version: watcher()}
	r := &Runtime{entries: []*entry{e}, board: switchboard.New(func(string, switchboard.Status) {})}
	before := e.version
	if _, err := r.Expose(t.Context(), "watcher", graph.End{Node: "detector", Port: "motion"}, graph.Internal); err != nil {
		t.Fatal(err)
	}
	next, err := changed(e.version, &api.Changes{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []graph.Exposure{{Node: "detector", Port: "motion", Level: graph.Internal}}; !slices.Equal(next.Exposed, want) {
		t.Errorf("exposed: %v, want %v", next.Exposed, want)
	}
	if before.Exposed[0].Level != graph.Private {
		t.Error("the version that runs was changed in place: its stream reads it meanwhile")
	}
}

func TestChanged(t *testing.T) {
	v := watcher()
	next, err := changed(v, &api.Changes{
		Set:  map[string]map[string]json.RawMessage{"detector": {"sensitivity": json.RawMessage("0.5"), "window": json.RawMessage("null")}},
		Add:  []graph.Node{{Name: "second", Type: "nodes:Detector"}},
		Link: []graph.Link{{Source: graph.Source{Node: "camera", Port: "video"}, Target: graph.End{Node: "second", Port: "video"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(next.Graph.Nodes[1].Config); got != `{"sensitivity":0.5}` {
		t.Errorf("config %s", got)
	}
	if len(next.Graph.Nodes) != 3 || len(next.Graph.Links) != 2 || next.Classes["second"].Outputs[0] != "motion" {
		t.Errorf("changed to %+v", next.Graph)
	}
	if before := watcher(); len(v.Graph.Nodes) != 2 || string(v.Graph.Nodes[1].Config) != string(before.Graph.Nodes[1].Config) {
		t.Error("the version that was changed is another now")
	}
	next, err = changed(next, &api.Changes{Remove: []string{"detector"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(next.Graph.Nodes) != 2 || len(next.Graph.Links) != 1 || len(next.Exposed) != 0 {
		t.Errorf("without the detector: %+v, exposed %v", next.Graph, next.Exposed)
	}
}

func TestMerge(t *testing.T) {
	for _, c := range []struct{ config, patch, want string }{
		{`{"a":1}`, `{"b":{"c":2}}`, `{"a":1,"b":{"c":2}}`},
		{`{"a":{"b":1,"c":2}}`, `{"a":{"b":null,"d":[3]}}`, `{"a":{"c":2,"d":[3]}}`},
		{`{"a":[1,2]}`, `{"a":{"b":null}}`, `{"a":{}}`},
		{``, `{"a":"x"}`, `{"a":"x"}`},
		{`null`, `{"a":"x"}`, `{"a":"x"}`},
		{`{"a":null}`, `{"a":{"b":1}}`, `{"a":{"b":1}}`},
	} {
		var patch map[string]json.RawMessage
		if err := json.Unmarshal([]byte(c.patch), &patch); err != nil {
			t.Fatal(err)
		}
		got, err := merge(json.RawMessage(c.config), patch)
		if err != nil || string(got) != c.want {
			t.Errorf("merge %s into %s: %s, %v; want %s", c.patch, c.config, got, err, c.want)
		}
	}
}

func TestChangesThatAreRefused(t *testing.T) {
	end := graph.End{Node: "detector", Port: "video"}
	for _, c := range []struct {
		changes api.Changes
		want    string
	}{
		{api.Changes{Remove: []string{"x"}}, "no node x"},
		{api.Changes{Set: map[string]map[string]json.RawMessage{"x": {}}}, "no node x"},
		{api.Changes{Add: []graph.Node{{Name: "x", Type: "other:Class"}}}, `of type "other:Class"`},
		{api.Changes{Add: []graph.Node{{Name: "camera", Type: "nodes:Detector"}}}, "two nodes are named camera"},
		{api.Changes{Unlink: []graph.Link{{Source: graph.Source{Node: "x", Port: "y"}, Target: end}}}, "no link x/y → detector/video"},
		{api.Changes{Link: []graph.Link{{Source: graph.Source{Node: "camera", Port: "x"}, Target: end}}}, "camera has no output x"},
		{api.Changes{Link: []graph.Link{{Source: graph.Source{Node: "camera", Port: "video"}, Target: graph.End{Node: "detector", Port: "x"}}}}, "detector has no input x"},
	} {
		if _, err := changed(watcher(), &c.changes); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want …%s…", c.changes, err, c.want)
		}
	}
}
