package python

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"tatolab.com/tatolab/service/build"
)

func TestLendWritesAPackageThatImports(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "python-1")
	bootstrap, err := Lend(dir)
	if err != nil {
		t.Fatal(err)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3")
	}
	out, err := exec.Command(python, "-I", "-c", `
import runpy, sys
runpy.run_path(sys.argv[1], run_name="lent")
import tatolab.stream
print(tatolab.stream.__file__)
`, bootstrap).CombinedOutput()
	if want := filepath.Join(dir, "tatolab/stream/__init__.py"); err != nil || strings.TrimSpace(string(out)) != want {
		t.Fatalf("imported %q, %v; want %q", out, err, want)
	}
	id, err := os.ReadFile(filepath.Join(dir, buildID))
	if err != nil || strings.TrimSpace(string(id)) != build.ID() {
		t.Errorf("build id %q, %v; want %q", id, err, build.ID())
	}
}

func TestLendReplacesWhatDiffersAndKeepsWhatIsRight(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "python-1")
	bootstrap, err := Lend(dir)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lend(dir); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(dir); err != nil || !os.SameFile(before, after) {
		t.Errorf("a complete folder was replaced (%v)", err)
	}
	if err := os.WriteFile(bootstrap, []byte("raise SystemExit"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lend(dir); err != nil {
		t.Fatal(err)
	}
	if !complete(dir) {
		t.Error("a spoilt folder was not mended")
	}
	if entries, _ := os.ReadDir(parent); len(entries) != 1 {
		t.Errorf("left beside the folder: %v", entries)
	}
}

func TestEmbeddedFiles(t *testing.T) {
	seen := map[string]bool{}
	for _, f := range files() {
		seen[f.name] = true
		if strings.Contains(f.name, "__pycache__") || strings.HasSuffix(f.name, ".pyc") {
			t.Errorf("embedded: %s", f.name)
		}
	}
	err := filepath.WalkDir("src", func(path string, entry os.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".py") && !seen[strings.TrimPrefix(path, "src/")] {
			t.Errorf("not embedded: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
