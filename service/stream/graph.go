package stream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/figures"
	"tatolab.com/tatolab/service/reconcile"
)

// Why a stream has no nodes to tell of.
var (
	ErrEmpty = errors.New("the stream has not been given a graph yet")
	ErrEnded = errors.New("the stream has ended")
)

// Nodes returns the nodes of the running graph with their states and figures. The
// error is ErrEmpty, ErrEnded, or that of ctx, where the stream was too busy to say
// until then.
func (s *Stream) Nodes(ctx context.Context) (nodes []api.GraphNode, err error) {
	ran := s.doUntil(ctx, func() {
		if s.version == nil {
			err = ErrEmpty
			return
		}
		for _, n := range s.version.Graph.Nodes {
			state, wanted := s.planner.State(n.Name)
			g := api.GraphNode{Node: n, State: nodeState(state), Reason: state.Reason, Restarts: state.Restarts}
			if !wanted { // the stream is being stopped
				g.State = api.NodeStopping
			}
			if !state.Retry.IsZero() && state.Retry.After(time.Now()) {
				g.Until = &state.Retry
			}
			if i := s.instances[state.Instance]; i != nil && state.Phase != reconcile.None && i.proc != nil {
				g.PID = i.proc.PID()
				cpu, rss := i.proc.Usage()
				g.CPUms, g.RSS = cpu.Milliseconds(), rss
				if g.Reason == "" {
					g.Reason = i.remark
				}
				if i.condition != "" && g.State == api.NodeRunning {
					g.State, g.Reason = api.NodeWaiting, i.remark
				}
				if i.paused && g.State == api.NodeRunning {
					g.State, g.Reason = api.NodePaused, fmt.Sprintf("`tatolab resume %s/%s` lets it go on", s.name, n.Name)
				}
				for _, port := range s.version.Classes[n.Name].Outputs {
					if out, ok := s.env.Book.Output(figures.Output{Stream: s.name, Node: n.Name, Port: port}); ok {
						g.Outputs = append(g.Outputs, out)
					}
				}
			}
			nodes = append(nodes, g)
		}
	})
	if !ran {
		err = cmp.Or(ctx.Err(), ErrEnded)
	}
	return nodes, err
}

func nodeState(s reconcile.State) api.NodeState {
	switch {
	case s.Ended:
		return api.NodeStopped
	case s.Phase == reconcile.None:
		return api.NodeBackoff
	case s.Phase == reconcile.Running:
		return api.NodeRunning
	case s.Phase >= reconcile.Stopping:
		return api.NodeStopping
	}
	return api.NodeStarting
}
