package cli

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func logsCommand() *command {
	return &command{
		name: "logs", args: "[NAME]", short: "show the log of a stream, or of the runtime",
		long: "Shows the log of a stream: what its nodes print and log, their deaths and why, and what the runtime did to it. With --runtime, the runtime's own log. With --json, one record a line: time, level, stream, node, message, fields.",
		examples: [][2]string{
			{"tatolab logs motion_watcher -f", "go on with what is logged"},
			{"tatolab logs motion_watcher --node detector --level warn", "warnings and errors of one node"},
		},
		max: 1, complete: []subject{subjectStream},
		setup: func(f *pflag.FlagSet) action {
			more := f.BoolP("follow", "f", false, "go on with records as they are written, until Ctrl-C")
			last := f.IntP("lines", "n", 0, "only the last `N` records; 0 with -f: only new ones")
			node := f.String("node", "", "only records of this `NODE`")
			level := f.String("level", "", "only records of this `LEVEL` and above: "+strings.Join(api.Levels, ", "))
			runtime := f.Bool("runtime", false, "the runtime's own log")
			asJSON := f.Bool("json", false, jsonUsage+", a record a line")
			return func(ctx context.Context, e *environment, args []string) error {
				name := ""
				*level = strings.ToLower(*level)
				switch {
				case *runtime && len(args) == 1:
					return usagef("%q names a stream, --runtime asks for the runtime's own log: leave one out", args[0])
				case !*runtime && len(args) == 0:
					return usagef("name a stream, or say --runtime")
				case *runtime && *node != "":
					return usagef("--node %s is of a stream: name the stream instead of --runtime", *node)
				case *last < 0:
					return usagef("-n %d is not a number of records: it is 0 or more", *last)
				case *level != "" && !slices.Contains(api.Levels, *level):
					return usagef("--level %s is none of %s", *level, strings.Join(api.Levels, ", "))
				case !*runtime:
					var err error
					if name, err = streamName(args[0]); err != nil {
						return err
					}
				}
				if f.Changed("lines") && *last == 0 {
					*last = -1
				}
				ctx, release := e.print.whileRead(ctx)
				defer release()
				lines, err := e.runtime.Log(ctx, name, api.LogFilter{Node: *node, Level: *level, Last: *last}, *more)
				if err != nil {
					return err
				}
				defer lines.Close()
				for {
					record, err := lines.Next()
					switch {
					case ctx.Err() != nil:
						return nil
					case err == io.EOF && *more:
						return &errRuntimeGone{"the runtime went away"}
					case err == io.EOF:
						return nil
					case err != nil:
						return err
					case *asJSON:
						err = e.print.json1(asLine(record))
					default:
						if *runtime && record.Stream != "" { // of many streams: by address
							record.Node = strings.TrimSuffix(record.Stream+"/"+record.Node, "/")
						}
						e.print.record(&record, dateLayout)
						err = e.print.lost()
					}
					if err != nil {
						return err
					}
				}
			}
		},
	}
}

// recordLine is a record with every key in every line.
type recordLine struct {
	Time    time.Time      `json:"time"`
	Level   string         `json:"level"`
	Stream  string         `json:"stream"`
	Node    string         `json:"node"`
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields"`
}

func asLine(r api.Record) recordLine {
	if r.Fields == nil {
		r.Fields = map[string]any{}
	}
	return recordLine(r)
}
