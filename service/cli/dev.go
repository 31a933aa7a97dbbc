package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/cli/watch"
	"tatolab.com/tatolab/service/client"
)

func devCommand() *command {
	return &command{
		name: "dev", args: "[TARGET]", short: "load a stream, and again after every save",
		long: `Loads a stream attached, prints its log, and loads it again after every save of a .py file or of pyproject.toml in the project. Nodes whose code and configuration are unchanged keep running.

A save that does not compile prints the error, and the last version that did keeps running. If the runtime goes away, dev waits for it to come back and loads the stream again. Ctrl-C stops the stream. Windows open on the display of the terminal, where it has one.

` + manTarget,
		examples: [][2]string{
			{"tatolab dev", "the stream of stream.py"},
			{"tatolab dev --name motion_watcher_dev", "beside a kept stream of its name"},
		},
		max: 1, complete: []subject{subjectTarget},
		setup: func(f *pflag.FlagSet) action {
			flags := addLoadFlags(f)
			return func(ctx context.Context, e *environment, args []string) error {
				req, err := flags.load(args)
				if err != nil {
					return err
				}
				req.Wait = true
				handOnDisplay(&req)
				interrupted, release := catchInterrupt()
				defer release()
				return (&dev{environment: e, req: req, interrupted: interrupted}).run(ctx)
			}
		},
	}
}

// dev is one run of `tatolab dev`.
type dev struct {
	*environment
	req         api.Load
	interrupted <-chan struct{}
	saves       *watch.Watcher
}

const nothingLoaded = "no stream is loaded — fix it and save again"

func (d *dev) run(ctx context.Context) error {
	// Watching begins before loading: a save in between counts.
	d.saves = watch.New(d.req.Project)
	defer d.saves.Close()
	for first := true; ; first = false {
		err := d.attached(ctx)
		if d.wasInterrupted() {
			return nil
		}
		var unreachable *client.Unreachable
		var gone *errRuntimeGone
		var refused *api.Error
		switch {
		case err == nil:
			return nil
		case errors.As(err, &gone):
			d.print.note("%s", gone.why)
		case !first && errors.As(err, &unreachable) && unreachable.Kind != client.Foreign:
			// It came back and went again.
		case errors.As(err, &refused) && refused.Code == api.ShuttingDown && !first:
		default:
			return err
		}
		d.print.note("waiting for the runtime to come back (Ctrl-C ends)")
		waiting, cancel := context.WithCancel(ctx)
		release := cancelOn(d.interrupted, cancel)
		err = d.runtime.Wait(waiting)
		release()
		cancel()
		if d.wasInterrupted() {
			return nil
		}
		if err != nil {
			return err
		}
		d.print.note("the runtime is back")
	}
}

func (d *dev) wasInterrupted() bool {
	select {
	case <-d.interrupted:
		return true
	default:
		return false
	}
}

// reloaded is the outcome of a reload.
type reloaded struct {
	answer *api.Reload
	err    error
}

// attached loads the stream and reloads it at each save, until it ends.
func (d *dev) attached(ctx context.Context) error {
	stop := d.print.progress("loading " + d.req.Project)
	a, err := attach(ctx, d.runtime, d.req, d.interrupted)
	stop()
	if err != nil {
		return err
	}
	running := false
	outcome := make(chan reloaded, 1)
	reloading := false
	for {
		// One reload at a time, and none before there is a lease; saves
		// meanwhile are kept, as one.
		var saves <-chan struct{}
		if a.lease != "" && !reloading {
			saves = d.saves.Changes()
		}
		select {
		case ev := <-a.events:
			over, err := d.handle(a, ev)
			if over {
				a.close()
				return err
			}
			switch {
			case ev.Kind == api.EventLoaded && ev.Stream != nil && !running:
				running = true
				d.loaded(ev.Stream)
			case ev.Kind == api.EventRefused && ev.Error != nil:
				d.refused(ev.Error, running)
			}
		case <-saves:
			reloading = true
			lease := a.lease
			go func() {
				answer, err := d.runtime.Reload(ctx, lease)
				outcome <- reloaded{answer, err}
			}()
		case r := <-outcome:
			reloading = false
			var unreachable *client.Unreachable
			switch {
			case errors.As(r.err, &unreachable):
				// The end of the attachment tells the same, better.
			case r.err != nil:
				d.refused(r.err, running)
			case !running:
				running = true
				a.name = r.answer.Stream.Name
				d.loaded(&r.answer.Stream)
			default:
				d.print.note("%s", reloadLine(r.answer))
			}
		case <-d.interrupted:
			d.end(ctx, a)
			return nil
		}
	}
}

func (d *dev) refused(err error, running bool) {
	d.print.failure(err)
	if running {
		d.print.note("the last version that compiled keeps running")
	} else {
		d.print.note(nothingLoaded)
	}
}

// reloadLine says in one line what a save did.
func reloadLine(r *api.Reload) string {
	var parts []string
	for _, p := range []struct {
		nodes []string
		what  string
	}{{r.Restarted, "restarted"}, {r.Added, "added"}, {r.Removed, "removed"}} {
		if len(p.nodes) > 0 {
			parts = append(parts, strings.Join(p.nodes, ", ")+" "+p.what)
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%s: saved, no node changed", r.Stream.Name)
	}
	if len(r.Failing) > 0 {
		parts = append(parts, strings.Join(r.Failing, ", ")+" failing, as the log says")
	}
	return fmt.Sprintf("%s reloaded in %v: %s", r.Stream.Name,
		(time.Duration(r.TookMS * float64(time.Millisecond))).Round(time.Millisecond), strings.Join(parts, "; "))
}
