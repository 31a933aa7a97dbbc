package reconcile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is the table of processes a planner is tested against. It obeys the
// actions, and fails the test when one breaks an invariant.
type world struct {
	t     *testing.T
	p     *Planner
	now   time.Time
	procs map[Instance]*proc
	want  map[string]Spec
	log   []string
	// restarting is set while the planner is told to restart.
	restarting bool
}

type proc struct {
	node    string
	spec    Spec
	loaded  bool // has said loaded
	started bool
	ready   bool
	told    bool // stop was sent
	ending  bool
	killed  bool
	leaves  bool // takes leave: said stopping, unasked
}

func newWorld(t *testing.T) *world {
	return &world{t: t, p: New(), now: time.Unix(1000, 0), procs: map[Instance]*proc{}, want: map[string]Spec{}}
}

// device is what a process owns from its start to its end, "" for none: what
// is behind the @ of its identity, together with its type.
func (s Spec) device() string {
	_, device, owns := strings.Cut(s.Identity, "@")
	if !owns {
		return ""
	}
	return s.Type + "@" + device
}

func (w *world) fail(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.log[max(0, len(w.log)-40):] {
		w.t.Log(line)
	}
	w.t.Fatalf(format, args...)
}

func (w *world) obey(what string, actions []Action) {
	w.t.Helper()
	w.log = append(w.log, what)
	for _, a := range actions {
		w.log = append(w.log, fmt.Sprintf("    %s %s#%d %s", a.Do, a.Node, a.Instance, a.Why))
		pr := w.procs[a.Instance]
		if (pr == nil) != (a.Do == Spawn) {
			w.fail("%s of instance %d, which is %v", a.Do, a.Instance, pr)
		}
		switch a.Do {
		case Spawn:
			spec, ok := w.want[a.Node]
			if !ok {
				w.fail("spawned %s, which nobody wants", a.Node)
			}
			w.procs[a.Instance] = &proc{node: a.Node, spec: spec}
		case Start:
			if !pr.loaded || pr.started {
				w.fail("started %s#%d: loaded %v, started %v", a.Node, a.Instance, pr.loaded, pr.started)
			}
			if pr.told || pr.killed {
				w.fail("started %s#%d, which was told to end", a.Node, a.Instance)
			}
			if w.want[a.Node] != pr.spec {
				w.fail("started %s#%d of a version that nobody wants", a.Node, a.Instance)
			}
			for i, other := range w.procs {
				// One whose new version has died already may be in the
				// way: it is not waited for.
				if d := pr.spec.device(); i != a.Instance && other.started && d != "" && other.spec.device() == d && w.p.nodes[other.node].deaths == 0 {
					w.fail("started %s#%d while %s#%d owns %s", a.Node, a.Instance, other.node, i, d)
				}
				if i != a.Instance && other.started && other.node == a.Node {
					w.fail("started %s#%d while #%d of it lives", a.Node, a.Instance, i)
				}
				if i != a.Instance && other.started && other.spec.Type == pr.spec.Type && (other.told || other.killed) {
					w.fail("started %s#%d while %s#%d of its type is on its way out", a.Node, a.Instance, other.node, i)
				}
			}
			pr.started = true
		case Stop:
			if pr.told || pr.killed {
				w.fail("stopped %s#%d twice", a.Node, a.Instance)
			}
			w.mayEnd(a, pr)
			pr.told = true
		case Kill:
			if pr.killed {
				w.fail("killed %s#%d twice", a.Node, a.Instance)
			}
			if a.Why == "" {
				w.mayEnd(a, pr)
			} else if pr.loaded && !pr.told && !pr.ending {
				w.fail("killed %s#%d, which works: %s", a.Node, a.Instance, a.Why)
			}
			pr.killed = true
		}
	}
	w.owned()
	alive := map[string]int{}
	for _, pr := range w.procs {
		if alive[pr.node]++; alive[pr.node] > 2 {
			w.fail("%s has more than two processes", pr.node)
		}
	}
}

// mayEnd fails the test where a process is ended that should work on: one of the
// wanted version, or the old one before the new one has loaded.
func (w *world) mayEnd(a Action, pr *proc) {
	w.t.Helper()
	spec, wanted := w.want[a.Node]
	if w.restarting || !wanted {
		return
	}
	if pr.spec == spec {
		w.fail("%s %s#%d, which is wanted", a.Do, a.Node, a.Instance)
	}
	if !pr.started {
		return
	}
	for _, other := range w.procs {
		if other.node == a.Node && other.spec == spec && other.loaded && !other.told && !other.killed {
			return
		}
	}
	w.fail("%s %s#%d, and no new version of it has loaded", a.Do, a.Node, a.Instance)
}

// owned fails the test where a process belongs to no node, where the planner
// believes in one that there is not, and where a wanted node waits for nothing
// that will ever come.
func (w *world) owned() {
	w.t.Helper()
	known := map[Instance]bool{}
	for _, n := range w.p.nodes {
		for _, proc := range []*process{n.current, n.next} {
			if proc != nil {
				known[proc.instance] = true
			}
		}
	}
	for i, pr := range w.procs {
		if !known[i] {
			w.fail("%s#%d has no owner", pr.node, i)
		}
		delete(known, i)
	}
	for i := range known {
		w.fail("the planner believes in instance %d, which is gone", i)
	}
	alive := map[string]bool{}
	for _, pr := range w.procs {
		alive[pr.node] = true
		// Loading, stopping and ending are bounded; a killed process is
		// waited for, whatever it takes.
		if next := w.p.Next(); (!pr.loaded || pr.told) && !pr.killed && (next.IsZero() || next.After(w.now.Add(LoadLimit))) {
			w.fail("%s may hang for ever: next is %s", pr.node, next)
		}
	}
	for name := range w.want {
		s, _ := w.p.State(name)
		if next := w.p.Next(); !alive[name] && !s.Ended && (next.IsZero() || next.After(w.now.Add(LastBackoff))) {
			w.fail("%s has no process and waits for nothing: next is %s", name, next)
		}
	}
}

func (w *world) exit(i Instance, clean bool, cause string) {
	pr := w.procs[i]
	delete(w.procs, i)
	w.obey(fmt.Sprintf("exited %s#%d clean=%v", pr.node, i, clean), w.p.Exited(i, clean, cause, w.now))
}

func (w *world) set(want map[string]Spec) Change {
	w.want = want
	change, actions := w.p.Want(want, w.now)
	w.obey(fmt.Sprintf("want %v", want), actions)
	return change
}

func (w *world) restart() {
	w.restarting = true
	w.obey("restart", w.p.Restart(w.now))
	w.restarting = false
}

// settle lets every process do what a healthy one does until nothing changes.
func (w *world) settle() {
	for range 1000 {
		moved := false
		for _, i := range slices.Sorted(maps.Keys(w.procs)) {
			pr := w.procs[i]
			switch {
			case pr == nil:
			case pr.killed || pr.told || pr.leaves:
				w.exit(i, !pr.killed, "")
				moved = true
			case !pr.loaded:
				pr.loaded = true
				w.obey(fmt.Sprintf("loaded #%d", i), w.p.Loaded(i, w.now))
				moved = true
			case pr.started && !pr.ready:
				pr.ready = true
				w.obey(fmt.Sprintf("ready #%d", i), w.p.Ready(i, w.now))
				moved = true
			}
		}
		if !moved {
			next := w.p.Next()
			if next.IsZero() {
				return
			}
			w.now = next
			w.obey("tick", w.p.Tick(w.now))
		}
	}
	w.fail("never settles")
}

func (w *world) check() {
	w.t.Helper()
	w.settle()
	if !w.p.Settled() {
		w.fail("settled in the world, not in the planner")
	}
	running := map[string]Spec{}
	for _, pr := range w.procs {
		if !pr.ready {
			w.fail("%s is settled but not ready", pr.node)
		}
		running[pr.node] = pr.spec
	}
	for name, spec := range w.want {
		if s, ok := w.p.State(name); ok && s.Ended {
			if _, runs := running[name]; runs {
				w.fail("%s ended and runs", name)
			}
			continue
		}
		if running[name] != spec {
			w.fail("%s runs %v, wanted %v", name, running[name], spec)
		}
	}
	for name := range running {
		if _, ok := w.want[name]; !ok {
			w.fail("%s runs, nobody wants it", name)
		}
	}
}

func TestRandomSchedules(t *testing.T) {
	schedules := 10_000
	if os.Getenv("TATOLAB_SOAK") != "" {
		schedules = 100_000
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for s := range schedules {
		r := rand.New(rand.NewPCG(seed, uint64(s)))
		w := newWorld(t)
		for range 60 {
			step(w, r)
		}
		w.check()
		w.set(nil)
		w.settle()
		if !w.p.Empty() || len(w.procs) != 0 {
			w.fail("schedule %d: stopped, but %d processes are left", s, len(w.procs))
		}
		w.now = w.now.Add(time.Hour)
		w.obey("tick", w.p.Tick(w.now))
		if next := w.p.Next(); len(w.procs) != 0 || !next.IsZero() {
			w.fail("schedule %d: stopped, and an hour later %d processes, next %s", s, len(w.procs), next)
		}
	}
}

func step(w *world, r *rand.Rand) {
	w.now = w.now.Add(time.Duration(r.IntN(400)) * time.Millisecond)
	pick := func() (Instance, *proc) {
		ids := slices.Sorted(maps.Keys(w.procs))
		if len(ids) == 0 {
			return 0, nil
		}
		i := ids[r.IntN(len(ids))]
		return i, w.procs[i]
	}
	i, pr := pick()
	switch n := r.IntN(12); {
	case n == 0:
		want := map[string]Spec{}
		for _, name := range []string{"camera", "detector", "log", "window"} {
			if r.IntN(4) > 0 {
				want[name] = Spec{Type: []string{"t:A", "t:B"}[r.IntN(2)], Identity: fmt.Sprint(r.IntN(3))}
			}
		}
		// Some own a device, no two the same one; they change places.
		devices := r.Perm(4)
		for i, name := range slices.Sorted(maps.Keys(want)) {
			if spec := want[name]; r.IntN(3) > 0 {
				spec.Identity += fmt.Sprint("@", devices[i])
				want[name] = spec
			}
		}
		w.set(want)
	case n == 1:
		w.restart()
	case n == 2:
		if next := w.p.Next(); !next.IsZero() && next.After(w.now) {
			w.now = next
		}
		w.obey("tick", w.p.Tick(w.now))
	case pr == nil:
	case n <= 4 && !pr.loaded:
		pr.loaded = true
		w.obey(fmt.Sprintf("loaded #%d", i), w.p.Loaded(i, w.now))
	case n <= 6 && pr.started && !pr.ready && !pr.told:
		pr.ready = true
		w.obey(fmt.Sprintf("ready #%d", i), w.p.Ready(i, w.now))
	case n == 7 && pr.told && !pr.ending:
		pr.ending = true
		w.obey(fmt.Sprintf("stopping #%d", i), w.p.Stopping(i, w.now))
	case n == 8 && (pr.told || pr.killed || pr.leaves):
		w.exit(i, !pr.killed, "")
	case n == 9:
		w.exit(i, false, "segmentation fault")
	case n == 10 && pr.ready && !pr.ending && !pr.killed && r.IntN(4) == 0:
		pr.ending, pr.leaves = true, !pr.told
		w.obey(fmt.Sprintf("stopping #%d, unasked", i), w.p.Stopping(i, w.now))
	case n == 11 && r.IntN(4) == 0:
		_, actions := w.p.Revive(w.now)
		w.obey("revive", actions)
	}
}

// A node that takes leave (a closed window) has no successor until it is asked
// for, whatever else changes meanwhile.
func TestTakingLeave(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"window": spec("1"), "a": spec("1")})
	w.check()
	var window Instance
	for i, pr := range w.procs {
		if pr.node == "window" {
			window = i
		}
	}
	w.procs[window].ending, w.procs[window].leaves = true, true
	w.obey("stopping", w.p.Stopping(window, w.now))
	if len(w.procs) != 2 {
		t.Fatal("a node that takes leave has got a successor")
	}
	w.exit(window, true, "")
	w.set(map[string]Spec{"window": spec("1"), "a": spec("2")})
	w.check()
	if s, _ := w.p.State("window"); !s.Ended || s.Phase != None || len(w.procs) != 1 {
		t.Fatalf("it is %+v, with %d processes", s, len(w.procs))
	}
	revived, actions := w.p.Revive(w.now)
	w.obey("revive", actions)
	w.check()
	if s, _ := w.p.State("window"); !slices.Equal(revived, []string{"window"}) || s.Ended || s.Phase != Running {
		t.Fatalf("revived %v, it is %+v", revived, s)
	}
	// A restart while it takes leave is not lost.
	for i, pr := range w.procs {
		if pr.node == "window" {
			pr.ending, pr.leaves = true, true
			w.obey("stopping", w.p.Stopping(i, w.now))
		}
	}
	w.restart()
	w.check()
	if s, _ := w.p.State("window"); s.Ended || s.Phase != Running {
		t.Fatalf("after the restart it is %+v", s)
	}
}

func spec(identity string) Spec { return Spec{Type: "t:A", Identity: identity} }

func TestReplaceLoadsBeforeItStops(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"a": spec("1")})
	w.check()
	change := w.set(map[string]Spec{"a": spec("2")})
	if !slices.Equal(change.Restarted, []string{"a"}) {
		t.Fatalf("change %+v", change)
	}
	if w.procs[1].told {
		t.Fatal("the old version was stopped before the new one had loaded")
	}
	w.procs[2].loaded = true
	w.obey("loaded", w.p.Loaded(2, w.now))
	if !w.procs[1].told || w.procs[2].started {
		t.Fatal("loaded: the old version is to be stopped, the new one not yet started")
	}
	w.exit(1, true, "")
	if !w.procs[2].started {
		t.Fatal("the old version is gone, the new one was not started")
	}
}

func TestUnchangedNodesRunOn(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"camera": {Type: "t:C", Identity: "1"}, "a": spec("1")})
	w.check()
	w.set(map[string]Spec{"camera": {Type: "t:C", Identity: "1"}, "a": spec("2")})
	w.check()
	for _, pr := range w.procs {
		if pr.node == "camera" && pr.told {
			t.Fatal("the camera was stopped")
		}
	}
}

func TestStopWinsOverRestart(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"a": spec("1")})
	w.check()
	w.exit(1, false, "killed")
	s, _ := w.p.State("a")
	if s.Phase != None || s.Retry.IsZero() {
		t.Fatalf("a dead node waits for its restart: %+v", s)
	}
	w.set(nil)
	w.now = w.now.Add(time.Hour)
	w.obey("tick", w.p.Tick(w.now))
	if len(w.procs) != 0 || !w.p.Empty() {
		t.Fatal("a node was started after the stop")
	}
}

// A restart while code is still being imported is no case of a callback that
// does not return.
func TestRestartWhileLoading(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"a": spec("1")})
	w.restart()
	if first := w.procs[1]; first.told || !first.killed {
		t.Errorf("a process that only imports is asked to stop: %+v", first)
	}
	w.check()
	if s, _ := w.p.State("a"); s.Restarts != 0 || s.Phase != Running {
		t.Errorf("after the restart: %+v", s)
	}
}

// What is counted is the time that the process had.
func TestLadder(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"a": spec("1")})
	w.check()
	w.set(nil)
	w.p.Postpone(time.Minute)
	w.now = w.now.Add(time.Minute + CallbackLimit - 1)
	if actions := w.p.Tick(w.now); len(actions) != 0 {
		t.Fatalf("a callback that had a nanosecond left: %+v", actions)
	}
	w.now = w.now.Add(1)
	actions := w.p.Tick(w.now)
	if len(actions) != 1 || actions[0].Do != Kill || actions[0].Why == "" {
		t.Fatalf("a callback that runs on: %+v", actions)
	}
}

func TestBackoffGrowsAndIsForgiven(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"a": spec("1")})
	var waits []time.Duration
	for range 12 {
		for i := range w.procs {
			w.exit(i, false, "boom")
		}
		s, _ := w.p.State("a")
		waits = append(waits, s.Retry.Sub(w.now))
		w.now = s.Retry
		w.obey("tick", w.p.Tick(w.now))
	}
	if waits[0] != FirstBackoff || waits[1] != 2*FirstBackoff || waits[11] != LastBackoff {
		t.Fatalf("waits %v", waits)
	}
	w.settle()
	w.now = w.now.Add(Stable)
	for i := range w.procs {
		w.exit(i, false, "boom")
	}
	if s, _ := w.p.State("a"); s.Retry.Sub(w.now) != FirstBackoff || s.Restarts != 13 {
		t.Fatalf("ran stably, waits %v, %d restarts", s.Retry.Sub(w.now), s.Restarts)
	}
	w.obey("restart", w.p.Restart(w.now))
	if s, _ := w.p.State("a"); s.Restarts != 0 {
		t.Fatalf("%d restarts after one by hand", s.Restarts)
	}
}

// Two nodes of a class that change places: neither is started while the other's
// old version owns what it wants, and both old versions work until both new ones
// have loaded.
func TestNodesChangePlaces(t *testing.T) {
	w := newWorld(t)
	w.set(map[string]Spec{"left": spec("1@video0"), "right": spec("1@video1")})
	w.check()
	w.set(map[string]Spec{"left": spec("1@video1"), "right": spec("1@video0")})
	w.procs[3].loaded = true
	w.obey("loaded", w.p.Loaded(3, w.now))
	if w.procs[1].told || w.procs[2].told {
		t.Fatal("an old version was stopped before both new ones had loaded")
	}
	w.check()

	// One that cannot be loaded holds up nobody.
	w.set(map[string]Spec{"left": spec("2"), "right": spec("2")})
	for i, pr := range w.procs {
		if pr.node == "right" && !pr.loaded {
			w.exit(i, false, "no module of this name")
		}
	}
	for i, pr := range w.procs {
		if pr.node == "left" && !pr.loaded {
			pr.loaded = true
			w.obey("loaded", w.p.Loaded(i, w.now))
		}
	}
	for i, pr := range w.procs {
		if pr.node == "left" && pr.told {
			w.exit(i, true, "")
			return
		}
	}
	t.Fatal("left waits for right, which does not load")
}

// A node starts when those that read every bag of it have loaded, or do not.
func TestReadersAreWaitedFor(t *testing.T) {
	load := func(w *world, node string) {
		for i, pr := range w.procs {
			if pr.node == node && !pr.loaded {
				pr.loaded = true
				w.obey("loaded", w.p.Loaded(i, w.now))
			}
		}
	}
	started := func(w *world, node string) bool {
		for _, pr := range w.procs {
			if pr.node == node && pr.started {
				return true
			}
		}
		return false
	}
	begin := func() *world {
		w := newWorld(t)
		// A circle waits for itself no longer than for loading.
		w.p.Readers(map[string][]string{"source": {"log", "other"}, "log": {"source"}})
		w.set(map[string]Spec{"source": spec("1"), "log": {Type: "Log"}, "other": {Type: "Other"}})
		load(w, "source")
		load(w, "other")
		if started(w, "source") || !started(w, "other") {
			t.Fatal("the source was started before its reader had loaded, or a reader was not")
		}
		return w
	}

	w := begin()
	load(w, "log")
	if !started(w, "source") || !started(w, "log") {
		t.Fatal("all have loaded, and not all were started")
	}
	w.check()

	w = begin()
	for i, pr := range w.procs {
		if pr.node == "log" {
			w.exit(i, false, "no module of this name")
		}
	}
	if !started(w, "source") {
		t.Fatal("a reader that cannot be loaded is waited for")
	}

	w = begin()
	if next := w.p.Next(); !next.Equal(w.now.Add(ReaderLimit)) {
		t.Fatalf("due at %v, not after %v", next.Sub(w.now), ReaderLimit)
	}
	w.now = w.now.Add(ReaderLimit)
	w.obey("tick", w.p.Tick(w.now))
	if !started(w, "source") {
		t.Fatal("a reader that loads slowly is waited for without end")
	}
	if next := w.p.Next(); next.Before(w.now) {
		t.Fatalf("due in the past: %v", next)
	}
}
