// Package systemd is what tatolabd says to the service manager that started
// it, and what it learns from it: sockets passed in, readiness, the watchdog,
// the descriptor store; and the lock and the socket that must also work where
// there is no service manager at all. Started in a terminal every call works
// and the ones that only concern a manager do nothing.
//
// Sources: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3),
// systemd.exec(5) "Environment Variables Set on Spawned Processes".
package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Exit codes of tatolabd that mean "starting again does not help". The unit
// lists them in RestartPreventExitStatus=. Both are of sysexits.h, so that
// `systemctl status` prints their names.
const (
	ExitLocked    = 75 // EX_TEMPFAIL: another runtime of this user holds the lock
	ExitBadConfig = 78 // EX_CONFIG: the configuration cannot be read
)

// Names in the files of packaging/systemd and packaging/dbus.
const (
	ServiceUnit = "tatolabd.service"
	SocketUnit  = "tatolabd.socket"
)

// Service is this process as a service of systemd, or, with all fields empty,
// as a program in a terminal.
type Service struct {
	unit     string
	notify   string        // address of the notification socket
	watchdog time.Duration // the unit's WatchdogSec=, 0 without
	files    []*os.File    // passed descriptors, in order
}

// FromEnvironment takes what the service manager passed and removes it from
// the environment: node processes inherit the environment and must neither
// speak for the service nor take its descriptors for theirs. Call it once,
// first thing in the process.
func FromEnvironment() (*Service, error) {
	s := &Service{notify: os.Getenv("NOTIFY_SOCKET")}
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return nil, err
	}
	// Set for the process that the manager itself executed, and inherited by
	// its children; INVOCATION_ID alone would take a terminal that a user
	// service opened for the service.
	if os.Getenv("SYSTEMD_EXEC_PID") == strconv.Itoa(os.Getpid()) {
		s.unit = ownUnit()
	}
	if err := os.Unsetenv("SYSTEMD_EXEC_PID"); err != nil {
		return nil, err
	}
	var err error
	if s.watchdog, err = daemon.SdWatchdogEnabled(true); err != nil {
		return nil, fmt.Errorf("cannot read the watchdog's interval: %w", err)
	}
	s.files = activation.Files(true)
	return s, nil
}

// ownUnit is the unit whose control group this process is in.
func ownUnit() string {
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "a unit"
	}
	return unitOf(string(data))
}

// unitOf finds the innermost unit in the text of /proc/PID/cgroup. The unified
// hierarchy is preferred; a hybrid machine has systemd's own named one.
func unitOf(text string) string {
	for _, prefix := range []string{"0::", "name=systemd:"} {
		for line := range strings.Lines(text) {
			_, group, found := strings.Cut(strings.TrimSpace(line), prefix)
			if !found {
				continue
			}
			for ; group != "/" && group != "." && group != ""; group = path.Dir(group) {
				if base := path.Base(group); strings.HasSuffix(base, ".service") || strings.HasSuffix(base, ".scope") {
					return base
				}
			}
		}
	}
	return "a unit"
}

// Unit is the name of the unit that systemd started this process as, "" when
// it was not systemd.
func (s *Service) Unit() string { return s.unit }

// How says how the runtime was started, for `tatolab status`: "terminal" or
// "systemd (tatolabd.service)".
func (s *Service) How() string {
	if s.unit == "" {
		return "terminal"
	}
	return "systemd (" + s.unit + ")"
}

// Ready says that the start, or a reload, is complete.
func (s *Service) Ready(status string) error {
	return s.send([]string{daemon.SdNotifyReady, "STATUS=" + status})
}

// Status keeps the one line that `systemctl status` shows current.
func (s *Service) Status(status string) error {
	return s.send([]string{"STATUS=" + status})
}

// Stopping is the first thing said on the way down.
func (s *Service) Stopping(status string) error {
	return s.send([]string{daemon.SdNotifyStopping, "STATUS=" + status})
}

// Reloading says that the configuration is being read again; Ready ends it.
// The manager wants the time in the same datagram: by it, it tells this
// reload from an earlier one.
func (s *Service) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("cannot read the clock: %w", err)
	}
	return s.send([]string{daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000)})
}

// Watch answers the watchdog until ctx ends: twice per interval it runs check,
// and only a check that returned nil in time is reported. A failed one is
// handed to failed; when that goes on the manager ends and restarts the
// service. Without a watchdog Watch returns at once.
func (s *Service) Watch(ctx context.Context, check func(context.Context) error, failed func(error)) {
	if s.watchdog == 0 {
		return
	}
	period := s.watchdog / 2
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		within, cancel := context.WithTimeout(ctx, period)
		err := check(within)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = s.send([]string{daemon.SdNotifyWatchdog})
		}
		if err != nil {
			failed(fmt.Errorf("self-check: %w", err))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// store puts a descriptor into the manager's descriptor store: it comes back,
// by that name, in the next start of the same unit.
func (s *Service) store(name string, fd int) error {
	return s.send([]string{"FDSTORE=1", "FDNAME=" + name}, fd)
}

// unstore takes all descriptors of that name out of the store.
func (s *Service) unstore(name string) error {
	return s.send([]string{"FDSTOREREMOVE=1", "FDNAME=" + name})
}

// send is sd_pid_notify_with_fds(3).
func (s *Service) send(lines []string, fds ...int) error {
	if s.notify == "" {
		return nil
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot notify the service manager: %w", err)
	}
	defer unix.Close(socket)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	// An address that begins with "@" is in the abstract namespace; x/sys
	// translates it.
	err = unix.Sendmsg(socket, []byte(strings.Join(lines, "\n")), rights, &unix.SockaddrUnix{Name: s.notify}, 0)
	if err != nil {
		return fmt.Errorf("cannot notify the service manager at %s: %w", s.notify, err)
	}
	return nil
}

// takeListeners sorts the passed descriptors: the socket of a socket unit, and
// the one this service stored in an earlier life. What is neither is closed.
func (s *Service) takeListeners() (passed, stored *net.UnixListener, err error) {
	for _, file := range s.files {
		listener, lerr := net.FileListener(file)
		name := file.Name()
		file.Close()
		unixListener, ok := listener.(*net.UnixListener)
		switch {
		case lerr != nil || !ok:
			err = fmt.Errorf("cannot use the descriptor %q that the service manager passed: it is no listening Unix socket", name)
			if listener != nil {
				listener.Close()
			}
		case name == storedName && stored == nil:
			stored = unixListener
		case name != storedName && passed == nil:
			passed = unixListener
		default:
			unixListener.Close()
		}
	}
	s.files = nil
	return passed, stored, err
}
