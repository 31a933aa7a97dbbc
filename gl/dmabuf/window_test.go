package dmabuf_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/gl/xvfb"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/nodes/host/hosttest"
	"tatolab.com/tatolab/service/control"
)

const width, height = 160, 90

// xorg starts an X server on the machine's graphics card that lets its clients
// draw there (DRI3). For that it has to draw with OpenGL itself, which it refuses
// to with a software renderer unless there is a second card; it takes our word.
func xorg(t *testing.T) *xvfb.Server {
	t.Helper()
	if out, err := exec.Command("modprobe", "-d", "/run/machine/modules", "virtio-gpu").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program := filepath.Join(testbed.Root(), "build/cameramachine/xorg")
	config := filepath.Join(t.TempDir(), "xorg.conf")
	text := fmt.Sprintf(`
Section "Files"
	ModulePath "%s/modules"
EndSection
Section "ServerFlags"
	Option "AutoAddDevices" "false"
EndSection
Section "Device"
	Identifier "card"
	Driver "modesetting"
	Option "kmsdev" "%s"
EndSection
Section "Device"
	Identifier "another"
	Driver "modesetting"
EndSection
Section "Screen"
	Identifier "screen"
	Device "card"
	GPUDevice "another"
	DefaultDepth 24
EndSection
`, program, device)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("LD_LIBRARY_PATH", program)
	return xvfb.StartAs(t, "", filepath.Join(program, "Xorg"), "-config", config,
		"-logfile", filepath.Join(t.TempDir(), "log"), "-novtswitch", "-sharevts", "vt7")
}

// drawer is a tatolab-gl, and a node that makes pictures there.
type drawer struct {
	t       *testing.T
	process *hosttest.Process
	number  uint64
	links   uint64
	socket  int
	last    uint64
	memfd   *os.File
	kept    []uint64
}

// The fields of requests and answers that are used here.
type fields = map[string]any

func startDrawer(t *testing.T, number uint64, deviceName string) *drawer {
	t.Helper()
	d := &drawer{t: t, number: number}
	d.process = hosttest.Prepare(t, control.Spec{Instance: "s/tatolab-gl#1", Stream: "s", Node: "tatolab-gl"}, nil, os.Args[0], "tatolab-gl")
	d.process.Cmd.Env = append(os.Environ(), "TATOLAB_DRM_DEVICE="+deviceName)
	d.process.Launch((*exec.Cmd).Start)
	d.process.AwaitKind(control.Page)
	ours := d.connect(func(m *control.Message) { d.process.Tell(m) })
	d.socket, _ = unix.Dup(int(ours.Fd()))
	ours.Close()
	t.Cleanup(func() { unix.Close(d.socket) })
	if hello := d.receive(); hello["error"] != nil {
		t.Fatal(hello["error"])
	}
	fd, err := unix.MemfdCreate("pixels", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	d.memfd = os.NewFile(uintptr(fd), "pixels")
	t.Cleanup(func() { d.memfd.Close() })
	d.memfd.Truncate(4 * width * height)
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		t.Fatal(err)
	}
	d.ask(fields{"kind": "memory", "memory": 1, "size": 4 * width * height}, d.memfd)
	return d
}

// connect makes a connection, gives one end to tatolab-gl, and returns the other.
func (d *drawer) connect(tell func(*control.Message)) *os.File {
	d.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		d.t.Fatal(err)
	}
	d.links++
	theirs := os.NewFile(uintptr(pair[1]), "connection")
	defer theirs.Close()
	tell(&control.Message{Kind: control.Graphics, ID: d.links, File: theirs})
	return os.NewFile(uintptr(pair[0]), "connection")
}

func (d *drawer) receive() fields {
	d.t.Helper()
	data := make([]byte, 160<<10)
	n, err := unix.Read(d.socket, data)
	if err != nil || n == 0 {
		ended := <-d.process.Exited
		d.process.Exited <- ended
		d.t.Fatalf("tatolab-gl is gone (%v, %v): %s", err, ended, d.process.Output())
	}
	var f fields
	if err := json.Unmarshal(data[:n], &f); err != nil {
		d.t.Fatal(err)
	}
	return f
}

func (d *drawer) ask(request fields, file *os.File) fields {
	d.t.Helper()
	d.last++
	request["id"] = d.last
	data, _ := json.Marshal(request)
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	if err := unix.Sendmsg(d.socket, data, rights, nil, unix.MSG_NOSIGNAL); err != nil {
		d.t.Fatal(err)
	}
	answer := d.receive()
	if answer["error"] != nil {
		d.t.Fatalf("%v: %v", request, answer["error"])
	}
	return answer
}

// picture makes one of a colour and returns its number. The last three are kept.
func (d *drawer) picture(c color.RGBA) uint64 {
	d.t.Helper()
	var pixels []byte
	for range width * height {
		pixels = append(pixels, c.R, c.G, c.B, 255)
	}
	if _, err := d.memfd.WriteAt(pixels, 0); err != nil {
		d.t.Fatal(err)
	}
	request := fields{"kind": "upload", "from": fields{"memory": 1, "stride": 4 * width, "width": width, "height": height}}
	if len(d.kept) > 3 {
		request["drop"] = d.kept[:1]
		d.kept = d.kept[1:]
	}
	number := uint64(d.ask(request, nil)["picture"].(float64))
	d.kept = append(d.kept, number)
	return number
}

// statistics returns how many pictures were shared and how many read back.
func (d *drawer) statistics() (shares, readbacks int) {
	d.t.Helper()
	s := d.ask(fields{"kind": "statistics"}, nil)["statistics"].(fields)
	return int(s["shares"].(float64)), int(s["readbacks"].(float64))
}

// A window shows pictures of tatolab-gl where they lie; when that dies, those of
// the next; and where they cannot be shared, copies.
func TestWindow(t *testing.T) {
	cameramachine.Need(t)
	x := xorg(t)
	d := startDrawer(t, 1, device)

	w := hosttest.Prepare(t, control.Spec{
		Instance: "s/window#1", Stream: "s", Node: "window", Type: "tatolab.stream:DisplayWindow",
		Inputs: []control.Input{{Port: "video", Profile: "newest", Links: []string{"effect/out"}}},
	}, fields{"title": "shared", "width": 200, "height": 200, "scaling": "stretch"}, os.Args[0], "tatolab-window")
	// Mesa has no driver for the card but this, which it does not look for by itself.
	w.Cmd.Env = append(os.Environ(), "DISPLAY="+x.Name, "MESA_LOADER_DRIVER_OVERRIDE=kms_swrast", "DBUS_SESSION_BUS_ADDRESS=unix:path=/nonexistent")
	w.Start((*exec.Cmd).Start)
	output, err := datapath.NewOutput(datapath.OutputOptions{Owner: "s/effect/out", Formats: []datapath.Format{datapath.RGBA, datapath.Resident}})
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "link")
	w.Tell(&control.Message{Kind: control.Link, ID: 1, Port: "video", Name: "effect/out", Direction: control.In, Profile: "newest", Local: true, File: theirs})
	theirs.Close()
	if err := output.AddLink(1, os.NewFile(uintptr(pair[0]), "link")); err != nil {
		t.Fatal(err)
	}
	w.Condition("", "on display")
	x.Window("shared").Place(0, 0, 200, 200)

	publish := func(d *drawer, c color.RGBA) {
		t.Helper()
		surface := datapath.Surface{Number: output.NewSurface(), Residency: datapath.OwnerResident, Format: datapath.Resident, Width: width, Height: height, Colour: datapath.SRGB}
		slot, err := output.Acquire(datapath.Resident, 16)
		for deadline := time.Now().Add(hosttest.Patience); errors.Is(err, datapath.ErrNotWanted) && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond) // it has not joined yet
			slot, err = output.Acquire(datapath.Resident, 16)
		}
		if err != nil {
			t.Fatalf("the window does not ask for pictures in OpenGL: %v; there were %s", err, w.Transcript())
		}
		binary.NativeEndian.PutUint64(slot.Bytes, d.number)
		binary.NativeEndian.PutUint64(slot.Bytes[8:], d.picture(c))
		slot.Surface = surface
		if _, err := output.Publish(nil, datapath.Now(), slot); err != nil {
			t.Fatal(err)
		}
	}
	// shows publishes until the window has it, as a stream does: what is lost
	// meanwhile is lost.
	shows := func(d *drawer, c color.RGBA) {
		t.Helper()
		x.Wait(fmt.Sprintf("a picture of %v", c), func() bool {
			publish(d, c)
			if asked := w.All(func(m *control.Message) bool { return m.Kind == control.Graphics }); len(asked) > 0 {
				w.Forget()
				socket := d.connect(func(m *control.Message) { d.process.Tell(m) })
				w.Tell(&control.Message{Kind: control.Graphics, ID: d.links, Process: d.number, File: socket})
				socket.Close()
			}
			time.Sleep(50 * time.Millisecond)
			return xvfb.Near(x.Screen().RGBAAt(100, 100), c)
		})
	}

	for i := range 10 {
		shows(d, color.RGBA{uint8(25 * i), 200 - uint8(20*i), 90, 255})
	}
	if shares, readbacks := d.statistics(); shares < 10 || readbacks > 0 {
		t.Errorf("of 10 pictures %d were shared, %d were read back", shares, readbacks)
	}

	d.process.Cmd.Process.Kill()
	d = startDrawer(t, 2, device)
	shows(d, color.RGBA{250, 250, 0, 255})
	shows(d, color.RGBA{0, 0, 250, 255})
	if shares, readbacks := d.statistics(); shares < 2 || readbacks > 0 {
		t.Errorf("of the next one, %d pictures were shared, %d read back", shares, readbacks)
	}

	d.process.Cmd.Process.Kill()
	d = startDrawer(t, 3, "none")
	shows(d, color.RGBA{250, 0, 0, 255})
	shows(d, color.RGBA{0, 250, 0, 255})
	if shares, readbacks := d.statistics(); shares > 0 || readbacks < 2 {
		t.Errorf("of one that cannot share, %d pictures were shared, %d read back", shares, readbacks)
	}
	w.Cmd.Process.Kill() // to stop in time is more than an emulated machine can be asked for
}
