package cli

import (
	"context"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
)

func stopCommand() *command {
	return changeCommand("stop", "stopped", "unload a stream; a kept one stays stopped",
		"Unloads a stream. A kept stream stays stopped, across restarts of the runtime too, until it is started. On an attached stream it is the same as pressing Ctrl-C in its terminal. Stopping a stopped stream does nothing.",
		(*client.Client).Stop)
}

func startCommand() *command {
	return changeCommand("start", "started", "load a stopped stream again, or retry a failed one",
		"Loads a stopped stream again, or retries a failed one. Of a running stream it starts the nodes again that ended by themselves, such as a window that was closed.",
		(*client.Client).Start)
}

func restartCommand() *command {
	return changeCommand("restart", "restarted", "stop a stream and start it again",
		"Stops a stream and starts it again, as it was loaded: live changes by tatolab set and pause are taken back.",
		(*client.Client).Restart)
}

func rmCommand() *command {
	return changeCommand("rm", "removed", "unload a stream and forget it",
		"Unloads a stream and forgets it. It is the only command that makes the runtime forget a kept stream, and it frees the stream's name.",
		(*client.Client).Remove)
}

// changeCommand makes the verbs that do one thing to one stream.
func changeCommand(verb, past, short, long string, do func(*client.Client, context.Context, string) (*api.Done, error)) *command {
	return &command{
		name: verb, args: "NAME", short: short, long: long,
		min: 1, max: 1, complete: []subject{subjectStream},
		setup: func(*pflag.FlagSet) action {
			return func(ctx context.Context, e *environment, args []string) error {
				name, err := streamName(args[0])
				if err != nil {
					return err
				}
				stop := e.print.progress(verb + " " + name)
				done, err := do(e.runtime, ctx, name)
				stop()
				if err != nil {
					return err
				}
				e.print.done(done, "%s %s", name, past)
				return nil
			}
		},
	}
}
