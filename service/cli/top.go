package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

func topCommand() *command {
	return &command{
		name: "top", args: "[NAME]", short: "watch streams and nodes: frames, latency, drops, CPU, memory",
		long: `Shows a stream and its nodes, every loaded stream without NAME, and refreshes on a terminal until Ctrl-C; elsewhere it prints once.

IN/S and OUT/S are bags a second read and written; P50 and P99 the time from a bag's timestamp to its being read, in milliseconds, of the slowest link; DROPS what the node's inputs have dropped so far; CPU of one core.`,
		max: 1, complete: []subject{subjectStream},
		setup: func(f *pflag.FlagSet) action {
			interval := f.Duration("interval", time.Second, "`TIME` between two looks, 100ms or more; 1s without")
			asJSON := f.Bool("json", false, jsonUsage+", once")
			return func(ctx context.Context, e *environment, args []string) error {
				if *interval < 100*time.Millisecond {
					return usagef("--interval %v: at least 100ms", *interval)
				}
				before, err := graphsOf(ctx, e.runtime, args)
				if err != nil {
					return err
				}
				for last := time.Now(); ; {
					time.Sleep(*interval)
					now, err := graphsOf(ctx, e.runtime, args)
					if err != nil {
						return err
					}
					took := time.Since(last)
					last = time.Now()
					list := measure(before, now, took)
					before = now
					if *asJSON {
						return e.print.json(list)
					}
					table := e.print.formatTable(list.table())
					if !e.print.outTTY {
						e.print.text(table)
						if len(list.Streams) == 0 {
							e.print.note("%s", noStreams)
						}
						return nil
					}
					e.print.text(redraw(table, e.print.out))
				}
			}
		},
	}
}

// redraw is what shows a table in place of the last one without a flicker: home,
// every line with its rest erased, then what is below. What has no room is cut
// off, lines at the margin (auto-wrap is off meanwhile), since a screen that
// scrolls would lose the header.
func redraw(table string, terminal io.Writer) string {
	lines := strings.Split(strings.TrimSuffix(table, "\n"), "\n")
	if _, room := terminalSize(terminal); room > 1 && len(lines) >= room {
		lines = lines[:room-1] // the cursor comes to stand below them
	}
	return "\x1b[?7l\x1b[H" + strings.Join(lines, "\x1b[K\n") + "\x1b[J\x1b[?7h\n"
}

// topList is what `tatolab top --json` prints.
type topList struct {
	Version int         `json:"version"`
	Streams []topStream `json:"streams"`
	Nodes   []topNode   `json:"nodes"`
}

// topStream is what the processes of a stream use together, those that its
// nodes started too where the runtime can tell.
type topStream struct {
	Stream    string    `json:"stream"`
	State     api.State `json:"state"`
	CPU       float64   `json:"cpu"` // cores
	Memory    int64     `json:"memory_bytes"`
	Processes int       `json:"processes"`
}

type topNode struct {
	Stream       string        `json:"stream"`
	Node         string        `json:"node"`
	State        api.NodeState `json:"state"`
	InRate       float64       `json:"in_rate"`
	OutRate      float64       `json:"out_rate"`
	LatencyP50MS float64       `json:"latency_p50_ms"`
	LatencyP99MS float64       `json:"latency_p99_ms"`
	Dropped      uint64        `json:"dropped"`
	CPU          float64       `json:"cpu"` // cores
	RSS          int64         `json:"rss_bytes"`

	reads, read bool // it has links, somebody reads it
}

// measure makes the list from two looks at the graphs.
func measure(before, now []*api.Graph, took time.Duration) topList {
	type key struct {
		stream, node string
		pid          int
	}
	cpu, whole := map[key]int64{}, map[string]int64{}
	for _, g := range before {
		whole[g.Stream] = g.Usage.CPUms
		for _, n := range g.Nodes {
			cpu[key{g.Stream, n.Name, n.PID}] = n.CPUms
		}
	}
	list := topList{Version: 1, Streams: []topStream{}, Nodes: []topNode{}}
	for _, g := range now {
		t := topStream{Stream: g.Stream, State: g.State, Memory: g.Usage.Memory, Processes: g.Usage.Processes}
		// A stream that was loaded anew in between counts from nothing.
		if earlier, ok := whole[g.Stream]; ok && took > 0 && g.Usage.CPUms >= earlier {
			t.CPU = float64(g.Usage.CPUms-earlier) / float64(took.Milliseconds())
		}
		list.Streams = append(list.Streams, t)
		for _, n := range g.Nodes {
			t := topNode{Stream: g.Stream, Node: n.Name, State: n.State, RSS: n.RSS}
			if earlier, ok := cpu[key{g.Stream, n.Name, n.PID}]; ok && took > 0 {
				t.CPU = float64(n.CPUms-earlier) / float64(took.Milliseconds())
			}
			for _, o := range n.Outputs {
				t.OutRate += o.Rate
				t.read = true
			}
			for _, l := range g.Links {
				if l.Target.Node == n.Name {
					t.reads = true
					t.InRate += l.Rate
					t.Dropped += l.Dropped
					t.LatencyP50MS = max(t.LatencyP50MS, l.LatencyP50MS)
					t.LatencyP99MS = max(t.LatencyP99MS, l.LatencyP99MS)
				}
			}
			list.Nodes = append(list.Nodes, t)
		}
	}
	return list
}

// table has each stream above its nodes. What a node does not have is a dash: no
// links, an output that nobody reads.
func (l topList) table() ([]string, [][]string) {
	number := func(has bool, v float64) string {
		if !has {
			return "-"
		}
		return fmt.Sprintf("%.1f", v)
	}
	var rows [][]string
	for _, s := range l.Streams {
		rows = append(rows, []string{s.Stream, "", string(s.State), "", "", "", "", "", fmt.Sprintf("%.0f%%", s.CPU*100), memory(s.Memory)})
		for _, n := range l.Nodes {
			if n.Stream != s.Stream {
				continue
			}
			drops := "-"
			if n.reads {
				drops = fmt.Sprint(n.Dropped)
			}
			rows = append(rows, []string{n.Stream, n.Node, string(n.State), number(n.reads, n.InRate), number(n.read, n.OutRate),
				number(n.LatencyP50MS > 0, n.LatencyP50MS), number(n.LatencyP99MS > 0, n.LatencyP99MS), drops,
				fmt.Sprintf("%.0f%%", n.CPU*100), memory(n.RSS)})
		}
	}
	return []string{"STREAM", "NODE", "STATE", "IN/S", "OUT/S", "P50", "P99", "DROPS", "CPU", "MEMORY"}, rows
}
