package cli

import (
	"context"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/build"
)

func versionCommand() *command {
	return &command{
		name: "version", short: "print the version of this command",
		long: "Prints the version and the build of this command. `tatolab status` tells those of the runtime.",
		setup: func(f *pflag.FlagSet) action {
			asJSON := f.Bool("json", false, jsonUsage)
			return func(_ context.Context, e *environment, _ []string) error {
				if *asJSON {
					return e.print.json(struct {
						Version int    `json:"version"`
						Release string `json:"release"`
						Build   string `json:"build"`
					}{1, build.Version, build.ID()})
				}
				e.print.line("tatolab %s", build.ID())
				return nil
			}
		},
	}
}
