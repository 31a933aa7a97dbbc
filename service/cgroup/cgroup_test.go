package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also a runtime that is started in a control group.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "runtime" {
		os.Exit(runtimeMain())
	}
	os.Exit(m.Run())
}

const patience = 20 * time.Second

func runtimeMain() int {
	tree, err := Delegated()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	g, err := tree.Make("garage", Limits{})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	own, err := Own()
	fmt.Println(tree.Root(), own, g.Dir(), err)
	return 0
}

// group makes a control group for a test, and ends it.
func group(t *testing.T) string {
	t.Helper()
	own, err := Own()
	if err != nil {
		t.Skip("no control groups of version 2: ", err)
	}
	dir, err := os.MkdirTemp(own, "tatolab-test-")
	if err != nil {
		t.Skip("cannot make a control group: ", err)
	}
	t.Cleanup(func() {
		if err := (&Group{dir: dir}).Remove(); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// in starts a command in a control group.
func in(t *testing.T, dir string, name string, args ...string) *exec.Cmd {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
	return cmd
}

func TestLocate(t *testing.T) {
	const unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
	const hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct{ mounts, groups, want string }{
		{unified, "0::/user.slice/user-1000.slice/user@1000.service/app.slice/tatolabd.service\n", "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/tatolabd.service"},
		{hybrid, "8:pids:/x\n4:memory:/y\n0::/z\n", "/sys/fs/cgroup/unified/z"},
		{hybrid, "0::/\n", "/sys/fs/cgroup/unified"},
		{"30 23 0:26 /box /my\\040cgroup rw - cgroup2 cgroup2 rw\n", "0::/box/in\n", "/my cgroup/in"},
		{"30 23 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "0::/boxed\n", ""},
		{"30 23 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw,cpu\n", "0::/\n", ""},
		{unified, "4:memory:/y\n", ""},
	} {
		got, err := locate(c.mounts, c.groups)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q: %q, %v; want %q", c.groups, got, err, c.want)
		}
	}
}

func TestDelegation(t *testing.T) {
	dir := group(t)
	runtime := func() (string, error) {
		cmd := in(t, dir, "/proc/self/exe", "runtime")
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	// Writable, as everything is for root, but nobody gave it to us.
	if out, err := runtime(); err == nil || !strings.Contains(out, dir+" is not delegated") {
		t.Errorf("%q, %v", out, err)
	}
	if err := unix.Setxattr(dir, "user.delegate", []byte("1"), 0); err != nil {
		t.Skip("control groups have no extended attributes here: ", err)
	}
	want := fmt.Sprintf("%s %s/runtime %s/stream-garage <nil>", dir, dir, dir)
	for range 2 { // the second finds what the first left
		if out, err := runtime(); out != want {
			t.Errorf("%q, %v; want %q", out, err, want)
		}
	}
}

func TestKillAndRemove(t *testing.T) {
	tree := &Tree{root: group(t)}
	g, err := tree.Make("garage", Limits{})
	if err != nil {
		t.Fatal(err)
	}
	// A child that hides in a session of its own, and groups below.
	below := filepath.Join(g.Dir(), "of", "a-node")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := in(t, g.Dir(), "/bin/bash", "-c", fmt.Sprintf("(env -i setsid sleep 1000 & echo 0 >%s/cgroup.procs; exec env -i setsid sleep 1000) & exec sleep 1000", below))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pids := func() (n int) {
		for _, dir := range []string{g.Dir(), below} {
			data, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			n += len(strings.Fields(string(data)))
		}
		return n
	}
	for start := time.Now(); pids() < 3; time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%d processes", pids())
		}
	}
	again, err := tree.Make("garage", Limits{}) // ends what is there
	if err != nil {
		t.Fatal(err)
	}
	if n := pids(); n != 0 {
		t.Errorf("%d processes left", n)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.String() != "signal: killed" {
		t.Error(cmd.ProcessState)
	}
	if err := again.Remove(); err != nil {
		t.Error(err)
	}
	if err := again.Remove(); err != nil {
		t.Errorf("removed twice: %v", err)
	}
	if _, err := os.Stat(g.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is still there: %v", err)
	}
}

// A limit is set and read back where its controller is, and is an error that
// names it where it is not.
func TestLimits(t *testing.T) {
	root := group(t)
	tree := &Tree{root: root}
	for _, c := range []string{"memory", "cpu", "pids"} {
		write(root, "cgroup.subtree_control", "+"+c)
	}
	missing := " " + strings.Join(tree.Missing(), " ") + " "
	for file, c := range map[string]struct {
		limits     Limits
		controller string
		want       string
	}{
		"memory.max": {Limits{Memory: 64 << 20}, "memory", strconv.Itoa(64 << 20)},
		"cpu.max":    {Limits{CPU: 1.5}, "cpu", "150000 100000"},
		"pids.max":   {Limits{Processes: 20}, "pids", "20"},
	} {
		g, err := tree.Make("garage", c.limits)
		if strings.Contains(missing, " "+c.controller+" ") {
			if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "cannot limit garage") {
				t.Errorf("%s without its controller: %v", file, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		data, _ := os.ReadFile(filepath.Join(g.Dir(), file))
		if got := strings.TrimSpace(string(data)); got != c.want {
			t.Errorf("%s is %q; want %q", file, got, c.want)
		}
		if err := g.Limit(Limits{}); err != nil {
			t.Error(err)
		}
		data, _ = os.ReadFile(filepath.Join(g.Dir(), file))
		if got := string(data); !strings.HasPrefix(got, "max") {
			t.Errorf("%s without a limit is %q", file, got)
		}
	}
	// All at once: what cannot be set takes nothing away from the others.
	all, err := tree.Make("garage", Limits{Memory: 64 << 20, CPU: 1.5, Processes: 20})
	if (err != nil) != (strings.TrimSpace(missing) != "") || all == nil {
		t.Fatalf("all limits, without the controllers %q: %v, %v", missing, all, err)
	}
	for file, c := range map[string][2]string{"memory.max": {"memory", strconv.Itoa(64 << 20)}, "cpu.max": {"cpu", "150000 100000"}, "pids.max": {"pids", "20"}} {
		data, _ := os.ReadFile(filepath.Join(all.Dir(), file))
		if got := strings.TrimSpace(string(data)); got != c[1] && !strings.Contains(missing, " "+c[0]+" ") {
			t.Errorf("beside the others %s is %q; want %q", file, got, c[1])
		}
	}
	g, err := tree.Make("garage", Limits{})
	if err != nil {
		t.Fatal("no limit, and an error: ", err)
	}
	if left, err := os.ReadDir(root); err != nil || !slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() == filepath.Base(g.Dir()) }) {
		t.Error(left, err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// The files as the kernel writes them, in a folder: no machine of ours has the
// memory controller in version 2.
func TestFigures(t *testing.T) {
	dir := t.TempDir()
	for file, content := range map[string]string{
		"memory.events":  "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
		"memory.current": "1048576\n",
		"cpu.stat":       "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\n",
		"pids.current":   "7\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := (&OOMKills{dir: dir}).Count(); n != 2 {
		t.Errorf("%d killed for want of memory", n)
	}
	if n := (*OOMKills)(nil).Count(); n != 0 {
		t.Errorf("%d killed in no group", n)
	}
	want := Usage{Memory: 1 << 20, CPU: 2500 * time.Millisecond, Processes: 7}
	if got := (&Group{dir: dir}).Usage(); got != want {
		t.Errorf("%+v; want %+v", got, want)
	}
	if got := (&Group{dir: t.TempDir()}).Usage(); got != (Usage{}) {
		t.Errorf("without controllers: %+v", got)
	}
}
