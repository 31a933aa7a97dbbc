// Package localapitest is a second, small implementation of what the local API
// serves: streams in memory, without a process, a camera or Python. Tests of
// the local API, its client and the command line run against it wherever they
// are about the way of words and not about streams. A stream function is found
// by its text, and a file that holds "!!" does not compile.
package localapitest

import (
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/name"
)

// Service holds streams in memory.
type Service struct {
	mu       sync.Mutex
	streams  []*stream
	leases   int
	attached []*Attachment
	changed  chan struct{} // closed and made anew at each change
	Reloads  int           // how many reloads were asked for
	LogEvery time.Duration // attached streams log a record so often; 0 = once
}

type stream struct {
	api.Stream
	load    api.Load
	source  string
	exposed map[graph.End]graph.Level
	log     []api.Record
	holder  *Attachment
}

// New returns a service without streams.
func New() *Service { return &Service{changed: make(chan struct{})} }

// Attachment is an attached stream.
type Attachment struct {
	service *Service
	lease   string
	load    api.Load
	events  chan api.Event
	ended   bool
	stream  *stream
	done    chan struct{}
}

// Lease names the attachment for Reload.
func (a *Attachment) Lease() string { return a.lease }

// Events are the attachment's events.
func (a *Attachment) Events() <-chan api.Event { return a.events }

// Close unloads the stream.
func (a *Attachment) Close() { a.end("closed") }

func (a *Attachment) end(why string) {
	a.service.mu.Lock()
	defer a.service.mu.Unlock()
	a.endLocked(why)
}

func (a *Attachment) endLocked(why string) {
	if a.ended {
		return
	}
	a.ended = true
	close(a.done)
	if a.stream != nil {
		a.service.dropLocked(a.stream)
	}
	select {
	case a.events <- api.Event{Kind: api.EventEnded, Message: why}:
	default:
	}
	close(a.events)
}

// sendLocked loses what a slow reader does not take; one place in the channel
// is left for the end.
func (a *Attachment) sendLocked(e api.Event) {
	if !a.ended && len(a.events) < cap(a.events)-1 {
		a.events <- e
	}
}

func (s *Service) dropLocked(st *stream) {
	s.streams = slices.DeleteFunc(s.streams, func(o *stream) bool { return o == st })
	s.changedLocked()
}

func (s *Service) changedLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

var function = regexp.MustCompile(`(?m)^@stream\ndef (\w+)`)

// compile finds the stream function by its text.
func compile(req api.Load) (streamName, source string, err error) {
	target := req.Target
	if target == "" {
		target = "stream.py"
		if req.File != "" {
			target = req.File
		}
	}
	file, chosen, _ := strings.Cut(target, ":")
	text, err := os.ReadFile(filepath.Join(req.Project, file))
	if err != nil {
		return "", "", api.Errorf(api.CompileFailed, "cannot read %s: no such file", file)
	}
	if strings.Contains(string(text), "!!") {
		e := api.Errorf(api.CompileFailed, "%s does not compile", file)
		e.Detail = "  File \"" + filepath.Join(req.Project, file) + "\"\nSyntaxError: invalid syntax"
		return "", "", e
	}
	var names []string
	for _, m := range function.FindAllStringSubmatch(string(text), -1) {
		if chosen == "" || m[1] == chosen {
			names = append(names, m[1])
		}
	}
	switch len(names) {
	case 0:
		return "", "", api.Errorf(api.CompileFailed, "%s has no stream %s", file, chosen)
	case 1:
	default:
		return "", "", api.Errorf(api.CompileFailed, "%s has %d streams: %s", file, len(names), strings.Join(names, ", ")).
			WithHint("choose one: `tatolab run %s:%s`", file, names[0])
	}
	raw := names[0]
	if req.Name != "" {
		raw = req.Name
	}
	if streamName, err = name.Cast(raw); err != nil {
		return "", "", api.Errorf(api.InvalidName, "%v", err)
	}
	return streamName, string(text), nil
}

func (s *Service) findLocked(streamName string) (*stream, error) {
	for _, st := range s.streams {
		if st.Name == streamName {
			return st, nil
		}
	}
	return nil, api.Errorf(api.NoSuchStream, "no stream is named %s", streamName).WithHint("`tatolab streams` lists them")
}

func (s *Service) addLocked(req api.Load, state api.State) (*stream, error) {
	streamName, source, err := compile(req)
	if err != nil {
		return nil, err
	}
	if other, err := s.findLocked(streamName); err == nil {
		if state != api.Kept || other.State == api.Attached || other.Project != req.Project {
			return nil, api.Errorf(api.NameInUse, "the name %s is in use by the project %s", streamName, other.Project)
		}
		other.State, other.source = api.Kept, source
		return other, nil
	}
	one := 1
	st := &stream{Stream: api.Stream{Name: streamName, State: state, Nodes: &one, Project: req.Project}, load: req, source: source, exposed: map[graph.End]graph.Level{}}
	s.streams = append(s.streams, st)
	st.log = append(st.log, api.Record{Time: time.Now(), Level: "info", Stream: streamName, Message: "loaded"})
	st.log = append(st.log, api.Record{Time: time.Now(), Level: "debug", Stream: streamName, Node: "source", Message: "counting", Fields: map[string]any{"from": 1}})
	s.changedLocked()
	return st, nil
}

// Attach loads a stream for as long as the attachment is open.
func (s *Service) Attach(ctx context.Context, req api.Load) (*Attachment, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases++
	a := &Attachment{service: s, load: req, lease: fmt.Sprint("lease-", s.leases), events: make(chan api.Event, 64), done: make(chan struct{})}
	s.attached = append(s.attached, a)
	if err := s.loadLocked(a); err != nil {
		if !req.Wait || api.AsError(err).Code != api.CompileFailed {
			return nil, err
		}
		a.sendLocked(api.Event{Kind: api.EventRefused, Lease: a.lease, Error: api.AsError(err)})
	}
	if s.LogEvery > 0 {
		go func() {
			tick := time.NewTicker(s.LogEvery)
			defer tick.Stop()
			for {
				select {
				case now := <-tick.C:
					s.mu.Lock()
					a.sendLocked(api.Event{Kind: api.EventLog, Record: &api.Record{Time: now, Level: "info", Node: "source", Message: strings.Repeat("x", 1000)}})
					s.mu.Unlock()
				case <-a.done:
					return
				}
			}
		}()
	}
	return a, nil
}

func (s *Service) loadLocked(a *Attachment) error {
	st, err := s.addLocked(a.load, api.Attached)
	if err != nil {
		return err
	}
	st.holder, a.stream = a, st
	shown := st.Stream
	a.sendLocked(api.Event{Kind: api.EventLoaded, Stream: &shown, Lease: a.lease})
	for i := range st.log {
		a.sendLocked(api.Event{Kind: api.EventLog, Record: &st.log[i]})
	}
	return nil
}

// Reload compiles an attached stream again.
func (s *Service) Reload(ctx context.Context, lease string) (*api.Reload, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Reloads++
	for _, a := range s.attached {
		if a.lease != lease || a.ended {
			continue
		}
		r := &api.Reload{Restarted: []string{}, Added: []string{}, Removed: []string{}, Failing: []string{}, TookMS: 12.5}
		if a.stream == nil { // nothing has compiled so far
			if err := s.loadLocked(a); err != nil {
				return nil, err
			}
		} else {
			_, source, err := compile(a.load)
			if err != nil {
				return nil, err
			}
			if source != a.stream.source {
				a.stream.source, r.Restarted = source, []string{"source"}
			}
		}
		r.Stream = a.stream.Stream
		return r, nil
	}
	return nil, api.Errorf(api.BadRequest, "no attached stream has the lease %s", lease)
}

// Keep keeps a stream.
func (s *Service) Keep(ctx context.Context, req api.Load) (*api.Done, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.addLocked(req, api.Kept)
	if err != nil {
		return nil, err
	}
	shown := st.Stream
	return &api.Done{Stream: &shown}, nil
}

// Streams lists the streams.
func (s *Service) List() []api.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []api.Stream
	for _, st := range s.streams {
		list = append(list, st.Stream)
	}
	return list
}

// Stream returns one stream.
func (s *Service) Stream(streamName string) (api.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findLocked(streamName)
	if err != nil {
		return api.Stream{}, err
	}
	return st.Stream, nil
}

func (s *Service) change(streamName string, f func(*stream) (*api.Done, error)) (*api.Done, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findLocked(streamName)
	if err != nil {
		return nil, err
	}
	return f(st)
}

// Stop stops a stream.
func (s *Service) Stop(ctx context.Context, streamName string) (*api.Done, error) {
	return s.change(streamName, func(st *stream) (*api.Done, error) {
		switch st.State {
		case api.Attached:
			st.holder.endLocked(streamName + " was stopped")
		case api.Stopped:
			return &api.Done{Note: streamName + " is stopped already", Unchanged: true}, nil
		default:
			st.State, st.Nodes = api.Stopped, nil
		}
		return &api.Done{}, nil
	})
}

// Start starts a stopped stream.
func (s *Service) Start(ctx context.Context, streamName string) (*api.Done, error) {
	return s.change(streamName, func(st *stream) (*api.Done, error) {
		if st.State == api.Attached || st.State == api.Kept {
			return &api.Done{Note: streamName + " is running already", Unchanged: true}, nil
		}
		one := 1
		st.State, st.Nodes, st.Reason = api.Kept, &one, ""
		return &api.Done{}, nil
	})
}

// Restart does nothing to a stream that has no process.
func (s *Service) Restart(ctx context.Context, streamName string) (*api.Done, error) {
	return s.change(streamName, func(*stream) (*api.Done, error) { return &api.Done{}, nil })
}

// Remove forgets a stream.
func (s *Service) Remove(ctx context.Context, streamName string) (*api.Done, error) {
	return s.change(streamName, func(st *stream) (*api.Done, error) {
		if st.holder != nil {
			st.holder.endLocked(streamName + " was removed")
		} else {
			s.dropLocked(st)
		}
		return &api.Done{}, nil
	})
}

// Fail marks a kept stream failed.
func (s *Service) Fail(streamName, reason string) error {
	_, err := s.change(streamName, func(st *stream) (*api.Done, error) {
		st.State, st.Nodes, st.Reason = api.Failed, nil, reason
		return nil, nil
	})
	return err
}

// Expose sets a level.
func (s *Service) Expose(ctx context.Context, streamName string, end graph.End, level graph.Level) (*api.Done, error) {
	return s.change(streamName, func(st *stream) (*api.Done, error) {
		if end != (graph.End{Node: "source", Port: "count"}) {
			return nil, api.Errorf(api.NoSuchPort, "%s has no output %s; it has source/count", streamName, end)
		}
		st.exposed[end] = level
		s.changedLocked()
		if level == "" {
			level = graph.Internal
		}
		return &api.Done{Note: fmt.Sprintf("%s/%s is %s", streamName, end, level)}, nil
	})
}

// ApplyChanges reads the changes and says what it read.
func (s *Service) ApplyChanges(ctx context.Context, streamName string, changes []byte) (*api.Done, error) {
	return s.change(streamName, func(*stream) (*api.Done, error) {
		var c api.Changes
		if err := json.Unmarshal(changes, &c); err != nil {
			return nil, api.Errorf(api.BadRequest, "cannot read the changes: %v", err)
		}
		return &api.Done{Note: "removed: " + strings.Join(c.Remove, ", ")}, nil
	})
}

// Graph is of one node.
func (s *Service) Graph(streamName string) (*api.Graph, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findLocked(streamName)
	if err != nil {
		return nil, err
	}
	g := &api.Graph{Version: 1, Stream: st.Name, State: st.State, Project: st.Project, Exposed: []graph.Exposure{},
		Nodes: []api.GraphNode{{Node: graph.Node{Name: "source", Type: "nodes.source:Source", Config: []byte("{}")}, State: api.NodeRunning,
			CPUms: 1500, RSS: 20 << 20, Outputs: []api.GraphOutput{{Port: "count", Sent: 10, Rate: 30}}}},
		Links: []api.GraphLink{{Link: graph.Link{Source: graph.Source{Stream: "other", Node: "camera", Port: "video"}, Target: graph.End{Node: "source", Port: "video"}},
			State: api.LinkAwaitingRemote, Reason: "needs other/camera/video, whose level is internal"}}}
	for end, level := range st.exposed {
		if level != "" {
			g.Exposed = append(g.Exposed, graph.Exposure{Node: end.Node, Port: end.Port, Level: level})
		}
	}
	return g, nil
}

// Log returns records.
func (s *Service) Log(streamName string, f api.LogFilter) ([]api.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if streamName == "" {
		return []api.Record{{Time: time.Now(), Level: "info", Message: "runtime in memory started"}}, nil
	}
	st, err := s.findLocked(streamName)
	if err != nil {
		return nil, err
	}
	var records []api.Record
	for _, r := range st.log {
		if (f.Node == "" || f.Node == r.Node) && slices.Index(api.Levels, r.Level) >= slices.Index(api.Levels, f.Level) {
			records = append(records, r)
		}
	}
	if n := max(f.Last, 0); f.Last != 0 && len(records) > n {
		records = records[len(records)-n:]
	}
	return records, nil
}

// FollowLog returns records and then nothing more until ctx ends.
func (s *Service) FollowLog(ctx context.Context, streamName string, f api.LogFilter) (<-chan api.Record, error) {
	records, err := s.Log(streamName, f)
	if err != nil {
		return nil, err
	}
	out := make(chan api.Record, len(records))
	for _, r := range records {
		out <- r
	}
	context.AfterFunc(ctx, func() { close(out) })
	return out, nil
}

// ReadBags counts, ten bags a second.
func (s *Service) ReadBags(ctx context.Context, address string, wait bool, bag func(api.Bag) error, note func(string)) error {
	source, err := graph.ParseAddress(address)
	if err != nil {
		return api.Errorf(api.InvalidName, "%v", err)
	}
	noted := false
	for i := 0; ; {
		s.mu.Lock()
		st, err := s.findLocked(source.Stream)
		if err == nil && !st.exposed[graph.End{Node: source.Node, Port: source.Port}].Valid() {
			err = api.Errorf(api.NotExposed, "%s is not exposed: its level is internal", address)
		}
		changed := s.changed
		s.mu.Unlock()
		if err != nil {
			if !wait {
				return err
			}
			if !noted {
				note("waiting: " + err.Error())
				noted = true
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		if err := bag(api.Bag{"count": i, "timestamp_ns": time.Now().UnixNano(), "raw": map[string]any{"$bytes": "aGk="}}); err != nil {
			return err
		}
		i++
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Snapshot is four red pixels.
func (s *Service) Snapshot(ctx context.Context, address string) (image.Image, error) {
	picture := image.NewRGBA(image.Rect(0, 0, 2, 2))
	for i := range 4 {
		picture.Set(i%2, i/2, color.RGBA{R: 255, A: 255})
	}
	return picture, nil
}

// Cameras is one camera.
func (s *Service) Cameras() ([]api.Camera, error) {
	return []api.Camera{{ID: "/dev/v4l/by-id/usb-Acme_Eye", Path: "/dev/video7", Card: "Acme Eye", Driver: "uvcvideo", Holder: "pid 4711 (cheese)",
		Formats: []api.CameraFormat{{FourCC: "YUYV", Sizes: []api.CameraSize{{Width: 640, Height: 480, Rates: []float64{30, 15}}}}}},
		{ID: "/dev/video9", Path: "/dev/video9", Error: "permission denied: you are not in the group video", Formats: []api.CameraFormat{}}}, nil
}

// Nodes is one class.
func (s *Service) Nodes(ctx context.Context, project string) (*api.Catalog, error) {
	return &api.Catalog{Version: 1, Nodes: []api.CatalogNode{{Type: "tatolab.stream:CameraSource", Description: "Frames of a camera.", Execution: "continuous",
		Inputs: []api.CatalogPort{}, Outputs: []api.CatalogPort{{Name: "video"}},
		ConfigSchema: map[string]any{"type": "object", "properties": map[string]any{"fps": map[string]any{"type": "number", "default": 30}}}}}}, nil
}

// Status is of this process.
func (s *Service) Status() api.Status {
	counts := map[api.State]int{}
	for _, st := range s.List() {
		counts[st.State]++
	}
	return api.Status{Version: 1, Release: build.Version, Build: build.ID(), PID: os.Getpid(), How: "terminal", Streams: counts, DBus: "off", Confined: "nothing to confine"}
}

// ReloadConfig has nothing to read.
func (s *Service) ReloadConfig() error { return nil }
