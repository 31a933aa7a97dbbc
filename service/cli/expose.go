package cli

import (
	"context"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/graph"
)

func exposeCommand() *command {
	return &command{
		name: "expose", args: "STREAM NODE PORT", short: "change who may read an output, live",
		long: `Changes who outside the stream may read an output: other streams of this machine (private, what it does without a flag), other machines too (--public), or nobody (--internal). It takes effect at once; links that may no longer read are cut before the command returns.

On a kept stream the ruling is recorded, and holds when the stream is kept anew, until --reset lets what the stream function says hold again.`,
		examples: [][2]string{
			{"tatolab expose motion_watcher detector motion", "other streams may read it"},
			{"tatolab expose motion_watcher camera video --internal", "no longer"},
		},
		min: 3, max: 3, complete: []subject{subjectStream, subjectNode, subjectPort},
		setup: func(f *pflag.FlagSet) action {
			public := f.Bool("public", false, "other machines too")
			internal := f.Bool("internal", false, "nobody outside the stream")
			reset := f.Bool("reset", false, "what the stream function says")
			return func(ctx context.Context, e *environment, args []string) error {
				level, chosen := graph.Private, 0
				for _, f := range []struct {
					set   bool
					level graph.Level
				}{{*public, graph.Public}, {*internal, graph.Internal}, {*reset, ""}} {
					if f.set {
						level = f.level
						chosen++
					}
				}
				if chosen > 1 {
					return usagef("--public, --internal and --reset exclude each other")
				}
				name, err := streamName(args[0])
				if err != nil {
					return err
				}
				end := graph.End{Node: args[1], Port: args[2]}
				done, err := e.runtime.Expose(ctx, name, end, level)
				if err != nil {
					return err
				}
				e.print.line("%s", done.Note) // the level that holds now, which --reset alone does not tell
				return nil
			}
		},
	}
}
