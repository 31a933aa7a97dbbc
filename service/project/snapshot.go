package project

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"tatolab.com/tatolab/service/api"
)

// Snapshots is a folder of code snapshots (docs/compile-protocol.md): each a
// folder named by the hash of what it holds, never changed once it is there.
// A snapshot stays as long as somebody holds it.
type Snapshots struct {
	root string
	// durable snapshots are on disk before their hash is given out: a
	// record names them.
	durable bool

	// compiling is held for reading while a process may write below root or
	// find a snapshot there.
	compiling sync.RWMutex
	mu        sync.Mutex
	holds     map[string]int
}

// NewSnapshots returns the snapshots in a folder that exists.
func NewSnapshots(root string, durable bool) *Snapshots {
	return &Snapshots{root: root, durable: durable, holds: map[string]int{}}
}

// Path is the folder of a snapshot.
func (s *Snapshots) Path(hash string) string { return filepath.Join(s.root, hash) }

// Hold keeps a snapshot until Release is called as often.
func (s *Snapshots) Hold(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[hash]++
}

// Release gives up one hold. What nobody holds goes at the next Collect.
func (s *Snapshots) Release(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[hash]--; s.holds[hash] <= 0 {
		delete(s.holds, hash)
	}
}

// Collect removes every snapshot that nobody holds, and what compilations that
// were cut off left behind. While something compiles it does nothing: the
// next call will. At the start of the runtime, hold what the records name
// first, those of records that cannot be used included.
func (s *Snapshots) Collect() error {
	if !s.compiling.TryLock() {
		return nil
	}
	defer s.compiling.Unlock()
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return fmt.Errorf("cannot clear out old snapshots: %w", err)
	}
	var failed []error
	for _, entry := range entries {
		s.mu.Lock()
		held := s.holds[entry.Name()] > 0
		s.mu.Unlock()
		if held {
			continue
		}
		// Its name goes first: a snapshot of which half is removed must not
		// be taken for a whole one.
		gone := filepath.Join(s.root, ".gone")
		err := os.RemoveAll(gone)
		if err == nil && entry.Name() != ".gone" {
			err = os.Rename(s.Path(entry.Name()), gone)
		}
		if err == nil {
			err = os.RemoveAll(gone)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("cannot remove the old snapshot %s: %w", entry.Name(), err))
		}
	}
	return errors.Join(failed...)
}

// manifest is manifest.json of a snapshot.
type manifest struct {
	Version int `json:"version"`
	Modules map[string]struct {
		File    string `json:"file"`
		Origin  string `json:"origin"`
		Package bool   `json:"package"`
	} `json:"modules"`
}

func (s *Snapshots) manifest(hash string) (*manifest, error) {
	data, err := os.ReadFile(filepath.Join(s.Path(hash), "manifest.json"))
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path(hash), err)
	}
	return &m, nil
}

// Check returns an error unless the snapshot is there and whole, so far as the
// names of its files tell.
func (s *Snapshots) Check(hash string) error {
	m, err := s.manifest(hash)
	if err == nil {
		for _, module := range m.Modules {
			if _, err = os.Stat(filepath.Join(s.Path(hash), "files", module.File)); err != nil {
				break
			}
		}
	}
	if err != nil {
		return api.Errorf(api.Unloadable, "the snapshot of its code is damaged or gone: %v", err).
			WithHint("`tatolab run -d` in its project keeps it anew")
	}
	return nil
}

// Differs lists the project files, as the manifest names them, that are no
// longer on disk what the snapshot holds.
func (s *Snapshots) Differs(hash string) ([]string, error) {
	m, err := s.manifest(hash)
	if err != nil {
		return nil, fmt.Errorf("cannot compare with the disk: %w", err)
	}
	var files []string
	for _, module := range m.Modules {
		kept, err := os.ReadFile(filepath.Join(s.Path(hash), "files", module.File))
		if err != nil {
			return nil, fmt.Errorf("cannot compare with the disk: %w", err)
		}
		if now, err := os.ReadFile(module.Origin); err != nil || !bytes.Equal(now, kept) {
			files = append(files, module.File)
		}
	}
	slices.Sort(files)
	return files, nil
}

// sync puts a snapshot on disk.
func (s *Snapshots) sync(hash string) error {
	err := filepath.WalkDir(s.Path(hash), func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return fsync(path)
	})
	return errors.Join(err, fsync(s.root))
}

func fsync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
