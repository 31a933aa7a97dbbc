package graph

// Class is what compiling a stream learnt of the class of one node: with the
// graph, all that is needed to run it. A record holds it too, so that a kept
// stream is loaded without being compiled.
type Class struct {
	Inputs      []Input   `json:"inputs"`
	Outputs     []string  `json:"outputs"`
	Execution   Execution `json:"execution"`
	Description string    `json:"description,omitempty"`
	// Hash covers the sources that the class comes from; the node's
	// configuration is compared apart.
	Hash string `json:"hash"`
}

// Input is an input port and its delivery profile: "newest" or "ordered".
type Input struct {
	Port    string `json:"port"`
	Profile string `json:"profile"`
}

// Execution is how the process callback is driven. Its fields are those of
// control.Execution, so that one converts to the other.
type Execution struct {
	Mode       string  `json:"mode"` // reactive, continuous, manual
	IntervalMS float64 `json:"interval_ms"`
}
