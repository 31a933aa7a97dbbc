package systemd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/usermanager"
	"tatolab.com/tatolab/service/systemd"
)

// These tests run inside a real user manager, with the packaged units. In the
// place of tatolabd is the small program below: this test binary by that name.

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "tatolabd" {
		os.Exit(smallDaemon())
	}
	os.Exit(m.Run())
}

// smallDaemon uses all of the package, and answers each line: "pid", "how",
// "passed", "environment", "hang" (the self-check does, from then on).
func smallDaemon() int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "error:", err)
		var locked *systemd.LockedError
		if errors.As(err, &locked) {
			return systemd.ExitLocked
		}
		return 1
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	service, err := systemd.FromEnvironment()
	if err != nil {
		return fail(err)
	}
	dir := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "streamlib")
	lock, err := systemd.AcquireLock(filepath.Join(dir, "tatolabd.lock"))
	if err != nil {
		return fail(err)
	}
	defer lock.Close()
	if err := service.EnterScope(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	listener, err := service.Listen(ctx, filepath.Join(dir, "local-api.sock"))
	if err != nil {
		return fail(err)
	}
	defer listener.Close()
	var hang atomic.Bool
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					switch lines.Text() {
					case "pid":
						fmt.Fprintln(conn, os.Getpid())
					case "how":
						fmt.Fprintln(conn, service.How())
					case "passed":
						fmt.Fprintln(conn, listener.Passed())
					case "group":
						group, _ := os.ReadFile("/proc/self/cgroup")
						_, path, _ := strings.Cut(string(group), "0::")
						fmt.Fprintln(conn, strings.TrimSpace(path))
					case "environment":
						fmt.Fprintln(conn, strings.Join(os.Environ(), " "))
					case "hang":
						hang.Store(true)
						fmt.Fprintln(conn, "hanging")
					}
				}
			}()
		}
	}()
	go service.Watch(ctx, func(ctx context.Context) error {
		if hang.Load() {
			<-ctx.Done()
		}
		return ctx.Err()
	}, func(err error) { fmt.Fprintln(os.Stderr, err) })
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	if err := service.Ready("up"); err != nil {
		return fail(err)
	}
	for s := range signals {
		if s == syscall.SIGTERM {
			break
		}
		if err := service.Reloading(); err != nil {
			return fail(err)
		}
		if err := service.Ready("read again"); err != nil {
			return fail(err)
		}
	}
	if err := service.Stopping("going"); err != nil {
		return fail(err)
	}
	return 0
}

type bed struct {
	*usermanager.Bed
	t *testing.T
}

func run(t *testing.T, body func(t *testing.T, b *bed)) {
	runAs(t, usermanager.Users, body)
}

func runAs(t *testing.T, users []string, body func(t *testing.T, b *bed)) {
	usermanager.RunAs(t, users, func(t *testing.T, dir string) {
		units := filepath.Join(dir, "units")
		if err := os.Mkdir(units, 0o755); err != nil {
			t.Fatal(err)
		}
		for from, to := range map[string]string{
			"../../packaging/systemd/tatolabd.service": filepath.Join(units, systemd.ServiceUnit),
			"../../packaging/systemd/tatolabd.socket":  filepath.Join(units, systemd.SocketUnit),
			"/proc/self/exe": filepath.Join(dir, "tatolabd"),
		} {
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}, func(t *testing.T, b *usermanager.Bed) {
		b.Install("units", b.UnitDir())
		b.Systemctl("daemon-reload")
		body(t, &bed{b, t})
	})
}

func (b *bed) socket() string { return filepath.Join(b.RuntimeDir(), "streamlib/local-api.sock") }

func (b *bed) tryAsk(line string) (string, error) {
	conn, err := net.Dial("unix", b.socket())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintln(conn, line)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(answer), err
}

func (b *bed) ask(line string) string {
	b.t.Helper()
	answer, err := b.tryAsk(line)
	if err != nil {
		b.t.Fatalf("%s: %v\n%s", line, err, b.Journal())
	}
	return answer
}

func (b *bed) kill(pid int, signal syscall.Signal) {
	b.t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		b.t.Fatal(err)
	}
}

func TestSocketUnitStartsTheService(t *testing.T) {
	run(t, func(t *testing.T, b *bed) {
		b.Systemctl("start", systemd.SocketUnit)
		if state, _ := b.Try("systemctl", "--user", "is-active", systemd.ServiceUnit); state != "inactive" {
			t.Fatalf("the service is %s before anybody connected", state)
		}
		pid := b.ask("pid")
		if got := b.ask("how"); got != "systemd (tatolabd.service)" {
			t.Errorf("how: %s", got)
		}
		if got := b.ask("passed"); got != "true" {
			t.Errorf("passed: %s", got)
		}
		for _, variable := range []string{"NOTIFY_SOCKET=", "LISTEN_FDS=", "LISTEN_PID=", "WATCHDOG_USEC=", "SYSTEMD_EXEC_PID="} {
			if strings.Contains(b.ask("environment"), variable) {
				t.Errorf("nodes would inherit %s", variable)
			}
		}
		if got := b.Property(systemd.ServiceUnit, "NFileDescriptorStore"); got != "0" {
			t.Errorf("%s descriptors are stored, the socket unit has the socket already", got)
		}
		// A stop leaves the socket unit's path alone, and the next client
		// starts the service again.
		b.Systemctl("stop", systemd.ServiceUnit)
		if again := b.ask("pid"); again == pid {
			t.Errorf("pid %s again", again)
		}
	})
}

func TestKilledServiceComesBackAndClientsWait(t *testing.T) {
	runAs(t, []string{"fresh"}, func(t *testing.T, b *bed) {
		b.Systemctl("start", systemd.ServiceUnit)
		if got := b.ask("passed"); got != "false" {
			t.Errorf("passed: %s", got)
		}
		before, err := os.Stat(b.socket())
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			pid := b.MainPID(systemd.ServiceUnit)
			b.kill(pid, syscall.SIGKILL)
			// Asked in the middle of the restart, without a retry.
			if again, err := b.tryAsk("pid"); err != nil || again == strconv.Itoa(pid) {
				t.Fatalf("after the kill of %d: %q, %v\n%s", pid, again, err, b.Journal())
			}
		}
		after, err := os.Stat(b.socket())
		if err != nil || !os.SameFile(before, after) {
			t.Errorf("the socket is another one: %v", err)
		}
		if got := b.Property(systemd.ServiceUnit, "NRestarts"); got != "3" {
			t.Errorf("NRestarts is %s", got)
		}
		result, err := os.ReadFile(filepath.Join(b.RuntimeDir(), "streamlib/service-result"))
		if err != nil || string(result) != "signal killed KILL\n" {
			t.Errorf("the result that was written down: %q, %v", result, err)
		}
		b.Systemctl("stop", systemd.ServiceUnit)
		if _, err := os.Lstat(b.socket()); !os.IsNotExist(err) {
			t.Errorf("the socket is left after a stop: %v", err)
		}
		// Nothing of the former life blocks the next.
		b.Systemctl("start", systemd.ServiceUnit)
		b.ask("pid")
	})
}

// Whoever asks during an upgrade waits, socket unit or not.
func TestRestartLosesNoClient(t *testing.T) {
	runAs(t, []string{"fresh"}, func(t *testing.T, b *bed) {
		for _, unit := range []string{systemd.ServiceUnit, systemd.SocketUnit} {
			b.Systemctl("start", unit)
			b.ask("pid")
			stop, asked := make(chan struct{}), make(chan int)
			go func() {
				n := 0
				defer func() { asked <- n }()
				for ; ; n++ {
					// A connection that was accepted may be cut, one that was
					// not may not be refused.
					conn, err := net.Dial("unix", b.socket())
					if err != nil {
						t.Errorf("with %s, in the middle of a restart: %v", unit, err)
						return
					}
					conn.Close()
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
					}
				}
			}()
			for range 3 {
				pid := b.ask("pid")
				b.Systemctl("restart", systemd.ServiceUnit)
				if again := b.ask("pid"); again == pid {
					t.Error("it was not restarted")
				}
			}
			close(stop)
			if n := <-asked; n < 10 {
				t.Errorf("only %d connections were tried", n)
			}
			b.Systemctl("stop", systemd.SocketUnit, systemd.ServiceUnit)
			if _, err := os.Lstat(b.socket()); !os.IsNotExist(err) {
				t.Errorf("with %s, after a stop the socket is left: %v", unit, err)
			}
		}
	})
}

func TestWatchdogEndsAHang(t *testing.T) {
	runAs(t, []string{"fresh"}, func(t *testing.T, b *bed) {
		b.DropIn(systemd.ServiceUnit, "[Service]\nWatchdogSec=5\n") // what a busy machine keeps to
		b.Systemctl("daemon-reload")
		b.Systemctl("start", systemd.ServiceUnit)
		pid := b.ask("pid")
		for range 2 {
			last := b.Property(systemd.ServiceUnit, "WatchdogTimestampMonotonic")
			b.Wait("an answer to the watchdog", func() bool {
				return b.Property(systemd.ServiceUnit, "WatchdogTimestampMonotonic") != last
			})
		}
		if again := b.ask("pid"); again != pid {
			t.Fatalf("restarted without a reason\n%s", b.Journal())
		}
		b.ask("hang")
		b.Wait("a restart by the watchdog", func() bool {
			again, err := b.tryAsk("pid")
			return err == nil && again != pid
		})
		result, err := os.ReadFile(filepath.Join(b.RuntimeDir(), "streamlib/service-result"))
		if err != nil || !strings.HasPrefix(string(result), "watchdog ") {
			t.Errorf("the result that was written down: %q, %v", result, err)
		}
	})
}

func TestReload(t *testing.T) {
	runAs(t, []string{"fresh"}, func(t *testing.T, b *bed) {
		b.Systemctl("start", systemd.ServiceUnit)
		if got := b.Property(systemd.ServiceUnit, "StatusText"); got != "up" {
			t.Errorf("status: %q", got)
		}
		pid := b.MainPID(systemd.ServiceUnit)
		for range 3 {
			b.Systemctl("reload", systemd.ServiceUnit)
			b.Wait("the end of the reload", func() bool {
				return b.Property(systemd.ServiceUnit, "StatusText") == "read again" &&
					b.Property(systemd.ServiceUnit, "ActiveState") == "active"
			})
		}
		if again := b.MainPID(systemd.ServiceUnit); again != pid {
			t.Errorf("a reload restarted the service")
		}
	})
}

// Neither a terminal nor the units take the socket from each other.
func TestTerminalAndUnits(t *testing.T) {
	run(t, func(t *testing.T, b *bed) {
		tatolabd := filepath.Join(b.Dir, "tatolabd")
		b.Systemctl("start", systemd.SocketUnit)
		out, err := b.Try(tatolabd)
		if err == nil || !strings.Contains(out, "systemctl --user stop tatolabd.socket") {
			t.Errorf("in a terminal, while the socket unit is active: %v, %s", err, out)
		}
		b.ask("pid")
		out, err = b.Try(tatolabd)
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != systemd.ExitLocked || !strings.Contains(out, strconv.Itoa(b.MainPID(systemd.ServiceUnit))) {
			t.Errorf("in a terminal, while the service runs: %v, %s", err, out)
		}
		b.Systemctl("stop", systemd.SocketUnit, systemd.ServiceUnit)

		cmd := exec.Command(tatolabd)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		b.Wait("the runtime in the terminal", func() bool {
			how, err := b.tryAsk("how")
			return err == nil && how == "terminal"
		})
		// A terminal has no control group of the runtime's own: it made one.
		scope := fmt.Sprintf("tatolabd-%d.scope", cmd.Process.Pid)
		if group := b.ask("group"); filepath.Base(group) != scope {
			t.Errorf("in a terminal it is in the control group %s", group)
		}
		if got := b.Property(scope, "Delegate"); got != "yes" {
			t.Errorf("the scope's Delegate is %q", got)
		}
		if out, err := b.Try("systemctl", "--user", "start", systemd.SocketUnit); err == nil {
			t.Errorf("the socket unit started beside a runtime in a terminal: %s", out)
		}
		if out, err := b.Try("systemctl", "--user", "start", systemd.ServiceUnit); err == nil {
			t.Errorf("the service started beside a runtime in a terminal: %s", out)
		}
		time.Sleep(time.Second) // longer than RestartSec=
		if got := b.Property(systemd.ServiceUnit, "NRestarts"); got != "0" {
			t.Errorf("refused by the lock, and tried again %s times", got)
		}
		if got := b.ask("pid"); got != strconv.Itoa(cmd.Process.Pid) {
			t.Errorf("the socket went to pid %s", got)
		}
	})
}

// Of many racing starts one wins, and serves.
func TestRacingStarts(t *testing.T) {
	run(t, func(t *testing.T, b *bed) {
		var running []*exec.Cmd
		for range 10 {
			cmd := exec.Command(filepath.Join(b.Dir, "tatolabd"))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			running = append(running, cmd)
		}
		refused := make(chan int, len(running))
		for _, cmd := range running {
			go func() {
				cmd.Wait()
				refused <- cmd.ProcessState.ExitCode()
			}()
		}
		for range len(running) - 1 {
			if code := <-refused; code != systemd.ExitLocked {
				t.Errorf("a loser ended with %d", code)
			}
		}
		pid, err := strconv.Atoi(b.ask("pid"))
		if err != nil {
			t.Fatal(err)
		}
		b.kill(pid, syscall.SIGTERM)
		if code := <-refused; code != 0 {
			t.Errorf("the winner ended with %d", code)
		}
	})
}

func TestUnitsVerify(t *testing.T) {
	runAs(t, []string{"fresh"}, func(t *testing.T, b *bed) {
		out := b.Do("systemd-analyze", "--user", "verify",
			filepath.Join(b.UnitDir(), systemd.ServiceUnit),
			filepath.Join(b.UnitDir(), systemd.SocketUnit))
		if out != "" {
			t.Errorf("systemd-analyze verify says: %s", out)
		}
		b.Systemctl("enable", systemd.ServiceUnit)
		for _, unit := range []string{systemd.ServiceUnit, systemd.SocketUnit} {
			if got, _ := b.Try("systemctl", "--user", "is-enabled", unit); got != "enabled" {
				t.Errorf("%s is %s", unit, got)
			}
		}
		// The descriptor limit must be one that this manager can give.
		b.Systemctl("start", systemd.ServiceUnit)
		var limit unix.Rlimit
		if err := unix.Prlimit(b.MainPID(systemd.ServiceUnit), unix.RLIMIT_NOFILE, nil, &limit); err != nil || limit.Cur < 1024 {
			t.Errorf("%v, %v", limit, err)
		}
	})
}
