package systemd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testWait = 20 * time.Second

// manager is the other end of NOTIFY_SOCKET.
type manager struct {
	*net.UnixConn
	t *testing.T
}

func newManager(t *testing.T) (*manager, *Service) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &manager{conn, t}, &Service{notify: path}
}

// next returns the next datagram, and how many descriptors came with it.
func (m *manager) next() (string, int) {
	m.t.Helper()
	data, oob := make([]byte, 4096), make([]byte, 256)
	m.SetReadDeadline(time.Now().Add(testWait))
	n, oobn, _, _, err := m.ReadMsgUnix(data, oob)
	if err != nil {
		m.t.Fatal(err)
	}
	count := 0
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		m.t.Fatal(err)
	}
	for _, message := range messages {
		fds, err := unix.ParseUnixRights(&message)
		if err != nil {
			m.t.Fatal(err)
		}
		for _, fd := range fds {
			unix.Close(fd)
			count++
		}
	}
	return string(data[:n]), count
}

func TestNotifications(t *testing.T) {
	m, s := newManager(t)
	for _, step := range []struct {
		say  func() error
		want string
	}{
		{func() error { return s.Ready("0 streams") }, "READY=1\nSTATUS=0 streams"},
		{func() error { return s.Status("3 streams, 1 failed") }, "STATUS=3 streams, 1 failed"},
		{func() error { return s.Stopping("stopping 3 streams") }, "STOPPING=1\nSTATUS=stopping 3 streams"},
	} {
		if err := step.say(); err != nil {
			t.Fatal(err)
		}
		if got, _ := m.next(); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
	}
	if err := s.Reloading(); err != nil {
		t.Fatal(err)
	}
	var usec int64
	got, _ := m.next()
	if _, err := fmt.Sscanf(got, "RELOADING=1\nMONOTONIC_USEC=%d", &usec); err != nil || usec == 0 {
		t.Errorf("got %q, want RELOADING=1 and the time in one datagram", got)
	}
}

func TestWithoutManagerNothingIsSaid(t *testing.T) {
	s := &Service{}
	if err := s.Ready("x"); err != nil {
		t.Error(err)
	}
	s.Watch(t.Context(), func(context.Context) error { t.Error("checked without a watchdog"); return nil }, nil)
	if s.How() != "terminal" {
		t.Errorf("How is %q", s.How())
	}
}

func TestWatchdogIsOnlyAnsweredAfterAGoodCheck(t *testing.T) {
	m, s := newManager(t)
	s.watchdog = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done, failures, checks := make(chan struct{}), 0, 0
	go func() {
		defer close(done)
		s.Watch(ctx, func(context.Context) error {
			if checks++; checks <= 3 {
				return errors.New("the loop does not answer")
			}
			return nil
		}, func(error) { failures++ })
	}()
	got, _ := m.next()
	cancel()
	<-done
	if got != "WATCHDOG=1" || failures != 3 || checks < 4 {
		t.Errorf("got %q after %d checks and %d failures", got, checks, failures)
	}
}

func TestWatchdogIsNotAnsweredByACheckThatHangs(t *testing.T) {
	m, s := newManager(t)
	s.watchdog = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Watch(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, func(err error) { failed <- err })
	}()
	for range 3 {
		if err := <-failed; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
	cancel()
	<-done
	m.SetReadDeadline(time.Now())
	if n, err := m.Read(make([]byte, 100)); err == nil {
		t.Errorf("the watchdog was answered (%d bytes)", n)
	}
}

func TestUnitOf(t *testing.T) {
	for text, want := range map[string]string{
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/tatolabd.service\n":         "tatolabd.service",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/tatolabd.service/runtime\n": "tatolabd.service",
		"1:name=systemd:/user@0.service/app.slice/my.service\n0::/\n":                           "my.service",
		"1:name=systemd:/system.slice/ssh.service\n0::/app.slice/run-u1.scope\n":                "run-u1.scope",
		"0::/\n": "a unit",
	} {
		if got := unitOf(text); got != want {
			t.Errorf("unitOf(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "streamlib", "tatolabd.lock")
	lock, err := AcquireLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder is %v, %v", info.Mode(), err)
	}
	_, err = AcquireLock(path)
	var locked *LockedError
	if !errors.As(err, &locked) || locked.PID != os.Getpid() || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
		t.Errorf("the second lock: %v", err)
	}
	lock.Close()
	if lock, err = AcquireLock(path); err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

// A killed holder must not block the next start, and its pid must not be taken
// for that of the next one.
func TestLockOfAKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "streamlib", "tatolabd.lock")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestHelperHoldLock$")
	cmd.Env = append(os.Environ(), "TEST_LOCK="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("%q, %v", line, err)
	}
	var locked *LockedError
	if _, err := AcquireLock(path); !errors.As(err, &locked) || locked.PID != cmd.Process.Pid {
		t.Errorf("while it lives: %v", err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	lock, err := AcquireLock(path)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
}

func TestHelperHoldLock(t *testing.T) {
	path := os.Getenv("TEST_LOCK")
	if path == "" {
		t.Skip("a helper of TestLockOfAKilledProcess")
	}
	if _, err := AcquireLock(path); err != nil {
		t.Fatal(err)
	}
	fmt.Println("held")
	time.Sleep(testWait)
}

func TestFolderOfOthersIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "streamlib")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := AcquireLock(filepath.Join(dir, "lock")); err == nil || !strings.Contains(err.Error(), "not a folder") {
		t.Error(err)
	}
	if os.Getuid() != 0 {
		t.Skip("only root can give a folder away")
	}
	os.Remove(dir)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if _, err := AcquireLock(filepath.Join(dir, "lock")); err == nil || !strings.Contains(err.Error(), "belongs to uid 4242") {
		t.Error(err)
	}
}

// serve answers each connection with "ok" until the listener is closed.
func serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		conn.Write([]byte("ok"))
		conn.Close()
	}
}

func ask(t *testing.T, path string) error {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(testWait))
	if n, err := conn.Read(make([]byte, 2)); err != nil || n != 2 {
		return fmt.Errorf("no answer: %w", err)
	}
	return nil
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "local-api.sock")
	m, s := newManager(t)
	// A stale socket, as a crash leaves it.
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	stale.Close()

	l, err := s.Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if got, fds := m.next(); got != "FDSTORE=1\nFDNAME="+storedName || fds != 1 {
		t.Errorf("got %q with %d descriptors", got, fds)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket is %v, %v", info, err)
	}
	go serve(l)
	if err := ask(t, path); err != nil {
		t.Error(err)
	}
	// A second one must not take a live socket, lock or no lock.
	if _, err := (&Service{}).Listen(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another program does") {
		t.Errorf("a second listener: %v", err)
	}
	if err := ask(t, path); err != nil {
		t.Errorf("after a second start: %v", err)
	}
	// Removed, then replaced: it binds again.
	for i, disturb := range []func() error{
		func() error { return os.Remove(path) },
		func() error {
			os.Remove(path)
			other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
			if err == nil {
				other.SetUnlinkOnClose(false)
				other.Close()
			}
			return err
		},
	} {
		if err := disturb(); err != nil {
			t.Fatal(err)
		}
		if message := l.guard(func() error { return nil }); !strings.Contains(message, "listening at it again") {
			t.Errorf("%d: %q", i, message)
		}
		if err := ask(t, path); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if message := l.guard(func() error { return nil }); message != "" {
			t.Errorf("%d: it says %q of an untouched socket", i, message)
		}
		for _, want := range []string{"FDSTOREREMOVE=1\nFDNAME=" + storedName, "FDSTORE=1\nFDNAME=" + storedName} {
			if got, _ := m.next(); got != want {
				t.Errorf("%d: got %q, want %q", i, got, want)
			}
		}
	}
	l.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is left after a clean end: %v", err)
	}
}

func TestCloseLeavesWhatIsNotItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "local-api.sock")
	l, err := (&Service{}).Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	os.Remove(path)
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if message := l.guard(func() error { return nil }); !strings.Contains(message, "no socket") {
		t.Errorf("%q", message)
	}
	l.Close()
	if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := (&Service{}).Listen(t.Context(), path); err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Error(err)
	}
}

// Only who is bound to this very file counts, not who has the same name in another
// place, nor who listened at a file that was replaced.
func TestListening(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) *unix.Stat_t {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Fatal(err)
		}
		return &st
	}
	listen := func(name string) *net.UnixListener {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, name)})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { l.Close() })
		return l
	}
	check := func(name string, want bool) {
		t.Helper()
		if got, err := listening(at(name)); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	first := listen("first")
	check("first", true)
	os.Remove(filepath.Join(dir, "first"))
	listen("first").Close()
	check("first", false)
	first.Close()
	check("first", false)
	// Many, so that the answer takes several messages.
	for i := range 500 {
		listen(fmt.Sprint(i))
	}
	check("0", true)
	check("499", true)
	check("first", false)
}
