package graphicstest

import (
	"image"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/usermanager"
	"tatolab.com/tatolab/gl/xvfb"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/systemd"
)

// The runtime starts at boot, the graphical session later, and tells the user
// manager its display then: a kept stream's window says what it waits for,
// opens on that display, and on the next session's.
func TestAWindowOpensWhenTheSessionComes(t *testing.T) {
	t.Parallel()
	fill := func(t *testing.T, dir string) {
		for _, program := range []string{"tatolabd", "tatolab", "tatolab-window", "tatolab-gl"} {
			data, err := os.ReadFile(filepath.Join(testbed.Bin(t), program))
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, program), data, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := os.CopyFS(filepath.Join(dir, "units"), os.DirFS(filepath.Join(testbed.Root(), "packaging/systemd"))); err != nil {
			t.Fatal(err)
		}
		testbed.Write(t, filepath.Join(dir, "graphics"), project([3]string{"window", "camera", "fit"}))
	}
	usermanager.RunAs(t, []string{"fresh"}, fill, func(t *testing.T, b *usermanager.Bed) {
		tatolab := filepath.Join(b.Dir, "tatolab")
		b.Install("units", b.UnitDir())
		b.Systemctl("daemon-reload")
		b.Systemctl("start", systemd.SocketUnit)
		dir := filepath.Join(b.Dir, "graphics")
		b.Do("/usr/bin/python3", "-m", "venv", "--without-pip", filepath.Join(dir, ".venv"))
		b.Do(tatolab, "run", "-d", "--dir", dir)
		graph := func(want string) {
			t.Helper()
			testbed.Eventually(t, 60*time.Second, func() string {
				if said := b.Do(tatolab, "graph", "graphics"); !strings.Contains(said, want) {
					return "no " + want + " in\n" + said
				}
				return ""
			})
		}
		graph("waits for a display: neither the stream nor the user manager has a DISPLAY")
		for range 2 {
			x := xvfb.Start(t, "") // another name each time
			b.Systemctl("set-environment", "DISPLAY="+x.Name)
			graph("on display " + x.Name)
			x.Window("window").Place(10, 10, 300, 300)
			testbed.Eventually(t, 60*time.Second, func() string { return look(x.Screen(), image.Pt(10, 10), "fit", false) })
			x.Stop()
			graph("waits for a display: cannot open display " + x.Name + " of the user manager")
		}
		b.Do(tatolab, "stop", "graphics")
	})
}
