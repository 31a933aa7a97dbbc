package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/graph"
)

const noStreams = "no stream is loaded: `tatolab dev` in a project loads one"

func graphCommand() *command {
	return &command{
		name: "graph", args: "[NAME]", short: "show the nodes and links of a stream, with state and figures",
		long: `Shows the live graph of a stream, of every loaded stream without NAME: nodes with their state and why, what they use, and links with their state, rate and drops.

A link is wired; or waiting, when an end of it is not up; or awaiting_remote, when it reads another stream's output that is not there or not exposed. Per link, sent = received + dropped + what is still unread.

--diff prints what differs instead: the live graph from what was recorded (changes by tatolab set and pause, and those of agents), and the files on disk from what runs. --bags prints the newest bag of each exposed output below the graph, as tatolab read would.

--dot prints it for graphviz: tatolab graph NAME --dot | dot -Tsvg`,
		max: 1, complete: []subject{subjectStream},
		setup: func(f *pflag.FlagSet) action {
			asJSON := f.Bool("json", false, jsonUsage+"; without NAME one object a line")
			asDot := f.Bool("dot", false, "print a graph for graphviz")
			diff := f.Bool("diff", false, "print what differs from the record, or on disk")
			bags := f.Bool("bags", false, "print the newest bag of each exposed output too")
			return func(ctx context.Context, e *environment, args []string) error {
				forms := []string{"json", "dot", "diff", "bags"}
				forms = slices.DeleteFunc(forms, func(flag string) bool { return !f.Changed(flag) })
				if len(forms) > 1 && !slices.Equal(forms, []string{"json", "diff"}) { // JSON has the differences anyway
					return usagef("--%s and --%s exclude each other", forms[0], forms[1])
				}
				graphs, err := graphsOf(ctx, e.runtime, args)
				if err != nil {
					return err
				}
				switch {
				case *asJSON && len(args) > 0:
					return e.print.json(graphs[0])
				case *asJSON:
					for _, g := range graphs {
						if err := e.print.json1(g); err != nil {
							return err
						}
					}
				case *asDot:
					e.print.text(dot(graphs))
				default:
					for i, g := range graphs {
						if i > 0 {
							e.print.line("")
						}
						if *diff {
							e.showDifferences(g)
							continue
						}
						e.showGraph(g)
						if *bags {
							if err := e.showBags(ctx, g); err != nil {
								return err
							}
						}
					}
					if len(graphs) == 0 {
						e.print.note("%s", noStreams)
					}
				}
				return nil
			}
		},
	}
}

// graphsOf returns the graph of the stream named in args, of every loaded one
// if none is. A stream that ends in between is left out.
func graphsOf(ctx context.Context, c *client.Client, args []string) ([]*api.Graph, error) {
	if len(args) > 0 {
		name, err := streamName(args[0])
		if err != nil {
			return nil, err
		}
		g, err := c.Graph(ctx, name)
		if err != nil {
			return nil, err
		}
		return []*api.Graph{g}, nil
	}
	list, err := c.Streams(ctx)
	if err != nil {
		return nil, err
	}
	var graphs []*api.Graph
	for _, s := range list.Streams {
		if s.Nodes == nil {
			continue
		}
		g, err := c.Graph(ctx, s.Name)
		if err == nil {
			graphs = append(graphs, g)
		} else if api.AsError(err).Code != api.NoSuchStream {
			return nil, err
		}
	}
	return graphs, nil
}

// oneLine is the beginning of an error of several lines, the rest of which the
// log has: up to what went wrong, if the first line leads to that.
func oneLine(text string) string {
	first, rest, more := strings.Cut(strings.TrimSpace(text), "\n")
	if !more {
		return first
	}
	if strings.HasSuffix(first, ":") {
		second, _, _ := strings.Cut(rest, "\n")
		first += " " + strings.TrimSpace(second)
	}
	return first + " …"
}

func (e *environment) showGraph(g *api.Graph) {
	e.print.line("%s  %s  %s", paint(e.print.outColor, bold, g.Stream), g.State, g.Project)
	for _, note := range g.Notes {
		e.print.line("  %s", paint(e.print.outColor, yellow, note))
	}
	if u := g.Usage; u.Processes > 0 {
		e.print.line("  %s in %s, %s of CPU time", memory(u.Memory), processes(u.Processes), cpuTime(u.CPUms))
	}
	var rows [][]string
	for _, n := range g.Nodes {
		reason := oneLine(n.Reason)
		if n.Until != nil {
			reason = strings.TrimPrefix(fmt.Sprintf("%s; again in %s", reason, max(0, time.Until(*n.Until)).Round(100*time.Millisecond)), "; ")
		}
		rows = append(rows, []string{n.Name, string(n.State), n.Type, dash(n.PID), strconv.Itoa(n.Restarts), memory(n.RSS), reason})
	}
	e.print.line("")
	e.print.table([]string{"NODE", "STATE", "TYPE", "PID", "RESTARTS", "MEMORY", "REASON"}, rows)
	if len(g.Links) > 0 {
		rows = nil
		for _, l := range g.Links {
			row := []string{l.Source.String() + " → " + l.Target.String(), string(l.State), l.Profile, "-", "-", "-", "-", "-", l.Reason}
			if l.State == api.LinkWired {
				row[3], row[4], row[5], row[6] = rate(l.Rate), strconv.FormatUint(l.Sent, 10), strconv.FormatUint(l.Received, 10), strconv.FormatUint(l.Dropped, 10)
				row[7] = latency(l.LatencyP50MS, l.LatencyP99MS)
			}
			rows = append(rows, row)
		}
		e.print.line("")
		e.print.table([]string{"LINK", "STATE", "PROFILE", "RATE", "SENT", "RECEIVED", "DROPPED", "P50/P99 MS", "REASON"}, rows)
	}
	if len(g.Exposed) > 0 {
		rows = nil
		for _, x := range g.Exposed {
			row := []string{g.Stream + "/" + x.Node + "/" + x.Port, string(x.Level), "-", "-", "-"}
			for _, n := range g.Nodes {
				for _, o := range n.Outputs {
					if n.Name == x.Node && o.Port == x.Port {
						row[2], row[3], row[4] = rate(o.Rate), age(o.AgeMS), memory(o.PoolBytes)
					}
				}
			}
			rows = append(rows, row)
		}
		e.print.line("")
		e.print.table([]string{"EXPOSED", "LEVEL", "RATE", "AGE", "POOL"}, rows)
	}
}

func (e *environment) showDifferences(g *api.Graph) {
	e.print.line("%s  %s  %s", paint(e.print.outColor, bold, g.Stream), g.State, g.Project)
	if len(g.Differences) == 0 {
		e.print.note("%s is what it was loaded with, and the disk holds the same", g.Stream)
		return
	}
	var rows [][]string
	for _, d := range g.Differences {
		rows = append(rows, []string{d.What, d.Now, d.Before})
	}
	e.print.line("")
	e.print.table([]string{"WHAT", "NOW", "BEFORE"}, rows)
}

// bagPatience is how long graph --bags waits for the next bag of an output: that
// of one which seldom writes is not waited for.
const bagPatience = time.Second

// showBags prints the next bag of each exposed output.
func (e *environment) showBags(ctx context.Context, g *api.Graph) error {
	if len(g.Exposed) > 0 {
		e.print.line("")
	}
	for _, x := range g.Exposed {
		if x.Level == graph.Internal {
			continue
		}
		source := graph.Source{Stream: g.Stream, Node: x.Node, Port: x.Port}
		bag, err := e.nextBag(ctx, source)
		switch {
		case err != nil:
			return err
		case bag == nil:
			e.print.line("%s  no bag within %s", source, bagPatience)
		default:
			text, err := marshal(bag, "")
			if err != nil {
				return fmt.Errorf("cannot print: %w", err)
			}
			e.print.line("%s  %s", source, text)
		}
	}
	return nil
}

// nextBag is the next bag of an output, nil if none comes in time.
func (e *environment) nextBag(ctx context.Context, source graph.Source) (api.Bag, error) {
	ctx, cancel := context.WithTimeout(ctx, bagPatience)
	defer cancel()
	lines, err := e.runtime.ReadBags(ctx, source, true)
	if err == nil {
		defer lines.Close()
	}
	for err == nil {
		var line api.BagLine
		if line, err = lines.Next(); err == nil && line.Bag != nil {
			return line.Bag, nil
		}
		if err == nil && line.Error != nil {
			return nil, line.Error
		}
	}
	if ctx.Err() != nil || err == io.EOF {
		return nil, nil
	}
	return nil, err
}

func dash(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func rate(r float64) string { return fmt.Sprintf("%.1f/s", r) }

// age is how old the newest bag is; 0: it has no time.
func age(ms float64) string {
	d := time.Duration(ms * float64(time.Millisecond))
	switch {
	case d == 0:
		return "-"
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(100 * time.Millisecond).String()
}

func latency(p50, p99 float64) string {
	if p50 == 0 && p99 == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f/%.1f", p50, p99)
}

func memory(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

func cpuTime(ms int64) string {
	return (time.Duration(ms) * time.Millisecond).Round(10 * time.Millisecond).String()
}

func processes(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// dot writes graphs in the language of graphviz, a cluster a stream.
func dot(graphs []*api.Graph) string {
	var b strings.Builder
	b.WriteString("digraph tatolab {\n  rankdir=LR;\n  node [shape=box];\n")
	here := map[string]bool{}
	for _, g := range graphs {
		here[g.Stream] = true
		fmt.Fprintf(&b, "  subgraph %q {\n    label=%q;\n", "cluster_"+g.Stream, g.Stream)
		for _, n := range g.Nodes {
			fmt.Fprintf(&b, "    %q [label=%q];\n", g.Stream+"/"+n.Name, n.Name+"\n"+string(n.State))
		}
		b.WriteString("  }\n")
	}
	for _, g := range graphs {
		for _, l := range g.Links {
			from := g.Stream + "/" + l.Source.Node
			if l.Source.Remote() {
				from = strings.TrimSuffix(l.Source.String(), "/"+l.Source.Port)
				if !here[l.Source.Stream] || l.Source.Machine != "" {
					fmt.Fprintf(&b, "  %q [style=dashed];\n", from)
				}
			}
			style := ""
			if l.State != api.LinkWired {
				style = ", style=dashed"
			}
			fmt.Fprintf(&b, "  %q -> %q [label=%q%s];\n", from, g.Stream+"/"+l.Target.Node, l.Source.Port+" → "+l.Target.Port, style)
		}
	}
	b.WriteString("}\n")
	return b.String()
}
