package systemd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Time-outs of this file.
const (
	// inodeCheck is how often the socket path is compared with the socket.
	inodeCheck = 2 * time.Second
	// managerAnswer is how long the user manager may take to answer.
	managerAnswer = 2 * time.Second
)

// storedName is the listening socket's name in the descriptor store.
const storedName = "stored-local-api"

// Listener is the control socket, wherever it came from.
//
// Who owns the path? With the lock held no other runtime does, so nothing of
// a former one there is alive, with one exception: systemd may listen there, for tatolabd.socket or because
// it stores the socket of a tatolabd.service about to be restarted. To find out
// by connecting would make systemd start the service, which would find the
// lock held and fail; so the kernel is asked instead, which disturbs nobody.
type Listener struct {
	service *Service
	path    string
	passed  bool // by a socket unit: never created, moved or removed here

	mu     sync.Mutex
	cur    *net.UnixListener
	inode  uint64 // of the path, when cur was bound to it
	closed bool
}

// Listen returns the control socket at path: the one a socket unit passed, else
// the one this service stored before a crash, else a new one. The lock must be held. Where
// tatolabd.socket is active and passed nothing (a start in a terminal) it refuses.
func (s *Service) Listen(ctx context.Context, path string) (*Listener, error) {
	passed, stored, err := s.takeListeners()
	if err != nil {
		return nil, err
	}
	l := &Listener{service: s, path: path}
	if passed != nil {
		if stored != nil {
			stored.Close()
			// Kept, it would come back with every start.
			if err := s.unstore(storedName); err != nil {
				passed.Close()
				return nil, err
			}
		}
		passed.SetUnlinkOnClose(false)
		if at := passed.Addr().String(); at != path {
			passed.Close()
			return nil, fmt.Errorf("cannot serve the socket that the service manager passed: it is %s, clients look at %s (XDG_RUNTIME_DIR differs?)", at, path)
		}
		l.passed, l.cur = true, passed
		l.inode, _ = inodeAt(path)
		return l, nil
	}
	if stored != nil {
		stored.SetUnlinkOnClose(false)
		if inode, err := inodeAt(path); err == nil && stored.Addr().String() == path {
			l.cur, l.inode = stored, inode
			return l, nil
		}
		// Its file is gone: nobody can connect to it any more.
		stored.Close()
		if err := s.unstore(storedName); err != nil {
			return nil, err
		}
	}
	if socketUnitActive(ctx) {
		return nil, fmt.Errorf("cannot listen at %s: %s is active, and starts tatolabd by itself when a client connects. To run tatolabd in a terminal, first type `systemctl --user stop %s`", path, SocketUnit, SocketUnit)
	}
	var file unix.Stat_t
	if unix.Lstat(path, &file) == nil && file.Mode&unix.S_IFMT == unix.S_IFSOCK {
		// A kernel that cannot tell (no unix_diag) leaves what the lock says: the
		// socket is stale.
		if taken, err := listening(&file); err == nil && taken {
			return nil, fmt.Errorf("cannot listen at %s: another program does, and it is no tatolabd. If it is systemd, type `systemctl --user stop %s %s`", path, SocketUnit, ServiceUnit)
		}
	}
	return l, l.bind()
}

// bind makes a new socket at l.path, in the place of a stale one.
func (l *Listener) bind() error {
	if err := removeStale(l.path); err != nil {
		return err
	}
	cur, err := net.ListenUnix("unix", &net.UnixAddr{Name: l.path, Net: "unix"})
	if err != nil {
		return fmt.Errorf("cannot listen at %s: %w", l.path, err)
	}
	cur.SetUnlinkOnClose(false)
	fail := func(err error) error {
		cur.Close()
		return fmt.Errorf("cannot listen at %s: %w", l.path, err)
	}
	// The folder is 0700, so there is no moment at which others could connect.
	if err := os.Chmod(l.path, 0o600); err != nil {
		return fail(err)
	}
	inode, err := inodeAt(l.path)
	if err != nil {
		return fail(err)
	}
	raw, err := cur.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var stored error
	if err := raw.Control(func(fd uintptr) { stored = l.service.store(storedName, int(fd)) }); err != nil {
		return fail(err)
	}
	if stored != nil {
		return fail(stored)
	}
	l.cur, l.inode = cur, inode
	return nil
}

// Accept waits for the next connection, to whichever socket is current.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		cur := l.current()
		conn, err := cur.Accept()
		if err != nil && l.current() != cur {
			continue // bound again meanwhile
		}
		return conn, err
	}
}

func (l *Listener) current() *net.UnixListener {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cur
}

// Addr is the path.
func (l *Listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close stops listening, and removes the socket unless a socket unit owns it or
// something else has taken its place. Where this is the first half of a restart
// the socket stays, in the store: who connects in between waits for the second.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if !l.passed && !l.service.restarting() {
		if inode, err := inodeAt(l.path); err == nil && inode == l.inode {
			_ = os.Remove(l.path)
		}
		// So that a stop followed by a start finds no dead socket in the store.
		_ = l.service.unstore(storedName)
	}
	return l.cur.Close()
}

// Guard binds again when the socket's file was removed or replaced by another,
// after restore has brought back what else was removed: the folder with all that
// is in it, where its user has logged out everywhere (pam_systemd(8)). restore makes
// sure that the lock is held, so nothing that answers to clients can be there. Guard
// tells say what it did, once per change, and returns when ctx ends.
func (l *Listener) Guard(ctx context.Context, restore func() error, say func(message string)) {
	tick := time.NewTicker(inodeCheck)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		message := l.guard(restore)
		if message != "" && message != last {
			say(message)
		}
		last = message
	}
}

func (l *Listener) guard(restore func() error) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ""
	}
	if inode, err := inodeAt(l.path); err == nil && inode == l.inode {
		return ""
	}
	if l.passed {
		return fmt.Sprintf("the socket %s was removed or replaced: no client can connect until `systemctl --user restart %s %s`", l.path, SocketUnit, ServiceUnit)
	}
	if err := restore(); err != nil {
		return err.Error()
	}
	old := l.cur
	if err := l.service.unstore(storedName); err != nil {
		return err.Error()
	}
	if err := l.bind(); err != nil {
		return err.Error()
	}
	old.Close()
	return fmt.Sprintf("the socket %s was removed or replaced: listening at it again", l.path)
}

// inodeAt is the inode of the socket at path.
func inodeAt(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0, fmt.Errorf("%s is no socket", path)
	}
	return st.Ino, nil
}

// removeStale removes a socket at path, and nothing but a socket.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("cannot listen at %s: %w", path, err)
	case info.Mode().Type() != os.ModeSocket:
		return fmt.Errorf("cannot listen at %s: something that is no socket is there (%s); it is left alone, move it away", path, info.Mode())
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the stale socket: %w", err)
	}
	return nil
}
