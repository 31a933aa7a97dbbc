package sharing

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// Looking at streams with what people look with: rates, ages, pictures, logs.
func TestLookingInside(t *testing.T) {
	t.Parallel()
	r := withCamera(t, 640, 360, 2)
	watcher, log := projects(t, r.Runtime)
	r.Must(watcher, "run", "-d")
	r.Must(log, "run", "-d")
	flows(t, r.Runtime, "motion_log")

	// However often somebody looks: the camera makes 30 frames a second, of which
	// a busy machine may lose some.
	const fps = 30
	time.Sleep(2 * time.Second)
	for range 5 {
		var g api.Graph
		if err := json.Unmarshal([]byte(r.Must(r.Dir, "graph", "motion_watcher", "--json")), &g); err != nil {
			t.Fatal(err)
		}
		for _, n := range g.Nodes {
			for _, o := range n.Outputs {
				if o.Rate < 1 || o.Rate > 2*fps || o.AgeMS <= 0 || o.AgeMS > 10_000 || o.Sent == 0 {
					t.Errorf("output %s/%s: %+v", n.Name, o.Port, o)
				}
			}
			if want := n.Name != "displaywindow"; want != (len(n.Outputs) == 1) {
				t.Errorf("%s has the figures of %d outputs", n.Name, len(n.Outputs))
			}
		}
		for _, l := range g.Links {
			if l.Target.Node == "detector" && (l.Rate < 1 || l.Rate > 2*fps || l.LatencyP50MS <= 0 || l.LatencyP99MS < l.LatencyP50MS) {
				t.Errorf("link %s → %s: %+v", l.Source, l.Target, l)
			}
		}
	}
	// A reader that comes and goes leaves the figures of the others alone.
	for line := range strings.Lines(r.Must(r.Dir, "read", "motion_watcher/detector/motion", "-n", "3")) {
		var report struct {
			Moving    *bool
			Changed   *float64
			Timestamp int64 `json:"timestamp_ns"`
		}
		if err := json.Unmarshal([]byte(line), &report); err != nil || report.Moving == nil || report.Changed == nil || report.Timestamp == 0 {
			t.Errorf("read prints %q: %v", line, err)
		}
	}
	before := look(t, r.Runtime, "motion_log").Links[0]
	testbed.Eventually(t, settles, func() string {
		l := look(t, r.Runtime, "motion_log").Links[0]
		sent := node(t, r.Runtime, "motion_watcher", "detector").Outputs[0].Sent
		if l.Sent < before.Sent+fps || sent < before.Sent+fps {
			return fmt.Sprintf("after another reader has left, %+v, and sent by the output %d", l, sent)
		}
		return ""
	})

	file := filepath.Join(r.Dir, "now.png")
	r.Must(r.Dir, "snapshot", "motion_watcher/camera/video", "-o", file)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(data))
	if err != nil || img.Bounds().Dx() != 640 || img.Bounds().Dy() != 360 {
		t.Fatalf("the snapshot: %v, %v", img.Bounds(), err)
	}
	// The pattern's bars: white at the left, blue at the right.
	if r, g, b, _ := img.At(20, 20).RGBA(); r>>8 < 150 || g>>8 < 150 || b>>8 < 150 {
		t.Errorf("the left bar of the snapshot is %d, %d, %d", r>>8, g>>8, b>>8)
	}
	if r, g, b, _ := img.At(620, 20).RGBA(); r>>8 > 60 || g>>8 > 60 || b>>8 < 150 {
		t.Errorf("the right bar of the snapshot is %d, %d, %d", r>>8, g>>8, b>>8)
	}
	if res := r.CLI(r.Dir, "snapshot", "motion_watcher/detector/motion", "-o", file); res.Code != 1 || !strings.HasPrefix(res.Stderr, "error: cannot take a picture of motion_watcher/detector/motion: its bags come without one\n") {
		t.Errorf("a snapshot of what has no pictures: %+v", res)
	}
	if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, data) {
		t.Error("a snapshot that failed has touched the file")
	}

	if dot := r.Must(r.Dir, "graph", "--dot"); !strings.Contains(dot, `"motion_watcher/detector" -> "motion_log/motioneventlog" [label="motion → motion"];`) {
		t.Errorf("graph --dot:\n%s", dot)
	}
	for name, want := range map[string][]string{
		"graph": {"wired", "motion_watcher/detector/motion → motioneventlog/motion", "EXPOSED", "motion_watcher/camera/video"},
		"top":   {"motion_log", "motioneventlog", "camera", "P50", "CPU"},
	} {
		got := r.Must(r.Dir, name)
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s has no %q:\n%s", name, text, got)
			}
		}
	}

	// Who reads an output that is there, of a node that has nothing to give, is
	// told why.
	_, out := hold(t, r.Runtime, r.Dir, "read", "motion_watcher/camera/video")
	out.Await(t, `"surface_id":"motion_watcher/camera/video#`)
	r.bed.Unplug(cameraPath)
	out.Await(t, "waiting for motion_watcher/camera/video: camera is waiting: camera lost: ")
}

// logs: what of, how bad, how much, and on and on.
func TestLogs(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("talker", map[string]string{
		"pyproject.toml": "", "nodes/__init__.py": "",
		"stream.py": `from tatolab.stream import StreamBuilder, stream
from nodes.talk import Talker


@stream
def talker(stream_builder: StreamBuilder) -> None:
    stream_builder.add(Talker, name="one")
    stream_builder.add(Talker, name="two")
`,
		"nodes/talk.py": `from tatolab.stream import RuntimeContextLimitedAccess, log, node


@node(execution="continuous", interval_ms=50)
class Talker:
    def __init__(self) -> None:
        self.n = 0

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        self.n += 1
        log.info(f"{ctx.node_id} says {self.n}", n=self.n)
        if self.n % 4 == 0:
            log.warn(f"{ctx.node_id} warns {self.n}")
        print("printed", self.n)
`,
	})
	r.Must(project, "run", "-d")
	following, out := hold(t, r, project, "logs", "talker", "-f", "--node", "two", "--level", "warn", "-n", "1")
	out.Await(t, "warns 8")
	out.Await(t, "warns 12")
	following.Process.Signal(unix.SIGINT)
	following.Wait()
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if !strings.Contains(line, "WARN") || !strings.Contains(line, " two ") {
			t.Errorf("logs --node two --level warn prints %q", line)
		}
	}
	testbed.Eventually(t, settles, func() string { // the other one may be later
		if log := r.Must(project, "logs", "talker"); strings.Count(log, "printed 8\n") < 2 {
			return log
		}
		return ""
	})
	r.Must(project, "stop", "talker")
	lines := strings.Split(strings.TrimSpace(r.Must(project, "logs", "talker", "--json", "-n", "5")), "\n")
	if len(lines) != 5 {
		t.Errorf("logs -n 5 prints %d lines", len(lines))
	}
	for _, line := range lines {
		var rec api.Record
		if err := json.Unmarshal([]byte(line), &rec); err != nil || rec.Stream != "talker" || rec.Time.IsZero() {
			t.Errorf("logs --json prints %q: %v", line, err)
		}
	}
	all := r.Must(project, "logs", "talker")
	for n := 1; n <= 8; n++ {
		if c := strings.Count(all, fmt.Sprintf("printed %d\n", n)); c != 2 {
			t.Errorf("%q is %d times in the log, want once for each node", fmt.Sprintf("printed %d", n), c)
		}
	}
	if runtime := r.Must(project, "logs", "--runtime"); !strings.Contains(runtime, "kept stream=talker") && !strings.Contains(runtime, "kept") {
		t.Errorf("logs --runtime:\n%s", runtime)
	}
}

// Looking once a second, at everything and all the time, adds nothing to a
// stream: its processes are not woken for it.
func TestLookingCostsNothing(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	// These have nothing to do by themselves, so what wakes them is the looking.
	files := talking(map[string]string{"listen": "talk/talker/count"})
	files["nodes/talk.py"] = strings.Replace(files["nodes/talk.py"], "interval_ms=10", "interval_ms=3600000", 1)
	project := r.Project("talking", files)
	r.Must(project, "run", "-d", "stream.py:talk")
	r.Must(project, "run", "-d", "stream.py:listen")
	testbed.Eventually(t, settles, func() string {
		if l := look(t, r, "listen").Links[0]; l.State != api.LinkWired {
			return l.Reason
		}
		return ""
	})
	pids := []int{node(t, r, "talk", "talker").PID, node(t, r, "listen", "listener").PID}
	wakeups := func() (n int) {
		for _, pid := range pids {
			n += testbed.Switches(t, pid)
		}
		return n
	}
	const looks = 2 * time.Second
	var alone int
	testbed.Eventually(t, settles, func() string {
		before := wakeups()
		time.Sleep(looks)
		if alone = wakeups() - before; alone > 10 {
			return fmt.Sprintf("two nodes with nothing to do wake %d times in %s", alone, looks)
		}
		return ""
	})
	before, looked, begun := wakeups(), 0, time.Now()
	for ; time.Since(begun) < looks; looked++ {
		r.Must(project, "graph")
		r.Must(project, "top", "--interval", "100ms")
	}
	woken, took := wakeups()-before, time.Since(begun)
	if most := max(alone, 5)*int((took+looks-1)/looks) + looked; woken > most {
		t.Errorf("two nodes with nothing to do wake %d times in %s, and %d times in %s in which they are looked at %d times", alone, looks, woken, took, 2*looked)
	}
}
