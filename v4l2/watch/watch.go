// Package watch tells when video devices come and go. It opens none, and links no
// driver's interface: the runtime itself may use it.
package watch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Watch tells when video devices come, go, or get other permissions, so that who
// waits for one need not look over and over.
type Watch struct {
	file *os.File
	err  error
	// Ended is closed when nothing is watched any more; Err then says why.
	Ended chan struct{}
	// Changed has something in it after a change. Events may come before what
	// they are about is complete: udev makes stable names a little later.
	Changed chan struct{}
}

// New watches a folder of devices until Close.
func New(dir string) (*Watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch for cameras: inotify: %w", err)
	}
	w := &Watch{file: os.NewFile(uintptr(fd), "inotify"), Ended: make(chan struct{}), Changed: make(chan struct{}, 1)}
	// Not what is written to: all of /dev/null would be among it.
	const events = unix.IN_CREATE | unix.IN_DELETE | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_ONLYDIR
	if _, err := unix.InotifyAddWatch(fd, dir, events); err != nil {
		w.file.Close()
		return nil, fmt.Errorf("cannot watch %s for cameras: %w", dir, err)
	}
	go w.read(dir)
	return w, nil
}

func (w *Watch) read(dir string) {
	defer close(w.Ended)
	buffer := make([]byte, 4096)
	for {
		n, err := w.file.Read(buffer)
		if err != nil {
			w.err = fmt.Errorf("cannot watch %s for cameras: %w", dir, err) // closed, most likely
			return
		}
		if !aboutVideo(buffer[:n]) {
			continue
		}
		select {
		case w.Changed <- struct{}{}:
		default:
		}
	}
}

// aboutVideo reports whether one of the events, inotify(7), names a video device,
// or some were lost.
func aboutVideo(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if mask&unix.IN_Q_OVERFLOW != 0 || bytes.HasPrefix(events[unix.SizeofInotifyEvent:end], []byte("video")) {
			return true
		}
		events = events[end:]
	}
	return false
}

// Close ends the watch.
func (w *Watch) Close() {
	w.file.Close()
	<-w.Ended
}

// Err is why the watch ended, after it has.
func (w *Watch) Err() error { return w.err }
