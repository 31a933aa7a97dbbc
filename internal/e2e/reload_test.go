package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// outcome is what dev says of each reload.
var outcome = regexp.MustCompile(`(?m)^(\w+ reloaded in .*|\w+: saved, no node changed)$`)

// Scenario 9: however a save comes about, it makes exactly one reload, and
// only what changed is started again.
func TestOneReloadPerSave(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", project, "-c", "user.name=t", "-c", "user.email=t@example.org"}, args...)...)
		cmd.Env = r.Env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	const many = 200
	modules := func(version int) map[string]string {
		files := map[string]string{}
		for i := range many {
			files[fmt.Sprintf("nodes/many/m%d.py", i)] = fmt.Sprintf("VALUE = %d\n", version)
		}
		return files
	}
	testbed.Write(t, project, modules(1))
	testbed.Write(t, project, map[string]string{".gitignore": ".venv\n__pycache__\n", "nodes/many/__init__.py": "", "pyproject.toml": "[project]\nname = \"ticker\"\nversion = \"0\"\n"})
	git("init", "-q", "-b", "one")
	git("add", ".")
	git("commit", "-q", "-m", "one")
	git("checkout", "-q", "-b", "two")
	testbed.Write(t, project, modules(2))
	edit(t, project, "nodes/printer.py", "count {", "second {")
	git("commit", "-q", "-a", "-m", "two")
	git("checkout", "-q", "one")

	_, out := start(t, r, project, "count ", "dev")
	printer, counter := filepath.Join(project, "nodes/printer.py"), filepath.Join(project, "nodes/counter.py")
	read := func(path string) []byte {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	changed := func(old, new string) []byte {
		t.Helper()
		s := string(read(printer))
		if !strings.Contains(s, old) {
			t.Fatalf("%s has no %q", printer, old)
		}
		return []byte(strings.Replace(s, old, new, 1))
	}
	// A save of several steps may be several where they do not come at once.
	const atOnce, soon = 10 * time.Millisecond, 200 * time.Millisecond
	for _, save := range []struct {
		how  string
		do   func()
		says string        // of the nodes that changed
		logs string        // by the new version
		most time.Duration // it may take to be one save; 0: any
	}{
		{"renamed over it", func() {
			data := changed("count {", "renamed {")
			must(os.WriteFile(printer+".tmp", data, 0o644), os.Rename(printer+".tmp", printer))
		}, "printer restarted", "renamed ", 0},
		{"a backup and a rename, as vim does", func() {
			data := changed("renamed {", "backed up {")
			must(os.WriteFile(filepath.Join(project, "nodes/4913"), nil, 0o644), os.Remove(filepath.Join(project, "nodes/4913")),
				os.Rename(printer, printer+"~"), os.WriteFile(printer, data, 0o644), os.Remove(printer+"~"))
		}, "printer restarted", "backed up ", soon},
		{"deleted and created", func() {
			data := changed("backed up {", "deleted {")
			must(os.Remove(printer))
			time.Sleep(60 * time.Millisecond)
			must(os.WriteFile(printer, data, 0o644))
		}, "printer restarted", "deleted ", soon},
		{"empty in between", func() {
			data := changed("deleted {", "emptied {")
			must(os.WriteFile(printer, nil, 0o644))
			time.Sleep(60 * time.Millisecond)
			must(os.WriteFile(printer, data, 0o644))
		}, "printer restarted", "emptied ", soon},
		{"written slowly", func() {
			data := changed("emptied {", "slow {")
			f, err := os.Create(printer)
			must(err)
			for _, b := range [][]byte{data[:len(data)/3], data[len(data)/3 : len(data)/2], data[len(data)/2:]} {
				_, err := f.Write(b)
				must(err)
				time.Sleep(100 * time.Millisecond)
			}
			must(f.Close())
		}, "printer restarted", "slow ", 0},
		{"two files at once", func() {
			must(os.WriteFile(printer, changed("slow {", "two {"), 0o644),
				os.WriteFile(counter, []byte(strings.Replace(string(read(counter)), "interval_ms=50", "interval_ms=40", 1)), 0o644))
		}, "counter, printer restarted", "two ", atOnce},
		{"a new sub-package", func() {
			must(os.MkdirAll(filepath.Join(project, "nodes/words/deep"), 0o755),
				os.WriteFile(filepath.Join(project, "nodes/words/__init__.py"), nil, 0o644),
				os.WriteFile(filepath.Join(project, "nodes/words/deep/__init__.py"), []byte("WORD = \"deep\"\n"), 0o644),
				os.WriteFile(printer, []byte(strings.Replace(string(changed("two {bag", "{WORD} {bag")), "from tatolab", "from nodes.words.deep import WORD\nfrom tatolab", 1)), 0o644))
		}, "printer restarted", "deep ", atOnce},
		{"a save in the new folder", func() {
			must(os.WriteFile(filepath.Join(project, "nodes/words/deep/__init__.py"), []byte("WORD = \"deeper\"\n"), 0o644))
		}, "printer restarted", "deeper ", 0},
		{"touch", func() {
			must(os.Chtimes(printer, time.Time{}, time.Now()))
		}, "no node changed", "", 0},
		{"saved unchanged", func() {
			must(os.WriteFile(printer, read(printer), 0o644))
		}, "no node changed", "", 0},
		{"a comment where no node imports it", func() {
			must(os.WriteFile(filepath.Join(project, "stream.py"), append(read(filepath.Join(project, "stream.py")), "# a comment\n"...), 0o644))
		}, "no node changed", "", 0},
		{"git checkout of 200 files", func() {
			git("stash", "-q", "-u")
			git("checkout", "-q", "two")
		}, "", "second ", 0},
	} {
		before := len(outcome.FindAllString(out.String(), -1))
		began := time.Now()
		save.do()
		took := time.Since(began)
		testbed.Eventually(t, 30*time.Second, func() string {
			if len(outcome.FindAllString(out.String(), -1)) == before {
				return save.how + ": no reload"
			}
			return ""
		})
		if save.logs != "" {
			out.Await(t, save.logs)
		}
		time.Sleep(400 * time.Millisecond) // for the reload that must not come
		said := outcome.FindAllString(out.String(), -1)[before:]
		if save.how == "git checkout of 200 files" {
			// Two commands of git, of several steps each.
			if len(said) > 4 {
				t.Errorf("%s: %q", save.how, said)
			}
			continue
		}
		if save.most > 0 && took > save.most {
			t.Logf("%s took %s: dev says %q", save.how, took, said)
			continue
		}
		if len(said) != 1 || !strings.HasSuffix(said[0], save.says) {
			t.Errorf("%s: dev says %q, want one reload with %q", save.how, said, save.says)
		}
	}
	if strings.Contains(out.String(), "error:") {
		t.Errorf("a state in between was compiled:\n%s", out.String())
	}
	// What none of this touched has run all the time.
	g, err := r.Client().Graph(t.Context(), "ticker")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if n.Restarts != 0 {
			t.Errorf("%s died %d times", n.Name, n.Restarts)
		}
	}
}

// Scenario 5: the old version of a node does not end when it should. The new
// one is healthy all the same, and the old one's death is booked on the old one.
func TestOldVersionThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/printer.py"] = `import ctypes
import signal

from tatolab.stream import RuntimeContextLimitedAccess, log, node


@node
class Printer:
    @node.input()
    def count(self) -> dict: ...

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        log.info(f"count {ctx.inputs.read('count')}")
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        ctypes.PyDLL(None).sleep(3600)
`
	project := r.Project("ticker", files)
	_, out := start(t, r, project, "count ", "dev")
	if err := os.WriteFile(filepath.Join(project, "nodes/printer.py"), []byte(ticker("ticker")["nodes/printer.py"]), 0o644); err != nil {
		t.Fatal(err)
	}
	out.Await(t, "printer was killed")
	out.Await(t, "count ")
	out.Await(t, "count ")
	g, err := r.Client().Graph(t.Context(), "ticker")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range g.Nodes {
		if n.State != api.NodeRunning || n.Restarts != 0 || n.Reason != "" {
			t.Errorf("%s is %s, restarts %d, %q", n.Name, n.State, n.Restarts, n.Reason)
		}
	}
}

// Scenario 8: while a save is not taken, graph says which version runs and what
// is wrong with the save; streams shows that it runs.
func TestSaveThatIsNotTaken(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	_, out := start(t, r, project, "count ", "dev")
	edit(t, project, "nodes/printer.py", "count {", "second {")
	out.Await(t, "second ")
	for round, c := range []struct{ file, old, new, says string }{
		{"nodes/printer.py", "log.info(", "log.info((", "SyntaxError"},
		{"nodes/counter.py", "from tatolab", "import nowhere_at_all\nfrom tatolab", "nowhere_at_all"},
		{"stream.py", "    counter =", "    1 / 0\n    counter =", "ZeroDivisionError"},
		{"stream.py", "printer.input(\"count\")", "printer.input(\"counts\")", "counts"},
	} {
		edit(t, project, c.file, c.old, c.new)
		out.Await(t, c.says)
		out.Await(t, "the last version that compiled keeps running")
		out.Await(t, "second ")
		graph, table := r.Must(project, "graph", "ticker"), r.Must(project, "streams")
		note := regexp.MustCompile(fmt.Sprintf(`version %d runs; the save after it was not taken: .*%s`, 2+round, c.says))
		if !note.MatchString(graph) {
			t.Errorf("graph after %s:\n%s", c.says, graph)
		}
		if !strings.Contains(table, "ticker  attached  2 ") {
			t.Errorf("streams after %s:\n%s", c.says, table)
		}
		edit(t, project, c.file, c.new, c.old) // as it was: version 3, 4, 5
		testbed.Eventually(t, 60*time.Second, func() string {
			if graph := r.Must(project, "graph", "ticker"); strings.Contains(graph, "was not taken") {
				return graph
			}
			return ""
		})
	}
}

// A run right after Ctrl-C finds the name free, however slow the teardown is.
func TestRunAgainAfterCtrlC(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/printer.py"] += `
    def teardown(self, ctx) -> None:
        import time

        time.sleep(0.8)
        log.info("torn down")
`
	project := r.Project("ticker", files)
	// Ctrl-C once, twice at once, and a plain kill.
	for _, signals := range [][]unix.Signal{{unix.SIGINT}, {unix.SIGINT, unix.SIGINT}, {unix.SIGKILL}} {
		cmd, out := start(t, r, project, "count ", "run")
		for i, s := range signals {
			if i > 0 {
				out.Await(t, "stopping ticker")
			}
			cmd.Process.Signal(s)
		}
		if len(signals) == 1 {
			cmd.Wait()
		} else if cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
			t.Errorf("Ctrl-C twice: exit %d, want 130", cmd.ProcessState.ExitCode())
		}
		var again *exec.Cmd
		testbed.Eventually(t, 30*time.Second, func() string {
			if again == nil {
				again = r.Command(project, "run")
				out = testbed.Capture(again)
				if err := again.Start(); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { again.Process.Kill() })
			}
			said := out.String()
			if signals[0] == unix.SIGKILL && strings.Contains(said, "is in use") {
				again.Wait() // the runtime hears of a kill a moment later
				again = nil
			}
			if !strings.Contains(said, "count ") {
				return said
			}
			return ""
		})
		again.Process.Signal(unix.SIGINT)
		again.Wait()
	}
}

// A node that a reload leaves alone runs on with the code it was started with,
// what it imports later included.
func TestUnchangedNodesKeepTheirCode(t *testing.T) {
	t.Parallel()
	for _, command := range [][]string{{"dev"}, {"run", "-d"}} {
		t.Run(command[0], func(t *testing.T) {
			t.Parallel()
			r := testbed.Run(t)
			files := ticker("ticker")
			files["nodes/late.py"] = "WORD = \"as it was\"\n"
			files["nodes/counter.py"] = strings.Replace(files["nodes/counter.py"], "        self.n += 1\n", `        self.n += 1
        import os

        if os.path.exists("now"):
            from nodes.late import WORD
            from tatolab.stream import log

            log.info(WORD)
`, 1)
			project := r.Project("ticker", files)
			awaitLog := func(text string) {
				t.Helper()
				testbed.Eventually(t, 60*time.Second, func() string {
					if log := r.Must(project, "logs", "ticker"); !strings.Contains(log, text) {
						return "no " + text + " in\n" + log
					}
					return ""
				})
			}
			if command[0] == "dev" {
				start(t, r, project, "count ", "dev")
			} else {
				r.Must(project, "run", "-d")
				awaitLog("count ")
			}
			was := node(t, r, "ticker", "counter").PID
			edit(t, project, "nodes/printer.py", "count {", "second {")
			if command[0] == "run" {
				r.Must(project, "run", "-d")
			}
			awaitLog("second ")
			// What clears out code that nobody uses.
			r.Must(r.Project("other", pattern("other")), "run", "-d")
			r.Must(project, "rm", "other")
			if is := node(t, r, "ticker", "counter").PID; is != was {
				t.Errorf("the counter was pid %d and is %d", was, is)
			}
			testbed.Write(t, project, map[string]string{"now": ""})
			awaitLog("as it was")
		})
	}
}
