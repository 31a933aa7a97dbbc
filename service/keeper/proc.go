package keeper

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// proc is what proc(5) says of a process in /proc/PID/stat.
type proc struct {
	pid, ppid, group, session int
	state                     byte
	command                   string
	// bare is a process that has no environment, and not only for the moment
	// of an execve(2) or of its end, in which env_end is 0.
	bare bool
}

func (p *proc) zombie() bool { return p.state == 'Z' || p.state == 'X' }

func (p *proc) String() string { return fmt.Sprintf("%s (%d)", p.command, p.pid) }

// processes reads all of /proc. A process that starts meanwhile may be missed,
// so "there is none left" is only ever concluded from wait4(2), or from two
// looks with nothing killed in between.
func processes() ([]proc, error) {
	names, err := procNames()
	if err != nil {
		return nil, err
	}
	procs := make([]proc, 0, len(names))
	buf := make([]byte, 1024)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, ok := readStat(pid, buf); ok {
			procs = append(procs, p)
		}
	}
	return procs, nil
}

func procNames() ([]string, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

func readStat(pid int, buf []byte) (p proc, ok bool) {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p, false // it has ended
	}
	n, err := unix.Read(fd, buf)
	unix.Close(fd)
	if err != nil {
		return p, false
	}
	// The command may hold blanks and parentheses: it ends at the last one.
	line := buf[:n]
	open, closed := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	if open < 0 || closed < open {
		return p, false
	}
	fields := bytes.Fields(line[closed+1:])
	if len(fields) < 49 {
		return p, false
	}
	p = proc{pid: pid, command: string(line[open+1 : closed]), state: fields[0][0]}
	for i, into := range []*int{&p.ppid, &p.group, &p.session} {
		if *into, err = strconv.Atoi(string(fields[i+1])); err != nil {
			return p, false
		}
	}
	const kernelThread = 0x00200000 // PF_KTHREAD of linux/sched.h
	flags, _ := strconv.ParseUint(string(fields[6]), 10, 64)
	start, end := string(fields[47]), string(fields[48])
	p.bare = flags&kernelThread != 0 || start == end && end != "0"
	return p, true
}

// family is the processes below one.
type family map[int][]proc

// children groups procs by parent.
func children(procs []proc) family {
	f := make(family)
	for _, p := range procs {
		f[p.ppid] = append(f[p.ppid], p)
	}
	return f
}

// below appends to into every process below pid.
func (f family) below(pid int, into []proc) []proc {
	for _, p := range f[pid] {
		into = f.below(p.pid, append(into, p))
	}
	return into
}

// variable returns the value of an environment variable a process was born
// with, "" where there is none or it cannot be read. It is not settled while
// the process has no environment because it is in the middle of execve(2) or
// of its end: look again.
func variable(pid int, name string) (value string, settled bool) {
	data, err := environ(pid)
	switch {
	case errors.Is(err, unix.EIO) || err == nil && len(data) == 0:
		p, ok := readStat(pid, make([]byte, 1024))
		return "", !ok || p.zombie() || p.bare
	case err != nil:
		return "", true // it has ended, or is not ours to look into
	}
	for entry := range strings.SplitSeq(string(data), "\x00") {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value, true
		}
	}
	return "", true
}

// environ reads /proc/PID/environ with one read(2): an execve(2) between two
// ends the file early.
func environ(pid int) ([]byte, error) {
	for size := 16 << 10; ; size *= 8 {
		fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/environ", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		buf := make([]byte, size)
		n, err := unix.Read(fd, buf)
		unix.Close(fd)
		if err != nil || n < size {
			return buf[:max(n, 0)], err
		}
	}
}

// ownChildren are the children of this process, where the kernel lists them
// (proc(5), /proc/PID/task/TID/children). It may miss some.
func ownChildren() []int {
	var pids []int
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		data, _ := os.ReadFile(list)
		for field := range strings.FieldsSeq(string(data)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// killGroups kills the process groups of procs. A signal to a group is atomic
// against fork(2), which is what ends a fork bomb. Groups of descendants hold
// nothing but descendants: every instance leads a session, and a group never
// spans two.
func killGroups(procs []proc) {
	own := unix.Getpgrp()
	done := make(map[int]bool)
	for _, p := range procs {
		if p.group > 1 && p.group != own && !done[p.group] {
			done[p.group] = true
			unix.Kill(-p.group, unix.SIGKILL)
		}
	}
}
