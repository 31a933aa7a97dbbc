package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/keeper"
)

// CompileLimit is how long a compilation may take.
const CompileLimit = 30 * time.Second

// Compiler turns a Source into a graph by running the project's own
// interpreter, as docs/compile-protocol.md says. It may be used from several
// goroutines at once.
type Compiler struct {
	Bootstrap string        // bootstrap.py of the lent package
	Environ   []string      // the runtime's environment, os.Environ()
	Limit     time.Duration // 0 is CompileLimit
	// Lock is held by what compiles, see keeper.AcquireLock; nil holds nothing.
	Lock *os.File
}

// Compiled is a stream ready to run.
type Compiled struct {
	Graph       *graph.Graph
	Nodes       map[string]graph.Class // by node
	Target      string                 // "file.py:function" or "module:function"
	Description string
	// Snapshot is held in the Snapshots it was compiled into. Release it
	// when the stream is gone.
	Snapshot string
	CodeHash string
	Env      map[string]string // of [tool.tatolab.env] in pyproject.toml
	Output   string            // what the project's code printed, shortened
}

// answer is what the process writes.
type answer struct {
	OK bool `json:"ok"`

	Graph    json.RawMessage `json:"graph"`
	Function struct {
		Target      string `json:"target"`
		Description string `json:"description"`
	} `json:"function"`
	Snapshot string                 `json:"snapshot"`
	CodeHash string                 `json:"code_hash"`
	Nodes    map[string]graph.Class `json:"nodes"`
	Env      map[string]string      `json:"env"`

	Code      api.Code `json:"code"`
	Error     string   `json:"error"`
	Hint      string   `json:"hint"`
	Traceback string   `json:"traceback"`
	Choices   []string `json:"choices"`
}

// Compile runs the stream function, and returns what it built with its code in
// a snapshot. A mistake of the project is CompileFailed, with the user's own
// traceback as its detail.
func (c *Compiler) Compile(ctx context.Context, src *Source, to *Snapshots) (*Compiled, error) {
	to.compiling.RLock()
	defer to.compiling.RUnlock()

	request := map[string]any{"target": src.Target, "name": nil, "snapshot_root": to.root}
	if src.Name != "" {
		request["name"] = src.Name
	}
	var a answer
	output, err := c.ask(ctx, "compile", src, request, &a)
	if err != nil {
		return nil, err
	}
	if !a.OK {
		return nil, a.failure(output)
	}
	built, err := graph.Decode(a.Graph)
	if err != nil {
		return nil, api.Errorf(api.CompileFailed, "cannot compile %s: %v", src.Target, err)
	}
	for _, n := range built.Nodes {
		if _, ok := a.Nodes[n.Name]; !ok {
			return nil, api.Errorf(api.Internal, "cannot compile %s: nothing was said of the class of node %s", src.Target, n.Name)
		}
	}
	if a.Snapshot == "" || !filepath.IsLocal(a.Snapshot) || filepath.Base(a.Snapshot) != a.Snapshot {
		return nil, api.Errorf(api.Internal, "cannot compile %s: %q is no snapshot", src.Target, a.Snapshot)
	}
	if to.durable {
		if err := to.sync(a.Snapshot); err != nil {
			return nil, api.Errorf(api.RecordFailed, "cannot keep the code of %s: %v", src.Target, err)
		}
	}
	to.Hold(a.Snapshot)
	return &Compiled{
		Graph: built, Nodes: a.Nodes, Target: a.Function.Target, Description: a.Function.Description,
		Snapshot: a.Snapshot, CodeHash: a.CodeHash, Env: a.Env, Output: output,
	}, nil
}

// Check returns why nodes cannot be given their configurations, with the
// classes they run from a snapshot, "" for built-in ones; BadRequest.
func (c *Compiler) Check(ctx context.Context, src *Source, snapshot string, nodes []graph.Node) error {
	var a answer
	output, err := c.ask(ctx, "check", src, map[string]any{"snapshot": snapshot, "nodes": nodes}, &a)
	switch {
	case err != nil:
		return err
	case !a.OK:
		return a.failure(output)
	}
	return nil
}

// Catalog lists the node classes that a project can use, its own and the
// built-in ones. A module that cannot be imported costs its own classes only.
func (c *Compiler) Catalog(ctx context.Context, dir string) (*api.Catalog, error) {
	if err := absolute(dir); err != nil {
		return nil, err
	}
	python, err := Interpreter(dir)
	if err != nil {
		return nil, err
	}
	var a struct {
		answer
		Nodes  []api.CatalogNode  `json:"nodes"`
		Errors []api.CatalogError `json:"errors"`
	}
	src := &Source{Dir: dir, Interpreter: python, Target: "the node classes of " + dir}
	output, err := c.ask(ctx, "catalog", src, map[string]any{}, &a)
	if err != nil {
		return nil, err
	}
	if !a.OK {
		return nil, a.failure(output)
	}
	return &api.Catalog{Version: 1, Nodes: a.Nodes, Errors: a.Errors}, nil
}

// ask runs the bootstrap in a mode, and reads its answer into a. It returns
// what the project's code printed.
func (c *Compiler) ask(ctx context.Context, mode string, src *Source, request map[string]any, a any) (string, error) {
	request["project"], request["env"] = src.Dir, src.Env
	data, err := json.Marshal(request)
	if err != nil {
		return "", api.Errorf(api.Internal, "cannot compile %s: %v", src.Target, err)
	}
	run := child{
		// faulthandler: a crash in a C module says where it was called, and
		// SIGABRT makes a process that hangs say where.
		argv:  []string{src.Interpreter, "-I", "-u", "-X", "faulthandler", c.Bootstrap, mode},
		dir:   src.Dir,
		lock:  c.Lock,
		env:   Environ(c.Environ, src.Env),
		input: data,
		limit: c.Limit,
	}
	if run.limit == 0 {
		run.limit = CompileLimit
	}
	end, err := run.run(ctx)
	var unrunnable *keeper.Unrunnable
	switch {
	case err != nil && ctx.Err() != nil:
		return "", api.Errorf(api.CompileFailed, "cannot compile %s: given up", src.Target)
	case errors.Is(err, errStuck):
		return "", api.Errorf(api.CompileFailed, "cannot compile %s: %v", src.Target, err)
	case err != nil && !exists(src.Dir):
		return "", api.Errorf(api.Unloadable, "cannot compile %s: its project %s is not there", src.Target, src.Dir)
	case errors.As(err, &unrunnable):
		return "", api.Errorf(api.NoEnvironment, "cannot compile %s: %v", src.Target, unrunnable).
			WithHint("remove %s and run uv sync in %s", filepath.Join(src.Dir, ".venv"), filepath.Base(src.Dir))
	case err != nil:
		return "", api.Errorf(api.Internal, "cannot compile %s: %v", src.Target, err)
	case end.answer == nil:
		return "", src.silent(run, end)
	}
	if err := json.Unmarshal(end.answer, a); err != nil {
		return "", api.Errorf(api.Internal, "cannot read the answer of %s: %v", c.Bootstrap, err)
	}
	return end.output, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// failure is the error of an answer that is not ok.
func (a *answer) failure(output string) *api.Error {
	codes := []api.Code{api.CompileFailed, api.InvalidName, api.NoEnvironment, api.Unloadable, api.BadRequest, api.RecordFailed}
	e := &api.Error{Message: a.Error, Hint: a.Hint, Code: a.Code, Detail: detail(a.Traceback, output)}
	if !slices.Contains(codes, e.Code) {
		e.Code = api.CompileFailed
	}
	if e.Message == "" {
		e.Message = "the project did not compile, and did not say why"
	}
	if e.Hint == "" && len(a.Choices) > 0 {
		e.Hint = "choose one: " + strings.Join(a.Choices, ", ")
	}
	return e
}

func detail(traceback, output string) string {
	var parts []string
	for _, part := range []string{traceback, output} {
		if part = strings.TrimRight(part, "\n"); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "\n\n")
}

// silent is the error of a process that gave no answer: it took too long, it
// crashed, or it left on its own account.
func (s *Source) silent(run child, end *ending) *api.Error {
	printed, dump, dumped := strings.Cut(end.output, "Fatal Python error: ")
	var frames []frame
	if dumped {
		frames = s.frames(dump)
	}
	at := ""
	for i, f := range frames {
		if i == 0 || f.own {
			at = fmt.Sprintf(", in %s, line %s (%s)", f.file, f.line, f.function)
		}
		if f.own {
			break
		}
	}
	var trace strings.Builder
	for _, f := range slices.Backward(frames) { // as Python writes them, the innermost last
		if f.own {
			fmt.Fprintf(&trace, "  File %q, line %s, in %s\n", f.file, f.line, f.function)
		}
	}
	switch {
	case end.exit.Lost != "":
		return api.Errorf(api.CompileFailed, "cannot compile %s: %s", s.Target, end.exit.Lost)
	case end.timedOut:
		return &api.Error{
			Code:    api.CompileFailed,
			Message: fmt.Sprintf("cannot compile %s: it still runs after %v%s", s.Target, run.limit, at),
			Hint:    "what a module does when it is imported, and what the stream function does, holds up every load: work belongs into a node's setup or process",
			Detail:  detail(trace.String(), printed),
		}
	case end.exit.Signal != 0:
		return &api.Error{
			Code:    api.CompileFailed,
			Message: fmt.Sprintf("cannot compile %s: the interpreter was ended by %s%s", s.Target, unix.SignalName(end.exit.Signal), at),
			Detail:  detail(trace.String(), printed),
		}
	}
	// An interpreter that is too old says so in a line and leaves.
	if line := strings.TrimSpace(end.output); line != "" && !strings.Contains(line, "\n") {
		return api.Errorf(api.CompileFailed, "cannot compile %s: %s", s.Target, line)
	}
	return &api.Error{
		Code:    api.CompileFailed,
		Message: fmt.Sprintf("cannot compile %s: the interpreter exited with status %d before the stream was built", s.Target, end.exit.Code),
		Hint:    "a module that calls os._exit when it is imported does this",
		Detail:  detail("", end.output),
	}
}

// frame is one line of a faulthandler dump.
type frame struct {
	file, line, function string
	own                  bool // of the project, not of what it imports
}

var frameLine = regexp.MustCompile(`(?m)^  File "([^"]+)", line (\d+) in (.+)$`)

// frames reads a dump, the innermost frame first.
func (s *Source) frames(dump string) []frame {
	var frames []frame
	for _, m := range frameLine.FindAllStringSubmatch(dump, -1) {
		f := frame{file: m[1], line: m[2], function: m[3]}
		if relative, err := filepath.Rel(s.Dir, f.file); err == nil && filepath.IsLocal(relative) {
			f.own = !strings.HasPrefix(relative, ".venv"+string(filepath.Separator))
			f.file = relative
		}
		frames = append(frames, f)
	}
	return frames
}
