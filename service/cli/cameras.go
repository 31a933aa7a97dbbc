package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func camerasCommand() *command {
	return &command{
		name: "cameras", short: "list the cameras, what they offer and who holds them",
		long: "Lists the capture devices of this machine: the stable name to write as device_id, the card, who has it open, and below each the formats, sizes and frame rates it offers.",
		setup: func(f *pflag.FlagSet) action {
			return ask(f, func(ctx context.Context, e *environment, _ []string) (*api.Cameras, error) {
				return e.runtime.Cameras(ctx)
			}, (*environment).showCameras)
		},
	}
}

func (e *environment) showCameras(list *api.Cameras) {
	for i := range list.Cameras {
		e.showCamera(&list.Cameras[i])
	}
	if len(list.Cameras) == 0 {
		e.print.note("no camera is connected; a stream can use TestPatternSource instead")
	}
}

func (e *environment) showCamera(c *api.Camera) {
	e.print.line("%s", paint(e.print.outColor, bold, c.ID))
	about := []string{c.Path}
	for _, s := range []string{c.Card, c.Driver} {
		if s != "" {
			about = append(about, s)
		}
	}
	e.print.line("  %s", e.print.clean(strings.Join(about, ", "), e.print.outTTY))
	switch {
	case c.Error != "":
		e.print.line("  %s", paint(e.print.outColor, yellow, c.Error))
	case c.Holder != "":
		e.print.line("  held by %s", c.Holder)
	}
	for _, format := range c.Formats {
		for _, size := range format.Sizes {
			var rates []string
			for _, r := range slices.Backward(slices.Sorted(slices.Values(size.Rates))) {
				rates = append(rates, fmt.Sprintf("%g", r))
			}
			line := fmt.Sprintf("  %-5s %4dx%-4d  %s", format.FourCC, size.Width, size.Height, strings.Join(rates, ", "))
			if len(rates) > 0 {
				line += " fps"
			}
			e.print.line("%s", strings.TrimRight(line, " "))
		}
	}
}
