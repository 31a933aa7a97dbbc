// Package graphicstest tests windows and effects whole: tatolabd, its
// processes, and a display.
package graphicstest

import (
	"context"
	"fmt"
	"image"
	"image/color"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/xvfb"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// TestMain has all programs built: a test bed of its own builds only those
// that every test needs.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if os.Getenv("TATOLAB_TEST_BIN") == "" {
			dir, err := os.MkdirTemp("", "tatolab-bin-")
			if err != nil {
				panic(err)
			}
			defer os.RemoveAll(dir)
			build := exec.Command("make", "-s", "build", "BIN="+dir)
			build.Dir = testbed.Root()
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "cannot build the programs: %v\n%s", err, out)
				return 1
			}
			os.Setenv("TATOLAB_TEST_BIN", dir)
		}
		return m.Run()
	}())
}

const invert = `"""Inverts."""

from tatolab.stream import GlslPixelEffect, VideoFrame, node

GLSL = "vec4 effect(vec4 source, ivec2 at) { return vec4(1.0 - source.rgb, source.a); }"


@node
class Invert:
    @node.input(delivery_profile="newest")
    def video(self): ...

    @node.output()
    def inverted(self): ...

    def setup(self, ctx):
        self.effect = GlslPixelEffect.compile(ctx.gpu_full_access, GLSL)

    def process(self, ctx):
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is not None:
            ctx.outputs.write("inverted", self.effect.apply_to_frame(ctx.gpu_limited_access, frame))
`

// meter reads every picture's bag, as a recorder would.
const meter = `"""Reads."""

from tatolab.stream import node


@node
class Meter:
    @node.input(delivery_profile="ordered")
    def video(self): ...

    def process(self, ctx):
        ctx.inputs.read("video")
`

// project is a stream of a test pattern, what inverts it, what counts it, and
// windows: name, source and scaling of each.
func project(windows ...[3]string) map[string]string {
	var s strings.Builder
	s.WriteString(`from tatolab.stream import DisplayWindow, StreamBuilder, TestPatternSource, stream
from nodes.invert import Invert
from nodes.meter import Meter


@stream
def graphics(stream_builder: StreamBuilder) -> None:
    camera = stream_builder.add(TestPatternSource, name="camera", config={"width": 640, "height": 360, "fps": 30})
    effect = stream_builder.add(Invert, name="effect")
    meter = stream_builder.add(Meter, name="meter")
    stream_builder.connect(camera.output("video"), effect.input("video"))
    stream_builder.connect(camera.output("video"), meter.input("video"))
    sources = {"camera": camera.output("video"), "effect": effect.output("inverted")}
`)
	for _, w := range windows {
		fmt.Fprintf(&s, `    window = stream_builder.add(
        DisplayWindow, name=%q, config={"title": %[1]q, "width": 300, "height": 300, "scaling": %[3]q}
    )
    stream_builder.connect(sources[%[2]q], window.input("video"))
`, w[0], w[1], w[2])
	}
	return map[string]string{
		"stream.py": s.String(), "nodes/__init__.py": "", "nodes/invert.py": invert, "nodes/meter.py": meter,
		"pyproject.toml": "[project]\nname = \"graphics\"\nversion = \"0\"\n",
	}
}

// rig is a running stream named graphics.
type rig struct {
	*testbed.Runtime
	t   *testing.T
	dir string
}

func start(t *testing.T, display string, files map[string]string) *rig {
	t.Helper()
	r := &rig{Runtime: testbed.New(t), t: t}
	r.Env = append(r.Env, "DISPLAY="+display)
	r.Start()
	r.dir = r.Project("graphics", files)
	r.Must(r.dir, "run", "-d")
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the stream's log:\n%s", r.CLI(r.dir, "logs", "graphics").Stdout)
		}
	})
	return r
}

func (r *rig) graph(stream string) *api.Graph {
	r.t.Helper()
	g, err := r.Client().Graph(context.Background(), stream)
	if err != nil {
		r.t.Fatal(err)
	}
	return g
}

func (r *rig) node(name string) api.GraphNode {
	r.t.Helper()
	return r.nodeOf("graphics", name)
}

func (r *rig) nodeOf(stream, name string) api.GraphNode {
	r.t.Helper()
	for _, n := range r.graph(stream).Nodes {
		if n.Name == name {
			return n
		}
	}
	r.t.Fatalf("%s has no node %s", stream, name)
	panic("unreachable")
}

// link returns the link into a node.
func (r *rig) link(node string) api.GraphLink {
	r.t.Helper()
	return r.linkOf("graphics", node)
}

func (r *rig) linkOf(stream, node string) api.GraphLink {
	r.t.Helper()
	for _, l := range r.graph(stream).Links {
		if l.Target.Node == node {
			return l
		}
	}
	r.t.Fatalf("no link of %s ends at %s", stream, node)
	panic("unreachable")
}

// eventually is generous: what died often is started again after half a minute
// only, and the machine may be busy.
func (r *rig) eventually(what func() string) {
	r.t.Helper()
	testbed.Eventually(r.t, 90*time.Second, what)
}

// bars are the colours of the test pattern's seven bars, SMPTE's at 75 %.
var bars = [7]color.RGBA{
	{191, 191, 191, 255}, {191, 191, 0, 255}, {0, 191, 191, 255}, {0, 191, 0, 255},
	{191, 0, 191, 255}, {191, 0, 0, 255}, {0, 0, 191, 255},
}

// look says how what the window at that place shows, 300×300, differs from the
// test pattern's bars, inverted or not, in the scaling; "" if it does not.
func look(shot *image.RGBA, at image.Point, scaling string, inverted bool) string {
	// Where the picture of 16:9 lies in the window, and the middle of the bars.
	left, width, top, bottom := 0.0, 300.0, 0, 299
	switch scaling {
	case "fit":
		top, bottom = 66, 233
	case "fill":
		width = 300 * 16.0 / 9
		left = (300 - width) / 2
	}
	pixel := func(x, y int) color.RGBA { return shot.RGBAAt(at.X+x, at.Y+y) }
	check := func(x, y int, want color.RGBA) string {
		if got := pixel(x, y); !xvfb.Near(got, want) {
			return fmt.Sprintf("%s at %v: (%d,%d) is %v, want %v", scaling, at, x, y, got, want)
		}
		return ""
	}
	middle := (top + bottom) / 3 // bars reach down to two thirds of the picture
	if scaling == "fit" {
		middle = 120
	}
	seen := 0
	for i, want := range bars {
		x := int(left + width*(float64(i)+0.5)/7)
		if x < 0 || x >= 300 {
			continue
		}
		if inverted {
			want.R, want.G, want.B = 255-want.R, 255-want.G, 255-want.B
		}
		if wrong := check(x, middle, want); wrong != "" {
			return wrong
		}
		seen++
	}
	if want := map[string]int{"fit": 7, "fill": 3, "stretch": 7}[scaling]; seen < want {
		return fmt.Sprintf("%s at %v: %d bars are in view, want %d", scaling, at, seen, want)
	}
	black := color.RGBA{A: 255}
	if scaling == "fit" {
		// Bars above and below, and the picture right up to them.
		for _, x := range []int{2, 150, 297} {
			for _, y := range []int{2, top - 3, bottom + 3, 297} {
				if wrong := check(x, y, black); wrong != "" {
					return wrong
				}
			}
		}
	}
	// The corner at the lower right is white at the end of the ramp, or black.
	corner := pixel(297, bottom-2)
	if bright := corner.R > 128; scaling != "fill" && bright == inverted {
		return fmt.Sprintf("%s at %v: the end of the ramp is %v", scaling, at, corner)
	}
	return ""
}

// save keeps a screenshot for a person to look at, where TATOLAB_SCREENSHOTS
// names a folder.
func save(x *xvfb.Server, name string) {
	if folder := os.Getenv("TATOLAB_SCREENSHOTS"); folder != "" {
		x.Save(filepath.Join(folder, name+".png"))
	}
}

func TestThePatternInvertedInEveryScaling(t *testing.T) {
	t.Parallel()
	x := xvfb.Start(t, "")
	scalings := []string{"fit", "fill", "stretch"}
	var windows [][3]string
	for _, s := range scalings {
		windows = append(windows, [3]string{s, "effect", s}, [3]string{"plain-" + s, "camera", s})
	}
	r := start(t, x.Name, project(windows...))
	place := func(i int) image.Point { return image.Pt(10+310*(i/2), 10+310*(i%2)) }
	for i, w := range windows {
		x.Window(w[0]).Place(place(i).X, place(i).Y, 300, 300)
	}
	r.eventually(func() string {
		shot := x.Screen()
		for i, w := range windows {
			if wrong := look(shot, place(i), w[2], w[1] == "effect"); wrong != "" {
				return wrong
			}
		}
		return ""
	})
	save(x, "scalings")

	// Closing a window ends its node, and nothing else.
	x.Window("fill").Close()
	r.eventually(func() string {
		if n := r.node("fill"); n.State != api.NodeStopped || n.PID != 0 {
			return fmt.Sprintf("the node of the closed window is %s, pid %d", n.State, n.PID)
		}
		return ""
	})
	if log := r.Must(r.dir, "logs", "graphics"); !strings.Contains(log, "window closed") {
		t.Errorf("the log does not tell:\n%s", log)
	}
	for _, n := range r.graph("graphics").Nodes {
		if n.Name != "fill" && n.State != api.NodeRunning {
			t.Errorf("%s is %s", n.Name, n.State)
		}
	}
	// It is there again when that is asked for as the log says.
	r.Must(r.dir, "start", "graphics")
	x.Window("fill").Place(place(2).X, place(2).Y, 300, 300)
	r.eventually(func() string { return look(x.Screen(), place(2), "fill", true) })
	r.Must(r.dir, "stop", "graphics")
}

func TestAWindowWaitsForADisplay(t *testing.T) {
	t.Parallel()
	x := xvfb.Start(t, "")
	name := x.Name
	x.Stop()
	r := start(t, name, project([3]string{"window", "effect", "fit"}))
	r.eventually(func() string {
		if n := r.node("window"); n.State != api.NodeWaiting || !strings.Contains(n.Reason, "waits for a display") {
			return fmt.Sprintf("the window is %s: %s", n.State, n.Reason)
		}
		return ""
	})
	shows := func() {
		t.Helper()
		x.Window("window").Place(10, 10, 300, 300)
		r.eventually(func() string { return look(x.Screen(), image.Pt(10, 10), "fit", true) })
	}
	for range 2 {
		x = xvfb.Start(t, name)
		shows()
		before := r.link("meter").Received
		x.Stop()
		r.eventually(func() string {
			if n := r.node("window"); n.State != api.NodeWaiting {
				return fmt.Sprintf("without its display the window is %s: %s", n.State, n.Reason)
			}
			if now := r.link("meter").Received; now < before+10 {
				return fmt.Sprintf("others have read %d pictures since the display went", now-before)
			}
			return ""
		})
	}
	if log := r.Must(r.dir, "logs", "graphics"); !strings.Contains(log, "display lost: the connection to "+name+" broke") {
		t.Errorf("the log does not name the loss:\n%s", log)
	}
	r.Must(r.dir, "stop", "graphics")
}

// drawers of a stream: its processes of tatolab-gl.
func (r *rig) drawers(stream string) (pids []int) {
	for _, process := range r.Processes(stream) {
		var pid int
		var program string
		fmt.Sscan(process, &pid, &program)
		if filepath.Base(program) == "tatolab-gl" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestKilledAtRandom takes everything that draws away, again and again. The
// camera and its other readers go on as those of a stream beside it that has no
// windows and whose fate is the machine's alone; what draws comes back; and a
// stream that is hit like that can be stopped at every moment.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	long := time.Minute
	if os.Getenv("TATOLAB_SOAK") != "" {
		long = 10 * time.Minute
	}
	x := xvfb.Start(t, "")
	name := x.Name
	r := start(t, name, project([3]string{"window", "effect", "fit"}, [3]string{"plain", "camera", "stretch"}))
	victim := r.Project("victim", project([3]string{"victim", "effect", "fit"}))
	r.Must(victim, "run", "-d", "--name", "victim")
	r.Must(r.Project("control", project()), "run", "-d", "--name", "control")
	back := func() {
		t.Helper()
		r.eventually(func() string {
			for i, title := range []string{"window", "plain"} {
				w, found := x.Find(title)
				if !found {
					return "there is no window " + title
				}
				w.Place(10+310*i, 10, 300, 300) // above the victim's, which opens in the corner
			}
			shot := x.Screen()
			if wrong := look(shot, image.Pt(10, 10), "fit", true); wrong != "" {
				return wrong
			}
			return look(shot, image.Pt(320, 10), "stretch", false)
		})
	}
	back()

	seed := time.Now().UnixNano()
	t.Log("seed", seed)
	random := rand.New(rand.NewSource(seed))
	pause := func(most time.Duration) { time.Sleep(time.Duration(random.Int63n(int64(most)))) }
	// strike hits what draws in a stream, where that is there to be hit.
	strike := func(stream, what string) {
		kill := func(pid int) {
			if pid > 0 {
				unix.Kill(pid, unix.SIGKILL)
			}
		}
		switch what {
		case "window", "plain", "victim":
			kill(r.nodeOf(stream, what).PID)
		case "helper":
			for _, pid := range r.drawers(stream) {
				kill(pid)
			}
		case "display":
			x.Stop()
			pause(1500 * time.Millisecond)
			x = xvfb.Start(t, name)
		case "hide":
			if w, found := x.Find("plain"); found {
				w.Hide()
				pause(time.Second)
				w.Show()
			}
		}
	}
	camera, counter := r.node("camera").PID, r.node("meter").PID
	read, control := r.link("meter"), r.linkOf("control", "meter")
	done := map[string]int{}
	for end := time.Now().Add(long); time.Now().Before(end); {
		before := r.link("meter").Received
		what := []string{"window", "plain", "helper", "display", "hide", "stop"}[random.Intn(6)]
		done[what]++
		if what == "stop" {
			hit := []string{"victim", "helper", "display", "nothing"}[random.Intn(4)]
			strike("victim", hit)
			pause(700 * time.Millisecond)
			r.Must(victim, "stop", "victim")
			if left := r.Processes("victim"); left != nil {
				t.Errorf("`tatolab stop` after %s left\n%s", hit, strings.Join(left, "\n"))
			}
			r.Must(victim, "start", "victim")
		} else {
			strike("graphics", what)
		}
		r.eventually(func() string {
			if now := r.link("meter").Received; now < before+15 {
				return fmt.Sprintf("after %s: others have read %d pictures", what, now-before)
			}
			return ""
		})
	}
	t.Log("done:", done)
	gone := r.link("meter")
	read.Received, control.Received = gone.Received-read.Received, r.linkOf("control", "meter").Received-control.Received
	t.Logf("read: %d pictures; beside it, undisturbed: %d", read.Received, control.Received)
	if read.Received*100 < control.Received*85 { // they are not scheduled alike
		t.Errorf("the camera's reader got %d pictures where one beside it got %d", read.Received, control.Received)
	}
	if r.node("camera").PID != camera || r.node("meter").PID != counter {
		t.Error("the camera or its reader died with what draws")
	}
	back()
	save(x, "killed")
	// Stop in the middle of it all.
	unix.Kill(r.node("window").PID, unix.SIGKILL)
	x.Stop()
	r.Must(r.dir, "stop", "graphics")
	if left := r.Processes("graphics"); left != nil {
		t.Errorf("`tatolab stop` left\n%s", strings.Join(left, "\n"))
	}
}

// A mistake in an effect fails its node with the line; the corrected file goes
// in without touching camera and window.
func TestDevSwapsACorrectedShaderIn(t *testing.T) {
	t.Parallel()
	x := xvfb.Start(t, "")
	r := &rig{Runtime: testbed.New(t), t: t}
	r.Env = append(r.Env, "DISPLAY="+x.Name)
	r.Start()
	files := project([3]string{"window", "effect", "stretch"})
	files["nodes/invert.py"] = strings.Replace(invert, "1.0 - source.rgb", "1.0 - sorce.rgb", 1)
	r.dir = r.Project("graphics", files)
	dev := r.Command(r.dir, "dev")
	out := testbed.Capture(dev)
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		dev.Process.Signal(unix.SIGINT)
		dev.Wait()
		if t.Failed() {
			t.Logf("dev said:\n%s", out.String())
		}
	}()
	out.Await(t, "line 1: error: `sorce' undeclared")
	out.Await(t, "return vec4(1.0 - sorce.rgb, source.a);")
	window, camera := r.node("window").PID, r.node("camera").PID
	testbed.Write(t, r.dir, map[string]string{"nodes/invert.py": invert})
	x.Window("window").Place(10, 10, 300, 300)
	r.eventually(func() string { return look(x.Screen(), image.Pt(10, 10), "stretch", true) })
	if r.node("window").PID != window || r.node("camera").PID != camera {
		t.Error("the camera or the window was started again for a change of the effect")
	}
	// Another mistake: the last good version goes on, or is gone, but the window stays.
	testbed.Write(t, r.dir, map[string]string{"nodes/invert.py": strings.Replace(invert, "source.a)", "nothing)", 1)})
	out.Await(t, "line 1: error: `nothing' undeclared")
	if r.node("window").PID != window || r.node("camera").PID != camera {
		t.Error("the camera or the window was started again for a mistake in the effect")
	}
	// A window that was closed stays so over the next save, until it is asked for
	// as the log says.
	x.Window("window").Close()
	out.Await(t, "window closed; `tatolab start graphics` opens it again")
	closed := func() string {
		if n := r.node("window"); n.State != api.NodeStopped || n.PID != 0 {
			return fmt.Sprintf("the node of the closed window is %s, pid %d", n.State, n.PID)
		}
		return ""
	}
	r.eventually(closed)
	testbed.Write(t, r.dir, map[string]string{"nodes/invert.py": invert})
	r.eventually(func() string {
		if n := r.node("effect"); n.State != api.NodeRunning {
			return fmt.Sprintf("the corrected effect is %s", n.State)
		}
		return ""
	})
	if wrong := closed(); wrong != "" {
		t.Error("after a save", wrong)
	}
	r.Must(r.dir, "start", "graphics")
	x.Window("window").Place(10, 10, 300, 300)
	r.eventually(func() string { return look(x.Screen(), image.Pt(10, 10), "stretch", true) })
}
