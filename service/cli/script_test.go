package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/localapi"
	"tatolab.com/tatolab/service/localapi/localapitest"
)

// The behaviour of the command line is testdata/*.txtar. The scripts run twice:
// against streams in memory, which is quick and shows the way of words, and
// against a tatolabd built here, with Python. What only one of them can do is
// behind [memory] or [real]. Beside testscript's own commands there are:
//
//	runtime start|stop|kill    a runtime of this script's own
//	venv DIR                   an environment for a project
//	await FILE REGEXP          until a file has a match, as another process writes it
//	count FILE N REGEXP        a file has exactly so many matches
//	until [!] exec COMMAND…    until a command succeeds, or fails
//	spawn NAME FILE COMMAND…   a process beside the script, which writes to FILE
//	signal NAME SIGNAL         for that process
//	ended NAME STATUS          its end, with that exit status

// soon bounds every wait of a script.
const soon = 30 * time.Second

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"tatolab": func() { os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr)) },
		"tatolabd-in-memory": func() {
			if err := serveMemory(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		},
	})
}

func serveMemory() error {
	path, err := client.SocketPath()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := localapi.New(localapitest.New())
	go func() {
		terminated := make(chan os.Signal, 1)
		signal.Notify(terminated, syscall.SIGTERM)
		<-terminated
		_ = server.Shutdown(context.Background())
	}()
	return server.Serve(l)
}

func TestScriptsInMemory(t *testing.T) { runScripts(t, "") }

func TestScriptsWithARuntime(t *testing.T) {
	if _, err := os.Stat("../../cmd/tatolabd"); err != nil {
		t.Skip("there is no tatolabd in this tree")
	}
	if testing.Short() {
		t.Skip("starts many processes")
	}
	daemon := filepath.Join(t.TempDir(), "tatolabd")
	if out, err := exec.Command("go", "build", "-o", daemon, "../../cmd/tatolabd").CombinedOutput(); err != nil {
		t.Fatalf("cannot build tatolabd: %v\n%s", err, out)
	}
	runScripts(t, daemon)
}

type (
	daemonKey  struct{}
	spawnedKey struct{}
)

// spawned are the processes beside one script, by name.
type spawned map[string]*exec.Cmd

// daemon is the runtime of one script.
type daemon struct {
	program string
	cmd     *exec.Cmd
	log     *os.File
}

func runScripts(t *testing.T, program string) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "real":
				return program != "", nil
			case "memory":
				return program == "", nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Setup: func(env *testscript.Env) error {
			// Short, for the path of a socket has at most 107 bytes.
			run, err := os.MkdirTemp("/tmp", "tatolab-")
			if err != nil {
				return err
			}
			env.Setenv("XDG_RUNTIME_DIR", run)
			for variable, folder := range map[string]string{"HOME": "home", "XDG_STATE_HOME": "state", "XDG_CONFIG_HOME": "config",
				"XDG_DATA_HOME": "data", "XDG_DATA_DIRS": "data", "XDG_CACHE_HOME": "cache"} {
				env.Setenv(variable, filepath.Join(env.WorkDir, folder))
			}
			env.Setenv("DBUS_SESSION_BUS_ADDRESS", "disabled:")
			env.Setenv("SOCKET", filepath.Join(run, "streamlib", "local-api.sock"))
			d := &daemon{program: program}
			env.Values[daemonKey{}] = d
			processes := spawned{}
			env.Values[spawnedKey{}] = processes
			env.Defer(func() {
				for _, cmd := range processes {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				}
				d.end(syscall.SIGTERM)
				os.RemoveAll(run)
			})
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"runtime": runtimeCommand, "venv": venvCommand, "await": awaitCommand, "count": countCommand, "until": untilCommand,
			"spawn": spawnCommand, "signal": signalCommand, "ended": endedCommand,
		},
	})
}

func (d *daemon) end(s syscall.Signal) {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(s)
	_ = d.cmd.Wait()
	d.log.Close()
	d.cmd = nil
}

func runtimeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: runtime start|stop|kill")
	}
	d := ts.Value(daemonKey{}).(*daemon)
	switch args[0] {
	case "stop":
		d.end(syscall.SIGTERM)
	case "kill":
		d.end(syscall.SIGKILL)
	case "start":
		program := d.program
		if program == "" {
			var err error
			program, err = exec.LookPath("tatolabd-in-memory")
			ts.Check(err)
		}
		log, err := os.OpenFile(ts.MkAbs("runtime.out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		ts.Check(err)
		cmd := exec.Command(program)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = environ(ts)
		ts.Check(cmd.Start())
		d.cmd, d.log = cmd, log
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		if err := client.New(ts.Getenv("SOCKET")).Wait(ctx); err != nil {
			ts.Fatalf("the runtime does not answer: %v\n%s", err, ts.ReadFile("runtime.out"))
		}
	default:
		ts.Fatalf("runtime %s?", args[0])
	}
}

func venvCommand(ts *testscript.TestScript, neg bool, args []string) {
	if ts.Value(daemonKey{}).(*daemon).program == "" {
		return // streams in memory have no Python
	}
	for _, dir := range args {
		out, err := exec.Command("python3", "-m", "venv", "--without-pip", ts.MkAbs(filepath.Join(dir, ".venv"))).CombinedOutput()
		if err != nil {
			ts.Fatalf("%v: %s", err, out)
		}
	}
}

func pattern(ts *testscript.TestScript, s string) *regexp.Regexp {
	re, err := regexp.Compile("(?m)" + s)
	ts.Check(err)
	return re
}

func awaitCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE REGEXP")
	}
	re := pattern(ts, args[1])
	var text []byte
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		text, _ = os.ReadFile(ts.MkAbs(args[0]))
		if re.Match(text) {
			return
		}
	}
	ts.Fatalf("%s has no match for %s within %v:\n%s", args[0], args[1], soon, text)
}

func countCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: count FILE N REGEXP")
	}
	text := ts.ReadFile(args[0])
	if n := len(pattern(ts, args[2]).FindAllString(text, -1)); fmt.Sprint(n) != args[1] {
		ts.Fatalf("%s has %d matches for %s, want %s:\n%s", args[0], n, args[2], args[1], text)
	}
}

func untilCommand(ts *testscript.TestScript, _ bool, args []string) {
	fails := args[0] == "!"
	if fails {
		args = args[1:]
	}
	if len(args) < 2 || args[0] != "exec" {
		ts.Fatalf("usage: until [!] exec COMMAND…")
	}
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if err := ts.Exec(args[1], args[2:]...); (err != nil) == fails {
			return
		}
	}
	ts.Fatalf("%s: not so after %v", strings.Join(args, " "), soon)
}

func spawnCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: spawn NAME FILE COMMAND…")
	}
	cmd := exec.Command(args[2], args[3:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = environ(ts)
	out, err := os.Create(ts.MkAbs(args[1]))
	ts.Check(err)
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	ts.Check(cmd.Start())
	ts.Value(spawnedKey{}).(spawned)[args[0]] = cmd
}

// environ is what the processes of a script know of their surroundings.
func environ(ts *testscript.TestScript) []string {
	var env []string
	for _, v := range []string{"PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
		"XDG_DATA_DIRS", "XDG_CACHE_HOME", "DBUS_SESSION_BUS_ADDRESS"} {
		env = append(env, v+"="+ts.Getenv(v))
	}
	return env
}

func process(ts *testscript.TestScript, name string) *exec.Cmd {
	cmd := ts.Value(spawnedKey{}).(spawned)[name]
	if cmd == nil {
		ts.Fatalf("no process was spawned as %s", name)
	}
	return cmd
}

func signalCommand(ts *testscript.TestScript, neg bool, args []string) {
	s := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL, "HUP": syscall.SIGHUP, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT}
	if neg || len(args) != 2 || s[args[1]] == 0 {
		ts.Fatalf("usage: signal NAME INT|TERM|KILL|HUP|STOP|CONT")
	}
	ts.Check(process(ts, args[0]).Process.Signal(s[args[1]]))
}

func endedCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ended NAME STATUS")
	}
	cmd := process(ts, args[0])
	late := time.AfterFunc(soon, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	inTime := late.Stop()
	delete(ts.Value(spawnedKey{}).(spawned), args[0])
	status := fmt.Sprint(cmd.ProcessState.ExitCode()) // -1 after a signal
	if status != args[1] || !inTime {
		ts.Fatalf("%s ended with %v (in time: %v), want exit status %s", args[0], err, inTime, args[1])
	}
}
