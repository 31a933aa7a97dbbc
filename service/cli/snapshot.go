package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/google/renameio/v2"
	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func snapshotCommand() *command {
	return &command{
		name: "snapshot", args: "ADDRESS", short: "save one frame of an exposed output as PNG",
		long:     "Saves one frame of an exposed video output, stream/node/port, as a PNG file. `-o -` writes it to standard output. The file appears whole or not at all.",
		examples: [][2]string{{"tatolab snapshot motion_watcher/camera/video -o now.png", ""}},
		min:      1, max: 1, complete: []subject{subjectAddress},
		setup: func(f *pflag.FlagSet) action {
			output := f.StringP("output", "o", "", "the `FILE` to write, - for standard output")
			return func(ctx context.Context, e *environment, args []string) error {
				if *output == "" {
					return usagef("-o FILE.png is missing")
				}
				if *output == "-" && e.print.outTTY {
					return usagef("-o -: a picture would garble the terminal; send it to a file or a pipe")
				}
				source, err := localAddress(args[0])
				if err != nil {
					return err
				}
				stop := e.print.progress("waiting for a frame")
				data, err := e.runtime.Snapshot(ctx, source)
				stop()
				if err != nil {
					return err
				}
				if *output == "-" {
					_, err := e.print.out.Write(data)
					return err
				}
				if info, statErr := os.Stat(*output); statErr == nil && !info.Mode().IsRegular() {
					err = os.WriteFile(*output, data, 0o666) // a pipe or a device is written to, not replaced
				} else {
					err = renameio.WriteFile(*output, data, 0o666, renameio.WithExistingPermissions())
				}
				if err != nil {
					return fmt.Errorf("cannot write %s: %w", *output, api.Reason(err))
				}
				return nil
			}
		},
	}
}
