// Package record holds the records of kept streams: one file a stream, which
// is what makes it kept. A write or removal that returned without an error
// survives any crash after it; one that failed leaves what was there before.
package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/name"
)

// Version is the version of the records written here. A record of a newer one
// is left as it is: the program that wrote it may come back.
const Version = 1

// Record is a kept stream: what was built, from what, and how it fared.
type Record struct {
	// What helps even when the rest of the file is lost stands first.

	Version int    `json:"version"`
	Name    string `json:"name"`
	// Order is the place of the stream in listings. The store gives it, and
	// keeps it when a record is replaced. (Clocks go backwards, most of all
	// on machines that have no battery for theirs.)
	Order    uint64    `json:"order"`
	Snapshot string    `json:"snapshot"` // hash of the code it runs
	Project  string    `json:"project"`  // absolute folder
	Created  time.Time `json:"created"`

	Interpreter string `json:"interpreter"` // absolute path of .venv/bin/python
	// Target is the stream function: "file.py:function", the file relative
	// to Project, or "module:function".
	Target   string `json:"target"`
	CodeHash string `json:"code_hash"`
	Stopped  bool   `json:"stopped"`
	Failed   string `json:"failed"`  // why it is no longer loaded, or ""
	Crashes  int    `json:"crashes"` // of the runtime, in a row, with this stream involved
	// Env is what --env gave, ProjectEnv what pyproject.toml gave when the
	// stream was kept. Env wins.
	Env        map[string]string `json:"env,omitempty"`
	ProjectEnv map[string]string `json:"project_env,omitempty"`
	// Rulings are the levels set by `tatolab expose`. They outlive a
	// replacement of the graph.
	Rulings []graph.Exposure       `json:"rulings,omitempty"`
	Graph   *graph.Graph           `json:"graph"`
	Nodes   map[string]graph.Class `json:"nodes"`
}

// errNewer is the error of a record that a newer program wrote.
var errNewer = errors.New("written by a newer version")

// Parse reads a record and checks it. A field it does not know is refused by
// name: what a newer program wrote must not be half understood.
func Parse(data []byte) (*Record, error) {
	// The version first, and alone: all else may mean something different
	// in another one.
	var v struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return nil, err
	}
	switch {
	case v.Version == nil:
		return nil, errors.New("it has no version")
	case *v.Version > Version:
		return nil, fmt.Errorf("%w: it is of version %d, this tatolabd reads up to %d", errNewer, *v.Version, Version)
	case *v.Version < 1:
		return nil, fmt.Errorf("there is no version %d", *v.Version)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	var r Record
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("there is more after its end")
	}
	return &r, r.Check()
}

// Check returns the first thing that makes r no record.
func (r *Record) Check() error {
	if err := name.Check(r.Name); err != nil {
		return err
	}
	if r.Graph == nil {
		return errors.New("it has no graph")
	}
	if err := r.Graph.Check(); err != nil {
		return err
	}
	if r.Graph.Stream != r.Name {
		return fmt.Errorf("its graph is that of %s", r.Graph.Stream)
	}
	for _, n := range r.Graph.Nodes {
		if _, ok := r.Nodes[n.Name]; !ok {
			return fmt.Errorf("it says nothing of node %s but its graph has it", n.Name)
		}
	}
	for _, path := range []string{r.Project, r.Interpreter} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("%q is no absolute path", path)
		}
	}
	if _, function, ok := strings.Cut(r.Target, ":"); !ok || function == "" {
		return fmt.Errorf("target %q names no function", r.Target)
	}
	if r.Snapshot != "" && filepath.Base(r.Snapshot) != r.Snapshot || r.Snapshot == ".." {
		return fmt.Errorf("snapshot %q is no hash", r.Snapshot)
	}
	for _, e := range r.Rulings {
		if !e.Level.Valid() {
			return fmt.Errorf("ruling on %s/%s: level %q is none of internal, private, public", e.Node, e.Port, e.Level)
		}
	}
	for _, env := range []map[string]string{r.Env, r.ProjectEnv} {
		for key, value := range env {
			if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(value, "\x00") {
				return fmt.Errorf("%q is no variable of an environment", key)
			}
		}
	}
	return nil
}

// glean reads what it can of a record that Parse refused: the fields up to
// the first that is damaged.
func glean(data []byte) *Record {
	var r Record
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return &r
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			break
		}
		var value json.RawMessage
		if d.Decode(&value) != nil {
			break
		}
		// A value of another type than expected leaves its zero: nothing
		// here is relied on.
		switch key {
		case "order":
			_ = json.Unmarshal(value, &r.Order)
		case "snapshot":
			_ = json.Unmarshal(value, &r.Snapshot)
		case "project":
			_ = json.Unmarshal(value, &r.Project)
		case "created":
			_ = json.Unmarshal(value, &r.Created)
		}
	}
	return &r
}
