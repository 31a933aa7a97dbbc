package keeper

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/cgroup"
)

// The test binary is every process of these tests: the keeper, and a runtime
// to be killed.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "keeper":
			os.Exit(Main())
		case "debugger":
			os.Exit(debugger(os.Args[2]))
		case "runtime":
			os.Exit(mortalRuntime(os.Args[2]))
		}
	}
	goleak.VerifyTestMain(m)
}

const patience = 20 * time.Second

func start(t *testing.T) *Keeper {
	t.Helper()
	k, err := Start(Options{Stream: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
		if left := marked(k.line().token); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return k
}

// marked are the processes that carry a keeper's token, the keeper included.
func marked(token string) []string {
	procs, _ := processes()
	var found []string
	for _, p := range procs {
		if value, _ := variable(p.pid, EnvKeeper); value == token {
			found = append(found, p.String())
		}
	}
	return found
}

func spawn(t *testing.T, k *Keeper, name, script string) *Process {
	t.Helper()
	p, err := k.Spawn(Command{Instance: name, Argv: []string{"/bin/bash", "-c", script}, Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func wait(t *testing.T, p *Process) Exit {
	t.Helper()
	select {
	case e := <-p.Exited():
		return e
	case <-time.After(patience):
		t.Fatalf("%s did not end", p.Instance)
		panic("unreachable")
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("not in time: ", what)
		}
	}
}

func alive(pid int) bool {
	p, ok := readStat(pid, make([]byte, 1024))
	return ok && !p.zombie()
}

// child runs script as instance name and returns the pid the script prints.
func child(t *testing.T, k *Keeper, name, script string) (*Process, int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p, err := k.Spawn(Command{
		Instance: name, Argv: []string{"/bin/bash", "-c", script}, Env: os.Environ(),
		Files: []*os.File{null, w},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return p, pid
}

func TestCauses(t *testing.T) {
	k := start(t)
	for script, want := range map[string]string{
		"exit 0":                     "exit status 0",
		"exit 3":                     "exit status 3",
		"kill -TERM $$":              "killed by signal SIGTERM",
		"kill -KILL $$":              "killed by signal SIGKILL",
		"ulimit -c 0; kill -SEGV $$": "segmentation fault",
		"ulimit -c 0; kill -ABRT $$": "aborted",
		"kill -40 $$":                "killed by signal 40",
	} {
		e := wait(t, spawn(t, k, script, script))
		if e.Cause() != want || e.Killed {
			t.Errorf("%s: %q, killed %v; want %q", script, e.Cause(), e.Killed, want)
		}
	}
	p := spawn(t, k, "sleeper", "sleep 1000")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Signal != unix.SIGKILL || !e.Killed {
		t.Errorf("after Kill: %+v", e)
	}
	p = spawn(t, k, "signalled", "trap 'exit 7' USR1; while :; do sleep 0.01; done")
	eventually(t, "the trap is set", func() bool {
		p.Signal(unix.SIGUSR1)
		select {
		case e := <-p.Exited():
			if e.Code != 7 && e.Signal != unix.SIGUSR1 { // it may come before the trap
				t.Errorf("after SIGUSR1: %+v", e)
			}
			return true
		default:
			return false
		}
	})
}

func TestSpawnSaysWhyNot(t *testing.T) {
	k := start(t)
	script := t.TempDir() + "/python"
	if err := os.WriteFile(script, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tooLong := strings.Repeat("x", 256<<10) // execve(2): 128 KiB
	for _, c := range []struct {
		argv, dir, env, want string
		unrunnable           bool
	}{
		{"/no/such/python", "", "", "/no/such/python cannot be run: no such file", true},
		{"/bin/true", "/no/such/project", "", "its folder cannot be entered: stat /no/such/project", false},
		{script, "", "", "its interpreter is missing", true},
		{"/etc/passwd", "", "", "permission denied", true},
		{"/bin/true", "", tooLong, "/bin/true cannot be run: argument list too long", false},
	} {
		_, err := k.Spawn(Command{Instance: "cam/x#1", Argv: []string{c.argv}, Dir: c.dir, Env: []string{"X=" + c.env}})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "cannot start cam/x#1: ") {
			t.Errorf("%s in %q: %v; want %q", c.argv, c.dir, err, c.want)
		}
		if errors.As(err, new(*Unrunnable)) != c.unrunnable {
			t.Errorf("%s in %q: %T %v; want one of the program: %v", c.argv, c.dir, err, err, c.unrunnable)
		}
	}
	p := spawn(t, k, "twice", "sleep 1000")
	if _, err := k.Spawn(Command{Instance: "twice", Argv: []string{"/bin/true"}}); err == nil {
		t.Error("a name in use was spawned again")
	}
	p.Kill()
	wait(t, p)
}

func TestBornAsPromised(t *testing.T) {
	k := start(t)
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	big := strings.Repeat("x", 300<<10) // more than a datagram holds
	env := append(os.Environ(), "TATOLAB_INSTANCE=forged", "A="+big[:100<<10], "B="+big[:100<<10], "C="+big[:100<<10])
	p, err := k.Spawn(Command{
		Instance: "s/n#1", Dir: dir, Env: env, Files: []*os.File{w, w, w, w, w},
		Argv: []string{"/bin/bash", "-c", `echo $PWD; echo $TATOLAB_INSTANCE; echo ${#A}; cat /proc/$$/oom_score_adj
			cut -d' ' -f5,6 /proc/$$/stat; echo $$
			for f in /proc/$$/fd/*; do [ -e $f ] && echo -n "$f "; done; echo; grep -E 'SigIgn|SigBlk' /proc/$$/status`},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	wait(t, p)
	var lines []string
	for s := bufio.NewScanner(r); s.Scan(); {
		lines = append(lines, s.Text())
	}
	own, _ := os.ReadFile("/proc/self/oom_score_adj")
	score, _ := strconv.Atoi(strings.TrimSpace(string(own)))
	var fds []string
	for _, fd := range []int{0, 1, 2, 255, 3, 4} { // 255 is bash's own
		fds = append(fds, fmt.Sprintf("/proc/%d/fd/%d", p.PID, fd))
	}
	pid := strconv.Itoa(p.PID)
	want := []string{
		dir, "s/n#1", strconv.Itoa(100 << 10), strconv.Itoa(min(1000, score+oomRaise)), pid + " " + pid, pid,
		strings.Join(fds, " "),
		"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000",
	}
	for i, line := range want {
		if i >= len(lines) || i != 6 && lines[i] != line {
			t.Errorf("line %d is %q; want %q", i, lines, line)
		}
	}
	if len(lines) > 6 {
		for _, fd := range strings.Fields(lines[6]) {
			if !strings.Contains(" "+want[6]+" ", " "+fd+" ") {
				t.Errorf("descriptor %s leaked into the process", fd)
			}
		}
	}
}

// Scenario 3: what an instance started ends with it, however well it hides.
func TestLeftoversEnd(t *testing.T) {
	k := start(t)
	for name, how := range map[string]string{
		"background":     "sleep 1000 & echo $!",
		"own session":    "setsid sleep 1000 & echo $!",
		"daemon":         "(setsid sleep 1000 & echo $!)",
		"no environment": "env -i sleep 1000 & echo $!",
	} {
		p, pid := child(t, k, name, how+"; sleep 1000")
		bystander, spared := child(t, k, "bystander", "(setsid sleep 1000 & echo $!); sleep 1000")
		if !alive(pid) || !alive(spared) {
			t.Fatal(name, ": the children did not start")
		}
		if strings.Contains(how, "setsid") {
			eventually(t, "a session of its own", func() bool {
				s, _ := readStat(pid, make([]byte, 1024))
				return s.session == pid
			})
		}
		p.Kill()
		e := wait(t, p)
		if alive(pid) {
			t.Errorf("%s: left behind after the exit was reported", name)
		}
		if len(e.Stuck) > 0 {
			t.Errorf("%s: stuck: %v", name, e.Stuck)
		}
		if !alive(spared) {
			t.Errorf("%s: the child of another instance was ended", name)
		}
		if name == "daemon" && !strings.Contains(e.LeftBehind(), fmt.Sprintf("(%d)", pid)) {
			t.Errorf("the exit does not name what was left: %q", e.LeftBehind())
		}
		bystander.Kill()
		wait(t, bystander)
	}
	// Nothing says whose this one is: it ends with the last instance.
	p, pid := child(t, k, "hidden", "(env -i setsid sleep 1000 & echo $!); sleep 1000")
	p.Kill()
	wait(t, p)
	if alive(pid) {
		t.Error("a hidden process outlived the last instance")
	}
}

// A child that outlives an instance which ends by itself.
func TestLeftoverOfAnExit(t *testing.T) {
	k := start(t)
	p, pid := child(t, k, "n", "setsid sleep 1000 & echo $!")
	if e := wait(t, p); e.Cause() != "exit status 0" {
		t.Error(e.Cause())
	}
	if alive(pid) {
		t.Error("left behind")
	}
}

// Scenario 7.
func TestFiveHundredDeathsAtOnce(t *testing.T) {
	k := start(t)
	var procs []*Process
	for i := range 500 {
		p, err := k.Spawn(Command{Instance: fmt.Sprint("n", i), Argv: []string{"/bin/sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		procs = append(procs, p)
	}
	for _, p := range procs {
		unix.Kill(p.PID, unix.SIGKILL)
	}
	for _, p := range procs {
		if e := wait(t, p); e.Signal != unix.SIGKILL {
			t.Fatalf("%s: %+v", p.Instance, e)
		}
	}
	all, err := processes()
	if err != nil {
		t.Fatal(err)
	}
	if left := children(all).below(k.PID(), nil); len(left) > 0 {
		t.Errorf("left below the keeper: %v", names(left))
	}
	if e := wait(t, spawn(t, k, "after", "exit 4")); e.Code != 4 {
		t.Errorf("the keeper does not work on: %+v", e)
	}
}

// What forks and exits without end, each step in a session of its own, must
// not outrun the keeper.
func TestRunaways(t *testing.T) {
	k := start(t)
	const walker = `
import os, sys
for _ in range(4):
    if os.fork() == 0:
        while True:
            if os.fork():
                os._exit(0)
            os.setsid()
os.execv("/bin/sleep", ["sleep", "1000"])`
	p, err := k.Spawn(Command{Instance: "walker", Argv: []string{"/usr/bin/python3", "-c", walker}, Env: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	bystander, spared := child(t, k, "bystander", "(setsid sleep 1000 & echo $!); sleep 1000")
	time.Sleep(200 * time.Millisecond)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); len(e.Stuck) > 0 {
		t.Errorf("they got away: %v", e.Stuck)
	}
	if !alive(spared) {
		t.Error("the child of another instance was ended")
	}
	bystander.Kill()
	wait(t, bystander)
}

// mortalRuntime starts nodes, prints the pids of all that is below it, and
// waits to be killed.
func mortalRuntime(ready string) int {
	k, err := Start(Options{Stream: "mortal"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for i, script := range []string{
		"sleep 1000", "trap '' TERM INT HUP; sleep 1000 & wait", "(setsid sleep 1000 &); sleep 1000",
		"(env -i setsid sleep 1000 &); sleep 1000", "kill -STOP $$",
	} {
		if _, err := k.Spawn(Command{Instance: fmt.Sprint("n", i), Argv: []string{"/bin/bash", "-c", script}, Env: os.Environ()}); err != nil {
			fmt.Println(err)
			return 1
		}
	}
	var below []proc
	for start := time.Now(); len(below) < 9 && time.Since(start) < patience; time.Sleep(10 * time.Millisecond) {
		procs, _ := processes()
		below = children(procs).below(os.Getpid(), nil)
	}
	for _, p := range below {
		fmt.Print(p.pid, " ")
	}
	fmt.Println(ready)
	time.Sleep(time.Hour)
	return 0
}

// Scenario 2: however the runtime ends, nothing is left.
func TestRuntimeKilled(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "runtime", "ready")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	fields := strings.Fields(line)
	cmd.Process.Kill()
	cmd.Wait()
	if len(fields) < 10 {
		t.Fatalf("only this came up: %q", line)
	}
	for _, field := range fields[:len(fields)-1] {
		pid, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		eventually(t, "process "+field+" is gone", func() bool { return !alive(pid) })
	}
}

func TestKeeperKilled(t *testing.T) {
	k := start(t)
	// Its child executes itself over and over: most looks at it find a process
	// without an environment.
	p, pid := child(t, k, "n", `again='exec /bin/sh -c "$0" "$0"'
		(setsid /bin/sh -c "$again" "$again" & echo $!); sleep 1000`)
	unix.Kill(k.PID(), unix.SIGKILL)
	e := wait(t, p)
	if !strings.Contains(e.Cause(), "its keeper ended: signal: killed") {
		t.Errorf("cause: %q", e.Cause())
	}
	eventually(t, "the node is gone", func() bool { return !alive(p.PID) })
	eventually(t, "the child of the node is gone", func() bool { return !alive(pid) })
	// The stream goes on with another.
	<-k.line().done
	if e := wait(t, spawn(t, k, "n", "exit 6")); e.Code != 6 {
		t.Errorf("after the death of its keeper: %+v", e)
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	if _, err := k.Spawn(Command{Instance: "m", Argv: []string{"/bin/true"}}); err == nil {
		t.Error("a closed keeper spawned")
	}
}

// A stopped keeper does what is asked of it, and what it keeps ends with it.
func TestKeeperStopped(t *testing.T) {
	k := start(t)
	p := spawn(t, k, "n", "sleep 1000")
	unix.Kill(k.PID(), unix.SIGSTOP)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Signal != unix.SIGKILL {
		t.Errorf("%+v", e)
	}
	p = spawn(t, k, "m", "sleep 1000")
	unix.Kill(k.PID(), unix.SIGSTOP)
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	wait(t, p)
}

// A keeper that does not go even when it is killed is named, and not waited for
// for good. Here a debugger holds on to what is left of it.
func TestKeeperThatDoesNotGo(t *testing.T) {
	k, err := Start(Options{Stream: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	hold, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	debugger := exec.Command(os.Args[0], "debugger", strconv.Itoa(k.PID()))
	debugger.Stdin, debugger.Stderr = hold, os.Stderr
	said, err := debugger.StdoutPipe()
	if err == nil {
		err = debugger.Start()
	}
	hold.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		release.Close()
		debugger.Wait()
		if err := k.Close(); err != nil { // now it can
			t.Error(err)
		}
	})
	if line, _ := bufio.NewReader(said).ReadString('\n'); line != "attached\n" {
		t.Skip("needs to be allowed ptrace(2): ", line)
	}
	if err := k.Close(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", k.PID())) {
		t.Errorf("closed with %v", err)
	}
}

// debugger attaches to a process and lets it run, until its standard input ends.
// What is traced is a zombie as long as its tracer has not waited for it (ptrace(2)).
func debugger(target string) int {
	runtime.LockOSThread()
	pid, _ := strconv.Atoi(target)
	if _, _, err := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); err != 0 {
		fmt.Println(err)
		return 1
	}
	fmt.Println("attached")
	io.Copy(io.Discard, os.Stdin)
	return 0
}

func TestCloseReportsExits(t *testing.T) {
	k := start(t)
	p := spawn(t, k, "n", "trap '' TERM INT; sleep 1000")
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p); e.Signal != unix.SIGKILL || !e.Killed || e.Lost != "" {
		t.Errorf("%+v", e)
	}
}

// A terminal's Ctrl-C and a service manager's SIGTERM are for the runtime.
func TestKeeperOutlivesSignals(t *testing.T) {
	k := start(t)
	wait(t, spawn(t, k, "first", "exit 0")) // it is up
	for _, s := range []unix.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		unix.Kill(k.PID(), s)
	}
	if e := wait(t, spawn(t, k, "n", "exit 5")); e.Code != 5 {
		t.Errorf("%+v", e)
	}
}

func TestKeeperIsSmall(t *testing.T) {
	k := start(t)
	wait(t, spawn(t, k, "n", "exit 0"))
	procs, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", k.PID()))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(procs))
	resident, _ := strconv.Atoi(f[1])
	shared, _ := strconv.Atoi(f[2])
	if own := (resident - shared) * os.Getpagesize(); own > memoryLimit {
		t.Errorf("the keeper has %d MiB of its own", own>>20)
	}
}

func TestBornInACgroup(t *testing.T) {
	own, err := cgroup.Own()
	if err != nil {
		t.Skip("no control groups of version 2: ", err)
	}
	dir, err := os.MkdirTemp(own, "tatolab-test-")
	if err != nil {
		t.Skip("cannot make a control group: ", err)
	}
	defer os.Remove(dir)
	k, err := Start(Options{Stream: t.Name(), Cgroup: dir})
	if err != nil {
		t.Fatal(err)
	}
	p := spawn(t, k, "n", "sleep 1000")
	data, err := os.ReadFile(dir + "/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{k.PID(), p.PID} {
		if !strings.Contains("\n"+string(data), fmt.Sprintf("\n%d\n", pid)) {
			t.Errorf("%d is not among %q", pid, data)
		}
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := Start(Options{Stream: "garage", Cgroup: dir}); err == nil || !strings.Contains(err.Error(), "garage") {
		t.Errorf("in a group that is gone: %v", err)
	}
}

// Spawns, kills, signals and the death of the keeper itself, in any order and
// from several sides: every spawn has one exit, and nothing is left.
func TestRaces(t *testing.T) {
	rounds := 30
	if os.Getenv("TATOLAB_SOAK") != "" {
		rounds = 1000
	}
	k := start(t)
	var sides sync.WaitGroup
	for side := range 4 {
		sides.Go(func() {
			random := rand.New(rand.NewPCG(uint64(side), 1))
			for round := range rounds {
				script := []string{"exit 3", "sleep 1000", "(setsid sleep 1000 &); sleep 1000", "(setsid sleep 1000 &); exit 1", "kill -SEGV $$"}[random.IntN(5)]
				p, err := k.Spawn(Command{
					Instance: fmt.Sprintf("n%d#%d", side, round), Env: os.Environ(),
					Argv: []string{"/bin/bash", "-c", "ulimit -c 0; " + script},
				})
				if err != nil {
					if !strings.Contains(err.Error(), "its keeper") { // it was just killed
						t.Error(err)
					}
					continue
				}
				time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
				if random.IntN(20) == 0 {
					unix.Kill(k.PID(), unix.SIGKILL)
				}
				if random.IntN(2) == 0 {
					p.Signal(unix.SIGTERM)
				}
				p.Kill()
				select {
				case <-p.Exited():
				case <-time.After(patience):
					t.Errorf("%s, round %d: no exit of %q", p.Instance, round, script)
					return
				}
			}
		})
	}
	sides.Wait()
}
