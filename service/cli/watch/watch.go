// Package watch tells when the sources of a project have changed and the
// change is over: one signal for a save, whatever way an editor has of saving,
// and one for a checkout of two hundred files.
//
// Events of the kernel only wake it; what has changed is told by comparing two
// scans. So nothing depends on which events come in which order.
package watch

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// How long it must be quiet before a change counts as over.
const (
	// settle is for a file that was saved.
	settle = 20 * time.Millisecond
	// settleMany is for more than manyFiles at once: a formatter, a copy.
	settleMany = 150 * time.Millisecond
	manyFiles  = 3
	// settleGone is for a file that is empty or gone, as in between the two
	// halves of a save that truncates, or deletes and creates.
	settleGone = 300 * time.Millisecond
	// settleMost bounds the wait for a writer that never closes its file and
	// for a git that never ends.
	settleMost = 5 * time.Second
	// pollInterval is between two scans where the kernel tells nothing.
	pollInterval = 500 * time.Millisecond
	// staleLock is the age at which git's lock is a leftover.
	staleLock = 10 * time.Second
)

// Watcher watches one project.
type Watcher struct {
	root    string
	git     string // the lock file of the repository, "" without one
	fs      *fsnotify.Watcher
	polling bool
	changes chan struct{}
	done    chan struct{}
	ended   chan struct{}
}

// New watches the .py files below root and its pyproject.toml, hidden folders
// and virtual environments excepted. Where the kernel cannot watch (a limit is
// reached) it polls.
func New(root string) *Watcher {
	w := &Watcher{root: root, git: gitLock(root), changes: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{})}
	var err error
	if w.fs, err = fsnotify.NewWatcher(); err != nil {
		w.polling = true
	}
	// The first scan is made before New returns: every save after it counts.
	go w.run(w.scan())
	return w
}

// Changes has a signal for each change that is over. Changes that nobody took
// yet are one.
func (w *Watcher) Changes() <-chan struct{} { return w.changes }

// Close ends the watch.
func (w *Watcher) Close() {
	close(w.done)
	<-w.ended
}

func (w *Watcher) run(last files) {
	defer close(w.ended)
	var events <-chan fsnotify.Event
	var errs <-chan error
	if w.fs != nil {
		defer w.fs.Close()
		events, errs = w.fs.Events, w.fs.Errors
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	var first, latest time.Time // of the change under way; zero without one
	for {
		select {
		case <-w.done:
			return
		case e := <-events:
			if !relevant(e) {
				continue
			}
			latest = time.Now()
		case <-errs: // events were lost: look
			latest = time.Now()
		case <-poll.C:
			if !w.polling || !first.IsZero() {
				continue
			}
			latest = time.Now()
		case <-quiet.C:
			silent := time.Since(latest) // before the scan, which shows no later moment
			now := w.scan()
			wait := w.unsettled(last, now, silent)
			if wait > 0 && time.Since(first) < settleMost {
				quiet.Reset(wait)
				continue
			}
			first = time.Time{}
			if !maps.Equal(last, now) {
				last = now
				select {
				case w.changes <- struct{}{}:
				default:
				}
			}
			continue
		}
		if first.IsZero() {
			first = latest
		}
		quiet.Reset(settle)
	}
}

// unsettled is how much longer to wait, 0 when the change is over.
func (w *Watcher) unsettled(last, now files, quiet time.Duration) time.Duration {
	if gitAtWork(w.git) {
		return settle
	}
	need, changed := settle, 0
	for path, s := range now {
		if last[path] == s {
			continue
		}
		changed++
		if s.size == 0 {
			need = settleGone
		}
		if beingWritten(path) {
			return settle
		}
	}
	for path := range last {
		if _, there := now[path]; !there {
			changed++
			need = settleGone
		}
	}
	if changed > manyFiles {
		need = max(need, settleMany)
	}
	return need - quiet
}

// relevant tells whether an event may be about sources: a project's own
// output, written all the time, must neither wake nor delay.
func relevant(e fsnotify.Event) bool {
	base := filepath.Base(e.Name)
	switch {
	case strings.HasPrefix(base, ".") || base == "__pycache__":
		return false
	case source(base):
		return true
	case e.Has(fsnotify.Create):
		info, err := os.Lstat(e.Name)
		return err == nil && info.IsDir()
	}
	// What has gone may have been a folder.
	return (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) && filepath.Ext(base) == ""
}

func source(base string) bool {
	return strings.HasSuffix(base, ".py") && !strings.HasPrefix(base, ".") || base == "pyproject.toml"
}

// files are the sources as they are on disk.
type files map[string]stamp

type stamp struct {
	inode   uint64
	size    int64
	changed int64
}

// scan finds the sources and watches every folder it passes. A folder is
// watched before it is read, so that no file falls in between.
func (w *Watcher) scan() files {
	found := files{}
	_ = filepath.WalkDir(w.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone, or not ours to read
		}
		base := d.Name()
		if d.IsDir() {
			if path != w.root && ignored(path, base) {
				return fs.SkipDir
			}
			if !w.polling && w.fs.Add(path) != nil {
				// ENOSPC: fs.inotify.max_user_watches is used up.
				if _, err := os.Stat(path); err == nil {
					w.polling = true
				}
			}
			return nil
		}
		if !source(base) || base == "pyproject.toml" && filepath.Dir(path) != w.root {
			return nil
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			found[path] = stamp{st.Ino, st.Size, st.Mtim.Nano()}
		}
		return nil
	})
	return found
}

func ignored(path, base string) bool {
	if strings.HasPrefix(base, ".") || base == "__pycache__" || base == "node_modules" {
		return true
	}
	_, err := os.Lstat(filepath.Join(path, "pyvenv.cfg")) // a virtual environment of another name
	return err == nil
}

// beingWritten tells whether a process has path open for writing: a read lease
// cannot be had then (fcntl(2)). Where leases are not to be had at all it says
// no.
func beingWritten(path string) bool {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) // and with it the lease
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	return err == unix.EAGAIN
}

// gitLock is the lock that git holds while it changes the working tree that
// root is in.
func gitLock(root string) string {
	for dir := root; ; dir = filepath.Dir(dir) {
		git := filepath.Join(dir, ".git")
		if info, err := os.Stat(git); err == nil {
			if !info.IsDir() { // a worktree or a submodule: "gitdir: PATH"
				text, err := os.ReadFile(git)
				if err != nil {
					return ""
				}
				git = strings.TrimSpace(strings.TrimPrefix(string(text), "gitdir:"))
				if !filepath.IsAbs(git) {
					git = filepath.Join(dir, git)
				}
			}
			return filepath.Join(git, "index.lock")
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

func gitAtWork(lock string) bool {
	if lock == "" {
		return false
	}
	info, err := os.Stat(lock)
	return err == nil && time.Since(info.ModTime()) < staleLock
}
