// Package localapi is the face of the runtime on its control socket: HTTP/1.1
// and JSON, so that `curl --unix-socket` works. It translates and holds no
// logic. docs/local-api.md is for people, routes.go is the contract, and the
// OpenAPI document is printed from it.
package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/build"
)

// Limits of one connection.
const (
	// MaxBody is the largest request body, in bytes.
	MaxBody = 1 << 20
	// headerTimeout is for a client to send its request.
	headerTimeout = 10 * time.Second
	// idleTimeout is for a connection kept open between two requests.
	idleTimeout = 2 * time.Minute
	// answerTimeout is for a client to take an answer that is not a stream
	// of lines. Lines wait for their reader for ever: a stopped terminal
	// (SIGSTOP, Ctrl-S) must not end a stream.
	answerTimeout = 30 * time.Second
)

// Server serves the local API on a Unix socket.
type Server struct {
	service  service
	attach   func(context.Context, api.Load) (Attachment, error)
	http     *http.Server
	mux      *http.ServeMux
	stopping chan struct{}
	stop     sync.Once
}

// New makes a server for the streams of s.
func New[A Attachment](s Service[A]) *Server {
	server := &Server{
		service:  s,
		attach:   func(ctx context.Context, req api.Load) (Attachment, error) { return s.Attach(ctx, req) },
		mux:      http.NewServeMux(),
		stopping: make(chan struct{}),
	}
	for i := range routes {
		r := &routes[i]
		server.mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, req *http.Request) { server.serve(r, w, req) })
	}
	server.mux.HandleFunc("/", server.noRoute)
	server.http = &http.Server{
		Handler:           http.HandlerFunc(server.announce),
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ConnContext:       withPeer,
	}
	return server
}

// Serve answers on l until Shutdown; it closes l.
func (s *Server) Serve(l net.Listener) error {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the local API: %w", err)
	}
	return nil
}

// Shutdown ends what is open: attached streams are told that the runtime is
// going away, short requests are finished. When ctx ends first, connections
// are cut.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop.Do(func() { close(s.stopping) })
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(err, s.http.Close())
	}
	return nil
}

// announce says who answers, in every answer.
func (s *Server) announce(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Server", "tatolabd/"+build.ID())
	w.Header().Set(api.HTTPVersionHeader, api.HTTPVersion)
	s.mux.ServeHTTP(w, r)
}

func (s *Server) serve(r *route, w http.ResponseWriter, req *http.Request) {
	if err := r.access(req); err != nil {
		writeError(w, err)
		return
	}
	for key := range req.URL.Query() {
		if !r.takes(key) {
			writeError(w, api.Errorf(api.BadRequest, "%s %s has no parameter %q", r.method, r.path, key))
			return
		}
	}
	req.Body = http.MaxBytesReader(w, req.Body, MaxBody)
	if !r.lines {
		// Failing to set it costs only a stuck goroutine's patience.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout + r.takesUpTo))
	}
	if r.takesUpTo > 0 {
		// An interim answer tells the client that somebody is at work, so
		// that its time-out is for a runtime that hangs, not for work that
		// is long. 100 is the one interim status all clients skip.
		w.WriteHeader(http.StatusContinue)
	}
	if err := r.handle(s, w, req); err != nil {
		writeError(w, err)
	}
}

// noRoute answers what no route matches, in the one shape of an error.
func (s *Server) noRoute(w http.ResponseWriter, r *http.Request) {
	if err := sameUser(r); err != nil {
		writeError(w, err)
		return
	}
	var allow []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := s.mux.Handler(other); pattern != "/" && pattern != "" {
			allow = append(allow, method)
		}
	}
	if allow == nil {
		writeStatus(w, http.StatusNotFound, api.Errorf(api.BadRequest, "the local API of this runtime (%s) has no %s", build.ID(), r.URL.Path).
			WithHint("GET /v1/openapi.json lists what there is"))
		return
	}
	w.Header().Set("Allow", strings.Join(allow, ", "))
	writeStatus(w, http.StatusMethodNotAllowed, api.Errorf(api.BadRequest, "%s takes %s, not %s", r.URL.Path, strings.Join(allow, " or "), r.Method))
}

// statuses gives each code the HTTP status that fits it best.
var statuses = map[api.Code]int{
	api.NameInUse:     http.StatusConflict,
	api.NoSuchStream:  http.StatusNotFound,
	api.NotKept:       http.StatusConflict,
	api.NoSuchPort:    http.StatusNotFound,
	api.NotExposed:    http.StatusForbidden,
	api.NoEnvironment: http.StatusUnprocessableEntity,
	api.CompileFailed: http.StatusUnprocessableEntity,
	api.InvalidName:   http.StatusBadRequest,
	api.RecordFailed:  http.StatusInsufficientStorage,
	api.Unloadable:    http.StatusUnprocessableEntity,
	api.BadRequest:    http.StatusBadRequest,
	api.AccessDenied:  http.StatusForbidden,
	api.ShuttingDown:  http.StatusServiceUnavailable,
	api.Internal:      http.StatusInternalServerError,
}

func writeError(w http.ResponseWriter, err error) {
	e := api.AsError(err)
	status, ok := statuses[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	writeStatus(w, status, e)
}

func writeStatus(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The only error there can be is a client that has gone.
	_ = json.NewEncoder(w).Encode(v)
}

func answer(w http.ResponseWriter, v any, err error) error {
	if err != nil {
		return err
	}
	writeStatus(w, http.StatusOK, v)
	return nil
}

// decode reads a JSON body into v. What v has no field for is refused by name:
// a misspelt option must not be ignored.
func decode(r *http.Request, v any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, more := d.Token(); more == io.EOF {
			return nil
		}
		err = errors.New("there is more after its end")
	}
	return unreadable(r, err)
}

// unreadable words what is wrong with a body.
func unreadable(r *http.Request, err error) error {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return api.Errorf(api.BadRequest, "cannot read the request: it is larger than %d bytes", large.Limit)
	case err == io.EOF:
		return api.Errorf(api.BadRequest, "cannot read the request: it has no body, and %s %s needs one", r.Method, r.URL.Path)
	}
	return api.Errorf(api.BadRequest, "cannot read the request: %s", strings.TrimPrefix(err.Error(), "json: "))
}

// lines writes newline-delimited JSON, each line sent as it is written.
type lines struct {
	w       http.ResponseWriter
	flush   *http.ResponseController
	encoder *json.Encoder
}

func newLines(w http.ResponseWriter) *lines {
	return &lines{w: w, flush: http.NewResponseController(w), encoder: json.NewEncoder(w)}
}

// begin sends the header, for answers whose first line may be long in coming.
func (l *lines) begin() error {
	l.w.Header().Set("Content-Type", "application/x-ndjson")
	l.w.WriteHeader(http.StatusOK)
	return l.flush.Flush()
}

// write sends one line. It blocks while the client does not read, and fails
// once the client is gone.
func (l *lines) write(v any) error {
	if err := l.encoder.Encode(v); err != nil {
		return err
	}
	return l.flush.Flush()
}
