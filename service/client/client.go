// Package client is the Go client of the local API.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

const (
	// AnswerTimeout is how long a runtime that was reached may say nothing
	// at all. Work that takes longer is acknowledged before it is done.
	AnswerTimeout = 10 * time.Second
	// retryInterval is between two attempts to reach a runtime that is being
	// started or has no room for another connection.
	retryInterval = 100 * time.Millisecond
	// maxPicture is the largest snapshot taken, in bytes.
	maxPicture = 128 << 20
)

// Client talks to the runtime at one socket. It is safe for concurrent use and
// holds no connection between calls.
type Client struct {
	path    string
	lost    error // why there is no path
	timeout time.Duration
	http    *http.Client
}

// New returns a client for the socket at path; see SocketPath.
func New(path string) *Client {
	return &Client{path: path, timeout: AnswerTimeout, http: &http.Client{Transport: &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) },
		DisableKeepAlives: true,
	}}}
}

// Local returns a client of this user's runtime. Where it cannot be told where
// that is, see SocketPath, every call says so.
func Local() *Client {
	path, err := SocketPath()
	c := New(path)
	c.lost = err
	return c
}

// Path is the socket's path.
func (c *Client) Path() string { return c.path }

// dial connects to a Unix socket. Where connect(2) finds the listener's queue
// full it tries again until ctx ends: under socket activation connections queue
// up while the runtime is being started.
func dial(ctx context.Context, path string) (net.Conn, error) {
	var dialer net.Dialer
	for {
		conn, err := dialer.DialContext(ctx, "unix", path)
		if !errors.Is(err, unix.EAGAIN) {
			return conn, err
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// send makes one request and returns its answer, which is of status 200. An
// error is an *api.Error when the runtime refused, an *Unreachable when it
// could not be asked, or ctx's.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	if c.lost != nil {
		return nil, c.lost
	}
	response, err := c.try(ctx, method, path, query, body)
	var unreachable *Unreachable
	if method == http.MethodGet && errors.As(err, &unreachable) && unreachable.Kind == Closed {
		// A runtime that was being restarted as we asked: where systemd
		// holds the socket, the next one answers.
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		return c.try(ctx, method, path, query, body)
	}
	return response, err
}

func (c *Client) try(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	outer := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	answered := time.AfterFunc(c.timeout, func() { cancel(errNoAnswer) })
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error { answered.Stop(); return nil },
	})
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			cancel(nil)
			return nil, fmt.Errorf("cannot ask the runtime: %w", err)
		}
		reader = bytes.NewReader(data)
	}
	target := url.URL{Scheme: "http", Host: "localhost", Path: path, RawQuery: query.Encode()}
	request, err := http.NewRequestWithContext(ctx, method, target.String(), reader)
	if err != nil {
		cancel(nil)
		return nil, fmt.Errorf("cannot ask the runtime: %w", err)
	}
	response, err := c.http.Do(request)
	answered.Stop()
	if err != nil {
		cause := context.Cause(ctx)
		cancel(nil)
		if outer.Err() != nil {
			return nil, outer.Err()
		}
		if errors.Is(cause, errNoAnswer) {
			err = errNoAnswer
		}
		return nil, c.unreachable(err)
	}
	response.Body = &openBody{response.Body, cancel}
	if err := c.check(response); err != nil {
		response.Body.Close()
		return nil, err
	}
	return response, nil
}

// openBody ends the request's context with its body.
type openBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

func (b *openBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// check turns an answer that is none, or a refusal, into an error.
func (c *Client) check(response *http.Response) error {
	switch version := response.Header.Get(api.HTTPVersionHeader); version {
	case api.HTTPVersion:
	case "":
		return c.notTatolabd()
	default:
		return c.otherVersion(response.Header.Get("Server"), version)
	}
	if response.StatusCode == http.StatusOK {
		return nil
	}
	var refusal api.Error
	if err := json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&refusal); err != nil || refusal.Message == "" {
		return c.notTatolabd()
	}
	return &refusal
}

// call makes a request whose answer is one object.
func call[T any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (*T, error) {
	response, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer T
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, c.unreachable(fmt.Errorf("answer of %s: %w", path, err))
	}
	return &answer, nil
}

// Lines is an answer of newline-delimited JSON.
type Lines[T any] struct {
	client *Client
	ctx    context.Context
	body   io.Closer
	from   *json.Decoder
}

func follow[T any](ctx context.Context, c *Client, method, path string, query url.Values, body any) (*Lines[T], error) {
	response, err := c.send(ctx, method, path, query, body)
	if err != nil {
		return nil, err
	}
	from := json.NewDecoder(response.Body)
	from.UseNumber() // what is in a bag or a record passes as it is, integers above 2^53 too
	return &Lines[T]{c, ctx, response.Body, from}, nil
}

// Next returns the next line; io.EOF after the last one, an *Unreachable when
// the connection was cut.
func (l *Lines[T]) Next() (T, error) {
	var line T
	err := l.from.Decode(&line)
	switch {
	case err == nil || err == io.EOF:
		return line, err
	case l.ctx.Err() != nil:
		return line, l.ctx.Err()
	}
	return line, l.client.unreachable(err)
}

// Close ends the request; an attached stream is unloaded by it.
func (l *Lines[T]) Close() { l.body.Close() }

func streamPath(stream string, more ...string) string {
	return "/v1/streams/" + strings.Join(append([]string{stream}, more...), "/")
}

// Status returns what the runtime says of itself.
func (c *Client) Status(ctx context.Context) (*api.Status, error) {
	return call[api.Status](ctx, c, http.MethodGet, "/v1/status", nil, nil)
}

// Streams lists the streams in the order of creation.
func (c *Client) Streams(ctx context.Context) (*api.Streams, error) {
	return call[api.Streams](ctx, c, http.MethodGet, "/v1/streams", nil, nil)
}

// Attach loads a stream for as long as the answer is open. Its first event is
// loaded or, with req.Wait, refused.
func (c *Client) Attach(ctx context.Context, req api.Load) (*Lines[api.Event], error) {
	return follow[api.Event](ctx, c, http.MethodPost, "/v1/streams", nil, req)
}

// Keep hands a stream to the runtime.
func (c *Client) Keep(ctx context.Context, req api.Load) (*api.Done, error) {
	req.Keep = true
	return call[api.Done](ctx, c, http.MethodPost, "/v1/streams", nil, req)
}

// Reload compiles an attached stream again.
func (c *Client) Reload(ctx context.Context, lease string) (*api.Reload, error) {
	return call[api.Reload](ctx, c, http.MethodPost, "/v1/leases/"+lease+"/reload", nil, nil)
}

// Stop unloads a stream.
func (c *Client) Stop(ctx context.Context, stream string) (*api.Done, error) {
	return call[api.Done](ctx, c, http.MethodPost, streamPath(stream, "stop"), nil, nil)
}

// Start loads a stopped or failed stream again.
func (c *Client) Start(ctx context.Context, stream string) (*api.Done, error) {
	return call[api.Done](ctx, c, http.MethodPost, streamPath(stream, "start"), nil, nil)
}

// Restart stops a stream and starts it again.
func (c *Client) Restart(ctx context.Context, stream string) (*api.Done, error) {
	return call[api.Done](ctx, c, http.MethodPost, streamPath(stream, "restart"), nil, nil)
}

// Remove unloads a stream and forgets it.
func (c *Client) Remove(ctx context.Context, stream string) (*api.Done, error) {
	return call[api.Done](ctx, c, http.MethodDelete, streamPath(stream), nil, nil)
}

// Expose changes who may read an output; an empty level takes that back.
func (c *Client) Expose(ctx context.Context, stream string, end graph.End, level graph.Level) (*api.Done, error) {
	return call[api.Done](ctx, c, http.MethodPut, streamPath(stream, "exposure"), nil, api.SetExposure{Node: end.Node, Port: end.Port, Level: level})
}

// Change edits the live graph of a stream.
func (c *Client) Change(ctx context.Context, stream string, changes api.Changes) (*api.Done, error) {
	return call[api.Done](ctx, c, http.MethodPost, streamPath(stream, "changes"), nil, changes)
}

// Graph returns the live graph of a stream.
func (c *Client) Graph(ctx context.Context, stream string) (*api.Graph, error) {
	return call[api.Graph](ctx, c, http.MethodGet, streamPath(stream, "graph"), nil, nil)
}

// Log returns the records of a stream's log, of the runtime's own where stream
// is empty. With more it goes on with records as they are written.
func (c *Client) Log(ctx context.Context, stream string, f api.LogFilter, more bool) (*Lines[api.Record], error) {
	query := url.Values{}
	for key, value := range map[string]string{"node": f.Node, "level": f.Level} {
		if value != "" {
			query.Set(key, value)
		}
	}
	if f.Last != 0 {
		query.Set("last", strconv.Itoa(max(f.Last, 0)))
	}
	if more {
		query.Set("follow", "true")
	}
	path := "/v1/log"
	if stream != "" {
		path = streamPath(stream, "log")
	}
	return follow[api.Record](ctx, c, http.MethodGet, path, query, nil)
}

// ReadBags reads an exposed output of this machine.
func (c *Client) ReadBags(ctx context.Context, output graph.Source, wait bool) (*Lines[api.BagLine], error) {
	return follow[api.BagLine](ctx, c, http.MethodGet, outputPath(output, "bags"), url.Values{"wait": {strconv.FormatBool(wait)}}, nil)
}

func outputPath(o graph.Source, what string) string {
	return strings.Join([]string{"/v1/outputs", o.Stream, o.Node, o.Port, what}, "/")
}

// Snapshot returns one frame of an exposed output as PNG.
func (c *Client) Snapshot(ctx context.Context, output graph.Source) ([]byte, error) {
	response, err := c.send(ctx, http.MethodGet, outputPath(output, "snapshot"), nil, nil)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxPicture+1))
	switch {
	case err != nil:
		return nil, c.unreachable(err)
	case len(data) > maxPicture:
		return nil, api.Errorf(api.Internal, "cannot take the picture: it is larger than %d MiB", maxPicture>>20)
	}
	return data, nil
}

// Cameras lists the capture devices.
func (c *Client) Cameras(ctx context.Context) (*api.Cameras, error) {
	return call[api.Cameras](ctx, c, http.MethodGet, "/v1/cameras", nil, nil)
}

// Nodes lists the node classes a project can use.
func (c *Client) Nodes(ctx context.Context, project string) (*api.Catalog, error) {
	return call[api.Catalog](ctx, c, http.MethodGet, "/v1/nodes", url.Values{"project": {project}}, nil)
}

// Wait returns once a runtime answers, or when ctx ends.
func (c *Client) Wait(ctx context.Context) error {
	for {
		_, err := c.Status(ctx)
		var unreachable *Unreachable
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !errors.As(err, &unreachable) || unreachable.Kind == Foreign:
			return err
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
