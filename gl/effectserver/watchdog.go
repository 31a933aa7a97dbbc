package effectserver

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/control"
)

// DrawLimit is how long a draw may take. Tests on an emulated machine raise it.
var DrawLimit = 2 * time.Second

const (
	// moveRate is the bytes a second that moving a draw's picture in or out is
	// given besides.
	moveRate = 64 << 20
	// compileLimit is for a compilation, its first draw included.
	compileLimit = 10 * time.Second
)

// limit is how long a request may take.
func (s *server) limit(r *request) time.Duration {
	var width, height int
	switch {
	case r.Kind == "compile":
		return compileLimit
	case r.From != nil:
		width, height = r.From.Width, r.From.Height
	case s.pictures[r.Source] != nil:
		width, height = s.pictures[r.Source].texture.Width, s.pictures[r.Source].texture.Height
	case s.pictures[r.Picture] != nil:
		width, height = s.pictures[r.Picture].texture.Width, s.pictures[r.Picture].texture.Height
	}
	if most := s.greeting.MaxExtent; width < 0 || height < 0 || width > most || height > most {
		return DrawLimit // it will be refused
	}
	return DrawLimit + time.Duration(4*width*height)*time.Second/moveRate
}

// watchdog ends the process when a request takes too long: OpenGL has no way
// to end it alone. The runtime reads from the page whom that was for, and whom
// the process served when it crashed.
type watchdog struct {
	page *atomic.Uint64 // the id of the connection that is served, 0 for none

	mu       sync.Mutex
	serving  *connection
	request  uint64
	limit    time.Duration
	deadline time.Time
	timer    *time.Timer
}

func newWatchdog(page *atomic.Uint64) *watchdog {
	w := &watchdog{page: page}
	w.timer = time.AfterFunc(time.Hour, w.expire)
	w.timer.Stop()
	return w
}

// makePage makes the shared page and the file of it to hand out.
func makePage() (*atomic.Uint64, *os.File, error) {
	fd, err := unix.MemfdCreate("tatolab-gl-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "page")
	if err := file.Truncate(control.GraphicsPageSize); err != nil {
		return nil, nil, err
	}
	data, err := unix.Mmap(fd, 0, control.GraphicsPageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap: %w", err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, nil, fmt.Errorf("seal: %w", err)
	}
	return (*atomic.Uint64)(unsafe.Pointer(&data[0])), file, nil
}

// begin notes who is served, for at most so long.
func (w *watchdog) begin(c *connection, request uint64, limit time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serving, w.request, w.limit, w.deadline = c, request, limit, time.Now().Add(limit)
	w.page.Store(c.id)
	w.timer.Reset(limit)
}

// end notes that nobody is.
func (w *watchdog) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.serving = nil
	w.page.Store(0)
}

func (w *watchdog) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.serving == nil || time.Now().Before(w.deadline) {
		return // it has ended just now
	}
	_ = w.serving.send(reply{Kind: "reply", ID: w.request, Ended: true,
		Error: fmt.Sprintf("OpenGL did not finish within %.3g s, and was ended", w.limit.Seconds())})
	os.Exit(control.GraphicsLate) // the page still says whom it was for
}
