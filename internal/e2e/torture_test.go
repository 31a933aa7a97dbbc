package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/record"
)

// times is n in `go test`, and soak with TATOLAB_SOAK.
func times(n, soak int) int {
	if os.Getenv("TATOLAB_SOAK") != "" {
		return soak
	}
	return n
}

// dice are random, and their seed is in the log.
func dice(t *testing.T) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("TATOLAB_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("TATOLAB_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// pattern is a project whose node is quick to start.
func pattern(name string) map[string]string {
	return map[string]string{
		"pyproject.toml": "",
		"stream.py": strings.ReplaceAll(`from tatolab.stream import StreamBuilder, TestPatternSource, stream


@stream
def NAME(stream_builder: StreamBuilder) -> None:
    stream_builder.add(TestPatternSource, name="source")
`, "NAME", name),
	}
}

// kept is what is known of a kept stream. The zero value is none.
type kept struct {
	state api.State // "" where there is none
	level graph.Level
}

// believed is what a stream may be: one thing, or two after a command that was
// not answered.
type believed []kept

// torturer gives commands for one stream, one at a time.
type torturer struct {
	name, project string
	now           believed
}

// act gives one command and books what came of it: after an answer the stream
// is what the command makes of it, without one it is that or what it was.
func (o *torturer) act(r *testbed.Runtime, choice int) error {
	was := o.now[0]
	becomes := was
	ctx, c := context.Background(), r.Client()
	var err error
	switch {
	case was.state == "" || choice == 0:
		// On a stream that there is, keep replaces: it is started, and
		// rulings stay.
		becomes.state = api.Kept
		o.now = believed{was, becomes}
		_, err = c.Keep(ctx, api.Load{Project: o.project, Keep: true})
	case choice == 1:
		becomes = kept{}
		o.now = believed{was, becomes}
		_, err = c.Remove(ctx, o.name)
	case choice <= 24 && was.state == api.Kept:
		becomes.state = api.Stopped
		o.now = believed{was, becomes}
		_, err = c.Stop(ctx, o.name)
	case choice <= 24:
		becomes.state = api.Kept
		o.now = believed{was, becomes}
		_, err = c.Start(ctx, o.name)
	default:
		becomes.level = []graph.Level{graph.Private, graph.Public, graph.Internal}[choice%3]
		o.now = believed{was, becomes}
		_, err = c.Expose(ctx, o.name, graph.End{Node: "source", Port: "video"}, becomes.level)
	}
	if err != nil {
		return err
	}
	o.now = believed{becomes}
	return nil
}

// check compares what is believed with what the runtime shows and the disk
// holds, and settles on that.
func (o *torturer) check(r *testbed.Runtime, shown map[string]api.Stream) error {
	var is kept
	if s, ok := shown[o.name]; ok {
		is.state = s.State
		data, err := os.ReadFile(r.Record(o.name))
		if err != nil {
			return err
		}
		rec, err := record.Parse(data)
		if err != nil {
			return err
		}
		if len(rec.Rulings) > 0 {
			is.level = rec.Rulings[0].Level
		}
		if s.Reason != "" {
			return fmt.Errorf("%s is %s: %s", o.name, s.State, s.Reason)
		}
	}
	if !slices.Contains(o.now, is) {
		return fmt.Errorf("%s is %+v, and should be one of %+v", o.name, is, o.now)
	}
	o.now = believed{is}
	return nil
}

// SIGKILL of the runtime at random moments of keep, stop, start, rm and expose:
// every command that was answered holds afterwards, no record is half, no start
// is refused, and no process of one runtime is there when the next one starts
// its own. (Scenarios 2 and 12.)
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	kills := times(200, 1000)
	random := dice(t)
	r := testbed.Run(t)
	var operators []*torturer
	for i := range 4 {
		name := fmt.Sprintf("stream%d", i)
		operators = append(operators, &torturer{name: name, project: r.Project(name, pattern(name)), now: believed{{}}})
	}
	answered, unanswered := 0, 0
	var starts []time.Duration
	for kill := range kills {
		var all sync.WaitGroup
		var mu sync.Mutex
		for _, o := range operators {
			// Dice are thrown here: a seed gives the same commands again.
			choices := make([]int, 64)
			for i := range choices {
				choices[i] = random.IntN(40)
			}
			all.Go(func() {
				for _, choice := range choices {
					err := o.act(r, choice)
					mu.Lock()
					if err != nil {
						unanswered++
						mu.Unlock()
						var refused *api.Error
						if errors.As(err, &refused) {
							t.Errorf("%s was refused: %v", o.name, err)
						}
						return
					}
					answered++
					mu.Unlock()
				}
			})
		}
		// In the midst of things: after a few answers.
		mu.Lock()
		enough := answered + random.IntN(6)
		mu.Unlock()
		for patience := time.Now().Add(2 * time.Second); time.Now().Before(patience); time.Sleep(time.Millisecond) {
			mu.Lock()
			done := answered >= enough
			mu.Unlock()
			if done {
				break
			}
		}
		time.Sleep(time.Duration(random.IntN(20_000)) * time.Microsecond)
		_ = r.Kill(unix.SIGKILL)
		all.Wait()

		began := time.Now()
		last := processesNow(r)
		r.Start()
		starts = append(starts, time.Since(began))
		// It answers, so it may load: nothing of the last one is left.
		for pid, what := range processesNow(r) {
			// (A compilation is told to end by the kernel, and opens nothing.)
			if last[pid] == what && !strings.Contains(what, "bootstrap.py compile") {
				t.Errorf("kill %d: the next runtime answers, and %d (%s) is still there", kill, pid, what)
			}
		}
		list, err := r.Client().Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		shown := map[string]api.Stream{}
		for _, s := range list.Streams {
			shown[s.Name] = s
		}
		for _, o := range operators {
			if err := o.check(r, shown); err != nil {
				t.Errorf("kill %d: %v", kill, err)
			}
		}
		noHalfRecords(t, r)
		if t.Failed() {
			return
		}
	}
	slices.Sort(starts)
	t.Logf("%d kills, %d commands answered, %d not; a start takes p50 %s, at most %s",
		kills, answered, unanswered, starts[len(starts)/2].Round(time.Millisecond), starts[len(starts)-1].Round(time.Millisecond))
	if answered < kills/4 || unanswered < kills/4 {
		t.Error("the kills came too early, or too late")
	}
}

// processesNow are the processes of a runtime, by pid, with the time they were
// started at: pids are used again.
func processesNow(r *testbed.Runtime) map[int]string {
	found := map[int]string{}
	for _, p := range r.Processes() {
		number, command, _ := strings.Cut(p, " ")
		pid, _ := strconv.Atoi(number)
		stat, err := os.ReadFile("/proc/" + number + "/stat")
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
		if fields[0] == "Z" {
			continue
		}
		found[pid] = command + " since " + fields[19]
	}
	return found
}

// noHalfRecords fails the test where the folder of records holds anything but
// whole records.
func noHalfRecords(t *testing.T, r *testbed.Runtime) {
	t.Helper()
	files, err := os.ReadDir(filepath.Dir(r.Record("x")))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(r.Record("x")), f.Name()))
		if err == nil {
			_, err = record.Parse(data)
		}
		if err != nil || !strings.HasSuffix(f.Name(), ".json") {
			t.Errorf("among the records is %s: %v", f.Name(), err)
		}
	}
}

// Scenario 10: with a full disk every command that has to write fails with the
// reason, and the records are what they were.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	r := testbed.New(t)
	state := filepath.Join(r.Dir, "state")
	if err := unix.Mount("tmpfs", state, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=2m,mode=0700"); err != nil {
		t.Skip("cannot mount a small disk:", err)
	}
	t.Cleanup(func() {
		r.Stop()
		testbed.Eventually(t, 30*time.Second, func() string { // a process that ends may still be there
			if err := unix.Unmount(state, 0); err != nil {
				return err.Error()
			}
			return ""
		})
	})
	r.Start()
	for _, name := range []string{"running", "halted"} {
		r.Must(r.Project(name, pattern(name)), "run", "-d")
	}
	r.Must(r.Dir, "stop", "halted")
	before := records(t, r)

	fill := filepath.Join(state, "fill")
	f, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	for chunk := make([]byte, 4096); err == nil; {
		_, err = f.Write(chunk)
	}
	f.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	other := r.Project("other", pattern("other"))
	for _, command := range [][]string{
		{"run", "-d", "--dir", other},
		{"run", "-d", "--dir", filepath.Join(r.Dir, "running")},
		{"stop", "running"}, {"start", "halted"}, {"expose", "running", "source", "video"},
	} {
		res := r.CLI(r.Dir, command...)
		if res.Code != 1 || !strings.Contains(res.Stderr, "no space left on device") {
			t.Errorf("%v on a full disk: %+v", command, res)
		}
	}
	if after := records(t, r); !maps.Equal(before, after) {
		t.Errorf("the records have changed:\n%v\nwere\n%v", after, before)
	}
	want := "NAME     STATE    NODES  PROJECT\nrunning  kept     1      " + r.Dir + "/running\nhalted   stopped  -      " + r.Dir + "/halted\n"
	if table := r.Must(r.Dir, "streams"); table != want {
		t.Errorf("streams:\n%s", table)
	}
	// It starts, and loads, with a disk that is full.
	_ = r.Kill(unix.SIGKILL)
	r.Start()
	testbed.Eventually(t, 60*time.Second, func() string {
		if table := r.Must(r.Dir, "streams"); table != want {
			return table
		}
		return ""
	})
	// One that cannot be loaded is failed, with its reason, though that cannot
	// be written.
	r.Stop()
	if err := os.Rename(filepath.Join(r.Dir, "running/.venv"), filepath.Join(r.Dir, "gone")); err != nil {
		t.Fatal(err)
	}
	r.Start()
	testbed.Eventually(t, 60*time.Second, func() string {
		if table := r.Must(r.Dir, "streams"); !strings.Contains(table, "running failed: "+r.Dir+"/running has no .venv/bin/python.") {
			return table
		}
		return ""
	})
	if err := os.Rename(filepath.Join(r.Dir, "gone"), filepath.Join(r.Dir, "running/.venv")); err != nil {
		t.Fatal(err)
	}
	r.Stop()
	r.Start()
	// rm writes nothing: it works.
	r.Must(r.Dir, "rm", "halted")
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	r.Must(r.Dir, "stop", "running")
	r.Must(other, "run", "-d")
}

func records(t *testing.T, r *testbed.Runtime) map[string]string {
	t.Helper()
	content := map[string]string{}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(r.Record("x")), "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		content[filepath.Base(f)] = string(data)
	}
	return content
}

// Scenario 11: each record in turn is mangled, in every way. The runtime
// starts, that stream is failed and named, its file kept, every other one runs;
// rm frees the name.
func TestMangledRecords(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	names := []string{"first", "second", "third"}
	for _, name := range names {
		r.Must(r.Project(name, pattern(name)), "run", "-d")
	}
	r.Stop()
	ways := map[string]func(string) string{
		"cut short":      func(s string) string { return s[:len(s)/2] },
		"empty":          func(string) string { return "" },
		"zeros":          func(s string) string { return strings.Repeat("\x00", len(s)) },
		"no JSON":        func(s string) string { return "{" + s },
		"another's name": func(s string) string { return strings.Replace(s, `"name": "`, `"name": "not-`, 1) },
		"more after it":  func(s string) string { return s + s },
		"a wrong type":   func(s string) string { return strings.Replace(s, `"project": "`, `"project": 5, "x": "`, 1) },
		"no graph":       func(s string) string { return strings.Replace(s, `"graph": {`, `"graph": null, "old": {`, 1) },
	}
	for i, way := range slices.Sorted(maps.Keys(ways)) {
		name := names[i%len(names)]
		whole, err := os.ReadFile(r.Record(name))
		if err != nil {
			t.Fatal(err)
		}
		mangled := ways[way](string(whole))
		if err := os.WriteFile(r.Record(name), []byte(mangled), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Start()
		awaitStates(t, r, names, name, way)
		list, err := r.Client().Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Streams {
			if s.Name == name && !strings.Contains(s.Reason, r.Record(name)+".broken") {
				t.Errorf("%s: the reason names no file: %s", way, s.Reason)
			}
		}
		if aside, err := os.ReadFile(r.Record(name) + ".broken"); err != nil || string(aside) != mangled {
			t.Errorf("%s: what was kept aside: %v", way, err)
		}
		if res := r.CLI(r.Dir, "start", name); res.Code != 1 || !strings.Contains(res.Stderr, "cannot start "+name) {
			t.Errorf("%s: start: %+v", way, res)
		}
		// It stays so over a start, and rm frees the name.
		r.Stop()
		r.Start()
		awaitStates(t, r, names, name, way)
		r.Must(r.Dir, "rm", name)
		r.Must(filepath.Join(r.Dir, name), "run", "-d")
		awaitStates(t, r, names, "", way)
		r.Stop()
	}

	// One of a newer version is left as it is.
	whole, err := os.ReadFile(r.Record("first"))
	if err != nil {
		t.Fatal(err)
	}
	newer := strings.Replace(string(whole), `"version": 1`, `"version": 2, "colour": "red"`, 1)
	if err := os.WriteFile(r.Record("first"), []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Start()
	awaitStates(t, r, names, "first", "newer")
	if res := r.CLI(r.Dir, "start", "first"); res.Code != 1 {
		t.Errorf("start of a record of a newer version: %+v", res)
	}
	if res := r.CLI(r.Dir, "stop", "first"); res.Code != 0 {
		t.Errorf("stop of one: %+v", res)
	}
	if res := r.CLI(filepath.Join(r.Dir, "first"), "run", "-d"); res.Code != 1 ||
		!strings.Contains(res.Stderr, "not written over") || !strings.Contains(res.Stderr, "tatolab rm first") {
		t.Errorf("run -d over one: %+v", res)
	}
	r.Stop()
	if data, err := os.ReadFile(r.Record("first")); err != nil || string(data) != newer {
		t.Errorf("the record of a newer version was touched: %v\n%s", err, data)
	}
}

// awaitStates waits until every stream is kept and loaded, and failed is
// failed.
func awaitStates(t *testing.T, r *testbed.Runtime, names []string, failed, what string) {
	t.Helper()
	testbed.Eventually(t, 60*time.Second, func() string {
		list, err := r.Client().Streams(t.Context())
		if err != nil {
			return err.Error()
		}
		data, _ := json.Marshal(list)
		if len(list.Streams) != len(names) {
			return what + ": " + string(data)
		}
		for _, s := range list.Streams {
			if s.Name == failed && (s.State != api.Failed || s.Reason == "") ||
				s.Name != failed && (s.State != api.Kept || s.Nodes == nil) {
				return what + ": " + string(data)
			}
		}
		return ""
	})
}

// Scenario 14: what may be in the way of a start.
func TestStarts(t *testing.T) {
	t.Parallel()
	t.Run("second", func(t *testing.T) {
		r := testbed.Run(t)
		second := *r
		second.Launch()
		if err := second.Wait(60 * time.Second); err == nil || !strings.Contains(r.Output(), fmt.Sprintf("another tatolabd (pid %d) runs already", r.PID())) {
			t.Errorf("a second start: %v\n%s", err, r.Output())
		}
		if status, err := r.Client().Status(t.Context()); err != nil || status.PID != r.PID() {
			t.Errorf("the first one after a second start: %+v, %v", status, err)
		}
	})
	t.Run("stale socket", func(t *testing.T) {
		r := testbed.Run(t)
		for range 3 {
			_ = r.Kill(unix.SIGKILL)
			if _, err := os.Stat(r.Socket()); err != nil {
				t.Fatal("the kill left no socket:", err)
			}
			r.Start()
		}
	})
	t.Run("race", func(t *testing.T) {
		for range times(5, 100) {
			r := testbed.New(t)
			racers := []*testbed.Runtime{r, {}}
			*racers[1] = *r
			for _, racer := range racers {
				racer.Launch()
			}
			var pid int
			testbed.Eventually(t, 60*time.Second, func() string {
				status, err := r.Client().Status(t.Context())
				if err != nil {
					return err.Error()
				}
				pid = status.PID
				return ""
			})
			winner, loser := racers[0], racers[1]
			if pid == loser.PID() {
				winner, loser = loser, winner
			}
			if err := loser.Wait(60 * time.Second); err == nil {
				t.Error("of two starts both ended well")
			}
			if status, err := r.Client().Status(t.Context()); err != nil || status.PID != winner.PID() {
				t.Errorf("the winner: %+v, %v", status, err)
			}
			winner.Stop()
			if winner != r {
				_ = r.Kill(0) // it was the loser: nothing to end
			}
		}
	})
	t.Run("a file in the way", func(t *testing.T) {
		r := testbed.New(t)
		if err := os.MkdirAll(filepath.Dir(r.Socket()), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.Socket(), []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		r.Launch()
		if err := r.Wait(60 * time.Second); err == nil || !strings.Contains(r.Output(), r.Socket()) {
			t.Errorf("a file at the socket's path: %v\n%s", err, r.Output())
		}
		if data, err := os.ReadFile(r.Socket()); err != nil || string(data) != "precious" {
			t.Errorf("the file: %q, %v", data, err)
		}
	})
}
