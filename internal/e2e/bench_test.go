package e2e

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/fakecamera"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// BenchmarkSave is from a save under `tatolab dev` to the first bag of the new
// version, on a project that imports nothing but itself. `make bench` runs it
// with 50 saves.
func BenchmarkSave(b *testing.B) {
	r := testbed.Run(b)
	project := r.Project("ticker", ticker("ticker"))
	_, out := start(b, r, project, "count ", "dev")
	edit(b, project, "nodes/printer.py", "count {", "v0 count {")
	out.Await(b, " v0 count")
	var took []time.Duration
	for i := 1; b.Loop(); i++ {
		began := time.Now()
		edit(b, project, "nodes/printer.py", fmt.Sprintf("v%d count", i-1), fmt.Sprintf("v%d count", i))
		out.Await(b, fmt.Sprintf(" v%d count", i))
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Milliseconds()), "p50-ms")
	b.ReportMetric(float64(took[len(took)*9/10].Milliseconds()), "p90-ms")
	b.ReportMetric(0, "ns/op")
}

const benchedFor = 10 * time.Second

// BenchmarkCamera is a camera at 720p30, of which Python nodes look at
// every pixel: what the camera's process and a node take of a CPU, how old a
// picture is when a node has it, how many never came to one. `make bench` runs
// it once.
func BenchmarkCamera(b *testing.B) {
	for _, readers := range []int{1, 8} {
		b.Run(fmt.Sprintf("YUYV/readers=%d", readers), func(b *testing.B) { benchCamera(b, "YUYV", readers) })
	}
	b.Run("MJPG/readers=1", func(b *testing.B) { benchCamera(b, "MJPG", 1) })
}

func benchCamera(b *testing.B, format string, readers int) {
	var bed *fakecamera.Bed
	b.Cleanup(func() { // after the runtime has ended
		if bed != nil {
			bed.Close()
		}
	})
	r := testbed.New(b)
	r.Wrap = func(cmd *exec.Cmd) {
		var err error
		script := fakecamera.Script{Cameras: []fakecamera.Camera{fakecamera.Webcam("/dev/video0", format, 1280, 720, 30)}}
		if bed, err = fakecamera.Wrap(cmd, script); err != nil {
			b.Fatal(err)
		}
	}
	r.Start()
	project := r.NumPyProject("looking", map[string]string{
		"stream.py": fmt.Sprintf(`from tatolab.stream import CameraSource, StreamBuilder, stream
from nodes.looker import Looker


@stream
def looking(stream_builder: StreamBuilder) -> None:
    """Looks at a camera."""
    camera = stream_builder.add(CameraSource, name="camera")
    for _ in range(%d):
        stream_builder.connect(camera.output("video"), stream_builder.add(Looker).input("video"))
`, readers),
		"nodes/__init__.py": "",
		"nodes/looker.py": `from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, node


@node
class Looker:
    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is not None:
            with frame.cpu() as image:
                image.max()
`,
	})
	r.Must(project, "run", "-d")
	graph := func() *api.Graph {
		g, err := r.Client().Graph(b.Context(), "looking")
		if err != nil {
			b.Fatal(err)
		}
		return g
	}
	testbed.Eventually(b, time.Minute, func() string {
		g := graph()
		if len(g.Links) != readers {
			return "it is not loaded yet"
		}
		for _, l := range g.Links {
			if l.Received < 30 {
				return fmt.Sprintf("%s has received %d bags", l.Target, l.Received)
			}
		}
		return ""
	})
	for b.Loop() {
		before, pids := graph(), map[string]int{}
		var began, took = map[string]time.Duration{}, map[string]time.Duration{}
		for _, n := range before.Nodes {
			pids[n.Name], began[n.Name] = n.PID, testbed.CPUTime(b, n.PID)
		}
		time.Sleep(benchedFor)
		after := graph()
		for name, pid := range pids {
			took[name] = testbed.CPUTime(b, pid) - began[name]
		}
		var sent, received, dropped uint64
		var reading time.Duration
		var p50, p99 float64
		for i, l := range after.Links {
			sent += l.Sent - before.Links[i].Sent
			received += l.Received - before.Links[i].Received
			dropped += l.Dropped - before.Links[i].Dropped
			reading += took[l.Target.Node]
			p50, p99 = max(p50, l.LatencyP50MS), max(p99, l.LatencyP99MS)
		}
		b.ReportMetric(float64(sent)/float64(readers)/benchedFor.Seconds(), "frames/s")
		b.ReportMetric(float64(took["camera"].Microseconds())*float64(readers)/float64(sent), "camera-µs/frame")
		b.ReportMetric(100*took["camera"].Seconds()/benchedFor.Seconds(), "camera-%CPU")
		b.ReportMetric(float64(reading.Microseconds())/float64(received), "node-µs/frame")
		b.ReportMetric(float64(dropped), "lost")
		b.ReportMetric(p50, "p50-ms")
		b.ReportMetric(p99, "p99-ms")
		b.ReportMetric(0, "ns/op")
	}
	r.Must(project, "stop", "looking")
}
