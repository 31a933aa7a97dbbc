package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// node returns a node of a stream's graph.
func node(t *testing.T, r *testbed.Runtime, stream, name string) api.GraphNode {
	t.Helper()
	g, err := r.Client().Graph(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(g.Nodes, func(n api.GraphNode) bool { return n.Name == name })
	if i < 0 {
		t.Fatalf("%s has no node %s", stream, name)
	}
	return g.Nodes[i]
}

// Scenario 10a: under a kept stream its project is edited in every file, a
// module that is imported late in a callback included, one by a name made at
// run time, and its .venv is built
// anew. Then a node crashes, then the runtime, then it restarts: what was kept
// runs.
func TestKeptRunsWhatWasKept(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/words.py"] = "WORD = \"kept\"\n"
	files["plugins/late.py"] = "NUMBER = 3\n"
	files["nodes/printer.py"] = strings.Replace(files["nodes/printer.py"], `            log.info(f"count {bag['n']}")`,
		`            if bag["n"] > importlib.import_module(".".join(["plugins", "late"])).NUMBER:
                from nodes.words import WORD

                log.info(f"{WORD} {bag['n']}")`, 1)
	files["nodes/printer.py"] = "import importlib\n" + files["nodes/printer.py"]
	project := r.Project("ticker", files)
	r.Must(project, "run", "-d")
	kept := func(since time.Time) {
		t.Helper()
		testbed.Eventually(t, 30*time.Second, func() string {
			records, err := r.Client().Log(t.Context(), "ticker", api.LogFilter{Node: "printer"}, false)
			if err != nil {
				return err.Error()
			}
			defer records.Close()
			for n := 0; ; {
				rec, err := records.Next()
				if err != nil {
					return fmt.Sprintf("%d words since", n)
				}
				if strings.Contains(rec.Message, "edited") {
					t.Fatalf("it says %q", rec.Message)
				}
				if rec.Time.After(since) && strings.HasPrefix(rec.Message, "kept ") {
					return ""
				}
			}
		})
	}
	kept(time.Time{})

	for name := range files {
		if strings.HasSuffix(name, ".py") {
			testbed.Write(t, project, map[string]string{name: "raise RuntimeError(\"edited\")\n"})
		}
	}
	if err := os.Rename(project+"/.venv", project+"/old"); err != nil {
		t.Fatal(err)
	}
	r.Project("ticker", map[string]string{"pyproject.toml": files["pyproject.toml"]}) // a .venv anew
	if err := os.RemoveAll(project + "/old"); err != nil {
		t.Fatal(err)
	}
	kept(time.Now())

	for _, name := range []string{"printer", "counter"} {
		now := time.Now()
		unix.Kill(node(t, r, "ticker", name).PID, unix.SIGSEGV)
		testbed.Eventually(t, 60*time.Second, func() string {
			if n := node(t, r, "ticker", name); n.Restarts == 0 || n.State != api.NodeRunning {
				return fmt.Sprintf("%s is %s, restarts %d", name, n.State, n.Restarts)
			}
			return ""
		})
		kept(now)
	}
	for _, end := range []unix.Signal{unix.SIGKILL, unix.SIGINT} {
		now := time.Now()
		_ = r.Kill(end)
		r.Start()
		kept(now)
	}
	if g := r.Must(project, "graph", "ticker"); !strings.Contains(g, "the project differs from what was kept") {
		t.Errorf("graph does not say that the disk differs:\n%s", g)
	}
}

// Scenario 4: stop arrives at about the time at which a crashed node is to be
// started again. No process is there afterwards, and the stream is stopped.
func TestStopRacesWithRestart(t *testing.T) {
	t.Parallel()
	const side = 4 // streams side by side
	races := times(100, 1000)
	random := dice(t)
	r := testbed.Run(t)
	var all sync.WaitGroup
	for s := range side {
		name := fmt.Sprintf("racer%d", s)
		r.Must(r.Project(name, pattern(name)), "run", "-d")
		own := rand.New(rand.NewPCG(random.Uint64(), 0))
		all.Go(func() {
			c := r.Client()
			for range races / side {
				if _, err := c.Start(t.Context(), name); err != nil {
					t.Errorf("start: %v", err)
					return
				}
				var n api.GraphNode
				for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
					if g, err := c.Graph(t.Context(), name); err == nil && g.Nodes[0].State == api.NodeRunning && g.Nodes[0].PID > 0 {
						n = g.Nodes[0]
						break
					}
					if time.Now().After(deadline) {
						t.Errorf("%s does not run", name)
						return
					}
				}
				unix.Kill(n.PID, unix.SIGKILL)
				until := time.Now().Add(200 * time.Millisecond)
				for range 50 {
					if g, err := c.Graph(t.Context(), name); err == nil && g.Nodes[0].Until != nil {
						until = *g.Nodes[0].Until
						break
					}
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Until(until) + time.Duration(own.IntN(30_000)-10_000)*time.Microsecond)
				if _, err := c.Stop(t.Context(), name); err != nil {
					t.Errorf("stop: %v", err)
					return
				}
				for _, p := range r.Processes() {
					if strings.HasSuffix(p, " keeper "+name) || strings.Contains(p, "testpattern") && instanceOf(p, name) {
						t.Errorf("after the stop there is %s", p)
						return
					}
				}
				if s, err := c.Streams(t.Context()); err != nil || !slices.ContainsFunc(s.Streams, func(s api.Stream) bool {
					return s.Name == name && s.State == api.Stopped && s.Nodes == nil
				}) {
					t.Errorf("after the stop: %+v, %v", s, err)
					return
				}
			}
		})
	}
	all.Wait()
}

// instanceOf tells whether a process ("PID COMMAND") is of a stream.
func instanceOf(process, stream string) bool {
	pid, _, _ := strings.Cut(process, " ")
	environ, _ := os.ReadFile("/proc/" + pid + "/environ")
	return strings.Contains(string(environ), "TATOLAB_INSTANCE="+stream+"/")
}

// Of several loads of one name at the same time exactly one wins, and the others
// are told which project has it.
func TestNameRaces(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	var projects []string
	for i := range 3 {
		projects = append(projects, r.Project(fmt.Sprintf("p%d", i), pattern("watcher")))
	}
	for round := range times(6, 60) {
		keep := round%2 == 1
		var won, lost atomic.Int32
		var all sync.WaitGroup
		for i, project := range projects {
			args := []string{"run"}
			if keep {
				args = append(args, "-d")
			}
			cmd := r.Command(project, args...)
			out := testbed.Capture(cmd)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				err := cmd.Wait()
				said := out.String()
				switch {
				case err == nil:
					won.Add(1)
				case cmd.ProcessState.ExitCode() == 1 && strings.Contains(said, "the name watcher is in use") &&
					slices.ContainsFunc(projects, func(p string) bool { return p != projects[i] && strings.Contains(said, p) }):
					lost.Add(1)
				default:
					t.Errorf("run in %s: %v\n%s", project, err, said)
				}
			})
		}
		if keep {
			all.Wait()
			r.Must(r.Dir, "rm", "watcher")
		} else {
			testbed.Eventually(t, 30*time.Second, func() string {
				if lost.Load() < int32(len(projects)-1) {
					return "not all but one were refused"
				}
				return ""
			})
			r.Must(r.Dir, "stop", "watcher") // the winner ends with 0
			all.Wait()
		}
		if won.Load() != 1 || lost.Load() != int32(len(projects)-1) {
			t.Errorf("round %d: %d won, %d were refused", round, won.Load(), lost.Load())
		}
	}
}

// "Close the terminal, and the runtime stops the stream": a real one.
func TestClosedTerminal(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd := r.Command(project, "run")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	var screen strings.Builder
	for buf := make([]byte, 4096); !strings.Contains(screen.String(), "count 5"); {
		k, err := master.Read(buf)
		if err != nil {
			t.Fatalf("%v\n%s", err, screen.String())
		}
		screen.Write(buf[:k])
	}
	// Time, level and node, in colour.
	if !strings.Contains(screen.String(), "\x1b[32mINFO \x1b[0m \x1b[36mprinter\x1b[0m") {
		t.Errorf("on a terminal: %q", screen.String())
	}
	closed := time.Now()
	master.Close()
	cmd.Wait()
	testbed.Eventually(t, 30*time.Second, func() string {
		if table := r.Must(r.Dir, "streams"); strings.Contains(table, "ticker") {
			return table
		}
		for _, p := range r.Processes() {
			if strings.Contains(p, "bootstrap.py") || strings.Contains(p, "keeper") {
				return p
			}
		}
		return ""
	})
	t.Logf("gone %s after the terminal was closed", time.Since(closed).Round(time.Millisecond))
}

// After a SIGKILL of the runtime and its restart kept streams deliver again. The
// figures are in the log; what is asserted is only that they come.
func TestKeptStreamsDeliverAgain(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	const streams = 3
	for i := range streams {
		name := fmt.Sprintf("ticker%d", i)
		r.Must(r.Project(name, ticker(name)), "run", "-d")
	}
	delivering := func() (each []time.Duration, last time.Duration) {
		began := time.Now()
		done := map[string]bool{}
		testbed.Eventually(t, 60*time.Second, func() string {
			for i := range streams {
				name := fmt.Sprintf("ticker%d", i)
				if g, err := r.Client().Graph(t.Context(), name); err == nil && len(g.Links) > 0 && g.Links[0].Received > 0 && !done[name] {
					done[name] = true
					each = append(each, time.Since(began))
				}
			}
			if len(done) < streams {
				return fmt.Sprintf("only %d of %d deliver", len(done), streams)
			}
			return ""
		})
		return each, time.Since(began)
	}
	delivering()
	// Their own start time: the same streams, started by hand.
	for i := range streams {
		r.Must(r.Dir, "stop", fmt.Sprintf("ticker%d", i))
	}
	for i := range streams {
		r.Must(r.Dir, "start", fmt.Sprintf("ticker%d", i))
	}
	_, own := delivering()
	var again []time.Duration
	for range times(4, 40) {
		_ = r.Kill(unix.SIGKILL)
		began := time.Now()
		r.Start()
		answers := time.Since(began)
		_, last := delivering()
		again = append(again, answers+last)
	}
	slices.Sort(again)
	t.Logf("%d streams deliver again after SIGKILL and start: p50 %s, at most %s; started by hand they take %s",
		streams, again[len(again)/2].Round(time.Millisecond), again[len(again)-1].Round(time.Millisecond), own.Round(time.Millisecond))
}

// Nodes run in their project's folder, from wherever they are loaded.
func TestNodesRunInTheirProject(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/printer.py"] = strings.Replace(files["nodes/printer.py"], `log.info(f"count {bag['n']}")`,
		`open("seen.txt", "w").write(str(bag["n"]))`, 1)
	project := r.Project("ticker", files)
	r.Must(r.Dir, "run", "-d", "--dir", project)
	for range 2 {
		testbed.Eventually(t, 60*time.Second, func() string {
			if _, err := os.Stat(filepath.Join(project, "seen.txt")); err != nil {
				return err.Error()
			}
			return ""
		})
		r.Stop()
		if err := os.Remove(filepath.Join(project, "seen.txt")); err != nil {
			t.Fatal(err)
		}
		r.Start()
	}
}
