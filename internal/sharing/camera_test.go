package sharing

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
)

// pictures is a project with a stream that exposes a camera and does nothing
// else with it, and streams that read it.
var pictures = map[string]string{
	"pyproject.toml":    "",
	"nodes/__init__.py": "",
	"stream.py": `from tatolab.stream import CameraSource, StreamBuilder, TestPatternSource, stream
from nodes.pictures import Holder, Look, Picture


@stream
def studio(stream_builder: StreamBuilder) -> None:
    camera = stream_builder.add(CameraSource, name="camera")
    pattern = stream_builder.add(TestPatternSource, name="pattern")
    stream_builder.expose(camera.output("video"))
    stream_builder.expose(pattern.output("video"))


@stream
def watched(stream_builder: StreamBuilder) -> None:
    camera = stream_builder.add(CameraSource, name="camera")
    look = stream_builder.add(Look, name="look")
    stream_builder.connect(camera.output("video"), look.input("video"))
    stream_builder.expose(camera.output("video"))


def read(stream_builder: StreamBuilder, node_class: type, source: str) -> None:
    node = stream_builder.add(node_class, name="reader")
    stream_builder.connect(stream_builder.remote_output(source + "/camera/video"), node.input("video"))


@stream
def looker(stream_builder: StreamBuilder) -> None:
    read(stream_builder, Look, "studio")


@stream
def picture(stream_builder: StreamBuilder) -> None:
    read(stream_builder, Picture, "studio")


@stream
def holder(stream_builder: StreamBuilder) -> None:
    read(stream_builder, Holder, "watched")
`,
	"nodes/pictures.py": `import hashlib
import os
import threading
import time
import zlib

from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, node


@node
class Look:
    """Looks at each picture."""

    @node.input()
    def video(self) -> VideoFrame: ...

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is not None:
            with frame.cpu() as image:
                image[0, 0].sum()


@node
class Picture:
    """Notes what each picture hashes to."""

    @node.input()
    def video(self) -> VideoFrame: ...

    def __init__(self) -> None:
        self.file = open(os.environ["NOTE"], "w", buffering=1)

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is not None:
            with frame.cpu() as image:
                digest = zlib.crc32(image[::4].tobytes())  # all lines would keep two cores busy
            print(frame.timestamp_ns, digest, file=self.file)


@node
class Holder:
    """Holds the first picture for ever, and notes what all memory that it got with it hashes to."""

    @node.input()
    def video(self) -> VideoFrame: ...

    def __init__(self) -> None:
        self.held = None

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is None or self.held is not None:
            return
        self.held = frame
        threading.Thread(target=spy, daemon=True).start()


def spy() -> None:
    # The pool is the largest of the memory shared with others.
    regions = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            if "/memfd:" in line:
                first, last = (int(end, 16) for end in line.split()[0].split("-"))
                regions.append((last - first, first))
    size, address = max(regions)
    with open("/proc/self/mem", "rb", buffering=0) as memory, open(os.environ["NOTE"], "w", buffering=1) as note:
        while True:
            began = time.monotonic_ns()
            memory.seek(address)
            print(began, hashlib.blake2b(memory.read(size), digest_size=8).hexdigest(), file=note)
            time.sleep(0.02)
`,
}

// Eight streams read one camera: it is opened once, all get the same pictures,
// and they cost the camera's process little more than one does. (By itself, since
// it measures.)
func TestManyReadersOfOneCamera(t *testing.T) {
	r := withCamera(t, 1280, 720, 1)
	project := r.NumPyProject("pictures", pictures)
	r.Must(project, "run", "-d", "stream.py:studio")
	name := func(i int) string { return fmt.Sprintf("reader%d", i) }
	read := func(i int) {
		r.Must(project, "run", "-d", "stream.py:picture", "--name", name(i), "--env", "NOTE="+name(i)+".txt")
	}
	camera := func() api.GraphNode { return node(t, r.Runtime, "studio", "camera") }
	perFrame := func() time.Duration {
		pid, frames, before := camera().PID, camera().Outputs[0].Sent, testbed.CPUTime(t, camera().PID)
		time.Sleep(2 * time.Second)
		return (testbed.CPUTime(t, pid) - before) / time.Duration(camera().Outputs[0].Sent-frames)
	}
	const readers = 8
	read(1)
	flows(t, r.Runtime, name(1))
	one := perFrame()
	for i := 2; i <= readers; i++ {
		read(i)
	}
	for i := 2; i <= readers; i++ {
		flows(t, r.Runtime, name(i))
	}
	many := perFrame()
	t.Logf("the camera's process computes %s a frame for 1 reader, %s for %d: x%.2f", one, many, readers, float64(many)/float64(one))

	if s := r.bed.State(cameraPath); s.Open != 1 || !s.Streaming {
		t.Errorf("%d readers: %+v, want one open device that streams", readers, s)
	}
	// The same picture for all who have seen it, and pictures that are not all
	// the same.
	const common = 10
	testbed.Eventually(t, settles, func() string {
		type sight struct {
			reader int
			hash   string
		}
		seen := map[string][]sight{} // by timestamp
		different := map[string]bool{}
		for i := 1; i <= readers; i++ {
			for _, line := range lines(filepath.Join(project, name(i)+".txt")) {
				at, hash, _ := strings.Cut(line, " ")
				seen[at] = append(seen[at], sight{i, hash})
				different[hash] = true
			}
		}
		var shared [readers + 1]int
		for at, sights := range seen {
			for _, s := range sights {
				if s.hash != sights[0].hash {
					t.Fatalf("the picture of %s is not the same for all: %v", at, sights)
				}
				if len(sights) > 1 {
					shared[s.reader]++
				}
			}
		}
		if slices.Min(shared[1:]) < common || len(different) < common {
			return fmt.Sprintf("%v pictures of the readers were seen by others, and %d pictures are different", shared[1:], len(different))
		}
		return ""
	})
}

// A source that nobody reads sleeps, and a camera does not stream; with a reader
// it does, until 2 s after that one has gone.
func TestUnreadSourcesRest(t *testing.T) {
	t.Parallel()
	r := withCamera(t, 320, 180, 0)
	project := r.NumPyProject("pictures", pictures)
	r.Must(project, "run", "-d", "stream.py:studio")
	rests := func() {
		t.Helper()
		testbed.Eventually(t, settles, func() string {
			if s := r.bed.State(cameraPath); s.Open != 1 || s.Streaming {
				return fmt.Sprintf("the camera: %+v, want it open and not streaming", s)
			}
			return ""
		})
		for _, n := range look(t, r.Runtime, "studio").Nodes {
			if len(n.Outputs) != 0 {
				t.Errorf("nobody reads, and graph has figures of %s: %+v", n.Name, n.Outputs)
			}
		}
		// The camera's process looks now and then whether the camera is still
		// there; the other one has nothing at all to do, once it has started.
		const rest = time.Second
		camera, pattern := node(t, r.Runtime, "studio", "camera").PID, node(t, r.Runtime, "studio", "pattern").PID
		frames := r.bed.State(cameraPath).Frames
		testbed.Eventually(t, settles, func() string {
			c, p := testbed.Switches(t, camera), testbed.Switches(t, pattern)
			time.Sleep(rest)
			c, p = testbed.Switches(t, camera)-c, testbed.Switches(t, pattern)-p
			if p > 5 {
				return fmt.Sprintf("a source of 30 pictures a second that nobody reads wakes %d times in %s", p, rest)
			}
			t.Logf("unread for %s: the camera's process wakes %d times, the pattern's %d", rest, c, p)
			return ""
		})
		if made := r.bed.State(cameraPath).Frames - frames; made != 0 {
			t.Errorf("a camera that nobody reads makes %d frames", made)
		}
	}
	rests()
	for range 2 {
		attached, _ := hold(t, r.Runtime, project, "run", "stream.py:looker")
		flows(t, r.Runtime, "looker")
		if s := r.bed.State(cameraPath); s.Open != 1 || !s.Streaming {
			t.Errorf("the camera, read: %+v", s)
		}
		interrupt(t, attached)
		rests()
	}
}

// A reader that may no longer read is cut before the command returns, and the
// memory it still has shows nothing new; the others read on.
func TestCutReaderSeesNothingNew(t *testing.T) {
	t.Parallel()
	r := withCamera(t, 320, 180, 1)
	project := r.NumPyProject("pictures", pictures)
	r.Must(project, "run", "-d", "stream.py:watched")
	r.Must(project, "run", "-d", "stream.py:holder", "--env", "NOTE=spy.txt")
	flows(t, r.Runtime, "holder")
	spied := func() (at []int64, hashes []string) {
		for _, line := range lines(filepath.Join(project, "spy.txt")) {
			var began int64
			var hash string
			if n, _ := fmt.Sscan(line, &began, &hash); n == 2 {
				at, hashes = append(at, began), append(hashes, hash)
			}
		}
		return at, hashes
	}
	testbed.Eventually(t, settles, func() string {
		_, hashes := spied()
		for i := range hashes {
			if i > 5 && hashes[i] != hashes[0] && hashes[i] != hashes[i-1] {
				return ""
			}
		}
		return fmt.Sprintf("the spy sees nothing change in %d looks", len(hashes))
	})

	said := r.Must(project, "expose", "watched", "camera", "video", "--internal")
	cut := now()
	if want := "watched/camera/video is internal\n"; said != want {
		t.Errorf("expose says %q, want %q", said, want)
	}
	if l := look(t, r.Runtime, "holder").Links[0]; l.State != api.LinkAwaitingRemote || l.Reason != "needs watched/camera/video: it is not exposed, its level is internal" {
		t.Errorf("after the command the link is %s: %s", l.State, l.Reason)
	}
	flows(t, r.Runtime, "watched")
	testbed.Eventually(t, settles, func() string {
		at, hashes := spied()
		looks, first := 0, ""
		for i := range at {
			if at[i] < cut {
				continue
			}
			if looks++; looks == 1 {
				first = hashes[i]
			}
			if hashes[i] != first {
				t.Fatalf("%s after the command the old memory shows something new", time.Duration(at[i]-cut))
			}
		}
		if looks < 50 {
			return fmt.Sprintf("the spy has looked %d times", looks)
		}
		return ""
	})
	flows(t, r.Runtime, "watched")
	if s := r.bed.State(cameraPath); s.Open != 1 {
		t.Errorf("the camera: %+v", s)
	}
	r.Must(project, "expose", "watched", "camera", "video")
	flows(t, r.Runtime, "holder")
}
