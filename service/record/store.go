package record

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/name"
)

const (
	suffix = ".json"
	// aside is appended to the file name of a record that cannot be read.
	aside = ".broken"
	// maxSize bounds what is read of one record, in bytes; a graph of a
	// thousand nodes takes less than one of them.
	maxSize = 16 << 20
)

// leftover matches the temporary files of a write that a crash cut off. A
// record's own name ends in ".json", so it never matches.
var leftover = regexp.MustCompile(`^\..*\.json\d+$`)

// Store is the folder of records. One process uses it at a time (tatolabd
// holds its lock); within it, methods may be called from any goroutine.
type Store struct {
	dir string

	mu     sync.Mutex
	orders map[string]uint64 // by name, of every record there is
}

// Entry is one name that the store holds, whether its record can be read or
// not. A name that is held is taken until Remove frees it.
type Entry struct {
	Name string
	// Record is nil where there is a record that cannot be used; Reason
	// then says why, and File which one it is.
	Record *Record
	Reason string
	File   string
	// Stays tells that such a record stands where another one would be
	// written: a newer version wrote it, or it could not be read or set
	// aside. Until Remove it must not be replaced.
	Stays bool
	// Gleaned is what could still be read of such a record (project,
	// snapshot, order, created), as far as it goes.
	Gleaned *Record
}

// Open makes the folder (0700) where there is none, and clears it of the
// temporary files of writes that a crash cut off.
func Open(dir string) (*Store, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("cannot make the folder of records: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot close the folder of records to others: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot read the folder of records: %w", err)
	}
	for _, f := range files {
		if leftover.MatchString(f.Name()) && f.Type().IsRegular() {
			// One that stays does no harm: it is never read.
			_ = os.Remove(filepath.Join(dir, f.Name()))
		}
	}
	return &Store{dir: dir, orders: map[string]uint64{}}, nil
}

// Load reads every record, in the order of creation. A record that cannot be
// parsed is moved aside, to NAME.json.broken, and stays listed until Remove.
// One that a newer version wrote, one that cannot be read and what is no plain
// file at all stay where they are, and are listed too. strays are the paths of
// what looks like a record and is none: its name is no stream's. The error is of
// the folder; no file makes one.
func (s *Store) Load() (list []Entry, strays []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read the folder of records: %w", err)
	}
	entries := map[string]Entry{}
	for _, f := range files {
		stream, ok := strings.CutSuffix(f.Name(), suffix)
		if !ok {
			continue
		}
		if name.Check(stream) != nil {
			strays = append(strays, filepath.Join(s.dir, f.Name()))
			continue
		}
		entries[stream] = s.read(stream, filepath.Join(s.dir, f.Name()))
	}
	for _, f := range files {
		stream, ok := strings.CutSuffix(f.Name(), suffix+aside)
		if _, taken := entries[stream]; !ok || taken || name.Check(stream) != nil {
			continue
		}
		entries[stream] = s.read(stream, filepath.Join(s.dir, f.Name()))
	}
	list = make([]Entry, 0, len(entries))
	for _, e := range entries {
		list = append(list, e)
		s.orders[e.Name] = e.order()
	}
	slices.SortFunc(list, func(a, b Entry) int {
		// Less one: an order that is not known, 0, comes last.
		return cmp.Or(cmp.Compare(a.order()-1, b.order()-1), a.created().Compare(b.created()), cmp.Compare(a.Name, b.Name))
	})
	return list, strays, nil
}

func (e Entry) order() uint64 {
	if e.Record != nil {
		return e.Record.Order
	}
	return e.Gleaned.Order
}

func (e Entry) created() time.Time {
	if e.Record != nil {
		return e.Record.Created
	}
	return e.Gleaned.Created
}

func (s *Store) read(stream, path string) Entry {
	entry := Entry{Name: stream, File: path, Gleaned: &Record{}, Stays: !strings.HasSuffix(path, aside)}
	data, err := readFile(path)
	if err != nil {
		entry.Reason = fmt.Sprintf("its record %s cannot be read: %v", path, err)
		return entry
	}
	r, err := Parse(data)
	if err == nil && r.Name != stream {
		err = fmt.Errorf("it names itself %s", r.Name)
	}
	isAside := strings.HasSuffix(path, aside)
	switch {
	case err == nil && !isAside:
		return Entry{Name: stream, File: path, Record: r}
	case err == nil:
		// Somebody mended it where it lies. It is not for the program to
		// take it back unasked: it says how.
		err = fmt.Errorf("it is whole again: name it %s, and restart the runtime", stream+suffix)
	case !errors.Is(err, errNewer) && !isAside:
		entry.File = s.setAside(path)
		entry.Stays = entry.File == path
	}
	entry.Gleaned = glean(data)
	entry.Reason = fmt.Sprintf("its record cannot be used: %v (%s)", err, entry.File)
	return entry
}

// setAside renames a record that cannot be parsed, so that nothing writes
// over it, and returns where it is now.
func (s *Store) setAside(path string) string {
	// RENAME_NOREPLACE: an older file of that name is as precious.
	if err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, path+aside, unix.RENAME_NOREPLACE); err != nil {
		return path // read-only, or taken: the record stays where it is
	}
	_ = syncDir(s.dir) // undone by a crash, it is done again at the next start
	return path + aside
}

// readFile reads a plain file. It neither waits for the writer of a FIFO nor
// follows a link out of the folder.
func readFile(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err == unix.ELOOP {
		return nil, errors.New("it is a symbolic link, not a file")
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("it is no file (%s)", info.Mode())
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(data) > maxSize {
		err = fmt.Errorf("it is larger than %d MiB", maxSize>>20)
	}
	return data, err
}

// Write makes r the record of its stream, in place of the one there is. It
// sets r.Version and r.Order. When it returns nil the record is on disk. After
// an error (RecordFailed) what was there before is whole; only where the error
// is of the folder's fsync the new one, whole too, may stand in its place.
func (s *Store) Write(r *Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := s.orders[r.Name]
	if order == 0 {
		for _, o := range s.orders {
			order = max(order, o)
		}
		order++
	}
	written := *r
	written.Version, written.Order = Version, order
	if err := s.write(&written); err != nil {
		return api.Errorf(api.RecordFailed, "the record of %s cannot be written: %v", r.Name, err)
	}
	s.orders[r.Name] = order
	r.Version, r.Order = Version, order
	return nil
}

func (s *Store) write(r *Record) error {
	if err := r.Check(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	// Somebody may have cleared out the state folder under us.
	if err := makeDir(s.dir); err != nil {
		return err
	}
	path := filepath.Join(s.dir, r.Name+suffix)
	// The temporary file lies beside the record: a rename never crosses a
	// file system then.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(s.dir), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }()
	if _, err := f.Write(append(data, '\n')); err != nil {
		return err
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// Remove forgets the stream: its record, and what was set aside under its
// name. Where there is nothing it returns nil.
func (s *Store) Remove(stream string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := name.Check(stream); err != nil {
		return api.Errorf(api.InvalidName, "%v", err)
	}
	path := filepath.Join(s.dir, stream+suffix)
	// What is aside goes first: as long as the record is there the name is
	// listed, and can be removed again.
	for _, file := range []string{path + aside, path} {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			return api.Errorf(api.RecordFailed, "the record of %s cannot be removed: %v", stream, err)
		}
	}
	if err := syncDir(s.dir); err != nil {
		return api.Errorf(api.RecordFailed, "the record of %s cannot be removed: %v", stream, err)
	}
	delete(s.orders, stream)
	return nil
}

// syncDir makes the names in a folder durable: fsync(2) of a file does not.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// makeDir is os.MkdirAll whose folders are durable.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, os.ErrNotExist) {
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	if errors.Is(err, os.ErrExist) {
		if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return syncDir(filepath.Dir(dir))
}
