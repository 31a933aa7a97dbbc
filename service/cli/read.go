package cli

import (
	"context"
	"io"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/graph"
)

func readCommand() *command {
	return &command{
		name: "read", args: "ADDRESS", short: "print the bags of an exposed output as JSON lines",
		long: "Reads an exposed output, stream/node/port, and prints its bags, one JSON object a line, until Ctrl-C. Bytes are written as {\"$bytes\": \"base64\"}. It reads as any other reader does: slow output drops bags and disturbs nobody. While the output is not there or not exposed, it waits and says so.",
		examples: [][2]string{
			{"tatolab read motion_watcher/detector/motion", "the reports, as they come"},
			{"tatolab read motion_watcher/detector/motion -n 1", "one of them"},
		},
		min: 1, max: 1, complete: []subject{subjectAddress},
		setup: func(f *pflag.FlagSet) action {
			n := f.IntP("count", "n", 0, "end after `N` bags")
			noWait := f.Bool("no-wait", false, "fail if the output is not there")
			return func(ctx context.Context, e *environment, args []string) error {
				if *n < 0 || f.Changed("count") && *n == 0 {
					return usagef("-n %d is not a number of bags: it is 1 or more", *n)
				}
				source, err := localAddress(args[0])
				if err != nil {
					return err
				}
				ctx, release := e.print.whileRead(ctx)
				defer release()
				lines, err := e.runtime.ReadBags(ctx, source, !*noWait)
				if err != nil {
					return err
				}
				defer lines.Close()
				for got := 0; *n == 0 || got < *n; {
					line, err := lines.Next()
					switch {
					case ctx.Err() != nil:
						return nil
					case err == io.EOF: // nothing else ends it from the other side
						return &errRuntimeGone{"the runtime went away"}
					case err != nil:
						return err
					case line.Error != nil:
						return line.Error
					case line.Note != "":
						e.print.note("%s", line.Note)
					default:
						if err := e.print.json1(line.Bag); err != nil {
							return err
						}
						got++
					}
				}
				return nil
			}
		},
	}
}

// localAddress reads the address of an output of this machine.
func localAddress(text string) (graph.Source, error) {
	source, err := graph.ParseAddress(text)
	if err != nil {
		return source, usagef("%v", err)
	}
	if source.Machine != "" {
		return source, usagef("%s is an output of machine %s; only outputs of this machine can be read here: stream/node/port", text, source.Machine)
	}
	return source, nil
}
