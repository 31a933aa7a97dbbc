// Package python holds the tatolab.stream package and lends it: tatolabd
// writes the files into a folder of its build, and the interpreters of
// projects import them from there, whatever their .venv holds.
package python

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"tatolab.com/tatolab/service/build"
)

// Without "all:" names that begin with "_" are left out, the patterns below
// name them; __pycache__ is no match of any.
//
// Where it was built, core.abi3.so.
//
//go:embed src/tatolab/stream/*.py src/tatolab/stream/py.typed
//go:embed src/tatolab/stream/_*/*.py
//go:embed src/tatolab/stream/_datapath/core.*
var source embed.FS

const (
	root      = "src"
	bootstrap = "tatolab/stream/_lend/bootstrap.py"
	// buildID is read by the node host, which says it in its hello.
	buildID = "tatolab/stream/_lend/build_id"
)

// Hash identifies the content of the package.
func Hash() string {
	digest := sha256.New()
	for _, f := range files() {
		fmt.Fprintf(digest, "%s\x00%d\x00", f.name, len(f.data))
		digest.Write(f.data)
	}
	return hex.EncodeToString(digest.Sum(nil))[:32]
}

// Lend makes dir hold the package and returns the path of the program to run
// with a project's interpreter. A folder that already holds exactly this
// package is left as it is; any other is replaced as a whole, so that an
// interpreter never sees half of it.
func Lend(dir string) (string, error) {
	program := filepath.Join(dir, bootstrap)
	if complete(dir) {
		return program, nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", fmt.Errorf("cannot lend the Python package: %w", err)
	}
	building, err := os.MkdirTemp(parent, ".python-")
	if err != nil {
		return "", fmt.Errorf("cannot lend the Python package: %w", err)
	}
	defer os.RemoveAll(building)
	for _, f := range files() {
		path := filepath.Join(building, f.name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, f.data, 0o600)); err != nil {
			return "", fmt.Errorf("cannot lend the Python package: %w", err)
		}
	}
	// A folder cannot be renamed over one that is not empty.
	aside := building + ".old"
	if err := os.Rename(dir, aside); err == nil {
		defer os.RemoveAll(aside)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("cannot replace the lent Python package: %w", err)
	}
	if err := os.Rename(building, dir); err != nil {
		return "", fmt.Errorf("cannot lend the Python package: %w", err)
	}
	return program, nil
}

// complete tells whether dir holds every file as it should be. What else is
// there (an interpreter's __pycache__) does not matter.
func complete(dir string) bool {
	for _, f := range files() {
		data, err := os.ReadFile(filepath.Join(dir, f.name))
		if err != nil || !bytes.Equal(data, f.data) {
			return false
		}
	}
	return true
}

type file struct {
	name string // relative, below the folder to put on sys.path
	data []byte
}

// files lists the package in lexical order, and the build id with it.
func files() []file {
	var all []file
	err := fs.WalkDir(source, root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, ".c") {
			return err
		}
		data, err := source.ReadFile(path)
		all = append(all, file{strings.TrimPrefix(path, root+"/"), data})
		return err
	})
	if err != nil {
		panic(fmt.Sprintf("the embedded Python package cannot be read: %v", err)) // the linker put it there
	}
	return append(all, file{buildID, []byte(build.ID() + "\n")})
}
