package display

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestFind plays the user manager by a process of its own on a private bus.
func TestFind(t *testing.T) {
	if os.Getenv("TATOLAB_TEST_BUS") == "" {
		if _, err := exec.LookPath("dbus-run-session"); err != nil {
			t.Fatal("this test needs a bus of its own: apt install dbus")
		}
		cmd := exec.Command("dbus-run-session", "--", "/proc/self/exe", "-test.run=^TestFind$", "-test.v")
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args[2] = self
		cmd.Env = append(os.Environ(), "TATOLAB_TEST_BUS=1")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, test := range []struct {
		name    string
		started Environment
		manager []string // nil: there is none
		opens   string   // the only display that opens
		want    string   // DISPLAY then, or the error
	}{
		{"own", Environment{Display: ":3"}, []string{"DISPLAY=:4"}, ":3", ":3"},
		{"own without a manager", Environment{Display: ":3"}, nil, ":3", ":3"},
		{"of the manager", Environment{}, []string{"A=b", "DISPLAY=:4", "XAUTHORITY=/x"}, ":4", ":4"},
		{"own is stale", Environment{Display: ":3"}, []string{"DISPLAY=:4"}, ":4", ":4"},
		{"both are closed", Environment{Display: ":3"}, []string{"DISPLAY=:4"}, "", "cannot open display :3, nor :4 of the user manager"},
		{"own is closed", Environment{Display: ":3"}, []string{}, "", "cannot open display :3"},
		{"the manager's is closed", Environment{}, []string{"DISPLAY=:4"}, "", "cannot open display :4 of the user manager"},
		{"nobody has one", Environment{}, []string{}, "", "neither the stream nor the user manager has a DISPLAY; `tatolab run -d --env DISPLAY`"},
		{"no manager", Environment{}, nil, "", "no user manager"},
		{"Wayland without X", Environment{}, []string{"WAYLAND_DISPLAY=wayland-0"}, "", "the Wayland session wayland-0 offers no X display, which windows need: install Xwayland"},
		{"Wayland without X or a manager", Environment{Wayland: "wayland-1"}, nil, "", "the Wayland session wayland-1 offers no X display"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.manager != nil {
				defer playManager(t, test.manager)()
			}
			t.Setenv("DISPLAY", "")
			t.Setenv("XAUTHORITY", "")
			err := Find(context.Background(), test.started, func(name string) bool { return name == test.opens })
			switch {
			case err == nil && os.Getenv("DISPLAY") != test.want:
				t.Errorf("DISPLAY is %q, want %q", os.Getenv("DISPLAY"), test.want)
			case err != nil && !strings.Contains(err.Error(), test.want):
				t.Errorf("%v, want %q", err, test.want)
			}
			if test.name == "of the manager" && os.Getenv("XAUTHORITY") != "/x" {
				t.Error("XAUTHORITY was left behind")
			}
		})
	}
}
