package api

import "tatolab.com/tatolab/service/graph"

// HTTPVersion is the version of the local API over HTTP. It stands in the
// header HTTPVersionHeader of every answer, so that a client of another version
// can say so instead of stumbling over what it does not understand.
const (
	HTTPVersion       = "1"
	HTTPVersionHeader = "Tatolab-Api-Version"
)

// Codes of HTTP's own, beside BadRequest and Internal.
const (
	AccessDenied Code = "AccessDenied" // the peer is another user
	ShuttingDown Code = "ShuttingDown" // the runtime is going away
)

// SetExposure is the body of PUT /v1/streams/{name}/exposure. Level "" takes a
// ruling back, so that what the stream function said holds again.
type SetExposure struct {
	Node  string      `json:"node"`
	Port  string      `json:"port"`
	Level graph.Level `json:"level"`
}

// BagLine is one line of the answer to reading an output: a bag, a note for
// the person (that the output is not there yet), or the error that ends it.
type BagLine struct {
	Bag   Bag    `json:"bag,omitzero"` // {} is a bag too
	Note  string `json:"note,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Cameras is `tatolab cameras --json`.
type Cameras struct {
	Version int      `json:"version"`
	Cameras []Camera `json:"cameras"`
}

// Levels are the levels of a Record, lowest first.
var Levels = []string{"trace", "debug", "info", "warn", "error"}
