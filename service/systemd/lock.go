package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// lockPatience is how long a lock that is held is asked for again. The check of
// the socket unit (flock(1) in its ExecStartPre=) holds it for an instant, and
// so does a runtime that is just ending.
const (
	lockPatience = 300 * time.Millisecond
	lockAgain    = 20 * time.Millisecond
)

// LockedError is what a start is refused with while another runtime of this user
// runs. PID is 0 where the holder has not written it.
type LockedError struct {
	Path string
	PID  int
}

func (e *LockedError) Error() string {
	who := "another tatolabd"
	if e.PID != 0 {
		who += fmt.Sprintf(" (pid %d)", e.PID)
	}
	return fmt.Sprintf("cannot start: %s runs already; it holds %s", who, e.Path)
}

// Lock is held by the one runtime of a user.
type Lock struct {
	file *os.File
}

// AcquireLock takes the lock at path, which is kept in a folder of mode 0700
// that it makes, and writes the pid into the file. The kernel lets go of the
// lock when the process ends, however it ends, so the file itself means nothing and
// is never removed: removing it would let two runtimes hold two files of one name.
func AcquireLock(path string) (*Lock, error) {
	if err := privateFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	// Sticky: what watches over XDG_RUNTIME_DIR may remove files that were
	// not touched for six hours, unless they are (XDG Base Directory).
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the lock file %s: %w", path, err)
	}
	file := os.NewFile(uintptr(fd), path)
	if err := takeLock(file); err != nil {
		file.Close()
		return nil, err
	}
	// Best effort: no runtime depends on the pid being there.
	_ = file.Chmod(0o600 | os.ModeSticky)
	if err := file.Truncate(0); err == nil {
		_, err = file.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("cannot write the pid into %s: %w", path, err)
		}
	}
	return &Lock{file}, nil
}

func takeLock(file *os.File) error {
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(lockAgain) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("cannot lock %s: %w", file.Name(), err)
		case time.Now().After(deadline):
			locked := &LockedError{Path: file.Name()}
			if data, err := os.ReadFile(file.Name()); err == nil {
				locked.PID, _ = strconv.Atoi(strings.TrimSpace(string(data)))
			}
			return locked
		}
	}
}

// Held tells whether the file at the lock's path is the one that is locked, so
// that another start would find it.
func (l *Lock) Held() bool {
	ours, err := l.file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(l.file.Name())
	return err == nil && os.SameFile(ours, there)
}

// Close lets go of the lock.
func (l *Lock) Close() error { return l.file.Close() }

// ownFolder refuses root the XDG_RUNTIME_DIR of somebody else: what root made there
// would keep its owner's runtime from starting.
func ownFolder(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err == nil && os.Getuid() == 0 && st.Uid != 0 {
		return fmt.Errorf("cannot use XDG_RUNTIME_DIR %s: it belongs to uid %d, and this is root (a run under sudo?)", dir, st.Uid)
	}
	return nil
}

// privateFolder makes dir, or makes sure that it belongs to this user alone.
func privateFolder(dir string) error {
	if err := ownFolder(filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make the runtime folder: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return fmt.Errorf("cannot look at the runtime folder %s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("cannot use the runtime folder %s: it is not a folder", dir)
	case st.Uid != uint32(os.Getuid()):
		return fmt.Errorf("cannot use the runtime folder %s: it belongs to uid %d, and this is uid %d (a run under sudo?)", dir, st.Uid, os.Getuid())
	case st.Mode&0o077 != 0:
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("cannot close the runtime folder to others: %w", err)
		}
	}
	return nil
}
