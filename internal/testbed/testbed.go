// Package testbed runs the real programs for tests: a tatolabd of its own in
// folders of its own, the command line against it, projects on disk. When a test
// ends it checks that nothing of the runtime is left.
package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/client"
)

const (
	startLimit   = time.Minute          // for tatolabd to answer; the machine may be busy, slow or emulated
	awaitLimit   = 2 * time.Minute      // for a command to print something
	commandLimit = 60 * time.Second     // for one command
	goneLimit    = 30 * time.Second     // for the last process to be gone
	firstWait    = 5 * time.Millisecond // between two looks of Eventually, and at last
	lastWait     = 100 * time.Millisecond
)

// Root is the folder of this repository.
var Root = sync.OnceValue(func() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	panic("no go.mod above the test")
})

// built is where the programs are: TATOLAB_TEST_BIN (`make test` has built them
// already), or a folder they were built into for this test process.
var built = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv("TATOLAB_TEST_BIN"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.MkdirTemp("", "tatolab-bin-")
	if err != nil {
		return "", err
	}
	build := exec.Command("make", "-s", "build", "BIN="+dir, "PROGRAMS=cmd/tatolab cmd/tatolabd")
	build.Dir = Root()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// Build builds the programs, once, and returns their folder, which is
// TATOLAB_TEST_BIN where that is set.
func Build() (string, error) { return built() }

// Bin is the folder of tatolab and tatolabd.
func Bin(t testing.TB) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal("cannot build the programs:", err)
	}
	return dir
}

// BinWithFaults is the folder of a tatolabd that breaks where TATOLAB_FAULT
// says, see service/runtime/fault_on.go.
func BinWithFaults(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("make", "-s", "build", "BIN="+dir, "PROGRAMS=cmd/tatolabd", "TAGS=faults")
	build.Dir = Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build tatolabd with faults: %v\n%s", err, out)
	}
	return dir
}

// Cleanup removes what Bin built. TestMain calls it.
func Cleanup() {
	if os.Getenv("TATOLAB_TEST_BIN") == "" {
		if dir, err := built(); err == nil {
			os.RemoveAll(dir)
		}
	}
}

// Runtime is a tatolabd of a test.
type Runtime struct {
	t   testing.TB
	Dir string // of everything that is its own
	Env []string
	// Bin is the folder of the programs, Bin(t) where it is empty.
	Bin string
	// Wrap, if set, changes the command that starts tatolabd.
	Wrap func(*exec.Cmd)
	// Spawn, if set, starts that command, in place of its Start.
	Spawn func(*exec.Cmd) error

	cmd    *exec.Cmd
	output *lockedBuffer
}

// New makes the folders of a runtime; Start starts it.
func New(t testing.TB) *Runtime {
	t.Helper()
	// Short: a socket's path has at most 107 bytes.
	dir, err := os.MkdirTemp("", "tl-")
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtime{t: t, Dir: dir, output: &lockedBuffer{}}
	for _, sub := range []string{"run", "state", "config", "home"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "HOME", "DBUS_SESSION_BUS_ADDRESS",
			"DISPLAY", "WAYLAND_DISPLAY", "NOTIFY_SOCKET", "SUDO_USER", "SUDO_UID":
		default:
			r.Env = append(r.Env, v)
		}
	}
	r.Env = append(r.Env, "XDG_RUNTIME_DIR="+dir+"/run", "XDG_STATE_HOME="+dir+"/state", "XDG_CONFIG_HOME="+dir+"/config",
		"XDG_CONFIG_DIRS="+dir+"/config", "HOME="+dir+"/home")
	t.Cleanup(func() {
		r.Stop()
		r.NothingLeft()
		if t.Failed() {
			t.Logf("tatolabd said:\n%s", r.output.String())
		}
		os.RemoveAll(dir)
	})
	return r
}

// Run makes a runtime and starts it.
func Run(t testing.TB) *Runtime {
	t.Helper()
	r := New(t)
	r.Start()
	return r
}

// Start starts tatolabd and returns when it answers.
func (r *Runtime) Start() {
	r.t.Helper()
	r.Launch()
	deadline := time.Now().Add(startLimit)
	for {
		_, err := r.Client().Status(context.Background())
		if err == nil {
			return
		}
		if r.ended() {
			r.t.Fatalf("tatolabd ended instead of answering: %v\n%s", err, r.output.String())
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("tatolabd does not answer: %v\n%s", err, r.output.String())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// ended tells whether tatolabd has ended; Kill is still to wait for it.
func (r *Runtime) ended() bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, r.PID(), &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return err == nil && info.Signo != 0
}

// Launch starts tatolabd and does not wait.
func (r *Runtime) Launch() {
	r.t.Helper()
	bin := r.Bin
	if bin == "" {
		bin = Bin(r.t)
	}
	r.cmd = exec.Command(filepath.Join(bin, "tatolabd"))
	r.cmd.Env, r.cmd.Stdout, r.cmd.Stderr = r.Env, r.output, r.output
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if r.Wrap != nil {
		r.Wrap(r.cmd)
	}
	spawn := r.cmd.Start
	if r.Spawn != nil {
		spawn = func() error { return r.Spawn(r.cmd) }
	}
	if err := spawn(); err != nil {
		r.t.Fatal(err)
	}
}

// PID of tatolabd.
func (r *Runtime) PID() int { return r.cmd.Process.Pid }

// Output is what tatolabd printed so far.
func (r *Runtime) Output() string { return r.output.String() }

// Kill sends a signal to tatolabd and waits for its end.
func (r *Runtime) Kill(s syscall.Signal) error {
	if r.cmd == nil {
		return nil
	}
	_ = r.cmd.Process.Signal(s)
	err := r.cmd.Wait()
	r.cmd = nil
	return err
}

// Stop ends tatolabd as Ctrl-C does.
func (r *Runtime) Stop() {
	if err := r.Kill(unix.SIGINT); err != nil {
		r.t.Errorf("tatolabd ended with %v", err)
	}
}

// Client is a client of the runtime.
func (r *Runtime) Client() *client.Client { return client.New(r.Socket()) }

// Socket is the path of the control socket.
func (r *Runtime) Socket() string { return filepath.Join(r.Dir, "run/streamlib/local-api.sock") }

// Record is the path of a stream's record.
func (r *Runtime) Record(stream string) string {
	return filepath.Join(r.Dir, "state/tatolab/streams", stream+".json")
}

// Result is how a command ended.
type Result struct {
	Stdout, Stderr string
	Code           int // -1: killed by a signal
}

// Command is `tatolab args` in dir, for tests that want to hold it.
func (r *Runtime) Command(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(Bin(r.t), "tatolab"), args...)
	cmd.Dir, cmd.Env = dir, r.Env
	return cmd
}

// CLI runs `tatolab args` in dir.
func (r *Runtime) CLI(dir string, args ...string) Result {
	r.t.Helper()
	cmd := r.Command(dir, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	late := time.AfterFunc(commandLimit, func() { cmd.Process.Signal(unix.SIGABRT) })
	err := cmd.Wait()
	if !late.Stop() {
		r.t.Fatalf("tatolab %s did not end within %s\n%s%s", strings.Join(args, " "), commandLimit, stdout.String(), stderr.String())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return Result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// Must runs a command that has to work, and returns its standard output.
func (r *Runtime) Must(dir string, args ...string) string {
	r.t.Helper()
	res := r.CLI(dir, args...)
	if res.Code != 0 {
		r.t.Fatalf("tatolab %s: exit %d\n%s%s", strings.Join(args, " "), res.Code, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// Processes are the processes of this runtime: tatolabd, keepers, nodes and
// what those started, known by the environment they inherit; with a stream, those
// of its nodes alone.
func (r *Runtime) Processes(stream ...string) []string {
	var list []string
	marker, instance := []byte("XDG_RUNTIME_DIR="+r.Dir+"/run\x00"), []byte(nil)
	for _, name := range stream {
		instance = []byte("TATOLAB_INSTANCE=" + name + "/")
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		environ, err := os.ReadFile(dir + "/environ")
		if err != nil || !bytes.Contains(append(environ, 0), marker) || !bytes.Contains(environ, instance) {
			continue
		}
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		list = append(list, filepath.Base(dir)+" "+strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))))
	}
	return list
}

// CPUTime is what all threads of a process have taken of a CPU.
func CPUTime(t testing.TB, pid int) (sum time.Duration) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, file := range files {
		var onCPU int64
		if data, err := os.ReadFile(file); err == nil { // a thread may end meanwhile
			if _, err := fmt.Sscan(string(data), &onCPU); err != nil {
				t.Fatal(err)
			}
		}
		sum += time.Duration(onCPU)
	}
	if sum == 0 {
		t.Fatalf("cannot tell the CPU time of process %d", pid)
	}
	return sum
}

// Switches is how often the threads of a process have waited for something.
func Switches(t testing.TB, pid int) (sum int) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if len(files) == 0 {
		t.Fatalf("process %d is gone", pid)
	}
	for _, file := range files {
		status, _ := os.ReadFile(file)
		_, rest, _ := strings.Cut(string(status), "\nvoluntary_ctxt_switches:")
		n := 0
		fmt.Sscan(rest, &n)
		sum += n
	}
	return sum
}

// NothingLeft fails the test unless every process of the runtime is gone
// shortly.
func (r *Runtime) NothingLeft() {
	r.t.Helper()
	deadline := time.Now().Add(goneLimit)
	for {
		left := r.Processes()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Project writes a project with these files and returns its folder. Its
// .venv/bin/python is the machine's own interpreter.
func (r *Runtime) Project(name string, files map[string]string) string {
	r.t.Helper()
	return r.project(name, files, "/usr/bin/python3")
}

// NumPyProject is Project with an interpreter that has numpy. The test is
// skipped, saying so, where `make test` has not made one.
func (r *Runtime) NumPyProject(name string, files map[string]string) string {
	r.t.Helper()
	python := filepath.Join(Root(), "build/venv/bin/python")
	if _, err := os.Stat(python); err != nil {
		r.t.Skip("needs numpy: `make build/venv/installed` makes an interpreter that has it")
	}
	return r.project(name, files, python)
}

func (r *Runtime) project(name string, files map[string]string, python string) string {
	r.t.Helper()
	dir := filepath.Join(r.Dir, name)
	Write(r.t, dir, files)
	bin := filepath.Join(dir, ".venv/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		r.t.Fatal(err)
	}
	// A wrapper, not a link: an interpreter finds its packages from where it
	// is called as.
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\"\n", python)
	if err := os.WriteFile(filepath.Join(bin, "python"), []byte(script), 0o755); err != nil {
		r.t.Fatal(err)
	}
	return dir
}

// Write writes files below dir.
func Write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Example returns the files of a project in contrib/examples.
func Example(t testing.TB, name string) map[string]string {
	t.Helper()
	files := map[string]string{}
	root := filepath.Join(Root(), "contrib/examples", name)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".venv" || d.Name() == "__pycache__") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			rel, _ := filepath.Rel(root, path)
			files[rel] = string(data)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Eventually waits until what returns "" and fails the test with what it
// returned last when that takes too long.
func Eventually(t testing.TB, limit time.Duration, what func() string) {
	t.Helper()
	deadline := time.Now().Add(limit)
	// Less and less often: to ask costs those who are waited for, too.
	for wait := firstWait; ; wait = min(wait*3/2, lastWait) {
		missing := what()
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", limit, missing)
		}
		time.Sleep(wait)
	}
}

// lockedBuffer collects output that is read meanwhile.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
	// more tells that something was written; nil if nobody wants to know.
	more chan struct{}
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.more <- struct{}{}:
	default:
	}
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Output is what a command printed so far, on both its outputs.
type Output struct {
	lockedBuffer
	next int // where the next Await begins
}

// Capture collects the output of a command that is not started yet.
func Capture(cmd *exec.Cmd) *Output {
	out := &Output{lockedBuffer: lockedBuffer{more: make(chan struct{}, 1)}}
	cmd.Stdout, cmd.Stderr = out, out
	return out
}

// Await waits until the command has printed text, after what the last Await
// waited for. It returns at once then: benchmarks count the time.
func (o *Output) Await(t testing.TB, text string) {
	t.Helper()
	for limit := time.After(awaitLimit); ; {
		all := o.String()
		if i := strings.Index(all[o.next:], text); i >= 0 {
			o.next += i + len(text)
			return
		}
		select {
		case <-o.more:
		case <-limit:
			t.Fatalf("after %s: no %q in what follows\n%s", awaitLimit, text, all[o.next:])
		}
	}
}

// Wait waits until tatolabd ends by itself, and returns how it did.
func (r *Runtime) Wait(limit time.Duration) error {
	r.t.Helper()
	late := time.AfterFunc(limit, func() { r.cmd.Process.Signal(unix.SIGKILL) })
	err := r.cmd.Wait()
	r.cmd = nil
	if !late.Stop() {
		r.t.Fatalf("tatolabd did not end within %s\n%s", limit, r.output.String())
	}
	return err
}

// Freeze stops a process and returns when it stands still. SIGSTOP alone does
// not say so: until the thread that takes the signal is scheduled, the others
// work on.
func Freeze(t testing.TB, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	Eventually(t, 10*time.Second, func() string {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if len(tasks) == 0 {
			return fmt.Sprintf("process %d is gone", pid)
		}
		for _, task := range tasks {
			stat, _ := os.ReadFile(task)
			// The state follows the name, which is in parentheses (proc(5)).
			if _, after, ok := bytes.Cut(stat, []byte(") ")); ok && after[0] != 'T' {
				return task + " still works"
			}
		}
		return ""
	})
}
