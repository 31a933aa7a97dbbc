package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func streamsCommand() *command {
	return &command{
		name: "streams", short: "list the streams and their states",
		long: `Lists the streams that are loaded or kept, in the order of creation.

attached: running, and lives as long as the command that loaded it. kept: running, and loaded again whenever the runtime starts. stopped: a kept stream you stopped; it stays stopped until you start it. failed: a kept stream the runtime stopped loading; the reason is printed below the table.`,
		setup: func(f *pflag.FlagSet) action {
			return ask(f, func(ctx context.Context, e *environment, _ []string) (*api.Streams, error) {
				return e.runtime.Streams(ctx)
			}, (*environment).showStreams)
		},
	}
}

func (e *environment) showStreams(list *api.Streams) {
	var rows [][]string
	for _, s := range list.Streams {
		nodes := "-"
		if s.Nodes != nil {
			nodes = strconv.Itoa(*s.Nodes)
		}
		rows = append(rows, []string{s.Name, string(s.State), nodes, s.Project})
	}
	e.print.table([]string{"NAME", "STATE", "NODES", "PROJECT"}, rows)
	for _, s := range list.Streams {
		if s.State == api.Failed {
			e.print.line("%s failed: %s. `tatolab start %s` retries it, `tatolab rm %s` forgets it.", s.Name, strings.TrimRight(s.Reason, "."), s.Name, s.Name)
		}
	}
	if len(list.Streams) == 0 {
		e.print.note("no stream is loaded: `tatolab dev` in a project loads one")
	}
}

// count writes "1 node", "2 nodes".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
