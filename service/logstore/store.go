// Package logstore keeps the logs of streams and of the runtime: records in
// rotated files of one JSON object a line, followers that see them as they
// come, and the systemd journal where there is one.
//
// Append never waits: not for the disk, not for a follower, not for the
// journal or a terminal that is held. What is too slow loses records, and is
// told how many.
package logstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/name"
)

const (
	// rotateSize is how large a file may become, in bytes, and rotations how
	// many older ones are kept beside it: together the bound of one log.
	rotateSize = 4 << 20
	rotations  = 3
	// flushDelay is how long records are gathered before they are written.
	flushDelay = 25 * time.Millisecond
	// maxPending is how many bytes of a log may wait for a slow disk.
	maxPending = 1 << 20
	// followerQueue is how many records may wait for a slow follower.
	followerQueue = 1024
	// closeTimeout is how long Close waits for the journal and the terminal.
	closeTimeout = time.Second
)

// Options of a store.
type Options struct {
	// Dir is the folder of the files, made when first needed.
	Dir string
	// Journal sends every record to the systemd journal too.
	Journal bool
	// Warn is told, once, that records of a log cannot be written, and once
	// that they can again. It may log.
	Warn func(message string)
}

// Store is all the logs there are. Its methods may be called from any
// goroutine.
type Store struct {
	dir     string
	warn    func(string)
	journal *pump // nil without one
	console pump  // the runtime's own stderr, see Handler

	dirty   chan struct{}
	closing chan struct{} // closed by Close
	flusher sync.WaitGroup

	mu     sync.Mutex
	logs   map[string]*log
	closed bool
}

// Open returns the store of a folder. Nothing is read or written yet.
func Open(o Options) *Store {
	s := &Store{
		dir:     o.Dir,
		warn:    o.Warn,
		dirty:   make(chan struct{}, 1),
		closing: make(chan struct{}),
		logs:    make(map[string]*log),
	}
	if s.warn == nil {
		s.warn = func(string) {}
	}
	s.console.start()
	if o.Journal {
		s.journal = new(pump)
		s.journal.start()
	}
	s.flusher.Go(s.flush)
	return s
}

// log is the log of one stream, or with an empty name the runtime's.
type log struct {
	store *Store
	path  string

	files   sync.Mutex // of the files and the fields below; locked before mu
	lost    int        // records that could not be written
	failure error      // why, nil while writing works

	mu        sync.Mutex
	pending   []byte
	dropped   int // records that found pending full
	followers map[*follower]struct{}
}

// log finds or makes a log. An invalid name has none.
func (s *Store) log(stream string) (*log, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.logs[stream]; l != nil {
		return l, nil
	}
	if s.closed {
		return nil, errors.New("the logs are closed")
	}
	file := "runtime"
	switch {
	case stream == file:
		// The runtime's own log has the name already. No other stream is
		// written in capitals.
		file = "RUNTIME"
	case stream != "":
		if err := name.Check(stream); err != nil {
			return nil, err
		}
		file = stream
	}
	l := &log{store: s, path: filepath.Join(s.dir, file+".log"), followers: make(map[*follower]struct{})}
	s.logs[stream] = l
	return l, nil
}

// Append adds a record to the log of r.Stream, the runtime's own if that is
// empty.
func (s *Store) Append(r api.Record) {
	if r.Time.IsZero() {
		r.Time = time.Now()
	}
	s.append(r.Stream, r)
	s.toJournal(r, "")
}

func (s *Store) append(stream string, r api.Record) {
	l, err := s.log(stream)
	if err != nil {
		return
	}
	line := encode(r)
	l.mu.Lock()
	if len(l.pending)+len(line) > maxPending {
		l.dropped++
	} else {
		l.pending = append(l.pending, line...)
	}
	for f := range l.followers {
		f.offer(r)
	}
	l.mu.Unlock()
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

func encode(r api.Record) []byte {
	line, err := json.Marshal(r)
	if err != nil { // a field that JSON has no word for
		r.Fields = map[string]any{"fields": fmt.Sprint(r.Fields)}
		line, _ = json.Marshal(r)
	}
	return append(line, '\n')
}

// flush is the goroutine that writes.
func (s *Store) flush() {
	for {
		select {
		case <-s.dirty:
			select {
			case <-time.After(flushDelay):
			case <-s.closing:
			}
			for _, l := range s.all() {
				l.files.Lock()
				l.write()
				l.files.Unlock()
			}
		case <-s.closing:
			for _, l := range s.all() {
				l.files.Lock()
				l.write()
				l.files.Unlock()
			}
			return
		}
	}
}

func (s *Store) all() []*log {
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := make([]*log, 0, len(s.logs))
	for _, l := range s.logs {
		logs = append(logs, l)
	}
	return logs
}

// batch is records to be written.
type batch struct {
	lines   []byte
	dropped int // records that are missing after them
}

// take takes what is pending. l.mu is locked.
func (l *log) take() batch {
	b := batch{l.pending, l.dropped}
	l.pending, l.dropped = nil, 0
	return b
}

// write writes what is pending. l.files is locked.
func (l *log) write() {
	l.mu.Lock()
	b := l.take()
	l.mu.Unlock()
	l.writeOut(b)
}

// writeOut writes a batch. l.files is locked.
func (l *log) writeOut(b batch) {
	if len(b.lines) == 0 && b.dropped == 0 {
		return
	}
	data := b.lines
	if l.lost > 0 {
		data = slices.Concat(encode(incomplete(l.lost, fmt.Sprint("they could not be written: ", api.Reason(l.failure)))), data)
	}
	if b.dropped > 0 {
		data = slices.Concat(data, encode(incomplete(b.dropped, "the disk was too slow")))
	}
	if err := l.put(data); err != nil {
		l.lost += bytes.Count(b.lines, []byte{'\n'}) + b.dropped
		if l.failure == nil {
			l.failure = err
			l.store.warn(fmt.Sprintf("cannot write to %s: %v; its records are lost until that changes", l.path, err))
		}
		return
	}
	l.lost = 0
	if l.failure != nil {
		l.failure = nil
		l.store.warn(fmt.Sprintf("%s is written to again", l.path))
	}
}

func incomplete(n int, why string) api.Record {
	return api.Record{Time: time.Now(), Level: "warn", Message: fmt.Sprintf("%d records are missing here: %s", n, why)}
}

// put appends data to the file, all of it or nothing. Between batches no file is
// open: there may be any number of logs, and somebody may move them.
func (l *log) put(data []byte) error {
	f, size, err := l.open()
	if err != nil {
		return err
	}
	if size > 0 && size+int64(len(data)) > rotateSize {
		f.Close()
		for i := rotations; i > 0; i-- {
			if err := os.Rename(l.rotated(i-1), l.rotated(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		if f, size, err = l.open(); err != nil {
			return err
		}
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		_ = f.Truncate(size) // half a line would spoil the next
		return err
	}
	return nil
}

func (l *log) rotated(i int) string {
	if i == 0 {
		return l.path
	}
	return fmt.Sprintf("%s.%d", l.path, i)
}

// open opens the file, and returns its size in bytes.
func (l *log) open() (f *os.File, size int64, err error) {
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return nil, 0, err
	}
	if f, err = os.OpenFile(l.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	// A runtime that lost its power may have left half a line.
	last := make([]byte, 1)
	if size > 0 && err == nil {
		if _, err = f.ReadAt(last, size-1); err == nil && last[0] != '\n' {
			_, err = f.WriteString("\n")
			size++
		}
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, size, nil
}

// Read returns the records of a log that f chooses, oldest first. A log that
// nothing was written to is empty.
func (s *Store) Read(stream string, f api.LogFilter) ([]api.Record, error) {
	l, err := s.log(stream)
	if err != nil {
		return nil, fmt.Errorf("cannot read the log of %s: %w", stream, err)
	}
	l.files.Lock()
	l.write()
	files, err := l.openAll()
	l.files.Unlock()
	if err != nil {
		return nil, err
	}
	return read(files, f)
}

// openAll opens the files of a log as they are now, newest first. Rotation
// does not disturb who reads them.
func (l *log) openAll() ([]io.ReadCloser, error) {
	var files []io.ReadCloser
	for i := range rotations + 1 {
		f, err := os.Open(l.rotated(i))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			closeFiles(files)
			return nil, fmt.Errorf("cannot read a log: %w", err)
		}
		part := io.Reader(f)
		if i == 0 { // which grows once l.files is unlocked
			info, err := f.Stat()
			if err != nil {
				closeFiles(append(files, f))
				return nil, fmt.Errorf("cannot read a log: %w", err)
			}
			part = io.LimitReader(f, info.Size())
		}
		files = append(files, struct {
			io.Reader
			io.Closer
		}{part, f})
	}
	return files, nil
}

func closeFiles(files []io.ReadCloser) {
	for _, f := range files {
		f.Close()
	}
}

// read takes records from the end of the newest file backwards, until there
// are enough.
func read(files []io.ReadCloser, f api.LogFilter) ([]api.Record, error) {
	defer closeFiles(files)
	var records []api.Record // newest first
	for _, file := range files {
		data, err := io.ReadAll(file)
		if err != nil {
			return nil, fmt.Errorf("cannot read a log: %w", err)
		}
		for len(data) > 0 && (f.Last == 0 || len(records) < f.Last) {
			end := len(data)
			if data[end-1] == '\n' {
				end--
			}
			start := bytes.LastIndexByte(data[:end], '\n') + 1
			var r api.Record
			if json.Unmarshal(data[start:end], &r) == nil && chosen(r, f) { // else a torn line
				records = append(records, r)
			}
			data = data[:start]
		}
	}
	slices.Reverse(records)
	return records, nil
}

func chosen(r api.Record, f api.LogFilter) bool {
	if f.Node != "" && f.Node != r.Node {
		return false
	}
	return f.Level == "" || slices.Index(api.Levels, r.Level) >= slices.Index(api.Levels, f.Level)
}

// Follow yields the records that f chooses, those there are (the last f.Last;
// 0 is all, a negative number none) and then every new one, none twice and none
// left out. The channel is closed when ctx ends, the log is removed or the
// store is closed. Who reads too slowly loses records; a record of level warn
// says how many.
func (s *Store) Follow(ctx context.Context, stream string, f api.LogFilter) (<-chan api.Record, error) {
	l, err := s.log(stream)
	if err != nil {
		return nil, fmt.Errorf("cannot follow the log of %s: %w", stream, err)
	}
	fo := &follower{filter: f, wake: make(chan struct{}, 1)}
	l.files.Lock()
	l.mu.Lock()
	l.followers[fo] = struct{}{}
	before := l.take() // all that fo is not offered
	l.mu.Unlock()
	l.writeOut(before)
	var past []io.ReadCloser
	if f.Last >= 0 {
		past, err = l.openAll()
	}
	l.files.Unlock()
	if err != nil {
		l.mu.Lock()
		delete(l.followers, fo)
		l.mu.Unlock()
		return nil, err
	}
	out := make(chan api.Record)
	go func() {
		defer close(out)
		defer func() {
			l.mu.Lock()
			delete(l.followers, fo)
			l.mu.Unlock()
		}()
		records, err := read(past, f)
		if err != nil {
			records = []api.Record{{Time: time.Now(), Level: "warn", Message: err.Error()}}
		}
		if s.give(ctx, out, records) {
			fo.run(ctx, s, l, out)
		}
	}()
	return out, nil
}

// give sends records; false: the reader or the store has gone.
func (s *Store) give(ctx context.Context, out chan<- api.Record, records []api.Record) bool {
	for _, r := range records {
		select {
		case out <- r:
		case <-ctx.Done():
			return false
		case <-s.closing:
			return false
		}
	}
	return true
}

// follower is one reader of new records. log.mu guards it.
type follower struct {
	filter api.LogFilter
	queue  []api.Record
	lost   int
	ended  bool
	wake   chan struct{}
}

func (f *follower) offer(r api.Record) {
	if !chosen(r, f.filter) {
		return
	}
	// Once one is lost all are, until the reader has taken what waits: the
	// record that says so then stands where they are missing.
	if len(f.queue) >= followerQueue || f.lost > 0 {
		f.lost++
	} else {
		f.queue = append(f.queue, r)
	}
	f.poke()
}

func (f *follower) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *follower) run(ctx context.Context, s *Store, l *log, out chan<- api.Record) {
	for {
		l.mu.Lock()
		batch, lost, ended := f.queue, f.lost, f.ended
		f.queue, f.lost = nil, 0
		l.mu.Unlock()
		if lost > 0 {
			batch = append(batch, incomplete(lost, "they came faster than they were read"))
		}
		if !s.give(ctx, out, batch) || ended {
			return
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return
		case <-s.closing:
			return
		}
	}
}

// Remove deletes a log and ends its followers. What is appended later begins a
// new one.
func (s *Store) Remove(stream string) error {
	l, err := s.log(stream)
	if err != nil {
		return fmt.Errorf("cannot remove the log of %s: %w", stream, err)
	}
	s.mu.Lock()
	delete(s.logs, stream)
	s.mu.Unlock()
	l.files.Lock()
	defer l.files.Unlock()
	l.mu.Lock()
	l.pending = nil
	for f := range l.followers {
		f.ended = true
		f.poke()
	}
	l.mu.Unlock()
	var errs []error
	for i := range rotations + 1 {
		if err := os.Remove(l.rotated(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Close writes what is pending, and ends all followers.
// Nothing is logged afterwards.
func (s *Store) Close() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.mu.Unlock()
	close(s.closing)
	s.flusher.Wait()
	s.console.stop(closeTimeout)
	if s.journal != nil {
		s.journal.stop(closeTimeout)
	}
}
