package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/build"
)

func statusCommand() *command {
	return &command{
		name: "status", short: "show the runtime",
		long: "Shows the runtime: its version, how it was started, how many streams it has and what they use, its last crash, whether it is on the bus, and whether it is of another version than this command.",
		setup: func(f *pflag.FlagSet) action {
			return ask(f, func(ctx context.Context, e *environment, _ []string) (*api.Status, error) {
				return e.runtime.Status(ctx)
			}, (*environment).showStatus)
		},
	}
}

func (e *environment) showStatus(s *api.Status) {
	field := func(name, format string, args ...any) {
		if text := fmt.Sprintf(format, args...); text != "" {
			e.print.line("%s", paint(e.print.outColor, bold, fmt.Sprintf("%-12s", name+":"))+text)
		}
	}
	field("runtime", "tatolabd %s, pid %d", s.Build, s.PID)
	if !s.Started.IsZero() {
		field("started", "%s, %s ago", s.How, time.Since(s.Started).Round(time.Second))
	} else {
		field("started", "%s", s.How)
	}
	field("socket", "%s", s.Socket)
	var counts []string
	for _, state := range []api.State{api.Kept, api.Attached, api.Stopped, api.Failed} {
		if n := s.Streams[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	if counts == nil {
		counts = []string{"none"}
	}
	field("streams", "%s", strings.Join(counts, ", "))
	field("bus", "%s", s.DBus)
	field("confined", "%s", s.Confined)
	field("last crash", "%s", s.LastCrash)
	if len(s.Usage) > 0 {
		var rows [][]string
		for _, name := range slices.Sorted(maps.Keys(s.Usage)) {
			u := s.Usage[name]
			rows = append(rows, []string{name, memory(u.Memory), strconv.Itoa(u.Processes), cpuTime(u.CPUms)})
		}
		e.print.line("")
		e.print.table([]string{"STREAM", "MEMORY", "PROCESSES", "CPU TIME"}, rows)
	}
	if s.Build != build.ID() {
		e.print.note("the runtime is %s and this command %s", s.Build, build.ID())
		e.print.hint("after an upgrade, restart the runtime: `systemctl --user restart tatolabd`, or end and start `tatolabd` in its terminal")
	}
}
