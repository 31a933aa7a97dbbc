package systemd

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
)

// logind, as far as PrepareForSleep goes, on a bus of the test's own.
func TestWatchSleep(t *testing.T) {
	if _, err := exec.LookPath("dbus-daemon"); err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "bus")
	address := "unix:path=" + path
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	bus := exec.Command("dbus-daemon", "--session", "--nofork", "--nopidfile", "--address="+address)
	if err := bus.Start(); err != nil {
		t.Fatal(err)
	}
	defer bus.Wait()
	defer bus.Process.Kill()
	for deadline := time.Now().Add(testWait); ; time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("unix", path); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the bus does not come up")
		}
	}
	logind, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer logind.Close()
	if _, err := logind.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	slept, done := make(chan bool, 100), make(chan struct{})
	go func() {
		defer close(done)
		WatchSleep(ctx, func(sleeping bool) { slept <- sleeping })
	}()
	for _, sleeping := range []bool{true, false} {
		for heard := false; !heard; {
			// Until the watcher listens, nobody hears.
			if err := logind.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForSleep", sleeping); err != nil {
				t.Fatal(err)
			}
			select {
			case got := <-slept:
				heard = got == sleeping
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	cancel()
	<-done
}
