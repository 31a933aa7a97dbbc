// Package unavailable stands in for a node whose program is not there: it
// loads, says what is missing, and waits, so that the rest of its stream runs.
package unavailable

import (
	"context"

	"tatolab.com/tatolab/nodes/host"
)

// Main hosts such a node; args[0] says what is missing.
func Main(args []string) int {
	why := "the program of this node is not there"
	if len(args) > 0 {
		why = args[0]
	}
	return host.Main(&node{why: why}, host.Ports{})
}

type node struct {
	why  string
	host *host.Host
}

func (n *node) Setup(h *host.Host) error {
	n.host = h
	return nil
}

func (n *node) Run(ctx context.Context) error {
	n.host.Waiting("unavailable", n.why)
	<-ctx.Done()
	return nil
}

func (n *node) Teardown() {}
