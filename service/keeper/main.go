package keeper

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/cgroup"
)

// memoryLimit is what a keeper may use before the garbage collector works, in
// bytes: it has next to nothing to collect.
const memoryLimit = 24 << 20

// Main is the keeper process. It returns the exit status.
func Main() int {
	// PR_SET_PDEATHSIG fires when the *thread* that forked ends (prctl(2)), so
	// one thread forks everything and lives as long as the process.
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	heedSignals()

	if err := unix.SetNonblock(lifelineFD, true); err != nil {
		fmt.Fprintln(os.Stderr, "tatolabd keeper is started by tatolabd, never by hand")
		return 2
	}
	// Of the lifeline, and of whatever the runtime was started with by mistake.
	if err := unix.CloseRange(lifelineFD, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		unix.CloseOnExec(lifelineFD) // before Linux 5.11
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		fmt.Fprintln(os.Stderr, "tatolabd keeper: cannot adopt orphans:", err)
		return 1
	}
	k := &keeper{
		socket:   os.NewFile(lifelineFD, "lifeline"),
		token:    os.Getenv(EnvKeeper),
		living:   make(map[string]*instance),
		pids:     make(map[int]*instance),
		self:     os.Getpid(),
		oomScore: strconv.Itoa(min(1000, oomScore()+oomRaise)),
		oom:      cgroup.OwnOOMKills(),
	}
	k.oomSeen = k.oom.Count()
	k.run()
	return 0
}

func oomScore() int {
	data, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	score, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return score
}

// keeper is the state of the process. One goroutine, on one thread, owns it.
type keeper struct {
	socket   *os.File
	token    string
	self     int
	oomScore string

	living map[string]*instance
	pids   map[int]*instance // living, by process
	dead   []*instance       // reaped, not reported yet

	oom     *cgroup.OOMKills
	oomSeen int
}

type instance struct {
	name   string
	pid    int
	killed bool
	exit   Exit
	died   time.Time
	left   map[int]string // processes it left behind
}

type request struct {
	*message
	fds []int
}

func (k *keeper) run() {
	// Notified rather than ignored: an ignored signal would stay ignored in
	// every node. Who wants the keeper gone closes its lifeline.
	stray := make(chan os.Signal, 1)
	signal.Notify(stray, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	child := make(chan os.Signal, 1)
	signal.Notify(child, unix.SIGCHLD)

	requests := make(chan request)
	go k.read(requests)
	for {
		var again <-chan time.Time
		if len(k.dead) > 0 {
			again = time.After(killInterval)
		}
		select {
		case r, open := <-requests:
			if !open {
				k.end(child)
				return
			}
			k.handle(r)
		case <-child:
		case <-again:
		case <-stray:
		}
		k.reap()
		k.sweep()
	}
}

// read passes requests on; it closes the channel when the runtime is gone, or
// says what no runtime of this build says.
func (k *keeper) read(requests chan<- request) {
	defer close(requests)
	buf := make([]byte, maxMessage)
	for {
		m, fds, err := receive(k.socket, buf)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "tatolabd keeper:", err)
			}
			return
		}
		requests <- request{m, fds}
	}
}

func (k *keeper) handle(r request) {
	switch r.Op {
	case opSpawn:
		answer := &message{Op: opSpawned, Instance: r.Instance}
		pid, err := k.spawn(r.Instance, r.fds)
		if err != nil {
			answer.Error, answer.Unrunnable = err.Error(), errors.As(err, new(*Unrunnable))
		}
		answer.PID = pid
		k.tell(answer)
	case opSignal:
		if in := k.living[r.Instance]; in != nil {
			unix.Kill(in.pid, r.Signal)
		}
	case opKill:
		if in := k.living[r.Instance]; in != nil {
			in.killed = true
			unix.Kill(-in.pid, unix.SIGKILL)
		}
	}
}

// tell sends to the runtime. An error needs no answer: the end of the lifeline
// is about to be read.
func (k *keeper) tell(m *message) { _ = send(k.socket, m) }

// spawn starts an instance; fds are the command and the descriptors from 0 on.
// They are closed.
func (k *keeper) spawn(name string, fds []int) (int, error) {
	if len(fds) == 0 {
		return 0, errors.New("no descriptors came with the request: its keeper has too many files open")
	}
	defer closeAll(fds[1:])
	c, err := readCommand(fds[0])
	if err != nil {
		return 0, err
	}
	if k.living[name] != nil {
		return 0, fmt.Errorf("%s runs already", name)
	}
	files := make([]uintptr, len(fds)-1)
	for i, fd := range fds[1:] {
		files[i] = uintptr(fd)
	}
	env := slices.DeleteFunc(c.Env, func(e string) bool {
		return strings.HasPrefix(e, EnvInstance+"=") || strings.HasPrefix(e, EnvKeeper+"=")
	})
	pid, err := syscall.ForkExec(c.Argv[0], c.Argv, &syscall.ProcAttr{
		Dir:   c.Dir,
		Env:   append(env, EnvInstance+"="+name, EnvKeeper+"="+k.token),
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return 0, whyNot(c, err)
	}
	// Raising is allowed to everybody. What the process does before this line
	// is the dynamic linker's.
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte(k.oomScore), 0)
	in := &instance{name: name, pid: pid}
	k.living[name], k.pids[pid] = in, in
	return pid, nil
}

// ofProgram are the errors of execve(2) that are of the program's file, its
// interpreter's included.
var ofProgram = []error{
	unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.ENOEXEC, unix.ELIBBAD, unix.EINVAL, unix.EISDIR,
}

// whyNot finds what execve(2) leaves open: of the folder and the program it
// only says that something is missing.
func whyNot(c *command, err error) error {
	if _, dirErr := os.Stat(c.Dir); c.Dir != "" && dirErr != nil {
		return fmt.Errorf("its folder cannot be entered: %w", dirErr)
	}
	if _, exeErr := os.Stat(c.Argv[0]); exeErr == nil && errors.Is(err, unix.ENOENT) {
		return &Unrunnable{c.Argv[0] + " cannot be run: its interpreter is missing"}
	}
	if slices.Contains(ofProgram, err) {
		return &Unrunnable{fmt.Sprintf("%s cannot be run: %v", c.Argv[0], err)}
	}
	return fmt.Errorf("%s cannot be run: %w", c.Argv[0], err)
}

// reap takes every child that has ended: instances, and orphans that the
// keeper adopted.
func (k *keeper) reap() (left bool) {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return false // ECHILD: no descendant at all
		case pid == 0:
			return true
		}
		if in := k.pids[pid]; in != nil {
			k.died(in, status)
		}
	}
}

func (k *keeper) died(in *instance, status unix.WaitStatus) {
	delete(k.pids, in.pid)
	delete(k.living, in.name)
	in.exit = Exit{Killed: in.killed}
	if status.Signaled() {
		in.exit.Signal, in.exit.Core = status.Signal(), status.CoreDump()
	} else {
		in.exit.Code = status.ExitStatus()
	}
	if in.exit.Signal == unix.SIGKILL && !in.killed {
		// Counted per cgroup, not per process: of two that are killed at
		// once, each takes one.
		if n := k.oom.Count(); n > k.oomSeen {
			k.oomSeen++
			in.exit.OOM = true
		}
	}
	in.died = time.Now()
	in.left = make(map[int]string)
	k.dead = append(k.dead, in)
}

// sweep ends what dead instances left behind and reports those of which
// nothing is left. Orphans are adopted, so a leftover is a child of the keeper
// or below one that is.
//
// A daemonised child of a living instance stays. A child whose instance cannot
// be told (it left the session and cleared its environment) stays as long as
// any instance lives.
func (k *keeper) sweep() {
	if len(k.dead) == 0 {
		return
	}
	// First what was adopted and can be killed as it is seen: what forks and
	// exits all the time has another pid by the time all of /proc is read.
	for _, pid := range ownChildren() {
		if p, ok := readStat(pid, make([]byte, 1024)); ok {
			if owner, fate := k.owner(&p); fate == condemned {
				unix.Kill(pid, unix.SIGKILL)
				k.book(owner, []proc{p})
			}
		}
	}
	procs, err := processes()
	if err != nil {
		procs = nil // without /proc there is nothing to find leftovers with
	}
	tree := children(procs)
	remain := make(map[string][]proc) // by instance, "" for anybody's
	var open []proc                   // to be looked at again
	for _, root := range tree[k.self] {
		switch owner, fate := k.owner(&root); fate {
		case condemned:
			remain[owner] = tree.below(root.pid, append(remain[owner], root))
		case unsettled:
			open = append(open, root)
		}
	}
	for owner, procs := range remain {
		killGroups(procs)
		k.book(owner, procs)
	}
	k.dead = slices.DeleteFunc(k.dead, func(in *instance) bool {
		stuck := append(names(remain[in.name]), names(remain[""])...)
		if len(stuck)+len(open) > 0 && time.Since(in.died) < leftoverTimeout {
			return false
		}
		in.exit.Stuck = stuck
		for _, name := range in.left {
			in.exit.Ended = append(in.exit.Ended, name)
		}
		slices.Sort(in.exit.Ended)
		k.tell(&message{Op: opExited, Instance: in.name, Exit: &in.exit})
		return true
	})
}

// book notes what a dead instance left behind, or if the owner is "" any of
// them may have.
func (k *keeper) book(owner string, procs []proc) {
	for _, in := range k.dead {
		if owner == in.name || owner == "" {
			for i := range procs {
				in.left[procs[i].pid] = procs[i].String()
			}
		}
	}
}

func names(procs []proc) []string {
	var names []string
	for i := range procs {
		names = append(names, procs[i].String())
	}
	return names
}

// fate is what becomes of an adopted process.
type fate int

const (
	spared    fate = iota
	condemned      // with its dead instance
	unsettled      // it is in the middle of execve(2) or of its end
)

// owner is the instance an adopted process belongs to, "" if that cannot be
// told, and what is to become of it.
func (k *keeper) owner(p *proc) (name string, _ fate) {
	if k.pids[p.pid] != nil || p.zombie() {
		return "", spared // an instance itself; about to be reaped
	}
	if in := k.pids[p.session]; in != nil {
		return in.name, spared
	}
	for _, in := range k.dead {
		if in.pid == p.session {
			return in.name, condemned
		}
	}
	name, settled := variable(p.pid, EnvInstance)
	switch {
	case k.living[name] != nil:
		return name, spared
	case name == "" && len(k.living) > 0:
		if !settled {
			return "", unsettled
		}
		return "", spared
	}
	return name, condemned
}

// end is what the end of the lifeline means. Where the runtime lives on it
// reads how each instance ended.
func (k *keeper) end(child <-chan os.Signal) {
	for _, in := range k.living {
		in.killed = true
	}
	for {
		gone := k.endAll(closeTimeout, child)
		_ = k.socket.SetWriteDeadline(time.Now().Add(killInterval))
		for _, in := range k.dead {
			k.tell(&message{Op: opExited, Instance: in.name, Exit: &in.exit})
		}
		k.dead = nil
		if gone {
			return
		}
	}
}

// endAll kills every descendant until wait4(2) says that there is none, or
// until the time-out has passed.
func (k *keeper) endAll(timeout time.Duration, child <-chan os.Signal) (gone bool) {
	pause := killInterval
	for start := time.Now(); time.Since(start) < timeout; {
		if !k.reap() {
			return true
		}
		for pid := range k.pids { // first, because it needs no look at /proc
			unix.Kill(-pid, unix.SIGKILL)
		}
		// Then the adopted ones, one by one as they are seen: what forks and
		// exits all the time has another pid by the time /proc is read.
		for _, pid := range ownChildren() {
			unix.Kill(pid, unix.SIGKILL)
		}
		if procs, err := processes(); err == nil {
			killGroups(children(procs).below(k.self, nil))
		}
		select {
		case <-child:
			pause = killInterval
		case <-time.After(pause): // longer and longer for what is stuck in the kernel
			pause = min(2*pause, killPause)
		}
	}
	return false
}
