package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
)

// scriptLimit bounds every wait of a script.
const scriptLimit = 30 * time.Second

// TestPromises holds the sentences of the manual (docs/promises.md): each
// testdata/*.txtar is a script of real commands against a runtime of its own.
// Beside testscript's own commands there are:
//
//	runtime start|stop|kill     the script's runtime; stop is Ctrl-C, kill is SIGKILL
//	venv DIR…                   an environment for a project
//	install DIR PACKAGE         a package in the environment of a project
//	until REGEXP COMMAND…       until the output of a command matches
//	spawn NAME COMMAND…         a process beside the script, which writes to NAME.out
//	await NAME REGEXP           until that output has one more match
//	signal NAME SIGNAL          for that process
//	ended NAME STATUS           its end, with that exit status
func TestPromises(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts:", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			s := &script{r: testbed.New(t), beside: map[string]*beside{}}
			testscript.Run(t, testscript.Params{
				Files: []string{file},
				Setup: func(env *testscript.Env) error {
					env.Vars = append(env.Vars, s.r.Env...)
					env.Setenv("PATH", testbed.Bin(t)+":"+os.Getenv("PATH"))
					env.Setenv("SOCKET", s.r.Socket())
					env.Defer(s.end)
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"runtime": s.runtime, "venv": s.venv, "install": s.install, "until": s.until,
					"spawn": s.spawn, "await": s.await, "signal": s.signal, "ended": s.ended,
				},
			})
		})
	}
}

type script struct {
	r      *testbed.Runtime
	beside map[string]*beside
}

type beside struct {
	cmd *exec.Cmd
	out *testbed.Output
	at  int // end of the last match of await
}

func (s *script) end() {
	for _, b := range s.beside {
		_ = b.cmd.Process.Kill()
		_ = b.cmd.Wait()
	}
}

func (s *script) runtime(ts *testscript.TestScript, _ bool, args []string) {
	switch {
	case len(args) == 1 && args[0] == "start":
		s.r.Start()
	case len(args) == 1 && args[0] == "stop":
		s.r.Stop()
	case len(args) == 1 && args[0] == "kill":
		_ = s.r.Kill(unix.SIGKILL)
	default:
		ts.Fatalf("usage: runtime start|stop|kill")
	}
}

// python is the machine's own interpreter, and pythonVersion its "3.11".
const python = "/usr/bin/python3"

var pythonVersion = sync.OnceValues(func() (string, error) {
	out, err := exec.Command(python, "-c", `import sys; print("%d.%d" % sys.version_info[:2], end="")`).Output()
	return string(out), err
})

func sitePackages(ts *testscript.TestScript, project string) string {
	version, err := pythonVersion()
	ts.Check(err)
	return ts.MkAbs(filepath.Join(project, ".venv/lib/python"+version+"/site-packages"))
}

// venv makes what `python3 -m venv` does, so far as it matters, in no time.
func (s *script) venv(ts *testscript.TestScript, _ bool, args []string) {
	for _, project := range args {
		bin := ts.MkAbs(filepath.Join(project, ".venv/bin"))
		ts.Check(os.MkdirAll(bin, 0o755))
		ts.Check(os.MkdirAll(sitePackages(ts, project), 0o755))
		ts.Check(os.Symlink(python, filepath.Join(bin, "python")))
		ts.Check(os.WriteFile(filepath.Join(bin, "../pyvenv.cfg"), []byte("home = "+filepath.Dir(python)+"\n"), 0o644))
	}
}

func (s *script) install(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: install DIR PACKAGE")
	}
	to := filepath.Join(sitePackages(ts, args[0]), filepath.Base(args[1]))
	ts.Check(os.RemoveAll(to))
	ts.Check(os.CopyFS(to, os.DirFS(ts.MkAbs(args[1]))))
}

func (s *script) until(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND…")
	}
	re := multiline(ts, args[0])
	var out []byte
	for end := time.Now().Add(scriptLimit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		cmd := s.command(ts, args[1:])
		out, _ = cmd.CombinedOutput()
		if re.Match(out) {
			return
		}
	}
	ts.Fatalf("%s: no match for %s within %s:\n%s", strings.Join(args[1:], " "), args[0], scriptLimit, out)
}

func multiline(ts *testscript.TestScript, s string) *regexp.Regexp {
	re, err := regexp.Compile("(?m)" + s)
	ts.Check(err)
	return re
}

func (s *script) command(ts *testscript.TestScript, args []string) *exec.Cmd {
	program := args[0]
	if program == "tatolab" {
		program = filepath.Join(strings.Split(ts.Getenv("PATH"), ":")[0], program)
	}
	cmd := exec.Command(program, args[1:]...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), s.r.Env
	return cmd
}

func (s *script) spawn(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) < 2 {
		ts.Fatalf("usage: spawn NAME COMMAND…")
	}
	b := &beside{cmd: s.command(ts, args[1:])}
	b.out = testbed.Capture(b.cmd)
	ts.Check(b.cmd.Start())
	s.beside[args[0]] = b
}

func (s *script) find(ts *testscript.TestScript, args []string) *beside {
	if len(args) != 2 || s.beside[args[0]] == nil {
		ts.Fatalf("nothing was spawned as %q", args)
	}
	return s.beside[args[0]]
}

func (s *script) await(ts *testscript.TestScript, _ bool, args []string) {
	b := s.find(ts, args)
	re := multiline(ts, args[1])
	for end := time.Now().Add(scriptLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if at := re.FindStringIndex(b.out.String()[b.at:]); at != nil {
			b.at += at[1]
			return
		}
	}
	ts.Fatalf("no match for %s within %s in what follows:\n%s", args[1], scriptLimit, b.out.String()[b.at:])
}

func (s *script) signal(ts *testscript.TestScript, _ bool, args []string) {
	b := s.find(ts, args)
	number := unix.SignalNum("SIG" + args[1])
	if number == 0 {
		ts.Fatalf("there is no signal %s", args[1])
	}
	ts.Check(b.cmd.Process.Signal(number))
}

func (s *script) ended(ts *testscript.TestScript, _ bool, args []string) {
	b := s.find(ts, args)
	late := time.AfterFunc(scriptLimit, func() { _ = b.cmd.Process.Kill() })
	err := b.cmd.Wait()
	delete(s.beside, args[0])
	if !late.Stop() || fmt.Sprint(b.cmd.ProcessState.ExitCode()) != args[1] {
		ts.Fatalf("%s ended with %v, want exit status %s:\n%s", args[0], err, args[1], b.out.String())
	}
}
