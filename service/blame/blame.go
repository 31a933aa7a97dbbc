// Package blame says which streams a crash of the runtime is counted against.
//
// Three things are evidence, all of them on disk before the process is gone:
//
//   - Marks. Work that is done for one stream alone runs under Do, which marks
//     the stream in a page that is mapped from a file: whatever becomes of the
//     process, the kernel keeps it.
//   - The trace. A crashing Go program prints the goroutine that crashed, into
//     a file of ours too (debug.SetCrashOutput). Do labels its goroutine, and
//     with it all that it starts, with the stream, and the trace prints labels.
//   - The service manager. ExecStopPost= of the unit leaves $SERVICE_RESULT,
//     $EXIT_CODE and $EXIT_STATUS (systemd.exec(5)) in a file.
//
// Open reads what the last run left and judges it. A plain SIGKILL, or power
// that failed, blames nobody.
package blame

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Files in the state folder.
const (
	pageFile  = "marks"
	crashFile = "crash.log"
	// lastCrashFile is the crash output of the last run that had one, for a
	// person to read.
	lastCrashFile = "crash.log.1"
)

// The page: a header, then slots. All numbers are of the machine's byte order;
// only the same machine reads it.
const (
	pageSize   = 64 << 10
	magic      = "tatomrk1"
	cleanAt    = len(magic) // uint32: 1 after MarkClean
	slotsAt    = 128
	slotSize   = 128
	slotCount  = (pageSize - slotsAt) / slotSize
	nameAt     = 8 // in a slot, after its uint32 of marks and uint32 of the name's length
	nameLength = slotSize - nameAt
)

// labelKey is the goroutine label that names the stream.
const labelKey = "stream"

// Verdict is what is known of how the last run ended.
type Verdict struct {
	Clean   bool // it said goodbye, or there was none
	Crashed bool
	// Cause says how it ended, "" if it was clean.
	Cause string
	// Guilty is the stream the crash is counted against, if there is one.
	Guilty []string
	// Suspects are several streams of which it may be any: whoever loads
	// them does so one after another, so that the next crash tells.
	Suspects []string
	// Trace is the file with the output of the crash, "" without one.
	Trace string
}

// Unknown says that the last run ended in a way that blames nobody and
// forgives nobody: SIGKILL, or power that failed.
func (v Verdict) Unknown() bool { return !v.Clean && !v.Crashed }

// Page is where marks are made. A nil Page makes none.
type Page struct {
	mem []byte

	mu    sync.Mutex
	slots map[string]*slot
	free  []int
}

type slot struct{ index, marks int }

// Open judges the last run by the files in the folder state and by
// serviceResult, the file that ExecStopPost= writes, and begins a new run.
// Only one process at a time may have a folder open; the lock of the runtime
// sees to that.
func Open(state, serviceResult string) (*Page, Verdict, error) {
	e := evidence{first: true}
	old, err := os.ReadFile(filepath.Join(state, pageFile))
	switch {
	case err == nil:
		e.readPage(old)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, Verdict{}, fmt.Errorf("cannot read what the last run left: %w", err)
	}
	crash := filepath.Join(state, crashFile)
	if output, err := os.ReadFile(crash); err == nil {
		e.output = string(output)
	}
	if result, err := os.ReadFile(serviceResult); err == nil {
		e.result = strings.TrimSpace(string(result))
	}
	verdict := e.judge()

	if e.output != "" {
		last := filepath.Join(state, lastCrashFile)
		if err := os.Rename(crash, last); err != nil {
			return nil, verdict, fmt.Errorf("cannot keep the crash output of the last run: %w", err)
		}
		if verdict.Crashed {
			verdict.Trace = last
		}
	}
	p, err := begin(state)
	if err != nil {
		return nil, verdict, err
	}
	// Last: who fails before this line judges again the next time.
	if err := os.Remove(serviceResult); err != nil && !errors.Is(err, fs.ErrNotExist) {
		p.Close()
		return nil, verdict, fmt.Errorf("cannot remove the result of the last run: %w", err)
	}
	return p, verdict, nil
}

// begin makes an empty page and directs crash output into an empty file.
func begin(state string) (*Page, error) {
	output, err := os.OpenFile(filepath.Join(state, crashFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make the file for crash output: %w", err)
	}
	defer output.Close() // what is needed of it is duplicated
	file, err := os.OpenFile(filepath.Join(state, pageFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make the page of marks: %w", err)
	}
	defer file.Close() // a mapping needs no descriptor
	// Written rather than truncated to its size: on a full disk a page without
	// blocks would be a SIGBUS at the first mark.
	empty := make([]byte, pageSize)
	copy(empty, magic)
	if _, err := file.WriteAt(empty, 0); err != nil {
		return nil, fmt.Errorf("cannot make the page of marks: %w", err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("cannot map the page of marks: %w", err)
	}
	// Go 1.26 prints labels in traces if asked to, and listens to the variable
	// while it runs; it is no setting for //go:debug.
	godebug := "tracebacklabels=1"
	if set := os.Getenv("GODEBUG"); set != "" {
		godebug = set + "," + godebug
	}
	err = errors.Join(os.Setenv("GODEBUG", godebug), debug.SetCrashOutput(output, debug.CrashOptions{}))
	if err != nil {
		unix.Munmap(mem)
		return nil, fmt.Errorf("cannot have crash output: %w", err)
	}
	p := &Page{mem: mem, slots: make(map[string]*slot)}
	for i := slotCount - 1; i >= 0; i-- {
		p.free = append(p.free, i)
	}
	return p, nil
}

// Do runs work that is done for one stream, with its mark standing, and returns
// when it has returned. Calls may be nested and at the same time.
//
// The work runs on a goroutine of its own. So labels of the caller's stay as
// they are; and a panic ends the process whatever would recover it further up:
// the locks that such work holds make a runtime that goes on worth nothing. A
// mark stands until the work returns, so it stands in a crash. The work must
// not call runtime.Goexit (testing.T.FailNow does).
func (p *Page) Do(stream string, work func()) {
	p.mark(stream, 1)
	done := make(chan struct{})
	go func() {
		// Neither is undone by a deferred call: that would come before the
		// crash. (pprof.Do defers.)
		pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels(labelKey, stream)))
		work()
		close(done)
	}()
	<-done
	p.mark(stream, -1)
}

// mark adds n marks to a stream. Without a free slot there is none: then too
// many streams are marked for one to be guilty.
func (p *Page) mark(stream string, n int) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	s := p.slots[stream]
	if s == nil {
		if n < 0 || len(p.free) == 0 || len(stream) > nameLength {
			return
		}
		s = &slot{index: p.free[len(p.free)-1]}
		p.free = p.free[:len(p.free)-1]
		p.slots[stream] = s
		at := slotsAt + s.index*slotSize
		copy(p.mem[at+nameAt:], stream)
		atomic.StoreUint32(p.word(at+4), uint32(len(stream)))
	}
	s.marks += n
	atomic.StoreUint32(p.word(slotsAt+s.index*slotSize), uint32(s.marks))
	if s.marks == 0 {
		delete(p.slots, stream)
		p.free = append(p.free, s.index)
	}
}

func (p *Page) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&p.mem[at])) }

// MarkClean notes, on disk, that the runtime ends because it was told to.
func (p *Page) MarkClean() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return
	}
	atomic.StoreUint32(p.word(cleanAt), 1)
	_ = unix.Msync(p.mem, unix.MS_SYNC) // without it the page is still the kernel's to write
}

// Close ends marks and crash output.
func (p *Page) Close() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem != nil {
		_ = debug.SetCrashOutput(nil, debug.CrashOptions{})
		unix.Munmap(p.mem)
		p.mem = nil
	}
}
