// Package api is the vocabulary of the local API: the structs that pass between
// the runtime and its faces (the HTTP interface, the command line, D-Bus).
// Text and JSON are made from the same struct; JSON that scripts read carries a
// version.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"tatolab.com/tatolab/service/graph"
)

// State of a stream as `tatolab streams` shows it.
type State string

// The states of mission and manual.
const (
	Attached State = "attached" // running, lives as long as the command that loaded it
	Kept     State = "kept"     // running, loaded again whenever the runtime starts
	Stopped  State = "stopped"  // kept, and stopped by hand
	Failed   State = "failed"   // kept, and no longer loaded
)

// Stream is one line of `tatolab streams`.
type Stream struct {
	Name    string `json:"name"`
	State   State  `json:"state"`
	Nodes   *int   `json:"nodes"` // nil when not loaded
	Project string `json:"project"`
	// Reason says why a failed stream failed; in a list also which nodes of one
	// that runs have died, and wait to be started again.
	Reason string `json:"reason"`
}

// Streams is `tatolab streams --json`, in the order of creation.
type Streams struct {
	Version int      `json:"version"`
	Streams []Stream `json:"streams"`
}

// Load asks for a stream to be loaded. Project is an absolute folder.
type Load struct {
	Project string `json:"project"`
	// Target is "", "file.py", "file.py:function" or "module:function".
	Target string `json:"target,omitempty"`
	// File is -f: a file with one stream.
	File string            `json:"file,omitempty"`
	Name string            `json:"name,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	// Keep hands the stream to the runtime; without it the stream lives as
	// long as the request.
	Keep bool `json:"keep,omitempty"`
	// Wait keeps an attached request open although the stream does not
	// compile yet: `dev` waits for a save that does.
	Wait bool `json:"wait,omitempty"`
}

// Event is one line of the response to an attached load.
type Event struct {
	// Kind is loaded (Stream, Lease), refused (Error; only with Wait), log
	// (Record), ended (Message: why).
	Kind    string  `json:"kind"`
	Stream  *Stream `json:"stream,omitempty"`
	Lease   string  `json:"lease,omitempty"`
	Record  *Record `json:"record,omitempty"`
	Error   *Error  `json:"error,omitempty"`
	Message string  `json:"message,omitempty"`
}

// The kinds of Event.
const (
	EventLoaded  = "loaded"
	EventRefused = "refused"
	EventLog     = "log"
	EventEnded   = "ended"
)

// Reload is the answer to a reload of a lease: which nodes were replaced.
type Reload struct {
	Stream    Stream   `json:"stream"`
	Restarted []string `json:"restarted"`
	Added     []string `json:"added"`
	Removed   []string `json:"removed"`
	// Failing are those of them whose new version has died already; the log
	// says why.
	Failing []string `json:"failing"`
	// TookMS is from the request to the last replaced node being ready.
	TookMS float64 `json:"took_ms"`
}

// Changes are edits of a live graph, applied together: nodes to remove (their
// links go too), to add (of a type that the stream uses already), to configure
// (merge patches of RFC 7396: null takes a key out), to pause and to resume, links
// to take out and to put in. A record is not changed by them.
type Changes struct {
	Remove []string                              `json:"remove,omitempty"`
	Add    []graph.Node                          `json:"add,omitempty"`
	Set    map[string]map[string]json.RawMessage `json:"set,omitempty"`
	Pause  []string                              `json:"pause,omitempty"`
	Resume []string                              `json:"resume,omitempty"`
	Unlink []graph.Link                          `json:"unlink,omitempty"`
	Link   []graph.Link                          `json:"link,omitempty"`
}

// Done answers stop, start, restart, remove and expose. Note is for the
// person: that there was nothing to do, or which node had to be killed.
type Done struct {
	Stream *Stream `json:"stream,omitempty"`
	Note   string  `json:"note,omitempty"`
	Hint   string  `json:"hint,omitempty"`
	// Unchanged tells that there was nothing to do; Note says why.
	Unchanged bool `json:"unchanged,omitempty"`
}

// Record is one record of a stream's log.
type Record struct {
	Time    time.Time      `json:"time"`
	Level   string         `json:"level"` // trace debug info warn error
	Stream  string         `json:"stream,omitempty"`
	Node    string         `json:"node,omitempty"` // empty: the runtime, about the stream
	Message string         `json:"message"`
	Fields  map[string]any `json:"fields,omitempty"`
}

// LogFilter chooses records. The zero value is everything there is.
type LogFilter struct {
	Node  string
	Level string // this and above
	Last  int    // only the last so many; 0 = all, negative = none
}

// NodeState is the state of a node in a running graph.
type NodeState string

// The states of a node.
const (
	NodeStarting NodeState = "starting" // process is up, setup has not returned
	NodeRunning  NodeState = "running"
	NodeWaiting  NodeState = "waiting"  // runs, but cannot deliver: Reason says why
	NodeBackoff  NodeState = "back-off" // died; is started again at Until
	NodeStopping NodeState = "stopping"
	NodeStopped  NodeState = "stopped"
	NodePaused   NodeState = "paused"
)

// LinkState is the state of a link in a running graph.
type LinkState string

// The states of a link.
const (
	LinkWired          LinkState = "wired"
	LinkWaiting        LinkState = "waiting"         // an end of it, in this stream, is not up
	LinkAwaitingRemote LinkState = "awaiting_remote" // the other stream's output is not there or not exposed
)

// Graph is the live graph of a stream: the same shape as a compiled one, plus
// state and figures.
type Graph struct {
	Version int              `json:"version"`
	Stream  string           `json:"stream"`
	State   State            `json:"state"`
	Project string           `json:"project"`
	Nodes   []GraphNode      `json:"nodes"`
	Links   []GraphLink      `json:"links"`
	Exposed []graph.Exposure `json:"exposed"`
	Usage   Usage            `json:"usage"`
	// Notes say what else a person should know: that the disk differs from
	// what runs, that the last save did not compile.
	Notes []string `json:"notes,omitempty"`
	// Differences are where what runs is not what was recorded (of an attached
	// stream: loaded), and where the disk is not what runs.
	Differences []Difference `json:"differences,omitempty"`
}

// Difference is one thing that is not what it was: a node, a link, a file.
type Difference struct {
	What   string `json:"what"`   // "node detector", "file nodes/detector.py"
	Now    string `json:"now"`    // what it is: "added", "paused", a configuration
	Before string `json:"before"` // what it was, where that is not plain
}

// Usage is what the processes of a stream use together: of its control group
// where there is one, which counts everything the nodes started, else the sum
// over the node processes.
type Usage struct {
	CPUms     int64 `json:"cpu_ms"`
	Memory    int64 `json:"memory_bytes"`
	Processes int   `json:"processes"`
}

// GraphNode is a node, its state and what it costs.
type GraphNode struct {
	graph.Node
	State  NodeState `json:"state"`
	Reason string    `json:"reason,omitempty"`
	PID    int       `json:"pid,omitempty"`
	// Restarts are how often it died and was started again, since it was last
	// changed or restarted by hand.
	Restarts int `json:"restarts"`
	// Until is when a node in back-off is started again.
	Until   *time.Time    `json:"until,omitempty"`
	CPUms   int64         `json:"cpu_ms,omitempty"`
	RSS     int64         `json:"rss_bytes,omitempty"`
	Outputs []GraphOutput `json:"outputs,omitempty"`
}

// GraphOutput are the figures of one output that somebody reads.
type GraphOutput struct {
	Port      string  `json:"port"`
	Sent      uint64  `json:"sent"`
	Rate      float64 `json:"rate"`   // bags per second
	AgeMS     float64 `json:"age_ms"` // of the newest bag
	PoolBytes int64   `json:"pool_bytes"`
}

// GraphLink is a link, its state and its figures. Sent = Received + Dropped
// + what is unread.
type GraphLink struct {
	graph.Link
	State    LinkState `json:"state"`
	Reason   string    `json:"reason,omitempty"`
	Profile  string    `json:"profile,omitempty"`
	Sent     uint64    `json:"sent"`
	Received uint64    `json:"received"`
	Dropped  uint64    `json:"dropped"`
	Rate     float64   `json:"rate"` // received per second
	// Latency from a bag's timestamp to the read that returned it.
	LatencyP50MS float64 `json:"latency_p50_ms"`
	LatencyP99MS float64 `json:"latency_p99_ms"`
}

// Status is `tatolab status --json`.
type Status struct {
	Version   int           `json:"version"`
	Release   string        `json:"release"`
	Build     string        `json:"build"`
	PID       int           `json:"pid"`
	RuntimeID string        `json:"runtime_id"`
	Started   time.Time     `json:"started"`
	How       string        `json:"how"` // "terminal", "systemd (tatolabd.service)"
	Socket    string        `json:"socket"`
	Streams   map[State]int `json:"streams"`
	// Usage by stream, of those that are loaded.
	Usage     map[string]Usage `json:"usage"`
	LastCrash string           `json:"last_crash,omitempty"`
	DBus      string           `json:"dbus"`     // "com.tatolab.Runtime1", or why not
	Confined  string           `json:"confined"` // how processes of streams are held together
}

// Bag is one line of `tatolab read`: the bag as JSON values (bytes as
// {"$bytes": base64}), and its timestamp.
type Bag = map[string]any

// Camera is one capture device, for `tatolab cameras`.
type Camera struct {
	ID      string         `json:"id"` // what to write as device_id: the stable name where there is one
	Path    string         `json:"path"`
	Card    string         `json:"card"`
	Driver  string         `json:"driver"`
	Bus     string         `json:"bus"`
	Formats []CameraFormat `json:"formats"`
	// Holder is who has it open: "stream/node", "pid 4711 (cheese)", or "".
	Holder string `json:"holder"`
	// Error says why nothing more is known, for example that permission is
	// missing and which group would give it.
	Error string `json:"error,omitempty"`
}

// CameraFormat is a pixel format and the sizes and rates it comes in.
type CameraFormat struct {
	FourCC string       `json:"fourcc"`
	Sizes  []CameraSize `json:"sizes"`
}

// CameraSize is a picture size in pixels and its frame rates per second.
type CameraSize struct {
	Width  int       `json:"width"`
	Height int       `json:"height"`
	Rates  []float64 `json:"rates"`
}

// Catalog is `tatolab nodes`: the node classes a project can use.
type Catalog struct {
	Version int           `json:"version"`
	Nodes   []CatalogNode `json:"nodes"`
	// Errors are the modules whose classes are missing, and why.
	Errors []CatalogError `json:"errors,omitempty"`
}

// CatalogError is a module of a project that cannot be imported.
type CatalogError struct {
	Module string `json:"module"`
	Error  string `json:"error"`
}

// CatalogNode is one node class.
type CatalogNode struct {
	Type         string         `json:"type"`
	Description  string         `json:"description"`
	Execution    string         `json:"execution"`
	Inputs       []CatalogPort  `json:"inputs"`
	Outputs      []CatalogPort  `json:"outputs"`
	ConfigSchema map[string]any `json:"config_schema"`
}

// CatalogPort is a port of a node class. Profile is empty for an output.
type CatalogPort struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
	Profile     string `json:"profile,omitempty"`
}

// Error is the one shape of an error: {error, hint, code}, and detail where a
// line does not hold it.
type Error struct {
	Message string `json:"error"`
	Hint    string `json:"hint,omitempty"`
	// Detail is shown as it is, between message and hint: the traceback of
	// the user's own code and what it printed.
	Detail string `json:"detail,omitempty"`
	Code   Code   `json:"code"`
}

func (e *Error) Error() string { return e.Message }

// Code says which kind of error it is: the last part of a D-Bus error name.
type Code string

// The codes. Those of D-Bus are fixed; Internal and BadRequest are HTTP's own.
const (
	NameInUse     Code = "NameInUse"
	NoSuchStream  Code = "NoSuchStream"
	NotKept       Code = "NotKept"
	NoSuchPort    Code = "NoSuchPort"
	NotExposed    Code = "NotExposed"
	NoEnvironment Code = "NoEnvironment"
	CompileFailed Code = "CompileFailed"
	InvalidName   Code = "InvalidName"
	RecordFailed  Code = "RecordFailed"
	Unloadable    Code = "Unloadable"
	BadRequest    Code = "BadRequest"
	Internal      Code = "Internal"
)

// Errorf makes an Error.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Reason is err without a path, which the message around it has already.
func Reason(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// WithHint returns e with what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// AsError returns err as an Error, of code Internal where it is none.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Message: err.Error(), Code: Internal}
}
