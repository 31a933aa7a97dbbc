// Package usermanager runs tests inside a real `systemd --user` with a real
// user bus, in namespaces of their own (usermanager.sh beside this file, which
// also works by itself). It takes 0.2 s a manager and needs root.
//
// A test calls RunAs. Outside, that starts the test's own binary again inside the
// namespaces, for that one test; inside, it runs the body.
package usermanager

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

//go:embed *.sh
var scripts embed.FS

// Time-outs of this package.
const (
	insideTimeout = 4 * time.Minute // one test for one user
	soakTimeout   = time.Hour
	waitTimeout   = 40 * time.Second
	waitStep      = 10 * time.Millisecond
)

// folder is where the payload is, inside.
const folder = "/run/testbed"

// insideVariable names the user, inside; outside it is not set.
const insideVariable = "TATOLAB_TESTBED_USER"

// Users a body runs as: the manager of root, and that of a user who exists only in
// there.
var Users = []string{"root", "fresh"}

// RunAs runs body once per user, some of Users, inside a user manager of that user.
// fill puts what body needs (built programs, units) into a folder, which is Bed.Dir inside.
// Where there are no means for it (root, cgroup2, systemd) the test is skipped.
func RunAs(t *testing.T, users []string, fill func(t *testing.T, dir string), body func(t *testing.T, b *Bed)) {
	t.Helper()
	if inside := os.Getenv(insideVariable); inside != "" {
		t.Run(inside, func(t *testing.T) { body(t, &Bed{t: t, Dir: folder}) })
		return
	}
	if reason := missing(); reason != "" {
		t.Skip("no user manager can be had: " + reason)
	}
	timeout := insideTimeout
	if os.Getenv("TATOLAB_SOAK") != "" {
		timeout = soakTimeout
	}
	payload := t.TempDir()
	if fill != nil {
		fill(t, payload)
	}
	copyFile(t, "/proc/self/exe", filepath.Join(payload, "test"))
	beds := t.TempDir()
	if err := os.CopyFS(beds, scripts); err != nil {
		t.Fatal(err)
	}
	for _, user := range users {
		t.Run(user, func(t *testing.T) {
			name := "^" + strings.ReplaceAll(strings.TrimSuffix(t.Name(), "/"+user), "/", "$/^") + "$/^" + user + "$"
			cmd := exec.Command("bash", filepath.Join(beds, "usermanager.sh"), user, payload, folder+"/test",
				"-test.v", "-test.run", name, "-test.timeout", timeout.String())
			cmd.Env = append(os.Environ(), insideVariable+"="+user)
			out, err := cmd.CombinedOutput()
			// A test that did not run has not passed.
			if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
				t.Errorf("inside the user manager of %s: %v\n%s", user, err, out)
			}
		})
	}
}

func missing() string {
	if os.Getuid() != 0 {
		return "only root can make the namespaces"
	}
	for _, tool := range []string{"unshare", "setpriv", "dbus-daemon", "systemctl", "/lib/systemd/systemd"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err.Error()
		}
	}
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return err.Error()
	}
	if !bytes.Contains(mounts, []byte(" cgroup2 ")) {
		return "no cgroup2 hierarchy is mounted"
	}
	return ""
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
}

// Bed is the inside of a user manager.
type Bed struct {
	t *testing.T
	// Dir holds what fill put there; it belongs to the user.
	Dir string
}

// RuntimeDir is XDG_RUNTIME_DIR.
func (b *Bed) RuntimeDir() string { return os.Getenv("XDG_RUNTIME_DIR") }

// UnitDir is where units of this user belong, BusDir where files of D-Bus
// activation do. (Of root, dbus-daemon does not read ~/.local/share.)
func (b *Bed) UnitDir() string { return filepath.Join(os.Getenv("HOME"), ".config/systemd/user") }
func (b *Bed) BusDir() string  { return filepath.Join(b.RuntimeDir(), "dbus-1/services") }

// Install copies the files of from, a folder below Dir, into the folder to, as the
// package would into the system's, with /usr/bin replaced by Dir. Have the manager
// or the bus read them after it.
func (b *Bed) Install(from, to string) {
	b.t.Helper()
	if err := os.MkdirAll(to, 0o755); err != nil {
		b.t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(b.Dir, from))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			continue // settings for newer versions of systemd
		}
		data, err := os.ReadFile(filepath.Join(b.Dir, from, entry.Name()))
		if err != nil {
			b.t.Fatal(err)
		}
		b.write(filepath.Join(to, entry.Name()), strings.ReplaceAll(string(data), "/usr/bin/", b.Dir+"/"))
	}
}

// DropIn adds settings to a unit, as `systemctl --user edit` does.
func (b *Bed) DropIn(unit, settings string) {
	b.t.Helper()
	dir := filepath.Join(b.UnitDir(), unit+".d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.write(filepath.Join(dir, "test.conf"), settings)
}

func (b *Bed) write(path, text string) {
	b.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// Try runs a program and returns its trimmed output, stderr included.
func (b *Bed) Try(name string, args ...string) (string, error) {
	out, err := exec.Command(name, args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return text, err
}

// Do runs a program that must succeed.
func (b *Bed) Do(name string, args ...string) string {
	b.t.Helper()
	out, err := b.Try(name, args...)
	if err != nil {
		b.t.Fatalf("%v\n%s", err, b.Journal())
	}
	return out
}

// Systemctl runs `systemctl --user` with args, which must succeed.
func (b *Bed) Systemctl(args ...string) string {
	b.t.Helper()
	return b.Do("systemctl", append([]string{"--user"}, args...)...)
}

// Property is one property of a unit of the user manager.
func (b *Bed) Property(unit, property string) string {
	b.t.Helper()
	return b.Systemctl("show", "--value", "--property", property, unit)
}

// MainPID is the main process of a service, 0 without one.
func (b *Bed) MainPID(unit string) int {
	b.t.Helper()
	pid, err := strconv.Atoi(b.Property(unit, "MainPID"))
	if err != nil {
		b.t.Fatal(err)
	}
	return pid
}

// Wait waits until condition holds.
func (b *Bed) Wait(what string, condition func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(waitTimeout); !condition(); time.Sleep(waitStep) {
		if time.Now().After(deadline) {
			b.t.Fatalf("waited %s in vain: %s\n%s", waitTimeout, what, b.Journal())
		}
	}
}

// Journal is the end of the journal, where this user may read it, without what
// the kernel of the machine said.
func (b *Bed) Journal() string {
	out, _ := b.Try("journalctl", "--no-pager", "-q", "-o", "short-precise", "-n", "60",
		"_TRANSPORT=stdout", "+", "_TRANSPORT=journal", "+", "_TRANSPORT=syslog")
	return out
}
