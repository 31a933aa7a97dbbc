package dmabuf_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-gl/gl/v3.3-core/gl"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/gl/displaywindow"
	"tatolab.com/tatolab/gl/dmabuf"
	"tatolab.com/tatolab/gl/effect"
	"tatolab.com/tatolab/gl/effectserver"
	"tatolab.com/tatolab/gl/offscreen"
	"tatolab.com/tatolab/gl/shader"
)

// Of a machine with the driver vgem, whose device has memory and draws nothing:
// Mesa's software renderer draws into that memory (kms_swrast), through the same
// libgbm and EGL as on a GPU. Its render node gives no memory to anybody.
const (
	device     = "/dev/dri/card0"
	renderNode = "/dev/dri/renderD128"
)

// A window needs the process's first thread.
func init() { runtime.LockOSThread() }

// The test binary is the other processes too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "peer":
			peer()
			return
		case "tatolab-gl":
			effectserver.DrawLimit = time.Minute
			os.Exit(effectserver.Main())
		case "tatolab-window":
			os.Exit(displaywindow.Main())
		}
	}
	os.Exit(cameramachine.Main(m, func() error { return nil }))
}

// message passes between the test and its peer, with at most one descriptor.
type message struct {
	// Do is "look" for the pixels of what layout and descriptor name, "again"
	// for those of the same, "draw" for a new picture of the peer's.
	Do     string
	Layout dmabuf.Layout
	Pixels []byte
	Error  string
}

func send(fd int, m message, file *os.File) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	return unix.Sendmsg(fd, data, rights, nil, unix.MSG_NOSIGNAL)
}

func receive(fd int) (m message, file *os.File, err error) {
	data, rights := make([]byte, 160<<10), make([]byte, unix.CmsgSpace(4))
	n, r, _, _, err := unix.Recvmsg(fd, data, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil || n == 0 {
		return m, nil, fmt.Errorf("the peer has gone: %w", err)
	}
	if messages, err := unix.ParseSocketControlMessage(rights[:r]); err == nil && len(messages) == 1 {
		if fds, err := unix.ParseUnixRights(&messages[0]); err == nil {
			file = os.NewFile(uintptr(fds[0]), "shared")
		}
	}
	return m, file, json.Unmarshal(data[:n], &m)
}

// peer serves the test on descriptor 3.
func peer() {
	runtime.LockOSThread()
	context, err := offscreen.Open()
	if err != nil {
		panic(err)
	}
	canvas := effect.NewCanvas()
	var kept *shader.Texture
	for {
		m, file, err := receive(3)
		if err != nil {
			return
		}
		answer := message{Do: m.Do}
		var export *os.File
		switch {
		case context.Unshared != nil:
			err = context.Unshared
		case m.Do == "look":
			if kept != nil {
				kept.Delete()
			}
			kept, err = dmabuf.Import(file, m.Layout)
		case m.Do == "draw":
			if kept, err = context.Device.NewTexture(m.Layout.Width, m.Layout.Height); err == nil {
				paint(kept, 9)
				export, answer.Layout, err = dmabuf.Export(kept)
			}
		}
		if err == nil {
			answer.Pixels, err = pixels(canvas, kept)
		}
		if err != nil {
			answer.Error = err.Error()
		}
		if send(3, answer, export) != nil {
			return
		}
	}
}

// paint draws picture `number` into t, and waits until it is drawn.
func paint(t *shader.Texture, number int) {
	var framebuffer uint32
	gl.GenFramebuffers(1, &framebuffer)
	gl.BindFramebuffer(gl.FRAMEBUFFER, framebuffer)
	gl.FramebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, t.ID, 0)
	gl.ClearColor(float32(number)/255, 0.2, 0.4, 1)
	gl.Clear(gl.COLOR_BUFFER_BIT)
	gl.Enable(gl.SCISSOR_TEST)
	gl.Scissor(int32(t.Width/2), int32(t.Height/2), int32(t.Width), int32(t.Height))
	gl.ClearColor(0.6, float32(number)/255, 0, 0.8)
	gl.Clear(gl.COLOR_BUFFER_BIT)
	gl.Disable(gl.SCISSOR_TEST)
	gl.Finish()
	gl.DeleteFramebuffers(1, &framebuffer)
}

// painted is what paint does, in memory.
func painted(width, height, number int) []byte {
	var p []byte
	for y := range height {
		for x := range width {
			if x < width/2 || y < height/2 {
				p = append(p, byte(number), 51, 102, 255)
			} else {
				p = append(p, 153, byte(number), 0, 204)
			}
		}
	}
	return p
}

func pixels(c *effect.Canvas, t *shader.Texture) ([]byte, error) {
	p := make([]byte, 4*t.Width*t.Height)
	var framebuffer uint32
	gl.GenFramebuffers(1, &framebuffer)
	defer gl.DeleteFramebuffers(1, &framebuffer)
	gl.BindFramebuffer(gl.FRAMEBUFFER, framebuffer)
	return p, c.Read(t, p, 4*t.Width)
}

type other struct {
	t   *testing.T
	cmd *exec.Cmd
	fd  int
}

func start(t *testing.T) *other {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	defer theirs.Close()
	cmd := exec.Command(os.Args[0], "peer")
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return &other{t, cmd, pair[0]}
}

func (o *other) ask(m message, file *os.File) (message, *os.File) {
	o.t.Helper()
	if err := send(o.fd, m, file); err != nil {
		o.t.Fatal(err)
	}
	answer, file, err := receive(o.fd)
	if err != nil {
		o.t.Fatal(err)
	}
	return answer, file
}

// sees checks that the other process sees a picture as paint made it.
func (o *other) sees(m message, file *os.File, width, height, number int) {
	o.t.Helper()
	if answer, _ := o.ask(m, file); answer.Error != "" || !bytes.Equal(answer.Pixels, painted(width, height, number)) {
		o.t.Errorf("of picture %d of %d×%d the other process sees other pixels than were drawn (%s)", number, width, height, answer.Error)
	}
}

func (o *other) kill() {
	o.cmd.Process.Kill()
	o.cmd.Wait()
}

func (o *other) close() {
	unix.Close(o.fd)
	o.cmd.Wait()
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestSharing(t *testing.T) {
	cameramachine.Need(t)
	cameramachine.Load(t, "vgem")
	open := func(t *testing.T, name string) (*offscreen.Context, *effect.Canvas) {
		t.Setenv(dmabuf.Variable, name)
		runtime.LockOSThread()
		context, err := offscreen.Open()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			context.Close()
			runtime.UnlockOSThread()
		})
		return context, effect.NewCanvas()
	}

	t.Run("between processes", func(t *testing.T) {
		context, _ := open(t, device)
		if context.Unshared != nil {
			t.Fatal(context.Unshared)
		}
		o := start(t)
		defer o.close()
		before := descriptors(t)
		number := 0
		for _, side := range [][2]int{{1, 1}, {67, 41}, {160, 90}} {
			width, height := side[0], side[1]
			picture, err := context.Device.NewTexture(width, height)
			if err != nil {
				t.Fatal(err)
			}
			number++
			paint(picture, number)
			memory, layout, err := dmabuf.Export(picture)
			if err != nil {
				t.Fatal(err)
			}
			o.sees(message{Do: "look", Layout: layout}, memory, width, height, number)
			memory.Close()
			// Used again: the other process knows it already.
			for range 3 {
				number++
				paint(picture, number)
				o.sees(message{Do: "again"}, nil, width, height, number)
			}
			// Gone on this side, there on the other.
			picture.Delete()
			next, err := context.Device.NewTexture(width, height)
			if err != nil {
				t.Fatal(err)
			}
			paint(next, 200)
			o.sees(message{Do: "again"}, nil, width, height, number)
			next.Delete()
		}
		if err := shader.Check(); err != nil {
			t.Error(err)
		}
		if after := descriptors(t); after != before {
			t.Errorf("%d descriptors are open, not %d", after, before)
		}
		own, err := shader.NewTexture(1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := dmabuf.Export(own); err == nil {
			t.Error("a picture in memory of OpenGL's own was exported")
		}
	})

	t.Run("of a process that died", func(t *testing.T) {
		_, canvas := open(t, device)
		o := start(t)
		answer, memory := o.ask(message{Do: "draw", Layout: dmabuf.Layout{Width: 40, Height: 30}}, nil)
		if answer.Error != "" || memory == nil {
			t.Fatal(answer.Error)
		}
		defer memory.Close()
		seen, err := dmabuf.Import(memory, answer.Layout)
		if err != nil {
			t.Fatal(err)
		}
		defer seen.Delete()
		o.kill()
		if p, err := pixels(canvas, seen); err != nil || !bytes.Equal(p, painted(40, 30, 9)) {
			t.Errorf("a picture of a process that was killed shows other pixels (%v)", err)
		}
		// An import after its death, too.
		late, err := dmabuf.Import(memory, answer.Layout)
		if err != nil {
			t.Fatal(err)
		}
		defer late.Delete()
		if p, err := pixels(canvas, late); err != nil || !bytes.Equal(p, painted(40, 30, 9)) {
			t.Errorf("a picture of a process that was killed, imported then, shows other pixels (%v)", err)
		}
	})

	t.Run("what is wrong is an error", func(t *testing.T) {
		context, canvas := open(t, device)
		picture, err := context.Device.NewTexture(64, 48)
		if err != nil {
			t.Fatal(err)
		}
		defer picture.Delete()
		paint(picture, 5)
		good, layout, err := dmabuf.Export(picture)
		if err != nil {
			t.Fatal(err)
		}
		defer good.Close()
		null, _ := os.Open(os.DevNull)
		defer null.Close()
		r, w, _ := os.Pipe()
		defer r.Close()
		defer w.Close()
		fd, err := unix.MemfdCreate("pixels", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		memfd := os.NewFile(uintptr(fd), "memfd")
		defer memfd.Close()
		memfd.Truncate(1 << 20)
		if size, _ := good.Seek(0, io.SeekEnd); size > 64<<10 {
			t.Fatalf("the picture has %d bytes of memory: the sizes below are not too large for it", size)
		}
		for name, c := range map[string]struct {
			file   *os.File
			change func(*dmabuf.Layout)
		}{
			"/dev/null":             {null, nil},
			"a pipe":                {r, nil},
			"a memfd":               {memfd, nil},
			"no planes":             {good, func(l *dmabuf.Layout) { l.Planes = nil }},
			"too many planes":       {good, func(l *dmabuf.Layout) { l.Planes = make([]dmabuf.Plane, 5) }},
			"a short stride":        {good, func(l *dmabuf.Layout) { l.Planes = []dmabuf.Plane{{Stride: 252}} }},
			"a negative stride":     {good, func(l *dmabuf.Layout) { l.Planes = []dmabuf.Plane{{Stride: -256}} }},
			"a long stride":         {good, func(l *dmabuf.Layout) { l.Planes = []dmabuf.Plane{{Stride: 4096}} }},
			"a huge stride":         {good, func(l *dmabuf.Layout) { l.Planes = []dmabuf.Plane{{Stride: 1 << 40}} }},
			"a negative offset":     {good, func(l *dmabuf.Layout) { l.Planes = []dmabuf.Plane{{Offset: -4096, Stride: 256}} }},
			"an offset beyond it":   {good, func(l *dmabuf.Layout) { l.Planes = []dmabuf.Plane{{Offset: 1 << 20, Stride: 256}} }},
			"no pixels":             {good, func(l *dmabuf.Layout) { l.Width, l.Height = 0, 0 }},
			"more rows than it has": {good, func(l *dmabuf.Layout) { l.Height = 4800 }},
			"a foreign modifier":    {good, func(l *dmabuf.Layout) { l.Modifier = 0x0100000000000042 }},
		} {
			l := layout
			if c.change != nil {
				c.change(&l)
			}
			if bad, err := dmabuf.Import(c.file, l); err == nil {
				bad.Delete()
				t.Errorf("%s was taken for a picture", name)
			} else if !strings.HasPrefix(err.Error(), "cannot use a shared picture") {
				t.Errorf("%s: %v", name, err)
			}
		}
		seen, err := dmabuf.Import(good, layout)
		if err != nil {
			t.Fatalf("after all these: %v", err)
		}
		defer seen.Delete()
		if p, err := pixels(canvas, seen); err != nil || !bytes.Equal(p, painted(64, 48, 5)) {
			t.Errorf("after all these, a picture shows other pixels (%v)", err)
		}
	})

	// Where pictures cannot be shared, there is OpenGL all the same, and a reason.
	for name, c := range map[string]struct{ named, why string }{
		"by a render node":     {renderNode, "ermission denied"},
		"by no such device":    {"/dev/dri/card9", "no such file"},
		"by what is no device": {os.DevNull, os.DevNull},
		"by none":              {"none", "no DRM device"},
		"by default":           {"", renderNode + ": there is no driver but llvmpipe"},
	} {
		t.Run(name, func(t *testing.T) {
			context, canvas := open(t, c.named)
			if context.Device != nil || context.Unshared == nil || !strings.Contains(context.Unshared.Error(), c.why) {
				t.Errorf("pictures that cannot be shared are said to be, or not why: %v", context.Unshared)
			}
			picture, err := canvas.Texture(20, 10)
			if err != nil {
				t.Fatal(err)
			}
			defer picture.Delete()
			paint(picture, 7)
			if p, err := pixels(canvas, picture); err != nil || !bytes.Equal(p, painted(20, 10, 7)) {
				t.Errorf("a picture shows other pixels (%v)", err)
			}
		})
	}
}
