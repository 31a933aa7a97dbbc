// Package cgroup gives each stream a control group (cgroups(7), version 2)
// below the runtime's own, where the runtime has been delegated one: a stream
// can then be limited, accounted for and killed as a whole. Without delegation
// there is no Tree, and keepers hold streams together alone.
//
// Files and their meaning: Documentation/admin-guide/cgroup-v2.rst of the
// kernel. Delegation: https://systemd.io/CGROUP_DELEGATION.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// unitPrefix begins the names of the units whose control group is the
	// runtime's to use: tatolabd.service, and scopes made for it.
	unitPrefix = "tatolabd"
	// runtimeGroup is where the runtime itself goes: a group with processes
	// in it cannot give controllers to groups below it.
	runtimeGroup = "runtime"
	streamPrefix = "stream-"
	// removeTimeout is how long killed processes have to be gone.
	removeTimeout  = 2 * time.Second
	removeInterval = 10 * time.Millisecond
)

// Own returns the folder of this process's control group.
func Own() (string, error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", err
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	return locate(string(mounts), string(groups))
}

// locate finds the folder from the contents of /proc/self/mountinfo and
// /proc/self/cgroup.
func locate(mounts, groups string) (string, error) {
	path := ""
	for line := range strings.Lines(groups) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			path = p
		}
	}
	if path == "" {
		return "", errors.New("this process is in no control group of version 2")
	}
	for line := range strings.Lines(mounts) {
		// 31 23 0:28 ROOT MOUNTPOINT OPTIONS [TAGS…] - TYPE SOURCE OPTIONS
		before, after, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if len(f) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		root, point := unescape(f[3]), unescape(f[4])
		below, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
		if ok && (below == "" || below[0] == '/') {
			return filepath.Join(point, below), nil
		}
	}
	return "", errors.New("no file system of type cgroup2 is mounted that shows the control group of this process")
}

// unescape undoes the octal escapes of proc(5).
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// Tree is the part of the hierarchy that is the runtime's.
type Tree struct{ root string }

// Delegated moves the runtime into a group of its own below the one it was
// started in, and returns that one, for streams to be made in. It is an error
// where the group was not delegated to the runtime: it is somebody else's then,
// though it may be writable.
func Delegated() (*Tree, error) {
	own, err := Own()
	if err != nil {
		return nil, err
	}
	root := own
	if filepath.Base(own) == runtimeGroup { // moved there by the runtime this one replaced
		root = filepath.Dir(own)
	}
	if !delegated(root) {
		return nil, fmt.Errorf("control group %s is not delegated to the runtime", root)
	}
	return Below(root)
}

// delegated looks for the mark that systemd leaves on what it delegated. User
// managers of version 252 leave none (tried), so there the name of our own unit,
// which has Delegate=yes, has to do.
func delegated(dir string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	base := filepath.Base(dir)
	ours := strings.HasPrefix(base, unitPrefix) && (strings.HasSuffix(base, ".service") || strings.HasSuffix(base, ".scope"))
	return ours && unix.Access(filepath.Join(dir, "cgroup.subtree_control"), unix.W_OK) == nil
}

// Below makes root the tree of the runtime: the runtime goes into a group of
// its own there, what an earlier one left is ended, and controllers are passed
// on.
func Below(root string) (*Tree, error) {
	t := &Tree{root: root}
	own := filepath.Join(root, runtimeGroup)
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cannot make the runtime's control group: %w", err)
	}
	if err := write(own, "cgroup.procs", "0"); err != nil {
		return nil, fmt.Errorf("cannot move the runtime into its control group: %w", err)
	}
	if left, err := filepath.Glob(filepath.Join(root, streamPrefix+"*")); err == nil {
		for _, dir := range left {
			_ = (&Group{dir: dir}).Remove() // what stays is found by the next Make of that name
		}
	}
	for _, c := range []string{"memory", "cpu", "pids"} {
		_ = write(root, "cgroup.subtree_control", "+"+c) // each that there is; Missing tells of the others
	}
	return t, nil
}

// Root is the folder below which streams are made.
func (t *Tree) Root() string { return t.root }

// Missing names the controllers that streams cannot be limited by.
func (t *Tree) Missing() []string {
	data, _ := os.ReadFile(filepath.Join(t.root, "cgroup.subtree_control"))
	have := strings.Fields(string(data))
	var missing []string
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	return missing
}

// Limits of a stream. Zero is no limit.
type Limits struct {
	Memory    int64   // bytes
	CPU       float64 // CPUs: 1.5 is one and a half
	Processes int     // threads count too, see pids.max
}

// Group is the control group of one stream.
type Group struct{ dir string }

// Make makes the group of a stream. What an earlier one of that name left is
// ended first. Where a limit cannot be set the group comes with the error: the
// limits that can be hold.
func (t *Tree) Make(stream string, l Limits) (*Group, error) {
	g := &Group{dir: filepath.Join(t.root, streamPrefix+stream)}
	if err := g.Remove(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the control group of %s: %w", stream, err)
	}
	if err := g.Limit(l); err != nil {
		return g, fmt.Errorf("cannot limit %s: %w", stream, err)
	}
	return g, nil
}

// Dir is the folder of the group, for processes to be born in.
func (g *Group) Dir() string { return g.dir }

// cpuPeriod is the period of cpu.max in microseconds, the kernel's default.
const cpuPeriod = 100_000

// Limit sets the limits. A limit whose controller is missing is an error, and
// keeps none of the others from being set.
func (g *Group) Limit(l Limits) error {
	set := func(file, value string, wanted bool) error {
		if !wanted {
			if _, err := os.Stat(filepath.Join(g.dir, file)); err != nil {
				return nil // no controller, no limit to lift
			}
		}
		return write(g.dir, file, value)
	}
	orMax := func(n int64) string {
		if n > 0 {
			return strconv.FormatInt(n, 10)
		}
		return "max"
	}
	quota := orMax(int64(l.CPU * cpuPeriod))
	return errors.Join(
		set("memory.max", orMax(l.Memory), l.Memory > 0),
		set("cpu.max", fmt.Sprintf("%s %d", quota, cpuPeriod), l.CPU > 0),
		set("pids.max", orMax(int64(l.Processes)), l.Processes > 0),
	)
}

// Usage is what a stream costs. A figure whose controller is missing is 0.
type Usage struct {
	Memory    int64 // bytes
	CPU       time.Duration
	Processes int // threads included
}

// Usage reads the figures.
func (g *Group) Usage() Usage {
	var u Usage
	u.Memory = int64(number(g.dir, "memory.current"))
	u.CPU = time.Duration(keyed(g.dir, "cpu.stat", "usage_usec")) * time.Microsecond
	u.Processes = number(g.dir, "pids.current")
	return u
}

// Kill kills every process of the group at once.
func (g *Group) Kill() error { return write(g.dir, "cgroup.kill", "1") } // Linux 5.14

// Remove kills what is in the group and removes it. No group is no error.
func (g *Group) Remove() error {
	for start := time.Now(); ; time.Sleep(removeInterval) {
		g.removeBelow()
		err := os.Remove(g.dir)
		if err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		_ = g.Kill()
		if time.Since(start) > removeTimeout {
			return fmt.Errorf("cannot remove control group %s: %w (processes in it: %s)", filepath.Base(g.dir), err, g.processes())
		}
	}
}

// removeBelow removes groups that a node made below its own.
func (g *Group) removeBelow() {
	entries, _ := os.ReadDir(g.dir)
	for _, e := range entries {
		if e.IsDir() {
			below := &Group{dir: filepath.Join(g.dir, e.Name())}
			below.removeBelow()
			_ = os.Remove(below.dir)
		}
	}
}

func (g *Group) processes() string {
	data, _ := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	return strings.Join(strings.Fields(string(data)), ", ")
}

// OOMKills counts the processes of a group that the kernel killed for want of
// memory. A nil one counts none.
type OOMKills struct{ dir string }

// OwnOOMKills counts in the control group of this process, if that can be had.
func OwnOOMKills() *OOMKills {
	dir, err := Own()
	if err != nil {
		return nil
	}
	return &OOMKills{dir: dir}
}

// Count is how many there were since the group was made.
func (o *OOMKills) Count() int {
	if o == nil {
		return 0
	}
	return keyed(o.dir, "memory.events", "oom_kill")
}

func write(dir, file, value string) error {
	// os.WriteFile would create a file, which cgroupfs refuses with the
	// wrong error where a controller is missing.
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

func number(dir, file string) int {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return n
}

// keyed reads the value of key from a file of "key value" lines.
func keyed(dir, file, key string) int {
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), key+" "); ok {
			n, _ := strconv.Atoi(value)
			return n
		}
	}
	return 0
}
