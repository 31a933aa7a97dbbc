package usermanager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/usermanager"
	"tatolab.com/tatolab/dbus"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/systemd"
)

// tatolabd as it is installed, under a real user manager, with real streams: a
// test picture and a Python node that counts.

const service, socket = systemd.ServiceUnit, systemd.SocketUnit

// stopBound is how long a stop may take whatever nodes do: 1 s until a callback is
// interrupted, 5 s for teardown, and what systemd and a busy machine add.
const stopBound = 30 * time.Second

// built is the folder of build, "" before.
var built string

var build = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "tatolab-bed-"); err != nil {
		return "", err
	}
	built = dir
	out, err := exec.Command("go", "build", "-o", dir+"/", "tatolab.com/tatolab/cmd/tatolabd", "tatolab.com/tatolab/cmd/tatolab").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("cannot build: %w: %s", err, out)
	}
	return dir, err
})

func TestMain(m *testing.M) {
	status := m.Run()
	if built != "" {
		os.RemoveAll(built)
	}
	os.Exit(status)
}

func fill(t *testing.T, dir string) {
	programs, err := build()
	if err != nil {
		t.Fatal(err)
	}
	for to, from := range map[string]string{
		"": programs, "units": "../../../packaging/systemd", "bus": "../../../packaging/dbus", "project": "testdata/project",
	} {
		if err := os.CopyFS(filepath.Join(dir, to), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"tatolabd", "tatolab"} {
		if err := os.Chmod(filepath.Join(dir, program), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

type bed struct {
	*usermanager.Bed
	t       *testing.T
	project string
	http    http.Client
}

func newBed(t *testing.T, b *usermanager.Bed) *bed {
	bed := &bed{Bed: b, t: t, project: filepath.Join(b.Dir, "project")}
	bed.http.Transport = &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(b.RuntimeDir(), "streamlib/local-api.sock"))
		},
	}
	bed.http.Timeout = 60 * time.Second
	b.Install("units", b.UnitDir())
	b.Install("bus", b.BusDir())
	b.Systemctl("daemon-reload")
	b.Do("busctl", "--user", "call", "org.freedesktop.DBus", "/", "org.freedesktop.DBus", "ReloadConfig")
	return bed
}

// run is for the tests here: everything installed, nothing started.
func run(t *testing.T, users []string, body func(b *bed)) {
	usermanager.RunAs(t, users, fill, func(t *testing.T, b *usermanager.Bed) { body(newBed(t, b)) })
}

// python makes the project's environment.
func (b *bed) python() {
	b.t.Helper()
	b.Do("/usr/bin/python3", "-m", "venv", "--without-pip", filepath.Join(b.project, ".venv"))
}

func (b *bed) tatolab(args ...string) string {
	b.t.Helper()
	return b.Do(filepath.Join(b.Dir, "tatolab"), args...)
}

// keep keeps a stream of the project under a name.
func (b *bed) keep(target, name string) {
	b.t.Helper()
	b.tatolab("run", "-d", "--dir", b.project, "--name", name, target)
}

// delivers waits until a stream's counter counts.
func (b *bed) delivers(stream string) {
	b.t.Helper()
	b.tatolab("read", stream+"/counter/count", "-n", "3")
}

func (b *bed) status() (api.Status, error) {
	var status api.Status
	answer, err := b.http.Get("http://tatolabd/v1/status")
	if err != nil {
		return status, err
	}
	defer answer.Body.Close()
	return status, json.NewDecoder(answer.Body).Decode(&status)
}

func (b *bed) call(path, iface, method string, args ...string) (string, error) {
	return b.Try("busctl", append([]string{"--user", "--timeout=60", "call", dbus.BusName, path, dbus.BusName + "." + iface, method}, args...)...)
}

var ours = regexp.MustCompile(`tatolab|testpattern`)

// processes lists those of the runtime and its streams, by /proc: pid and command.
func (b *bed) processes() (list []string) {
	b.t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue // gone meanwhile
		}
		command := strings.TrimSpace(strings.ReplaceAll(string(data), "\x00", " "))
		if ours.MatchString(command) && !strings.Contains(command, "-test.") && !strings.Contains(command, "testbed.sh") {
			list = append(list, filepath.Base(dir)+" "+command)
		}
	}
	return list
}

func (b *bed) kill(pid int, signal syscall.Signal) {
	b.t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		b.t.Fatal(err)
	}
}

// nothingLeft checks what a stop has to leave: no process, no control group.
func (b *bed) nothingLeft() {
	b.t.Helper()
	if left := b.processes(); len(left) > 0 {
		b.t.Errorf("left running:\n%s", strings.Join(left, "\n"))
	}
	if groups, _ := filepath.Glob("/sys/fs/cgroup/user/app.slice/tatolabd.service/*"); len(groups) > 0 {
		b.t.Errorf("left control groups: %v", groups)
	}
}

// The first connection and the first call on the bus, many of each at the same
// moment, find one runtime.
func TestActivation(t *testing.T) {
	run(t, usermanager.Users, func(b *bed) {
		b.Systemctl("start", socket)
		var wait sync.WaitGroup
		pids, failures := make(chan int, 8), make(chan error, 16)
		for range 8 {
			wait.Go(func() {
				status, err := b.status()
				if err != nil {
					failures <- err
				}
				pids <- status.PID
			})
			wait.Go(func() {
				if _, err := b.Try("busctl", "--user", "get-property", dbus.BusName, dbus.Path, dbus.BusName+".Manager", "Version"); err != nil {
					failures <- err
				}
			})
		}
		wait.Wait()
		close(pids)
		close(failures)
		for err := range failures {
			b.t.Error(err)
		}
		main := b.MainPID(service)
		for pid := range pids {
			if pid != main {
				b.t.Errorf("pid %d answered, the service is %d", pid, main)
			}
		}
		if list := b.processes(); len(list) != 1 {
			b.t.Errorf("%d processes: %v", len(list), list)
		}
		if got := b.Property(service, "NRestarts"); got != "0" {
			b.t.Errorf("NRestarts is %s", got)
		}
	})
}

func TestActivationByTheBusAlone(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		out := b.Do("busctl", "--user", "get-property", dbus.BusName, dbus.Path, dbus.BusName+".Manager", "LocalApiSocket")
		if !strings.Contains(out, b.RuntimeDir()+"/streamlib/local-api.sock") {
			b.t.Error(out)
		}
		status, err := b.status()
		if err != nil || status.How != "systemd (tatolabd.service)" || status.DBus != dbus.BusName {
			b.t.Errorf("%+v, %v", status, err)
		}
		if got := b.Property(service, "StatusText"); got != "0 streams" {
			b.t.Errorf("the status line is %q", got)
		}
	})
}

// A killed runtime comes back with its kept streams, and what runs again is
// not beside what ran before.
func TestKilledRuntime(t *testing.T) {
	run(t, usermanager.Users, func(b *bed) {
		b.python()
		b.Systemctl("start", service)
		b.keep("stream.py:counter", "counter")
		b.delivers("counter")
		for range 2 {
			before := b.MainPID(service)
			b.kill(before, syscall.SIGKILL)
			// Started in the middle of the restart, this waits.
			b.tatolab("streams")
			b.delivers("counter")
			if after := b.MainPID(service); after == before {
				b.t.Fatal("it was not restarted")
			}
			// runtime, keeper, test picture, Python
			b.Wait("four processes", func() bool { return len(b.processes()) == 4 })
		}
		b.Systemctl("stop", service)
		b.nothingLeft()
	})
}

func TestHangingRuntime(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		b.python()
		b.DropIn(service, "[Service]\nWatchdogSec=5\nTimeoutAbortSec=1\n") // what a busy machine keeps to
		b.Systemctl("daemon-reload")
		b.Systemctl("start", service)
		b.keep("stream.py:counter", "counter")
		before := b.MainPID(service)
		for range 2 {
			last := b.Property(service, "WatchdogTimestampMonotonic")
			b.Wait("an answer to the watchdog", func() bool { return b.Property(service, "WatchdogTimestampMonotonic") != last })
		}
		if b.MainPID(service) != before {
			b.t.Fatalf("restarted without a reason\n%s", b.Journal())
		}
		b.kill(before, syscall.SIGSTOP)
		b.Wait("a restart by the watchdog", func() bool { pid := b.MainPID(service); return pid != 0 && pid != before })
		b.delivers("counter")
		status, err := b.status()
		if err != nil || !strings.Contains(status.LastCrash, "did not answer") {
			b.t.Errorf("the last crash is %q, %v", status.LastCrash, err)
		}
	})
}

// Three streams that crash the runtime, each in its own way, are found out one
// after another; the unit does not hit its start limit, the others run.
func TestGuiltyStreams(t *testing.T) {
	fillBroken := func(t *testing.T, dir string) {
		fill(t, dir)
		out, err := exec.Command("go", "build", "-tags", "faults", "-o", dir+"/broken/", "tatolab.com/tatolab/cmd/tatolabd").CombinedOutput()
		if err != nil {
			t.Fatalf("cannot build: %v: %s", err, out)
		}
		for _, path := range []string{"broken", "broken/tatolabd"} {
			if err := os.Chmod(filepath.Join(dir, path), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	usermanager.RunAs(t, []string{"fresh"}, fillBroken, func(t *testing.T, ub *usermanager.Bed) {
		b := newBed(t, ub)
		b.python()
		b.Systemctl("start", service)
		for _, name := range []string{"good", "panics", "overflows", "segfaults", "late"} {
			b.keep("stream.py:counter", name)
		}
		b.Systemctl("stop", service)
		b.DropIn(service, "[Service]\nExecStart=\nExecStart="+b.Dir+"/broken/tatolabd\n"+
			"Environment=\"TATOLAB_FAULT=panics=panic overflows=fatal segfaults=segv\"\n")
		b.Systemctl("daemon-reload")
		b.Systemctl("start", service)
		b.Wait("three failed streams, two that run", func() bool {
			status, err := b.status()
			return err == nil && status.Streams[api.Failed] == 3 && status.Streams[api.Kept] == 2
		})
		b.delivers("good")
		b.delivers("late")
		table := b.tatolab("streams")
		for _, name := range []string{"panics", "overflows", "segfaults"} {
			if !strings.Contains(table, name+" failed: it was involved in the runtime's last 2 crashes") {
				t.Errorf("%s is not blamed:\n%s", name, table)
			}
		}
	})
}

func TestReloadAndBadConfiguration(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		config := filepath.Join(os.Getenv("HOME"), ".config/tatolab/tatolabd.toml")
		write := func(text string) {
			if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
				b.t.Fatal(err)
			}
			if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
				b.t.Fatal(err)
			}
		}
		write("[log]\nlevel = \"debug\"\n")
		b.Systemctl("start", service)
		pid := b.MainPID(service)
		settled := func() bool {
			return b.Property(service, "ActiveState") == "active" && b.Property(service, "SubState") == "running"
		}
		// A configuration that is wrong costs a running runtime nothing.
		for _, text := range []string{"[log]\nlevel = \"info\"\n", "[lgo]\nlevel = \"info\"\n"} {
			write(text)
			b.Systemctl("reload", service)
			b.Wait("the end of the reload", settled)
			if _, err := b.status(); err != nil || b.MainPID(service) != pid {
				b.t.Errorf("after a reload of %q: %v", text, err)
			}
		}
		// A start is refused by it, once.
		if out, err := b.Try("systemctl", "--user", "restart", service); err == nil {
			b.t.Errorf("started with a misspelt key: %s", out)
		}
		time.Sleep(time.Second) // longer than RestartSec=
		if code, restarts := b.Property(service, "ExecMainStatus"), b.Property(service, "NRestarts"); code != strconv.Itoa(systemd.ExitBadConfig) || restarts != "0" {
			b.t.Errorf("it ended with %s and was restarted %s times", code, restarts)
		}
	})
}

func TestDisabledBus(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		dir := filepath.Join(os.Getenv("HOME"), ".config/tatolab")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "tatolabd.toml"), []byte("[dbus]\nenabled = false\n"), 0o644); err != nil {
			b.t.Fatal(err)
		}
		b.Systemctl("start", service)
		if status, err := b.status(); err != nil || !strings.Contains(status.DBus, "enabled = false") {
			b.t.Errorf("%q, %v", status.DBus, err)
		}
		if out := b.Do("busctl", "--user", "list", "--acquired"); strings.Contains(out, dbus.BusName) {
			b.t.Errorf("the name is taken:\n%s", out)
		}
	})
}

// A person can do over the bus what the command line does.
func TestStreamOverTheBus(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		b.python()
		const path = dbus.StreamsPath + "/over_5fbus"
		if out, err := b.call(dbus.Path, "Manager", "RunStream", "ssa{sv}", b.project, "stream.py:counter", "2", "keep", "b", "true", "name", "s", "over_bus"); err != nil || !strings.Contains(out, path) {
			b.t.Fatal(out, err)
		}
		b.delivers("over_bus")
		for _, step := range []struct{ method, state string }{
			{"Stop", "stopped"}, {"Start", "kept"}, {"Restart", "kept"},
		} {
			if out, err := b.call(path, "Stream", step.method); err != nil {
				b.t.Fatal(out, err)
			}
			if out := b.Do("busctl", "--user", "get-property", dbus.BusName, path, dbus.BusName+".Stream", "State"); out != `s "`+step.state+`"` {
				b.t.Errorf("after %s: %s", step.method, out)
			}
		}
		b.delivers("over_bus")
		if out, err := b.call(path, "Stream", "ApplyChanges", "sa{sv}", `{"remove": ["camera"]}`, "0"); err != nil {
			b.t.Error(out, err)
		}
		if out := b.Do("busctl", "--user", "get-property", dbus.BusName, path, dbus.BusName+".Stream", "NodeCount"); out != "u 1" {
			b.t.Errorf("after the removal of a node: %s", out)
		}
		if out, err := b.call(path, "Stream", "Expose", "sss", "counter", "count", "internal"); err != nil {
			b.t.Error(out, err)
		}
		if out := b.tatolab("graph", "over_bus", "--json"); strings.Contains(out, `"level":"private"`) {
			b.t.Errorf("still exposed: %s", out)
		}
		if out, err := b.call(path, "Stream", "Remove"); err != nil {
			b.t.Error(out, err)
		}
		if _, err := b.call(dbus.Path, "Manager", "RunStream", "ssa{sv}", b.project, "broken.py", "0"); err == nil || !strings.Contains(err.Error(), "NameError") {
			b.t.Errorf("a stream that does not compile: %v", err)
		}
		// busctl leaves the bus when it has its answer: the attached stream goes.
		if out, err := b.call(dbus.Path, "Manager", "RunStream", "ssa{sv}", b.project, "stream.py:counter", "0"); err != nil {
			b.t.Error(out, err)
		}
		b.Wait("the end of the attached stream", func() bool {
			return !strings.Contains(b.tatolab("streams", "--json"), `"counter"`)
		})
	})
}

// A runtime in a terminal has a scope of the user manager, and what a crash left
// as evidence is not used up by a start that is refused.
func TestTerminal(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		b.python()
		cmd := exec.Command(filepath.Join(b.Dir, "tatolabd"))
		if err := cmd.Start(); err != nil {
			b.t.Fatal(err)
		}
		defer cmd.Wait()
		defer cmd.Process.Kill()
		var status api.Status
		b.Wait("the runtime", func() (up bool) {
			var err error
			status, err = b.status()
			return err == nil
		})
		scope := fmt.Sprintf("tatolabd-%d.scope", cmd.Process.Pid)
		if status.How != "terminal" || !strings.Contains(status.Confined, scope) {
			b.t.Errorf("started %s, confined %s", status.How, status.Confined)
		}
		b.keep("stream.py:counter", "counter")
		b.delivers("counter")
		b.kill(cmd.Process.Pid, syscall.SIGKILL)
		b.Wait("the end of every process", func() bool { return len(b.processes()) == 0 })

		left := filepath.Join(b.RuntimeDir(), "streamlib/service-result")
		if err := os.WriteFile(left, []byte("core-dump dumped SEGV\n"), 0o600); err != nil {
			b.t.Fatal(err)
		}
		b.Systemctl("start", socket)
		if out, err := b.Try(filepath.Join(b.Dir, "tatolabd")); err == nil || !strings.Contains(out, "systemctl --user stop tatolabd.socket") {
			b.t.Errorf("beside the socket unit: %v: %s", err, out)
		}
		if status, err := b.status(); err != nil || !strings.Contains(status.LastCrash, "SIGSEGV") {
			b.t.Errorf("the last crash is %q, %v", status.LastCrash, err)
		}
	})
}

// Nodes that neither listen nor end do not hold up a stop.
func TestStopWithStubbornNodes(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		b.python()
		b.Systemctl("start", service)
		b.keep("stream.py:stubborn", "stubborn")
		b.Wait("the nodes' work", func() bool {
			files, _ := filepath.Glob(filepath.Join(b.project, "stubborn-*"))
			return len(files) == 10
		})
		began := time.Now()
		b.Systemctl("stop", service)
		if took := time.Since(began); took > stopBound {
			b.t.Errorf("the stop took %s", took)
		}
		if got := b.Property(service, "Result"); got != "success" {
			b.t.Errorf("the result is %s", got)
		}
		b.nothingLeft()
	})
}

// Stop and start, again and again, under load: no process is left, no control
// group, no descriptor in the manager, and nothing of what a stream had for itself
// alone (a lock, as a camera is).
func TestStartsAndStops(t *testing.T) {
	run(t, []string{"fresh"}, func(b *bed) {
		rounds := 20
		if os.Getenv("TATOLAB_SOAK") != "" {
			rounds = 100
		}
		b.python()
		b.Systemctl("start", service)
		for i := range 3 {
			b.keep("stream.py:counter", fmt.Sprintf("counter-%d", i))
		}
		b.keep("stream.py:holder", "holder")
		descriptors := func() int {
			files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.manager()))
			if err != nil {
				b.t.Fatal(err)
			}
			return len(files)
		}
		most := 0 // that the manager had open after a stop
		for i := range rounds {
			if i%5 == 4 {
				b.tatolab("read", "holder/holder/held", "-n", "1")
			}
			// In the middle of whatever the streams do then.
			time.Sleep(time.Duration(i%5) * 100 * time.Millisecond)
			b.Systemctl("stop", service)
			b.nothingLeft()
			b.free(filepath.Join(b.project, "device"))
			if got := b.Property(service, "NFileDescriptorStore"); got != "0" {
				b.t.Errorf("round %d: the manager stores %s descriptors", i, got)
			}
			if i < 5 {
				most = max(most, descriptors())
			}
			b.Systemctl("start", service)
		}
		b.delivers("counter-2")
		b.tatolab("read", "holder/holder/held", "-n", "1")
		b.Systemctl("stop", service)
		b.Wait(fmt.Sprintf("the manager to have no more than %d descriptors open", most), func() bool { return descriptors() <= most })
		b.Systemctl("start", service)
		if got := b.Property(service, "NRestarts"); got != "0" {
			b.t.Errorf("NRestarts is %s", got)
		}
		if out := b.tatolab("streams"); strings.Count(out, "kept") != 4 {
			b.t.Errorf("after all that:\n%s", out)
		}
	})
}

// manager is the pid of the user manager.
func (b *bed) manager() int {
	b.t.Helper()
	out := b.Do("busctl", "--user", "call", "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "GetConnectionUnixProcessID", "s", "org.freedesktop.systemd1")
	pid, err := strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(out), "u "))
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// free checks that nobody holds the lock of a file.
func (b *bed) free(path string) {
	b.t.Helper()
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return // nobody had it yet
	}
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		b.t.Errorf("somebody still holds %s: %v", path, err)
	}
}

// A stream's life is in the journal, under its name.
func TestJournal(t *testing.T) {
	run(t, []string{"root"}, func(b *bed) {
		b.python()
		b.Systemctl("start", service)
		b.keep("stream.py:counter", "counter")
		b.delivers("counter")
		b.tatolab("stop", "counter")
		b.Wait("the journal", func() bool {
			out := b.Do("journalctl", "--no-pager", "-o", "json", "TATOLAB_STREAM=counter")
			for _, want := range []string{
				`"MESSAGE":"counter counts"`, `"TATOLAB_NODE":"counter"`,
				`"MESSAGE_ID":"` + string(logstore.StreamKept) + `"`, `"MESSAGE_ID":"` + string(logstore.StreamStopped) + `"`,
			} {
				if !strings.Contains(out, want) {
					return false
				}
			}
			return true
		})
	})
}
