// Package keeper is the keeper process, one a stream, and the runtime's handle
// on it.
//
// A keeper is the parent of its stream's node processes and the subreaper
// (prctl(2), PR_SET_CHILD_SUBREAPER) of whatever those start. It has one
// descriptor of interest: a socket to the runtime, which carries requests and
// is its lifeline. At its end of file, however the runtime ended, the keeper
// kills every descendant, waits until none is left, and exits. Should the
// keeper itself be killed, the node processes go with it (PR_SET_PDEATHSIG) and
// the runtime ends what remains of their children.
//
// Start, Spawn and the rest are the runtime's side (client.go); Main is the
// process (main.go); what passes between them is in wire.go.
package keeper

import "time"

// Environment variables every process of an instance is born with. What an
// instance leaves behind is known by them.
const (
	// EnvInstance holds the name of the instance, see docs/node-protocol.md.
	EnvInstance = "TATOLAB_INSTANCE"
	// EnvKeeper holds a token of the keeper: instances are unique in one
	// runtime only, and a user may read processes of other runtimes.
	EnvKeeper = "TATOLAB_KEEPER"
)

// Limits of time.
const (
	// answerTimeout is how long the runtime waits for the keeper to take or
	// answer a request. A keeper that is that late is stopped or stuck.
	answerTimeout = 10 * time.Second
	// leftoverTimeout is how long an exit is held back until what the
	// instance left behind is gone too; beyond it the exit names them.
	leftoverTimeout = 2 * time.Second
	// closeTimeout is how long Close waits for a keeper to end. Only a
	// process that is stuck in the kernel takes that long.
	closeTimeout = 5 * time.Second
	// goneTimeout is how long Close then waits for the killed keeper itself.
	goneTimeout = 2 * time.Second
	// sweepTimeout is how long the orphans of a killed keeper are looked for.
	sweepTimeout = 2 * time.Second
	// killInterval is how often processes that are being killed are looked at
	// when no SIGCHLD says that something changed.
	killInterval = 20 * time.Millisecond
	// killPause is how long that becomes for what does not go.
	killPause = time.Second
)

// oomRaise is how much likelier than the runtime a node process is chosen by
// the kernel's out-of-memory killer (proc(5), oom_score_adj, 0 to 1000).
const oomRaise = 300
