package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
)

// What run and dev have in common: which stream, and being attached to it.

// stopPatience is how long Ctrl-C waits for the stream's end: a little more
// than the runtime gives its nodes.
const stopPatience = 15 * time.Second

const manTarget = "TARGET is the stream to load: nothing (the one function decorated with @stream in stream.py), file.py (the one in that file), file.py:function, or module:function of an installed package. The stream's name is its function's name, made URL-safe, unless --name is given; names are unique on a machine."

type loadFlags struct {
	set             *pflag.FlagSet
	dir, file, name string
	env             []string
}

func addLoadFlags(f *pflag.FlagSet) *loadFlags {
	l := &loadFlags{set: f}
	f.StringVar(&l.dir, "dir", ".", "the project's `FOLDER`, where .venv is; parent folders are not searched")
	f.StringVarP(&l.file, "file", "f", "", "a `FILE` of the project with one stream")
	f.StringVar(&l.name, "name", "", "load the stream under another `NAME`")
	f.StringArrayVar(&l.env, "env", nil, "environment of the nodes, `NAME[=VALUE]`; without a value, this command's; may be repeated, and is recorded for a kept stream")
	return l
}

// projectFolder is the folder that --dir names, which is there.
func projectFolder(typed string) (string, error) {
	if typed == "" {
		return "", usagef("--dir is empty: leave it out, or name a folder")
	}
	dir, err := filepath.Abs(typed)
	if err != nil {
		return "", usagef("--dir %s: %v", typed, err)
	}
	switch info, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return "", usagef("--dir %s: there is no such folder", typed)
	case err != nil:
		return "", usagef("--dir %s: %v", typed, api.Reason(err))
	case !info.IsDir():
		return "", usagef("--dir %s: that is no folder", typed)
	}
	return dir, nil
}

// load makes the request.
func (l *loadFlags) load(args []string) (api.Load, error) {
	req := api.Load{File: l.file, Name: l.name}
	if len(args) > 0 {
		req.Target = args[0]
	}
	if l.set.Changed("name") && req.Name == "" {
		return req, usagef("--name is empty: leave it out, or name the stream")
	}
	if req.File != "" && req.Target != "" {
		return req, usagef("-f %s and %s both say which stream to load: leave one out", req.File, req.Target)
	}
	if l.set.Changed("file") && req.File == "" {
		return req, usagef("-f is empty: leave it out, or name a file")
	}
	if len(args) > 0 && req.Target == "" {
		return req, usagef("TARGET is empty: leave it out, or name what to load")
	}
	var err error
	if req.Project, err = projectFolder(l.dir); err != nil {
		return req, err
	}
	for _, entry := range l.env {
		name, value, given := strings.Cut(entry, "=")
		if name == "" {
			return req, usagef("--env %q: a name is missing", entry)
		}
		if !given {
			if value, given = os.LookupEnv(name); !given {
				return req, usagef("--env %s: it has no value here; give one with --env %s=VALUE", name, name)
			}
		}
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env[name] = value
	}
	return req, nil
}

// displayVariables say where windows open (X(7), and what a Wayland session sets).
var displayVariables = []string{"DISPLAY", "WAYLAND_DISPLAY", "XAUTHORITY"}

// handOnDisplay lets the windows of an attached stream open where its command was
// typed: the runtime may have been started before there was a display, and by
// somebody who is not told of it. What --env gives wins.
func handOnDisplay(req *api.Load) {
	for _, name := range displayVariables {
		if _, given := req.Env[name]; given || os.Getenv(name) == "" {
			continue
		}
		if req.Env == nil {
			req.Env = map[string]string{}
		}
		req.Env[name] = os.Getenv(name)
	}
}

// catchInterrupt returns a channel that is closed by Ctrl-C. A second one ends
// the process at once; the runtime then sees the connection end.
func catchInterrupt() (interrupted <-chan struct{}, stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT)
	c, done := make(chan struct{}), make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-signals:
				if n > 0 {
					os.Exit(exitInterrupted)
				}
				close(c)
			case <-done:
				return
			}
		}
	}()
	return c, func() { signal.Stop(signals); close(done) }
}

// cancelOn calls cancel on Ctrl-C, until release is called.
func cancelOn(interrupted <-chan struct{}, cancel func()) (release func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-interrupted:
			cancel()
		case <-over:
		}
	}()
	return func() { close(over) }
}

// attachment is an attached stream as run and dev see it.
type attachment struct {
	client *client.Client
	lines  *client.Lines[api.Event]
	events chan event
	name   string // once loaded
	lease  string
}

type event struct {
	api.Event
	err error
}

// attach loads a stream; interrupted cuts the loading short.
func attach(ctx context.Context, c *client.Client, req api.Load, interrupted <-chan struct{}) (*attachment, error) {
	ctx, cancel := context.WithCancel(ctx)
	// Only while loading: afterwards Ctrl-C lets the stream end in order.
	release := cancelOn(interrupted, cancel)
	lines, err := c.Attach(ctx, req)
	release()
	if err != nil {
		cancel()
		return nil, err
	}
	a := &attachment{client: c, lines: lines, events: make(chan event)}
	go func() {
		defer cancel()
		defer close(a.events)
		for {
			e, err := lines.Next()
			a.events <- event{e, err}
			if err != nil {
				return
			}
		}
	}()
	return a, nil
}

// close ends the attachment, and with it the stream.
func (a *attachment) close() {
	a.lines.Close()
	for range a.events {
	}
}

// errRuntimeGone says that the runtime went away under an attached stream.
type errRuntimeGone struct{ why string }

func (e *errRuntimeGone) Error() string { return e.why }

// handle takes one event: it prints records, and remembers name and lease.
// over is true when the stream has ended; err is then why, nil if it was
// stopped.
func (e *environment) handle(a *attachment, ev event) (over bool, err error) {
	what := "the stream"
	if a.name != "" {
		what = a.name
	}
	if ev.err != nil {
		why := "the runtime went away, and " + what + " with it"
		if !errors.Is(ev.err, io.EOF) {
			why += ": the connection was cut"
		}
		return true, &errRuntimeGone{why}
	}
	if ev.Lease != "" {
		a.lease = ev.Lease
	}
	switch ev.Kind {
	case api.EventLoaded:
		if ev.Stream != nil {
			a.name = ev.Stream.Name
		}
	case api.EventLog:
		if ev.Record != nil {
			e.print.record(ev.Record, clockLayout)
		}
	case api.EventEnded:
		if ev.Error != nil {
			if ev.Error.Code == api.ShuttingDown {
				return true, &errRuntimeGone{"the runtime went away, and " + what + " with it: it is shutting down"}
			}
			return true, ev.Error
		}
		if ev.Message != "" {
			e.print.note("%s", ev.Message)
		}
		return true, nil
	}
	return false, nil
}

// end stops the stream after Ctrl-C and prints its last words. Whatever comes
// of it, the end of the connection unloads the stream.
func (e *environment) end(ctx context.Context, a *attachment) {
	defer a.close()
	if a.name == "" {
		return
	}
	e.print.note("stopping %s (Ctrl-C again to leave at once)", a.name)
	go func() { _, _ = a.client.Stop(ctx, a.name) }()
	patience := time.After(stopPatience)
	for {
		select {
		case ev, ok := <-a.events:
			if !ok || ev.err != nil || ev.Kind == api.EventEnded {
				return
			}
			_, _ = e.handle(a, ev)
		case <-patience:
			return
		}
	}
}

// loaded says that a stream runs.
func (e *environment) loaded(s *api.Stream) {
	nodes := ""
	if s.Nodes != nil {
		nodes = " (" + count(*s.Nodes, "node") + ")"
	}
	e.print.note("%s is running%s; Ctrl-C stops it", s.Name, nodes)
}
