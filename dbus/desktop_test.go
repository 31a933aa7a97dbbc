package dbus

import (
	"bufio"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"

	godbus "github.com/godbus/dbus/v5"

	"tatolab.com/tatolab/service/api"
)

// The programs of contrib/desktop know nothing but the interface.

func TestPanel(t *testing.T) {
	for _, tool := range []string{"busctl", "python3"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	r := newRig(t)
	panel := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("../contrib/desktop/tatolab.5s.py", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := panel(); !strings.Contains(out, "No streams") {
		t.Error(out)
	}
	if _, err := r.run("/p", map[string]any{"keep": true}); err != nil {
		t.Fatal(err)
	}
	out := panel()
	if !strings.Contains(out, "▶ motion_watcher  kept") {
		t.Error(out)
	}
	stop := regexp.MustCompile(`--Stop .*param1=(\S+) param2=(\S+)`).FindStringSubmatch(out)
	if stop == nil {
		t.Fatalf("no way to stop it:\n%s", out)
	}
	panel(stop[1:]...)
	if out := panel(); !strings.Contains(out, "■ motion_watcher  stopped") || !strings.HasPrefix(out, "◆ 0\n") {
		t.Error(out)
	}
	r.bus.Close()
	if out := panel(); !strings.Contains(out, "The runtime does not run") {
		t.Error(out)
	}
}

// desktop plays the notification service.
type desktop struct{ shown chan string }

func (d desktop) Notify(_ string, _ uint32, _, summary, body string, _ []string, _ map[string]godbus.Variant, _ int32) (uint32, *godbus.Error) {
	d.shown <- summary + ": " + body
	return 7, nil
}

func TestNotification(t *testing.T) {
	if err := exec.Command("/usr/bin/python3", "-c", "import gi").Run(); err != nil {
		t.Skip("PyGObject is not installed (Debian: python3-gi)")
	}
	r := newRig(t)
	d := desktop{make(chan string, 4)}
	if err := r.conn.Export(d, "/org/freedesktop/Notifications", "org.freedesktop.Notifications"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.conn.RequestName("org.freedesktop.Notifications", godbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/usr/bin/python3", "../contrib/desktop/tatolab-notify")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Signal(syscall.SIGKILL)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	path, err := r.run("/p", map[string]any{"keep": true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.runtime.change("motion_watcher", func(s *fakeStream) { s.State, s.Reason = api.Failed, "its .venv is gone" }); err != nil {
		t.Fatal(err)
	}
	if got := <-d.shown; got != "Stream motion_watcher failed: its .venv is gone" {
		t.Error(got)
	}
	// Its button.
	if err := r.conn.Emit("/org/freedesktop/Notifications", "org.freedesktop.Notifications.ActionInvoked", uint32(7), "retry"); err != nil {
		t.Fatal(err)
	}
	wait(t, "the retry", func() bool { return r.property(path, "State") == "kept" })
}

func TestPythonClient(t *testing.T) {
	if err := exec.Command("/usr/bin/python3", "-c", "import gi").Run(); err != nil {
		t.Skip("PyGObject is not installed (Debian: python3-gi)")
	}
	newRig(t)
	out, err := exec.Command("/usr/bin/python3", "testdata/client.py").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const stream = StreamsPath + "/by_2dpython"
	// What the program prints at once, and what it hears when it listens, in the
	// order of each.
	want := []string{
		"listed kept", "refused " + errorPrefix + "NoSuchPort",
		"InterfacesAdded " + Path + " " + stream,
		"PropertiesChanged " + stream + " {'State': 'stopped', 'NodeCount': 0}",
		"PropertiesChanged " + stream + " {'State': 'kept', 'NodeCount': 1}",
		"InterfacesRemoved " + Path + " " + stream,
	}
	got := strings.ReplaceAll(string(out), "{'NodeCount': 0, 'State': 'stopped'}", "{'State': 'stopped', 'NodeCount': 0}")
	got = strings.ReplaceAll(got, "{'NodeCount': 1, 'State': 'kept'}", "{'State': 'kept', 'NodeCount': 1}")
	if got != strings.Join(want, "\n")+"\n" {
		t.Errorf("it printed\n%s", out)
	}
}
