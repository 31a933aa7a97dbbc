// Package booted tests tatolabd as it is installed on a machine that boots: a real
// systemd as process 1, logind, lingering (booted.sh beside this file, which also
// works by itself). It needs root and systemd-nspawn.
package booted

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tatolab.com/tatolab/internal/testbed"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testbed.Cleanup()
	os.Exit(code)
}

// "It loads the stream again every time the runtime starts: at login, at boot, and
// after a crash." The power fails after a stream was kept, and at the next boot it
// runs, although nobody logs in.
func TestKeptStreamsRunFromBoot(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("nothing is booted: only root can make the container")
	}
	for _, tool := range []string{"systemd-nspawn", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("nothing is booted: %v (`make deps` installs the package systemd-container)", err)
		}
	}
	folder := t.TempDir()
	root := func(path ...string) string {
		return filepath.Join(append([]string{folder, "root"}, path...)...)
	}
	for to, from := range map[string]string{
		"usr/bin": testbed.Bin(t), "usr/lib/systemd/user": "../../../packaging/systemd",
		"home/tester/project": "../usermanager/testdata/project", "boots": "testdata",
	} {
		if err := os.CopyFS(root(to), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	// The drop-in is for a newer systemd than may be here.
	os.RemoveAll(root("usr/lib/systemd/user/tatolabd.service.d"))
	venv := root("home/tester/project/.venv")
	if err := os.MkdirAll(filepath.Join(venv, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/bin/python3", filepath.Join(venv, "bin/python")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(venv, "pyvenv.cfg"), []byte("home = /usr/bin\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("bash", "booted.sh", folder, "/boots/keep", "/boots/again", "/boots/forget")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	// A container may not be had inside another one, say.
	if cmd.ProcessState.ExitCode() == 125 && !strings.Contains(string(out), "/boots/again") {
		t.Skipf("nothing is booted: %s", out)
	}
	if err != nil {
		t.Fatal(err)
	}
}
