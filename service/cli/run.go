package cli

import (
	"context"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func runCommand() *command {
	return &command{
		name: "run", args: "[TARGET]", short: "load a stream and print its log, or have the runtime keep it",
		long: `Loads a stream attached, once, and prints its log until it ends. Ctrl-C, a closed terminal or a kill of the command stops the stream. If the runtime goes away, run ends with an error. Windows open on the display of the terminal, where it has one.

With -d the stream is handed to the runtime to keep, and the command returns: the runtime writes a record of it, and loads it again whenever it starts. Run from the same project with the same function, it replaces the record by the new version.

` + manTarget,
		examples: [][2]string{
			{"tatolab run", "the stream of stream.py"},
			{"tatolab run stream.py:recorder", "one of several"},
			{"tatolab run --dir ~/projects/motion-watcher", "a project elsewhere"},
			{"tatolab run -d", "keep it running"},
		},
		max: 1, complete: []subject{subjectTarget},
		setup: func(f *pflag.FlagSet) action {
			flags := addLoadFlags(f)
			detach := f.BoolP("detach", "d", false, "have the runtime keep the stream, and return")
			return func(ctx context.Context, e *environment, args []string) error {
				req, err := flags.load(args)
				if err != nil {
					return err
				}
				if *detach {
					return e.keep(ctx, req)
				}
				return e.runAttached(ctx, req)
			}
		},
	}
}

func (e *environment) keep(ctx context.Context, req api.Load) error {
	stop := e.print.progress("loading " + req.Project)
	done, err := e.runtime.Keep(ctx, req)
	stop()
	if err != nil {
		return err
	}
	e.print.done(done, "%s kept (project %s)", done.Stream.Name, done.Stream.Project)
	return nil
}

func (e *environment) runAttached(ctx context.Context, req api.Load) error {
	handOnDisplay(&req)
	interrupted, release := catchInterrupt()
	defer release()
	stop := e.print.progress("loading " + req.Project)
	a, err := attach(ctx, e.runtime, req, interrupted)
	stop()
	if err != nil {
		select {
		case <-interrupted:
			return nil
		default:
			return err
		}
	}
	for {
		select {
		case ev := <-a.events:
			over, err := e.handle(a, ev)
			if over {
				a.close()
				return err
			}
			if ev.Kind == api.EventLoaded && ev.Stream != nil {
				e.loaded(ev.Stream)
			}
		case <-interrupted:
			e.end(ctx, a)
			return nil
		}
	}
}
