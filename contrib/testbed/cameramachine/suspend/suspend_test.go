// Package suspend shows that streams get over the suspension of their machine: a
// machine with a camera is suspended, for true.
package suspend

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/datapath"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/graph"
)

const (
	// sleeps is how long the machine is suspended: longer than any time-out of a
	// stream that is alive.
	sleeps = 12 * time.Second
	// backBound is how soon frames have to be back; emulated, everything takes longer.
	backBound = 3 * time.Second
	slack     = 7 * time.Second
	// ageBound is how old a frame may be when its bag has come through two processes of
	// an emulated machine.
	ageBound = 5 * time.Second
	// settles is how long things may take to come about there.
	settles = time.Minute
)

func TestMain(m *testing.M) {
	os.Exit(cameramachine.MainInMemory(m, func() ([]string, error) {
		dir, err := testbed.Build()
		if err != nil {
			return nil, err
		}
		if err := os.Setenv("TATOLAB_TEST_BIN", dir); err != nil {
			return nil, err
		}
		library, err := exec.Command(python, "-c", `import sysconfig; print(sysconfig.get_path("stdlib"))`).Output()
		return []string{
			filepath.Join(dir, "tatolab"), filepath.Join(dir, "tatolabd"), python, strings.TrimSpace(string(library)),
			"/usr/bin/v4l2-ctl", "/usr/bin/dbus-daemon", "/usr/share/dbus-1/session.conf",
		}, err
	}))
}

const python = "/usr/bin/python3"

const watchStream = `from tatolab.stream import CameraSource, StreamBuilder, stream

from nodes.stamps import Stamps


@stream
def watch(stream_builder: StreamBuilder) -> None:
    camera = stream_builder.add(CameraSource, name="camera", config={"device_id": "/dev/video5", "max_width": 320, "max_height": 180, "fps": 25})
    stamps = stream_builder.add(Stamps, name="stamps")
    stream_builder.connect(camera.output("video"), stamps.input("video"))
    stream_builder.expose(stamps.output("stamp"))
`

const stampsNode = `from tatolab.stream import RuntimeContextLimitedAccess, VideoFrame, node


@node
class Stamps:
    @node.input(delivery_profile="newest")
    def video(self) -> VideoFrame: ...

    @node.output()
    def stamp(self) -> dict: ...

    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        frame = ctx.inputs.read("video", into=VideoFrame)
        if frame is not None:
            ctx.outputs.write("stamp", {"timestamp_ns": frame.timestamp_ns})
`

// A suspended machine is one moment to its streams, however long it was: no process
// ends, no camera is lost, and the next frame is of the present.
func TestSuspend(t *testing.T) {
	cameramachine.Need(t)
	cameramachine.Load(t, "vivid", "n_devs=1", "node_types=0x1", "vid_cap_nr=5")
	logind, address := systemBus(t)
	r := testbed.New(t)
	r.Env = append(r.Env, "DBUS_SYSTEM_BUS_ADDRESS="+address)
	r.Start()
	project := r.Project("watch", map[string]string{"pyproject.toml": "", "nodes/__init__.py": "", "nodes/stamps.py": stampsNode, "stream.py": watchStream})
	c := r.Client()
	if _, err := c.Keep(t.Context(), api.Load{Project: project, Target: "stream.py:watch", Keep: true}); err != nil {
		t.Fatal(err)
	}
	stamps := readStamps(t, c)
	last := stamps()
	for range 10 {
		last = stamps()
	}
	before := processes(t, c)
	runtime := r.PID()

	tell := func(sleeping bool, want string) {
		t.Helper()
		testbed.Eventually(t, settles, func() string {
			// Until the runtime listens, it does not hear.
			if err := logind.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForSleep", sleeping); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(r.Output(), want) {
				return fmt.Sprintf("the log does not say %q:\n%s", want, r.Output())
			}
			return ""
		})
	}
	tell(true, "the machine is being suspended")
	slept := suspend(t)
	woke := datapath.Now()
	tell(false, "the machine is awake again")
	if slept < sleeps/2 {
		t.Fatalf("the machine was suspended for %v only", slept)
	}

	// Those of before may be on their way.
	stamp := stamps()
	for ; stamp <= woke; stamp = stamps() {
		if stamp <= last {
			t.Errorf("the frame of %v comes after that of %v", time.Duration(stamp), time.Duration(last))
		}
		last = stamp
	}
	back := time.Duration(stamp - woke)
	t.Logf("suspended for %v: the first frame after that is of %v later", slept, back)
	if back > backBound+slack {
		t.Errorf("frames were back %v after the machine", back)
	}
	for range 10 {
		if stamp <= last {
			t.Errorf("the frame of %v comes after that of %v", time.Duration(stamp), time.Duration(last))
		}
		if age := time.Duration(datapath.Now() - stamp); age < 0 || age > ageBound {
			t.Errorf("a frame is %v old", age)
		}
		last, stamp = stamp, stamps()
	}
	if after := processes(t, c); after != before || r.PID() != runtime {
		t.Errorf("before: %s; after: %s", before, after)
	}
	if strings.Contains(r.Output(), "camera lost") {
		t.Errorf("the camera was lost:\n%s", r.Output())
	}
}

// suspend suspends the machine to its memory, until its clock wakes it, and returns for
// how long. CLOCK_MONOTONIC stands still meanwhile.
func suspend(t *testing.T) time.Duration {
	t.Helper()
	asleep := func() time.Duration {
		var with, without unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &with); err != nil {
			t.Fatal(err)
		}
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &without); err != nil {
			t.Fatal(err)
		}
		return time.Duration(with.Nano() - without.Nano())
	}
	before := asleep()
	for _, w := range [][2]string{
		{"/sys/class/rtc/rtc0/wakealarm", fmt.Sprintf("+%d", int(sleeps.Seconds()))},
		{"/sys/power/state", "mem"},
	} {
		if err := os.WriteFile(w[0], []byte(w[1]), 0); err != nil {
			t.Fatal(err)
		}
	}
	return asleep() - before
}

// readStamps reads the stream's output: each call returns one timestamp.
func readStamps(t *testing.T, c *client.Client) func() int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*settles)
	t.Cleanup(cancel)
	lines, err := c.ReadBags(ctx, graph.Source{Stream: "watch", Node: "stamps", Port: "stamp"}, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lines.Close() })
	return func() int64 {
		t.Helper()
		for {
			line, err := lines.Next()
			if err != nil {
				t.Fatal("no more timestamps: ", err)
			}
			if line.Note == "" {
				stamp, err := strconv.ParseFloat(fmt.Sprint(line.Bag["timestamp_ns"]), 64)
				if err != nil {
					t.Fatalf("a bag %v", line.Bag)
				}
				return int64(stamp)
			}
		}
	}
}

// processes are those of the stream, and how often they were started again.
func processes(t *testing.T, c *client.Client) string {
	t.Helper()
	g, err := c.Graph(t.Context(), "watch")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, n := range g.Nodes {
		fmt.Fprintf(&b, "%s is %s, process %d, %d restarts; ", n.Name, n.State, n.PID, n.Restarts)
	}
	return b.String()
}

// systemBus is a bus on which this test is logind, as far as it tells of sleep.
func systemBus(t *testing.T) (logind *godbus.Conn, address string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus")
	address = "unix:path=" + path
	daemon := exec.Command("dbus-daemon", "--session", "--nofork", "--nopidfile", "--address="+address)
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		daemon.Process.Kill()
		daemon.Wait()
	})
	testbed.Eventually(t, settles, func() string {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return "the bus does not come up: " + err.Error()
		}
		conn.Close()
		return ""
	})
	logind, err := godbus.Connect(address)
	if err == nil {
		_, err = logind.RequestName("org.freedesktop.login1", godbus.NameFlagDoNotQueue)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { logind.Close() })
	return logind, address
}
