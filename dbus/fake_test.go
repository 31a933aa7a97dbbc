package dbus

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// fake is a runtime of streams in memory. A project named "slow" compiles until
// compile is closed, one named after a code of the API fails with it.
type fake struct {
	mu      sync.Mutex
	streams []*fakeStream
	bus     *Bus
	compile chan struct{}
	reloads int
}

type fakeStream struct {
	api.Stream
	graph api.Graph
	log   []api.Record
	load  api.Load
	att   *fakeAttachment
}

type fakeAttachment struct {
	runtime *fake
	name    string
	events  chan api.Event
	end     sync.Once
}

func newFake() *fake { return &fake{compile: make(chan struct{})} }

func (f *fake) tell(name string, gone bool) {
	if f.bus != nil {
		f.bus.Changed(name, gone)
	}
}

func (a *fakeAttachment) Events() <-chan api.Event { return a.events }

func (a *fakeAttachment) Close() {
	a.end.Do(func() {
		a.runtime.remove(a.name)
		close(a.events)
	})
}

func (f *fake) find(name string) *fakeStream {
	i := slices.IndexFunc(f.streams, func(s *fakeStream) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return f.streams[i]
}

func (f *fake) remove(name string) {
	f.mu.Lock()
	f.streams = slices.DeleteFunc(f.streams, func(s *fakeStream) bool { return s.Name == name })
	f.mu.Unlock()
	f.tell(name, true)
}

func (f *fake) add(ctx context.Context, req api.Load, state api.State) (*fakeStream, error) {
	project := req.Project[strings.LastIndex(req.Project, "/")+1:]
	if code := api.Code(project); ours[code] {
		return nil, api.Errorf(code, "cannot load %s", project).WithHint("try another")
	}
	if project == "slow" {
		select {
		case <-f.compile:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	name := req.Name
	if name == "" {
		name = "motion_watcher"
	}
	nodes := 1
	s := &fakeStream{Stream: api.Stream{Name: name, State: state, Nodes: &nodes, Project: req.Project}, load: req}
	s.graph = api.Graph{
		Version: 1, Stream: name, State: state, Project: req.Project,
		Usage: api.Usage{CPUms: 250, Memory: 1 << 20, Processes: 1},
		Nodes: []api.GraphNode{{
			Node: graph.Node{Name: "camera", Type: "tatolab.stream:CameraSource", Config: json.RawMessage(`{}`)}, State: api.NodeRunning,
			PID: 4711, CPUms: 250, RSS: 1 << 20, Outputs: []api.GraphOutput{{Port: "video", Sent: 30, Rate: 29.5}},
		}},
		Links: []api.GraphLink{{
			Link: graph.Link{
				Source: graph.Source{Stream: "other", Node: "detector", Port: "motion"},
				Target: graph.End{Node: "camera", Port: "trigger"},
			},
			State: api.LinkAwaitingRemote, Reason: "other is not there",
		}},
	}
	s.log = []api.Record{
		{Time: time.Unix(1700000000, 0), Level: "info", Stream: name, Message: "loaded"},
		{Time: time.Unix(1700000001, 0), Level: "warn", Stream: name, Node: "camera", Message: "broken \xff\x00 text", Fields: map[string]any{"frames": 7, "card": "a\xffb", "list": []int{1, 2}}},
	}
	f.mu.Lock()
	if f.find(name) != nil {
		f.mu.Unlock()
		return nil, api.Errorf(api.NameInUse, "the name %s is in use", name)
	}
	f.streams = append(f.streams, s)
	f.mu.Unlock()
	f.tell(name, false)
	return s, nil
}

func (f *fake) Attach(ctx context.Context, req api.Load) (*fakeAttachment, error) {
	s, err := f.add(ctx, req, api.Attached)
	if err != nil {
		return nil, err
	}
	s.att = &fakeAttachment{runtime: f, name: s.Name, events: make(chan api.Event, 4)}
	loaded := s.Stream
	s.att.events <- api.Event{Kind: api.EventLoaded, Stream: &loaded}
	return s.att, nil
}

func (f *fake) Keep(ctx context.Context, req api.Load) (*api.Done, error) {
	s, err := f.add(ctx, req, api.Kept)
	if err != nil {
		return nil, err
	}
	return &api.Done{Stream: &s.Stream}, nil
}

func (f *fake) Streams() []api.Stream {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []api.Stream
	for _, s := range f.streams {
		list = append(list, s.Stream)
	}
	return list
}

func (f *fake) Stream(name string) (api.Stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.find(name); s != nil {
		return s.Stream, nil
	}
	return api.Stream{}, api.Errorf(api.NoSuchStream, "there is no stream %s", name)
}

// change runs something on a stream and tells of it.
func (f *fake) change(name string, how func(s *fakeStream)) (*api.Done, error) {
	f.mu.Lock()
	s := f.find(name)
	if s == nil {
		f.mu.Unlock()
		return nil, api.Errorf(api.NoSuchStream, "there is no stream %s", name)
	}
	how(s)
	f.mu.Unlock()
	f.tell(name, false)
	return &api.Done{}, nil
}

func (f *fake) Stop(_ context.Context, name string) (*api.Done, error) {
	var att *fakeAttachment
	done, err := f.change(name, func(s *fakeStream) {
		if att = s.att; att == nil {
			s.State, s.Nodes = api.Stopped, nil
		}
	})
	if att != nil {
		att.Close()
	}
	return done, err
}

func (f *fake) Start(_ context.Context, name string) (*api.Done, error) {
	return f.change(name, func(s *fakeStream) {
		n := 1
		s.State, s.Nodes, s.Reason = api.Kept, &n, ""
	})
}

func (f *fake) Restart(ctx context.Context, name string) (*api.Done, error) {
	return f.Start(ctx, name)
}

func (f *fake) Remove(_ context.Context, name string) (*api.Done, error) {
	if _, err := f.Stream(name); err != nil {
		return nil, err
	}
	f.remove(name)
	return &api.Done{}, nil
}

func (f *fake) Expose(_ context.Context, stream string, end graph.End, level graph.Level) (*api.Done, error) {
	if end.Node != "camera" {
		return nil, api.Errorf(api.NoSuchPort, "stream %s has no output %s", stream, end)
	}
	return f.change(stream, func(s *fakeStream) {
		s.graph.Exposed = []graph.Exposure{{Node: end.Node, Port: end.Port, Level: level}}
	})
}

func (f *fake) ApplyChanges(_ context.Context, name string, changes []byte) (*api.Done, error) {
	var c api.Changes
	if err := json.Unmarshal(changes, &c); err != nil {
		return nil, api.Errorf(api.BadRequest, "cannot read the changes: %v", err)
	}
	return f.change(name, func(s *fakeStream) {
		s.graph.Nodes = slices.DeleteFunc(s.graph.Nodes, func(n api.GraphNode) bool { return slices.Contains(c.Remove, n.Name) })
		n := len(s.graph.Nodes)
		s.Nodes = &n
	})
}

func (f *fake) Graph(name string) (*api.Graph, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.find(name)
	if s == nil || s.Nodes == nil {
		return nil, api.Errorf(api.NoSuchStream, "stream %s is not loaded", name)
	}
	g := s.graph
	g.Nodes = slices.Clone(g.Nodes)
	return &g, nil
}

func (f *fake) Log(name string, filter api.LogFilter) ([]api.Record, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	records := f.find(name).log
	return records[max(0, len(records)-filter.Last):], nil
}

func (f *fake) Cameras() ([]api.Camera, error) {
	return []api.Camera{{
		ID: "usb-cam", Path: "/dev/video0", Card: "Cam\xff", Formats: []api.CameraFormat{
			{FourCC: "YUYV", Sizes: []api.CameraSize{{Width: 640, Height: 480, Rates: []float64{30, 15}}}},
		},
	}}, nil
}

func (f *fake) About() (release, socket string) {
	return "1.2.3", "/run/user/1000/streamlib/local-api.sock"
}

func (f *fake) ReloadConfig() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reloads++
	return nil
}
