package localapi

import (
	"context"
	"errors"
	"image/png"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// route is one row of the API: what is matched, who may, and how it is done.
// The OpenAPI document says the same in its own words.
type route struct {
	method, path string
	access       access
	summary      string
	query        []parameter
	body, answer any // zero values of the types, for the document
	// lines: the answer is newline-delimited JSON of the answer type.
	lines bool
	// takesUpTo is the longest the work itself may take; such a request is
	// acknowledged at once with an interim answer.
	takesUpTo time.Duration
	handle    func(*Server, http.ResponseWriter, *http.Request) error
}

// picture stands for a PNG in the document.
type picture struct{}

// parameter is one parameter of a query; kind is a JSON schema type.
type parameter struct {
	name, kind, summary string
	required            bool // what does the work refuses to do without
}

func (r *route) takes(key string) bool {
	return slices.ContainsFunc(r.query, func(p parameter) bool { return p.name == key })
}

// The longest that work of each sort takes: compiling has 30 s, stopping 7 s,
// and a reload is both.
const (
	compileBound = 60 * time.Second
	stopBound    = 20 * time.Second
)

var filter = []parameter{
	{name: "last", kind: "integer", summary: "only the last so many records"},
	{name: "level", kind: "string", summary: "records of this level and above: trace, debug, info, warn, error"},
	{name: "node", kind: "string", summary: "records of this node"},
	{name: "follow", kind: "boolean", summary: "go on with records as they are written"},
}

var routes = []route{
	{method: "GET", path: "/v1/status", access: sameUser, summary: "The runtime: version, how it was started, streams", answer: api.Status{},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			return answer(w, s.service.Status(), nil)
		}},
	{method: "POST", path: "/v1/reload", access: sameUser, summary: "Read the configuration again", answer: api.Done{},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			return answer(w, api.Done{}, s.service.ReloadConfig())
		}},
	{method: "GET", path: "/v1/log", access: sameUser, summary: "The runtime's own log", query: filter, answer: api.Record{}, lines: true,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.log(w, r, "") }},
	{method: "GET", path: "/v1/openapi.json", access: sameUser, summary: "This document", answer: map[string]any{},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(OpenAPI)
			return nil
		}},

	{method: "GET", path: "/v1/streams", access: sameUser, summary: "The streams, in the order of creation", answer: api.Streams{},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			streams := s.service.List()
			if streams == nil {
				streams = []api.Stream{}
			}
			return answer(w, api.Streams{Version: 1, Streams: streams}, nil)
		}},
	{method: "POST", path: "/v1/streams", access: sameUser, body: api.Load{}, answer: api.Event{}, lines: true, takesUpTo: compileBound,
		summary: "Load a stream. With keep, the answer is one object (Done). Without, the stream is attached to the response: its first line is loaded or refused, log records follow, and when the connection ends the stream is unloaded",
		handle:  (*Server).load},
	{method: "GET", path: "/v1/streams/{name}", access: sameUser, summary: "One stream", answer: api.Stream{},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			stream, err := s.service.Stream(r.PathValue("name"))
			return answer(w, stream, err)
		}},
	{method: "DELETE", path: "/v1/streams/{name}", access: sameUser, summary: "Unload a stream and forget it", answer: api.Done{}, takesUpTo: stopBound,
		handle: change(service.Remove)},
	{method: "POST", path: "/v1/streams/{name}/stop", access: sameUser, summary: "Unload a stream; a kept one stays stopped until it is started", answer: api.Done{}, takesUpTo: stopBound,
		handle: change(service.Stop)},
	{method: "POST", path: "/v1/streams/{name}/start", access: sameUser, summary: "Load a stopped stream again, or retry a failed one", answer: api.Done{}, takesUpTo: compileBound,
		handle: change(service.Start)},
	{method: "POST", path: "/v1/streams/{name}/restart", access: sameUser, summary: "Stop a stream and start it again", answer: api.Done{}, takesUpTo: compileBound,
		handle: change(service.Restart)},
	{method: "GET", path: "/v1/streams/{name}/graph", access: sameUser, summary: "The live graph: nodes and links with state and figures", answer: api.Graph{},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			g, err := s.service.Graph(r.PathValue("name"))
			return answer(w, g, err)
		}},
	{method: "PUT", path: "/v1/streams/{name}/exposure", access: sameUser, summary: "Change who may read an output; an empty level takes that back", body: api.SetExposure{}, answer: api.Done{}, takesUpTo: stopBound,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			var req api.SetExposure
			if err := decode(r, &req); err != nil {
				return err
			}
			done, err := s.service.Expose(r.Context(), r.PathValue("name"), graph.End{Node: req.Node, Port: req.Port}, req.Level)
			return answer(w, done, err)
		}},
	{method: "POST", path: "/v1/streams/{name}/changes", access: sameUser, summary: "Edit the live graph; the record of a kept stream stays as it is", body: api.Changes{}, answer: api.Done{}, takesUpTo: compileBound,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			// The runtime reads them itself: D-Bus hands it the same text.
			changes, err := io.ReadAll(r.Body)
			if err != nil {
				return unreadable(r, err)
			}
			done, err := s.service.ApplyChanges(r.Context(), r.PathValue("name"), changes)
			return answer(w, done, err)
		}},
	{method: "GET", path: "/v1/streams/{name}/log", access: sameUser, summary: "The log of a stream", query: filter, answer: api.Record{}, lines: true,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error { return s.log(w, r, r.PathValue("name")) }},
	{method: "POST", path: "/v1/leases/{lease}/reload", access: sameUser, summary: "Compile an attached stream again and replace what changed", answer: api.Reload{}, takesUpTo: compileBound,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			reload, err := s.service.Reload(r.Context(), r.PathValue("lease"))
			return answer(w, reload, err)
		}},

	{method: "GET", path: "/v1/outputs/{stream}/{node}/{port}/bags", access: sameUser, summary: "Read the bags of an exposed output until the connection ends", answer: api.BagLine{}, lines: true,
		query:  []parameter{{name: "wait", kind: "boolean", summary: "wait while the output is not there (default true)"}},
		handle: (*Server).bags},
	{method: "GET", path: "/v1/outputs/{stream}/{node}/{port}/snapshot", access: sameUser, summary: "One frame of an exposed output, as PNG", answer: picture{}, takesUpTo: stopBound,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			frame, err := s.service.Snapshot(r.Context(), address(r))
			if err != nil {
				return err
			}
			w.Header().Set("Content-Type", "image/png")
			encoder := png.Encoder{CompressionLevel: png.BestSpeed}
			// What fails here is a client that has gone.
			_ = encoder.Encode(w, frame)
			return nil
		}},
	{method: "GET", path: "/v1/cameras", access: sameUser, summary: "Capture devices: names, formats, and who holds each", answer: api.Cameras{}, takesUpTo: stopBound,
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			cameras, err := s.service.Cameras()
			if cameras == nil {
				cameras = []api.Camera{}
			}
			return answer(w, api.Cameras{Version: 1, Cameras: cameras}, err)
		}},
	{method: "GET", path: "/v1/nodes", access: sameUser, summary: "The node classes a project can use", answer: api.Catalog{}, takesUpTo: compileBound,
		query: []parameter{{name: "project", kind: "string", summary: "absolute path of the project's folder", required: true}},
		handle: func(s *Server, w http.ResponseWriter, r *http.Request) error {
			catalog, err := s.service.Nodes(r.Context(), r.URL.Query().Get("project"))
			return answer(w, catalog, err)
		}},
}

func address(r *http.Request) string {
	return graph.Source{Stream: r.PathValue("stream"), Node: r.PathValue("node"), Port: r.PathValue("port")}.String()
}

// change makes the handler of the verbs that take a name and answer Done.
func change(verb func(service, context.Context, string) (*api.Done, error)) func(*Server, http.ResponseWriter, *http.Request) error {
	return func(s *Server, w http.ResponseWriter, r *http.Request) error {
		done, err := verb(s.service, r.Context(), r.PathValue("name"))
		return answer(w, done, err)
	}
}

func (s *Server) load(w http.ResponseWriter, r *http.Request) error {
	var req api.Load
	if err := decode(r, &req); err != nil {
		return err
	}
	if req.Keep {
		if req.Wait {
			return api.Errorf(api.BadRequest, "keep and wait exclude each other: only an attached stream waits for a version that compiles")
		}
		done, err := s.service.Keep(r.Context(), req)
		return answer(w, done, err)
	}
	attachment, err := s.attach(r.Context(), req)
	if err != nil {
		return err
	}
	defer attachment.Close()
	out := newLines(w)
	if out.begin() != nil {
		return nil
	}
	for {
		// The context ends with the connection, also while nothing is
		// written: net/http reads ahead once the body has been read.
		select {
		case event, ok := <-attachment.Events():
			if !ok || out.write(event) != nil {
				return nil
			}
		case <-r.Context().Done():
			return nil
		case <-s.stopping:
			_ = out.write(api.Event{Kind: api.EventEnded, Message: shuttingDown().Message, Error: shuttingDown()})
			return nil
		}
	}
}

func shuttingDown() *api.Error {
	return api.Errorf(api.ShuttingDown, "the runtime is shutting down")
}

func (s *Server) log(w http.ResponseWriter, r *http.Request, stream string) error {
	query := r.URL.Query()
	f := api.LogFilter{Node: query.Get("node"), Level: query.Get("level")}
	if text := query.Get("last"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return api.Errorf(api.BadRequest, "last=%s is not a number of records", text)
		}
		if f.Last = n; n == 0 {
			f.Last = -1
		}
	}
	follow, err := boolean(r, "follow", false)
	if err != nil {
		return err
	}
	out := newLines(w)
	if !follow {
		records, err := s.service.Log(stream, f)
		if err != nil {
			return err
		}
		if out.begin() != nil {
			return nil
		}
		for _, record := range records {
			if out.encoder.Encode(record) != nil {
				return nil
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	records, err := s.service.FollowLog(ctx, stream, f)
	if err != nil {
		return err
	}
	if out.begin() != nil {
		return nil
	}
	for {
		select {
		case record, ok := <-records:
			if !ok || out.write(record) != nil {
				return nil
			}
		case <-ctx.Done():
			return nil
		case <-s.stopping:
			return nil
		}
	}
}

func (s *Server) bags(w http.ResponseWriter, r *http.Request) error {
	wait, err := boolean(r, "wait", true)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-s.stopping:
			cancel(shuttingDown())
		case <-ctx.Done():
		}
	}()
	out := newLines(w)
	// The header goes out before the first bag: a quiet output must not look
	// like a runtime that hangs. So errors come as a line.
	if out.begin() != nil {
		return nil
	}
	err = s.service.ReadBags(ctx, address(r), wait,
		func(bag api.Bag) error { return out.write(api.BagLine{Bag: bag}) },
		func(note string) { _ = out.write(api.BagLine{Note: note}) })
	if cause := context.Cause(ctx); errors.Is(err, context.Canceled) && cause != nil {
		err = cause
	}
	if err != nil && r.Context().Err() == nil {
		_ = out.write(api.BagLine{Error: api.AsError(err)})
	}
	return nil
}

// boolean reads a parameter that is true or false; given without a value it is
// true.
func boolean(r *http.Request, key string, fallback bool) (bool, error) {
	query := r.URL.Query()
	if !query.Has(key) {
		return fallback, nil
	}
	switch query.Get(key) {
	case "", "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, api.Errorf(api.BadRequest, "%s=%s is neither true nor false", key, query.Get(key))
}
