package effectserver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/gl/effect"
	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/control"
)

// asHelper makes this test binary the helper.
const asHelper = "TATOLAB_TEST_EFFECT_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(asHelper) != "" {
		os.Exit(Main())
	}
	os.Exit(m.Run())
}

// process is a running tatolab-gl, and the runtime's end of its channel.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	channel *control.Conn
	page    *os.File
	last    uint64 // id of a connection
}

// launch starts the program as the runtime does.
func launch(t testing.TB, environment ...string) *process {
	t.Helper()
	channel, theirs, err := control.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	spec, err := control.WriteSpec(&control.Spec{Protocol: control.Protocol, Build: build.ID(), Node: "tatolab-gl"})
	if err != nil {
		t.Fatal(err)
	}
	defer spec.Close()
	p := &process{t: t, channel: channel, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(append(os.Environ(), asHelper+"=1"), environment...)
	p.cmd.Stdout, p.cmd.Stderr = os.Stderr, os.Stderr
	p.cmd.ExtraFiles = []*os.File{theirs, spec}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		p.channel.Close()
	})
	hello, err := channel.Receive()
	if err != nil || hello.Kind != control.Hello || hello.Build != build.ID() {
		t.Fatalf("it began with %+v, %v", hello, err)
	}
	page, err := channel.Receive()
	if err != nil || page.Kind != control.Page || page.File == nil {
		t.Fatalf("it went on with %+v, %v", page, err)
	}
	p.page = page.File
	t.Cleanup(func() { p.page.Close() })
	return p
}

// served is the id of the connection the process serves, or served when it ended.
func (p *process) served() uint64 {
	p.t.Helper()
	var word [8]byte
	if _, err := p.page.ReadAt(word[:], 0); err != nil {
		p.t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(word[:])
}

// exit waits for the end of the process and returns its status.
func (p *process) exit() int {
	p.t.Helper()
	done := make(chan struct{})
	go func() { p.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		p.t.Fatal("it does not end")
	}
	return p.cmd.ProcessState.ExitCode()
}

// helper is a connection to it, a node's.
type helper struct {
	t      testing.TB
	id     uint64
	socket int
	last   uint64
	hello  reply
}

// connect makes a connection, greeted or not.
func (p *process) connect() *helper {
	p.t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	p.last++
	theirs := os.NewFile(uintptr(fds[1]), "socket")
	defer theirs.Close()
	if err := p.channel.Send(&control.Message{Kind: control.Graphics, ID: p.last, File: theirs}); err != nil {
		p.t.Fatal(err)
	}
	h := &helper{t: p.t, id: p.last, socket: fds[0]}
	p.t.Cleanup(h.close)
	h.hello = h.receive()
	return h
}

func (h *helper) close() {
	if h.socket >= 0 {
		unix.Close(h.socket)
		h.socket = -1
	}
}

// start launches the program and connects.
func start(t testing.TB) *helper {
	t.Helper()
	h := launch(t).connect()
	if h.hello.Error != "" {
		t.Fatalf("%s\nthese tests need EGL and a driver: apt install libegl1 libgl1-mesa-dri", h.hello.Error)
	}
	return h
}

func (h *helper) receive() reply {
	h.t.Helper()
	fds := []unix.PollFd{{Fd: int32(h.socket), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 20_000)
		if err == unix.EINTR {
			continue
		}
		if n == 0 {
			h.t.Fatal("no answer in 20 s")
		}
		break
	}
	buf := make([]byte, MaxRequest)
	n, err := unix.Read(h.socket, buf)
	if err != nil || n == 0 {
		h.t.Fatalf("the helper is gone: %d %v", n, err)
	}
	var r reply
	if err := json.Unmarshal(buf[:n], &r); err != nil {
		h.t.Fatal(err)
	}
	return r
}

func (h *helper) send(fields map[string]any, file *os.File) {
	h.t.Helper()
	h.last++
	fields["id"] = h.last
	data, err := json.Marshal(fields)
	if err != nil {
		h.t.Fatal(err)
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if err := unix.Sendmsg(h.socket, data, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		h.t.Fatal(err)
	}
}

// ask sends a request and returns its answer.
func (h *helper) ask(kind string, fields map[string]any, file *os.File) reply {
	h.t.Helper()
	if fields == nil {
		fields = map[string]any{}
	}
	fields["kind"] = kind
	h.send(fields, file)
	r := h.receive()
	if r.ID != h.last || r.Kind != "reply" {
		h.t.Fatalf("%s was answered by %+v", kind, r)
	}
	return r
}

// must is ask of a request that works.
func (h *helper) must(kind string, fields map[string]any, file *os.File) reply {
	h.t.Helper()
	r := h.ask(kind, fields, file)
	if r.Error != "" {
		h.t.Fatalf("%s: %s", kind, r.Error)
	}
	return r
}

// memory makes a memfd, gives it to the helper under the number, and maps it.
func (h *helper) memory(number, size int, writable bool) []byte {
	h.t.Helper()
	fd, err := unix.MemfdCreate("pool", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		h.t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "pool")
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		h.t.Fatal(err)
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		h.t.Fatal(err)
	}
	data, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { unix.Munmap(data) })
	h.must("memory", map[string]any{"memory": number, "size": size, "writable": writable}, file)
	return data
}

const (
	invert  = "vec4 effect(vec4 source, ivec2 at) { return vec4(1.0 - source.rgb, source.a); }"
	scale   = "vec4 effect(vec4 source, ivec2 at) { return vec4(source.rgb * dials.by, source.a); }"
	endless = "vec4 effect(vec4 source, ivec2 at) { float a = source.r + 1.0; while (a != 0.0) a = fract(a * 1.1) + 1.0; return vec4(a); }"
)

func TestAChainUploadsOnceAndReadsBackOnce(t *testing.T) {
	h := start(t)
	if h.hello.Protocol != Protocol || h.hello.MaxExtent < 8192 || h.hello.Renderer == "" {
		t.Errorf("it says %+v", h.hello)
	}
	const w, h2 = 33, 21
	in, out := h.memory(1, 65536, false), h.memory(2, 65536, true)
	const offset, stride = 4096, 256
	for i := range in {
		in[i] = byte(i * 7)
	}
	h.must("compile", map[string]any{"effect": 1, "text": invert}, nil)
	h.must("compile", map[string]any{"effect": 2, "text": scale, "dials": []effect.Dial{{Name: "by", Type: "float"}}}, nil)
	const frames = 20
	var before []uint64
	for i := range frames {
		first := h.must("apply", map[string]any{
			"effect": 1, "drop": before,
			"from": place{Memory: 1, Offset: offset, Stride: stride, Width: w, Height: h2},
		}, nil)
		second := h.must("apply", map[string]any{"effect": 2, "source": first.Picture, "values": map[string]any{"by": []float64{0}}}, nil)
		before = []uint64{first.Source, first.Picture, second.Picture}
		if i == frames-1 {
			// The last frame shows the first effect alone as well.
			h.must("read", map[string]any{"picture": first.Picture, "into": place{Memory: 2, Offset: 0, Stride: stride}}, nil)
			for y := range h2 {
				for x := range w {
					p, q := in[offset+y*stride+4*x:], out[y*stride+4*x:]
					if q[0] != 255-p[0] || q[1] != 255-p[1] || q[2] != 255-p[2] || q[3] != p[3] {
						t.Fatalf("(%d,%d): %v became %v", x, y, p[:4], q[:4])
					}
				}
			}
		}
		h.must("read", map[string]any{"picture": second.Picture, "into": place{Memory: 2, Offset: 8192, Stride: stride}}, nil)
		if q := out[8192:8196]; !bytes.Equal(q[:3], []byte{0, 0, 0}) || q[3] != in[offset+3] {
			t.Fatalf("the chain ends in %v", q)
		}
	}
	got := *h.must("statistics", nil, nil).Statistics
	if want := (statistics{Uploads: frames, Draws: 2 * frames, Readbacks: frames + 1, Pictures: 3, Connections: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	// Space between rows is the client's.
	if !bytes.Equal(out[4*w:stride], make([]byte, stride-4*w)) {
		t.Error("the readback wrote between two rows")
	}
}

func TestWrongRequestsAreAnsweredAndHurtNothing(t *testing.T) {
	h := start(t)
	h.memory(1, 4096, false)
	h.must("compile", map[string]any{"effect": 1, "text": invert}, nil)
	from := func(offset int64, stride, width, height int) place {
		return place{Memory: 1, Offset: offset, Stride: stride, Width: width, Height: height}
	}
	empty, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer empty.Close()
	for _, test := range []struct {
		kind   string
		fields map[string]any
		file   *os.File
		want   string
	}{
		{"dance", nil, nil, `"dance"`},
		{"compile", map[string]any{"effect": 2, "text": "vec4 effect(vec4 s, ivec2 at) {\n return foo; }"}, nil, "line 2"},
		{"apply", map[string]any{"effect": 9}, nil, "no effect 9"},
		{"apply", map[string]any{"effect": 1, "source": 7}, nil, "no picture 7"},
		{"apply", map[string]any{"effect": 1, "from": from(0, 40, 10, 500)}, nil, "4096"},
		{"apply", map[string]any{"effect": 1, "from": from(4096, 40, 10, 1)}, nil, "offset 4096"},
		{"apply", map[string]any{"effect": 1, "from": from(-1, 40, 10, 1)}, nil, "offset -1"},
		{"apply", map[string]any{"effect": 1, "from": from(0, 40, 1<<20, 1)}, nil, "1048576×1"},
		{"apply", map[string]any{"effect": 1, "from": from(0, 40, 0, 1)}, nil, "0×1"},
		{"memory", map[string]any{"memory": 5, "size": 4096}, nil, "descriptor"},
		{"memory", map[string]any{"memory": 5, "size": 4096}, empty, "seal"},
		{"upload", nil, nil, "where the pixels lie"},
		{"read", map[string]any{"picture": 3}, nil, "no picture 3"},
	} {
		r := h.ask(test.kind, test.fields, test.file)
		if !strings.Contains(r.Error, test.want) {
			t.Errorf("%s %v: %q, want %q in it", test.kind, test.fields, r.Error, test.want)
		}
	}
	picture := h.must("apply", map[string]any{"effect": 1, "from": from(0, 40, 10, 10)}, nil).Picture
	if r := h.ask("read", map[string]any{"picture": picture, "into": place{Memory: 1, Stride: 40}}, nil); !strings.Contains(r.Error, "read-only") {
		t.Errorf("a read into memory that is not writable: %q", r.Error)
	}
	h.must("forget", map[string]any{"memory": 1}, nil)
}

// A picture one node made is used by another where it is, outlives its maker
// for a moment, and is forgotten then; what is the maker's own is not another's.
func TestNodesShareTheirPictures(t *testing.T) {
	p := launch(t)
	a, b := p.connect(), p.connect()
	pixels := a.memory(1, 4096, false)
	for i := range pixels {
		pixels[i] = byte(i * 3)
	}
	a.must("compile", map[string]any{"effect": 1, "text": invert}, nil)
	made := a.must("apply", map[string]any{"effect": 1, "from": place{Memory: 1, Stride: 40, Width: 10, Height: 7}}, nil)
	if r := b.ask("apply", map[string]any{"effect": 1, "source": made.Picture}, nil); !strings.Contains(r.Error, "no effect 1") {
		t.Errorf("another node's effect: %q", r.Error)
	}
	b.must("compile", map[string]any{"effect": 1, "text": invert}, nil)
	b.must("statistics", map[string]any{"drop": []uint64{made.Picture}}, nil) // not its to drop
	back := b.must("apply", map[string]any{"effect": 1, "source": made.Picture}, nil)
	out := b.memory(1, 4096, true)
	b.must("read", map[string]any{"picture": back.Picture, "into": place{Memory: 1, Stride: 40}}, nil)
	if !bytes.Equal(out[:280], pixels[:280]) {
		t.Error("inverted twice, over two nodes, it is another picture")
	}
	if got := *b.must("statistics", nil, nil).Statistics; got != (statistics{Uploads: 1, Draws: 2, Readbacks: 1, Pictures: 3, Connections: 2}) {
		t.Errorf("%+v", got)
	}

	a.close()
	for gone := time.Now().Add(20 * time.Second); ; {
		got := b.must("statistics", nil, nil).Statistics
		if got.Connections == 1 && got.Pictures == 1 {
			break
		}
		if time.Now().After(gone) {
			t.Fatalf("of a node that has gone remain: %+v", got)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if r := b.ask("apply", map[string]any{"effect": 1, "source": made.Picture}, nil); !r.Lost {
		t.Errorf("a picture of a node that has gone: %+v", r)
	}
	b.must("read", map[string]any{"picture": back.Picture, "into": place{Memory: 1, Stride: 40}}, nil)
}

// TestADrawThatNeverEndsEndsTheProcessAndIsTold holds who is told, and whom the
// page names.
func TestADrawThatNeverEndsEndsTheProcessAndIsTold(t *testing.T) {
	p := launch(t)
	innocent, guilty := p.connect(), p.connect()
	// Mesa's software renderer leaves a loop after 65,535 rounds, so there
	// it only lasts long, on a large picture.
	const side = 2048
	guilty.memory(1, 4*side*side, false)
	guilty.must("compile", map[string]any{"effect": 1, "text": endless}, nil)
	if p.served() != 0 {
		t.Errorf("at rest it serves %d", p.served())
	}
	r := guilty.ask("apply", map[string]any{"effect": 1, "from": place{Memory: 1, Stride: 4 * side, Width: side, Height: side}}, nil)
	if !r.Ended || !strings.Contains(r.Error, "did not finish within 2.25 s") {
		t.Fatalf("the shader that never ends was answered with %+v", r)
	}
	if status := p.exit(); status != control.GraphicsLate {
		t.Errorf("it ended with status %d", status)
	}
	if p.served() != guilty.id {
		t.Errorf("the page names %d, not %d", p.served(), guilty.id)
	}
	if n, _ := unix.Read(innocent.socket, make([]byte, 100)); n != 0 {
		t.Errorf("the other one was told %d bytes", n)
	}
}

func TestItEndsWithTheRuntime(t *testing.T) {
	p := launch(t)
	p.connect()
	p.channel.Close()
	if status := p.exit(); status != 0 {
		t.Errorf("it ended with status %d", status)
	}
}

func TestWithoutAClientItSaysWhatItIs(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asHelper+"=1")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "tatolab-gl") {
		t.Errorf("%v: %s", err, out)
	}
}

// Mesa is told to offer OpenGL 2.1.
func TestADriverThatIsTooOldIsNamed(t *testing.T) {
	h := launch(t, "EGL_PLATFORM=surfaceless", "MESA_GL_VERSION_OVERRIDE=2.1").connect()
	if h.hello.Kind != "hello" || !strings.Contains(h.hello.Error, "OpenGL") {
		t.Errorf("it says %+v", h.hello)
	}
	if n, _ := unix.Read(h.socket, make([]byte, 100)); n != 0 {
		t.Error("it goes on without OpenGL")
	}
}

// BenchmarkEffect720p is the cost of one effect through the helper; compare
// with BenchmarkInvert720p of package effect, the same steps without it.
func BenchmarkEffect720p(b *testing.B) {
	h := start(b)
	const size = 4 * 1280 * 720
	h.memory(1, size, false)
	h.memory(2, size, true)
	h.must("compile", map[string]any{"effect": 1, "text": invert}, nil)
	var before []uint64
	for b.Loop() {
		r := h.must("apply", map[string]any{
			"effect": 1, "drop": before,
			"from": place{Memory: 1, Stride: 4 * 1280, Width: 1280, Height: 720},
		}, nil)
		before = []uint64{r.Source, r.Picture}
		h.must("read", map[string]any{"picture": r.Picture, "into": place{Memory: 2, Stride: 4 * 1280}}, nil)
	}
}
