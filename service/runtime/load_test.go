package runtime

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/cgroup"
	"tatolab.com/tatolab/service/config"
)

// A stream that cannot be started leaves no control group behind. Here the groups
// are plain folders, in which no process can be born.
func TestNoGroupIsLeftOfWhatDoesNotLoad(t *testing.T) {
	root := t.TempDir()
	procs := filepath.Join(root, "runtime/cgroup.procs")
	if err := os.Mkdir(filepath.Dir(procs), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(procs, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	groups, err := cgroup.Below(root)
	if err != nil {
		t.Fatal(err)
	}
	r := &Runtime{groups: map[string]*cgroup.Group{}, log: slog.New(slog.DiscardHandler)}
	r.Cgroups, r.Config, r.Guard = groups, &config.Config{}, func(_ string, work func()) { work() }
	if _, err := r.apply(&entry{name: "watcher"}, watcher()); api.AsError(err).Code != api.Unloadable {
		t.Fatalf("loaded with %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(root, "stream-*")); err != nil || left != nil || len(r.groups) != 0 {
		t.Errorf("left behind: %v, %v; %v", left, r.groups, err)
	}
}
