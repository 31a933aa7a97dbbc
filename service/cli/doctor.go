package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/build"
	"tatolab.com/tatolab/service/client"
)

func doctorCommand() *command {
	return &command{
		name: "doctor", short: "check what streams need, and say how to mend it",
		long: "Checks the runtime, its socket, the bus, lingering, permission for cameras, GL, the display, and the Python project in the folder. Below what is wrong it says how to mend it. Exits with 1 if something is.",
		setup: func(f *pflag.FlagSet) action {
			dir := f.String("dir", ".", "the project's `FOLDER`")
			asJSON := f.Bool("json", false, jsonUsage)
			return func(ctx context.Context, e *environment, args []string) error {
				project, err := projectFolder(*dir)
				if err != nil {
					return err
				}
				findings := append(e.examineRuntime(ctx), lingering(), cameraPermission(), graphics(), display(), pythonProject(ctx, project))
				if *asJSON {
					err = e.print.json(struct {
						Version int       `json:"version"`
						Checks  []finding `json:"checks"`
					}{1, findings})
				} else {
					e.showFindings(findings)
				}
				if err == nil && slices.ContainsFunc(findings, func(f finding) bool { return f.Verdict == wrong }) {
					err = errSilent
				}
				return err
			}
		},
	}
}

// Verdicts: remarks cost something, what is wrong prevents something.
const (
	fine   = "ok"
	remark = "note"
	wrong  = "wrong"
)

type finding struct {
	Check   string `json:"check"`
	Verdict string `json:"verdict"`
	Found   string `json:"found"`
	Mend    string `json:"mend,omitempty"`
}

func (e *environment) showFindings(findings []finding) {
	colours := map[string]string{fine: green, remark: yellow, wrong: red}
	for _, f := range findings {
		e.print.line("%s  %-8s %s", paint(e.print.outColor, colours[f.Verdict], fmt.Sprintf("%-5s", f.Verdict)), f.Check, f.Found)
		for line := range strings.Lines(f.Mend) {
			e.print.line("                mend: %s", strings.TrimSuffix(line, "\n"))
		}
	}
}

func (e *environment) examineRuntime(ctx context.Context) []finding {
	status, err := e.runtime.Status(ctx)
	if err != nil {
		f := finding{"runtime", wrong, err.Error(), ""}
		var unreachable *client.Unreachable
		if errors.As(err, &unreachable) {
			f.Mend = unreachable.Hint
		}
		return []finding{f}
	}
	found := []finding{{"runtime", fine, fmt.Sprintf("tatolabd %s, %s", status.Build, status.How), ""}}
	if status.Build != build.ID() {
		mend := "systemctl --user restart tatolabd"
		if status.How == "terminal" {
			mend = "end tatolabd in its terminal, and start it again"
		}
		found[0] = finding{"runtime", remark, fmt.Sprintf("it is %s, this command %s", status.Build, build.ID()), mend}
	}
	found = append(found, socketFinding(e.runtime.Path()))
	if strings.HasPrefix(status.DBus, "com.") {
		return append(found, finding{"bus", fine, status.DBus, ""})
	}
	return append(found, finding{"bus", remark, status.DBus, "desktop programs cannot control streams; the command line can. A user bus comes with a login: package dbus-user-session"})
}

func socketFinding(path string) finding {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return finding{"socket", wrong, fmt.Sprintf("%s: %v", path, err), "restart the runtime"}
	}
	if st.Mode&0o077 != 0 {
		return finding{"socket", remark, fmt.Sprintf("%s is open to others, mode %#o; the runtime refuses them all the same", path, st.Mode&0o777), "chmod 600 " + shellQuote(path)}
	}
	return finding{"socket", fine, path, ""}
}

// lingering tells whether kept streams live on after logout.
func lingering() finding {
	me, err := user.Current()
	if err != nil {
		return finding{"linger", remark, fmt.Sprintf("cannot tell who you are: %v", err), ""}
	}
	if _, err := os.Stat(filepath.Join("/var/lib/systemd/linger", me.Username)); err == nil {
		return finding{"linger", fine, "kept streams run from boot, and on after logout", ""}
	}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		return finding{"linger", remark, "this machine does not run systemd: kept streams run while tatolabd does", ""}
	}
	return finding{"linger", remark, "kept streams end at logout, and start at login", "loginctl enable-linger " + me.Username}
}

func cameraPermission() finding {
	devices, _ := filepath.Glob("/dev/video*")
	if len(devices) == 0 {
		return finding{"cameras", remark, "no /dev/video* here", "connect a camera, or use TestPatternSource"}
	}
	var denied []string
	for _, d := range devices {
		if unix.Access(d, unix.R_OK|unix.W_OK) != nil {
			denied = append(denied, d)
		}
	}
	if denied != nil {
		who := "USER"
		if me, err := user.Current(); err == nil {
			who = me.Username
		}
		return finding{"cameras", wrong, "permission denied for " + strings.Join(denied, ", "),
			"sudo usermod -aG video " + who + ", then log in again (a session at the machine itself needs no group)"}
	}
	return finding{"cameras", fine, strings.Join(devices, ", "), ""}
}

// graphics looks for what windows and effects need, without loading it.
func graphics() finding {
	var libraries []string
	for _, pattern := range []string{"/usr/lib/*/libEGL.so.1", "/usr/lib/libEGL.so.1", "/usr/lib64/libEGL.so.1", "/lib/*/libEGL.so.1"} {
		found, _ := filepath.Glob(pattern)
		libraries = append(libraries, found...)
	}
	if len(libraries) == 0 {
		return finding{"gl", wrong, "libEGL.so.1 is not installed: no windows, no effects", "install it: apt install libegl1 libgl1-mesa-dri, or your distribution's equivalent"}
	}
	nodes, _ := filepath.Glob("/dev/dri/renderD*")
	for _, n := range nodes {
		if unix.Access(n, unix.R_OK|unix.W_OK) == nil {
			return finding{"gl", fine, "EGL, " + n, ""}
		}
	}
	return finding{"gl", remark, "no GPU that you may use: effects are drawn by the CPU", ""}
}

// display looks for what windows open on. The runtime may know of another: it
// asks the user manager too.
func display() finding {
	switch name, wayland := os.Getenv("DISPLAY"), os.Getenv("WAYLAND_DISPLAY"); {
	case name != "":
		return finding{"display", fine, name, ""}
	case wayland != "":
		return finding{"display", wrong, "the Wayland session " + wayland + " offers no X display, which windows need",
			"install Xwayland (package xwayland) and log in anew"}
	}
	return finding{"display", remark, "none in this terminal: windows wait until the runtime or the user manager has one", ""}
}

func pythonProject(ctx context.Context, dir string) finding {
	if _, err := os.Stat(filepath.Join(dir, "pyproject.toml")); err != nil {
		return finding{"project", remark, dir + " has no pyproject.toml: it is no project", "tatolab new DIR, or name a project with --dir"}
	}
	python := filepath.Join(dir, ".venv", "bin", "python")
	if _, err := os.Stat(python); err != nil {
		mend := "run uv sync in " + filepath.Base(dir)
		if !haveUV() {
			mend = "in " + filepath.Base(dir) + ": " + withoutUV
		}
		return finding{"project", wrong, dir + " has no .venv/bin/python", mend}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").CombinedOutput()
	version := strings.TrimSpace(string(out))
	switch {
	case err != nil:
		return finding{"project", wrong, fmt.Sprintf("%s does not run: %v %s", python, err, version), "remove .venv, and run uv sync in " + filepath.Base(dir)}
	case !slices.Contains(pythons, version):
		return finding{"project", wrong, fmt.Sprintf("%s is Python %s; streams need one of %s", python, version, strings.Join(pythons, ", ")), "uv python pin 3.12 && uv sync"}
	}
	return finding{"project", fine, fmt.Sprintf("%s, Python %s", dir, version), ""}
}
