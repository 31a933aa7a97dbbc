// Package packaging tests what is installed beside the programs: units, the
// D-Bus service file, the journal catalog.
package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tatolab.com/tatolab/dbus"
	"tatolab.com/tatolab/service/systemd"
)

const folder = "../../packaging/"

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCatalogHasEveryMessageID(t *testing.T) {
	defined := map[string]bool{}
	for _, m := range regexp.MustCompile(`MessageID = "([0-9a-f]{32})"`).FindAllStringSubmatch(read(t, "../../service/logstore/messageid.go"), -1) {
		defined[m[1]] = true
	}
	if len(defined) == 0 {
		t.Fatal("service/logstore/messageid.go defines no id")
	}
	explained := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^-- ([0-9a-f]{32})\nSubject: `).FindAllStringSubmatch(read(t, folder+"systemd/tatolab.catalog"), -1) {
		if explained[m[1]] {
			t.Errorf("the catalog has %s twice", m[1])
		}
		explained[m[1]] = true
		if !defined[m[1]] {
			t.Errorf("the catalog explains %s, which nothing is logged with", m[1])
		}
	}
	for id := range defined {
		if !explained[id] {
			t.Errorf("the catalog does not explain %s", id)
		}
	}
}

func TestJournalctlReadsTheCatalog(t *testing.T) {
	if _, err := exec.LookPath("journalctl"); err != nil {
		t.Skip(err)
	}
	root := t.TempDir()
	catalog := filepath.Join(root, "usr/lib/systemd/catalog")
	for _, dir := range []string{catalog, filepath.Join(root, "var/lib/systemd/catalog")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(catalog, "tatolab.catalog"), []byte(read(t, folder+"systemd/tatolab.catalog")), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("journalctl", "--root", root, "--update-catalog").CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command("journalctl", "--root", root, "--list-catalog").Output()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), "f520207ee4e44a97be150aa5e836003b Tatolab: Stream @TATOLAB_STREAM@ failed") {
		t.Errorf("%s", out)
	}
}

// The codes a restart does not help against are those of the program.
func TestUnitKnowsTheExitCodes(t *testing.T) {
	unit := read(t, folder+"systemd/tatolabd.service")
	want := "RestartPreventExitStatus=" + strconv.Itoa(systemd.ExitLocked) + " " + strconv.Itoa(systemd.ExitBadConfig) + "\n"
	if !strings.Contains(unit, want) {
		t.Errorf("the unit has no line %s", want)
	}
}

func TestDBusServiceFile(t *testing.T) {
	files, err := filepath.Glob(folder + "dbus/*.service")
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != dbus.BusName+".service" {
		t.Fatalf("%v, %v", files, err)
	}
	for _, line := range []string{"Name=" + dbus.BusName, "SystemdService=" + systemd.ServiceUnit} {
		if !strings.Contains(read(t, files[0]), line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

// systemd checks the units, and says how open they are. What it says is written down
// in docs/systemd.md, with the reasons, and must be changed there with the unit.
func TestSystemdReadsTheUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir) // systemd-analyze --user insists
	program := filepath.Join(dir, "tatolabd")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	service := filepath.Join(dir, systemd.ServiceUnit)
	socket := filepath.Join(dir, systemd.SocketUnit)
	unit := strings.Replace(read(t, folder+"systemd/tatolabd.service"), "/usr/bin/tatolabd", program, 1)
	for path, text := range map[string]string{service: unit, socket: read(t, folder+"systemd/tatolabd.socket")} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("systemd-analyze", "--user", "verify", service, socket).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("verify: %v: %s", err, out)
	}
	out, err := exec.Command("systemd-analyze", "--user", "security", "--offline=yes", service).Output()
	if err != nil {
		t.Fatal(err)
	}
	score := regexp.MustCompile(`exposure level for \S+: ([0-9.]+)`).FindStringSubmatch(string(out))
	if score == nil {
		t.Fatalf("no score in: %s", out)
	}
	if !strings.Contains(read(t, "../../docs/systemd.md"), "exposure "+score[1]) {
		t.Errorf("systemd-analyze security says %s; docs/systemd.md says something else", score[1])
	}
}
