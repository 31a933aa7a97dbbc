package cameramachine_test

import (
	"bufio"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/dbus"
	"tatolab.com/tatolab/internal/testbed"
)

// A camera that is plugged in or out is told of on the bus, and ListCameras is right
// when it is.
func TestHotplug(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	module := cameramachine.Take(t, "vivid", "v4l2loopback")
	module.Insert(oneCamera...) // the only camera
	address := sessionBus(t)
	r := testbed.New(t)
	r.Env = append(r.Env, "DBUS_SESSION_BUS_ADDRESS="+address)
	r.Start()
	conn, err := godbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	signals := make(chan *godbus.Signal, 10)
	conn.Signal(signals)
	if err := conn.AddMatchSignal(godbus.WithMatchInterface(dbus.BusName+".Manager"), godbus.WithMatchMember("CamerasChanged")); err != nil {
		t.Fatal(err)
	}
	cameras := func() (paths []string) {
		t.Helper()
		var list []map[string]godbus.Variant
		if err := conn.Object(dbus.BusName, dbus.Path).Call(dbus.BusName+".Manager.ListCameras", 0).Store(&list); err != nil {
			t.Fatal(err)
		}
		for _, c := range list {
			paths = append(paths, c["path"].Value().(string))
		}
		return paths
	}
	told := func(want string) {
		t.Helper()
		for late := time.After(settles); ; {
			select {
			case <-signals:
				if strings.Join(cameras(), " ") == want {
					return
				}
			case <-late:
				t.Fatalf("not told of %q; there are %v; tatolabd said:\n%s", want, cameras(), r.Output())
			}
		}
	}
	if now := cameras(); len(now) != 1 || now[0] != device {
		t.Fatalf("ListCameras: %v", now)
	}
	logged := func(line string) {
		t.Helper()
		testbed.Eventually(t, settles, func() string {
			if !strings.Contains(r.Output(), line) {
				return fmt.Sprintf("the log does not say %q:\n%s", line, r.Output())
			}
			return ""
		})
	}
	module.Unbind()
	told("")
	// What comes and goes within a moment is not seen to go.
	logged("a video device is gone")
	if res := r.CLI(r.Dir, "cameras"); res.Stdout != "" || !strings.Contains(res.Stderr, "no camera is connected") {
		t.Errorf("`tatolab cameras` without one: %s%s", res.Stdout, res.Stderr)
	}
	module.Bind()
	told(device)
	logged("a video device is there")
}

// sessionBus is the address of a bus for the length of the test.
func sessionBus(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("dbus-daemon", "--session", "--nofork", "--print-address")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}
