package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/internal/testbed"
)

// edit replaces text in a file of a project, the way most editors save: a new
// file is renamed over the old one.
func edit(t testing.TB, dir, file, old, new string) {
	t.Helper()
	path := filepath.Join(dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), old) {
		t.Fatalf("%s has no %q", file, old)
	}
	temp := path + "~"
	if err := os.WriteFile(temp, []byte(strings.Replace(string(data), old, new, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, path); err != nil {
		t.Fatal(err)
	}
}

// A save restarts the nodes whose code changed, and no other; a save that does
// not compile restarts none, and says what is wrong.
func TestDev(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	_, out := start(t, r, project, "count ", "dev")

	edit(t, project, "nodes/printer.py", "count {", "number {")
	out.Await(t, "printer")
	out.Await(t, "number ")
	// The counter ran on: its count goes up from where it was.
	first := readCount(t, r, project)

	edit(t, project, "nodes/printer.py", "log.info(", "log.info((")
	out.Await(t, "SyntaxError")
	if g := r.Must(project, "graph", "ticker"); !strings.Contains(g, "was not taken") {
		t.Errorf("graph says nothing of the save that failed:\n%s", g)
	}
	out.Await(t, "number ")
	edit(t, project, "nodes/printer.py", "log.info((", "log.info(")
	testbed.Eventually(t, 30*time.Second, func() string {
		if g := r.Must(project, "graph", "ticker"); strings.Contains(g, "was not taken") {
			return "graph still speaks of the save that failed:\n" + g
		}
		return ""
	})
	if second := readCount(t, r, project); second <= first {
		t.Errorf("the counter was restarted: %d, then %d", first, second)
	}

	edit(t, project, "nodes/counter.py", "self.n += 1", "self.n += 1000000")
	out.Await(t, "number 20")
}

func readCount(t *testing.T, r *testbed.Runtime, project string) (n int) {
	t.Helper()
	line := r.Must(project, "read", "ticker/counter/count", "-n", "1")
	if _, err := fmt.Sscanf(line, `{"n":%d`, &n); err != nil {
		t.Fatalf("read: %q: %v", line, err)
	}
	return n
}

// checker is a node that says when a bag of the counter's is missing.
const checker = `from tatolab.stream import RuntimeContextLimitedAccess, log, node


@node
class Checker:
    @node.input(delivery_profile="ordered")
    def count(self) -> dict: ...

    def __init__(self) -> None:
        self.last = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        bag = ctx.inputs.read("count")
        if bag is None:
            return
        if self.last and bag["n"] != self.last + 1:
            log.error(f"a gap between {self.last} and {bag['n']}")
        self.last = bag["n"]
`

// Saves leave descriptors, processes and memory where they were, and nodes that
// they are not about lose nothing.
func TestSavesLeakNothing(t *testing.T) {
	t.Parallel()
	saves := 40
	if os.Getenv("TATOLAB_SOAK") != "" {
		saves = 200
	}
	r := testbed.Run(t)
	files := ticker("ticker")
	files["nodes/checker.py"] = checker
	// A reader in order may be away for 1.6 s before it loses bags.
	files["nodes/counter.py"] = strings.Replace(files["nodes/counter.py"], "interval_ms=50", "interval_ms=100", 1)
	files["stream.py"] = strings.Replace(files["stream.py"], "from nodes.printer", "from nodes.checker import Checker\nfrom nodes.printer", 1) +
		"    stream_builder.connect(counter.output(\"count\"), stream_builder.add(Checker).input(\"count\"))\n"
	project := r.Project("ticker", files)
	_, out := start(t, r, project, "count ", "dev")
	var took []time.Duration
	save := func(i int) {
		old, new := fmt.Sprintf("v%d ", i-1), fmt.Sprintf("v%d ", i)
		if i == 1 {
			old, new = "count {", "v1 count {"
		}
		began := time.Now()
		edit(t, project, "nodes/printer.py", old, new)
		out.Await(t, fmt.Sprintf(" v%d count", i))
		took = append(took, time.Since(began))
	}
	for i := 1; i <= 5; i++ {
		save(i)
	}
	before := usage(t, r)
	for i := 6; i <= saves; i++ {
		save(i)
	}
	testbed.Eventually(t, 30*time.Second, func() string {
		after := usage(t, r)
		if after.descriptors > before.descriptors || after.processes > before.processes || after.snapshots > before.snapshots+1 || after.memory > before.memory+16<<20 {
			return fmt.Sprintf("before %+v, after %d saves %+v", before, saves, after)
		}
		return ""
	})
	g, err := r.Client().Graph(t.Context(), "ticker")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range g.Links {
		if l.Target.Node == "checker" && (l.Dropped != 0 || l.Received < uint64(saves)) {
			t.Errorf("the checker received %d bags and lost %d", l.Received, l.Dropped)
		}
	}
	if strings.Contains(out.String(), "a gap between") {
		t.Errorf("the checker missed bags:\n%s", out.String())
	}
	slices.Sort(took)
	t.Logf("from save to the new version's first bag: p50 %s, p90 %s of %d saves", took[len(took)/2], took[len(took)*9/10], len(took))
}

type used struct{ descriptors, processes, memory, snapshots int }

func usage(t *testing.T, r *testbed.Runtime) used {
	t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var pages int
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", r.PID()))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Sscan(strings.Fields(string(data))[1], &pages)
	snapshots, err := os.ReadDir(filepath.Join(r.Dir, "run/streamlib/snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	return used{len(fds), len(r.Processes()), pages * os.Getpagesize(), len(snapshots)}
}
