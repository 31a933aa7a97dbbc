package graphicstest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/effect"
	"tatolab.com/tatolab/gl/offscreen"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/control"
)

// oneFrame draws an effect as a node does, for each line it is given, and
// answers with the nanoseconds from the picture to the pixels in other memory.
const oneFrame = `
import fcntl, os, sys, time
sys.path.insert(0, sys.argv[1])
from tatolab.stream import GlslPixelEffect, VideoFrame
from tatolab.stream._effects import Place
from tatolab.stream._gl import Connection, Gl

WIDTH, HEIGHT = 1280, 720

class Pool:
    size = 4 * WIDTH * HEIGHT
    fd = os.memfd_create("pool", os.MFD_ALLOW_SEALING)
    os.truncate(fd, size)
    fcntl.fcntl(fd, 1033, 2)  # F_ADD_SEALS, F_SEAL_SHRINK

    def fileno(self):
        return self.fd

class Runtime:
    def connect(self, limit):
        return Connection(1, 1, 3)

class Pictures:
    gl = Gl(Runtime())
    source = Pool()

    def gl_source(self, frame):
        return Place(self.source, 0, 4 * WIDTH, WIDTH, HEIGHT)

    def adopt(self, picture):
        self.result = picture
        return {}

pictures = Pictures()
effect = GlslPixelEffect.compile(pictures, sys.argv[2])
pool = memoryview(bytearray(4 * WIDTH * HEIGHT))
for _ in sys.stdin:
    began = time.perf_counter_ns()
    effect.apply_to_frame(pictures, VideoFrame("a/b/c#1", WIDTH, HEIGHT, 1))
    pictures.result.copy_into(pool)
    print(time.perf_counter_ns() - began, flush=True)
`

// connect starts tatolab-gl as the runtime does and returns a node's connection
// to it.
func connect(b *testing.B, program string) (connection *os.File, end func()) {
	channel, theirs, err := control.Pair()
	if err != nil {
		b.Fatal(err)
	}
	defer theirs.Close()
	spec, err := control.WriteSpec(&control.Spec{Protocol: control.Protocol, Node: "tatolab-gl"})
	if err != nil {
		b.Fatal(err)
	}
	defer spec.Close()
	cmd := exec.Command(program)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs, spec}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	other := os.NewFile(uintptr(fds[1]), "connection")
	defer other.Close()
	if err := channel.Send(&control.Message{Kind: control.Graphics, ID: 1, File: other}); err != nil {
		b.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "connection"), func() {
		channel.Close()
		cmd.Wait()
	}
}

// BenchmarkEffectAgainstBareGL takes turns, so that whatever else the machine
// does meets both: a 720p picture through an effect in Python, helper and all,
// and the same steps in OpenGL alone. Compare the medians.
func BenchmarkEffectAgainstBareGL(b *testing.B) {
	const glsl = "vec4 effect(vec4 source, ivec2 at) { return vec4(1.0 - source.rgb, source.a); }"
	helper := filepath.Join(b.TempDir(), "tatolab-gl")
	link := exec.Command("go", "build", "-o", helper, "./cmd/tatolab-gl")
	link.Dir = testbed.Root()
	if out, err := link.CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	python := exec.Command("python3", "-c", oneFrame, filepath.Join(testbed.Root(), "python/src"), glsl)
	python.Stderr = os.Stderr
	connection, end := connect(b, helper)
	defer end()
	python.ExtraFiles = []*os.File{connection}
	in, err := python.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := python.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := python.Start(); err != nil {
		b.Fatal(err)
	}
	connection.Close()
	defer python.Wait()
	defer in.Close()
	lines := bufio.NewReader(out)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	context, err := offscreen.Open()
	if err != nil {
		b.Fatal(err)
	}
	defer context.Close()
	canvas := effect.NewCanvas()
	program, err := effect.Compile(glsl, nil)
	if err != nil {
		b.Fatal(err)
	}
	pixels, pool := make([]byte, 4*1280*720), make([]byte, 4*1280*720)
	frame := func() {
		source, err := canvas.Upload(pixels, 4*1280, 1280, 720)
		if err != nil {
			b.Fatal(err)
		}
		result, err := canvas.Apply(program, source, nil, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := canvas.Read(result, pool, 4*1280); err != nil {
			b.Fatal(err)
		}
		canvas.Recycle(source)
		canvas.Recycle(result)
	}
	var bare, whole []float64
	for b.Loop() {
		began := time.Now()
		frame()
		bare = append(bare, time.Since(began).Seconds()*1e3)
		fmt.Fprintln(in)
		var ns float64
		if _, err := fmt.Fscanln(lines, &ns); err != nil {
			b.Fatal(err)
		}
		whole = append(whole, ns/1e6)
	}
	slices.Sort(bare)
	slices.Sort(whole)
	n := len(bare)
	b.ReportMetric(bare[n/2], "bare-ms")
	b.ReportMetric(whole[n/2], "effect-ms")
	b.ReportMetric(whole[n/2]/bare[n/2], "ratio")
	b.ReportMetric(whole[n/10]/bare[n/10], "ratio-p10")
}
