package keeper

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options say how a keeper is started.
type Options struct {
	// Stream is whose keeper it is, for messages and for ps(1).
	Stream string
	// Executable holds the keeper; "" is /proc/self/exe, so that an upgrade
	// on disk mixes nothing into a running runtime.
	Executable string
	// Cgroup is the folder of the control group the keeper is born in, and
	// with it all it starts; "" is the runtime's own.
	Cgroup string
	// Lock, of AcquireLock, is held until the keeper and all below it are gone;
	// nil holds nothing.
	Lock *os.File
}

// Keeper is the runtime's handle on the keeper of a stream. Its methods may be
// called from any goroutine.
//
// A keeper process that was killed is replaced at the next Spawn: to the stream
// that is the death of every node, not its end.
type Keeper struct {
	options Options

	mu      sync.Mutex
	current *lifeline
	closing bool
}

// lifeline is one keeper process and the socket to it.
type lifeline struct {
	stream string
	token  string
	pid    int
	// process is safe to signal whenever: it knows when it has been reaped.
	process *os.Process
	socket  *os.File
	done    chan struct{} // closed when the process has ended and all is reported

	sending sync.Mutex
	mu      sync.Mutex
	procs   map[string]*Process
	closing bool
	gone    bool
}

// Process is one instance.
type Process struct {
	Instance string
	PID      int // 0 until spawned

	keeper  *lifeline
	spawned chan error
	exited  chan Exit
}

// Command is what to start.
type Command struct {
	// Instance names the process; it must not be in use.
	Instance string
	Argv     []string // Argv[0] is the path of the program, nothing is searched
	Env      []string
	Dir      string
	// Files become descriptors 0, 1, 2, … They stay the caller's to close.
	Files []*os.File
}

// Unrunnable is the error of a program that cannot be run because of its file: it
// is missing, is none, or may not be run. Trying again is of no use, while other
// errors of Spawn are of the machine, or of the moment.
type Unrunnable struct{ Why string }

func (e *Unrunnable) Error() string { return e.Why }

// Start starts a keeper.
func Start(o Options) (*Keeper, error) {
	l, err := launch(o)
	if err != nil {
		return nil, err
	}
	return &Keeper{options: o, current: l}, nil
}

func launch(o Options) (*lifeline, error) {
	k := &lifeline{
		stream: o.Stream,
		token:  rand.Text(),
		done:   make(chan struct{}),
		procs:  make(map[string]*Process),
	}
	ours, theirs, err := socketpair()
	if err != nil {
		return nil, fmt.Errorf("cannot start the keeper of %s: socketpair: %w", o.Stream, err)
	}
	defer theirs.Close()
	// A session of its own: Ctrl-C in the runtime's terminal is the runtime's
	// to answer.
	sys := &syscall.SysProcAttr{Setsid: true}
	if o.Cgroup != "" {
		dir, err := os.Open(o.Cgroup)
		if err != nil {
			ours.Close()
			return nil, fmt.Errorf("cannot start the keeper of %s in its control group: %w", o.Stream, err)
		}
		defer dir.Close()
		sys.UseCgroupFD, sys.CgroupFD = true, int(dir.Fd())
	}
	exe := o.Executable
	if exe == "" {
		exe = "/proc/self/exe"
	}
	files := []*os.File{nil, nil, os.Stderr, theirs}
	if o.Lock != nil {
		files = append(files, o.Lock) // the keeper closes it in what it starts
	}
	process, err := os.StartProcess(exe, []string{"tatolabd", "keeper", o.Stream}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{EnvKeeper + "=" + k.token, "GOMAXPROCS=1", "GOGC=off"},
		Files: files,
		Sys:   sys,
	})
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("cannot start the keeper of %s: %w", o.Stream, err)
	}
	k.socket, k.process, k.pid = ours, process, process.Pid
	go k.follow()
	return k, nil
}

// PID of the keeper process.
func (k *Keeper) PID() int { return k.line().pid }

func (k *Keeper) line() *lifeline {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

// living returns the lifeline to a keeper that lives, a new one if need be.
func (k *Keeper) living() (*lifeline, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closing {
		return nil, errors.New("its stream is being ended")
	}
	select {
	case <-k.current.done:
	default:
		return k.current, nil
	}
	l, err := launch(k.options)
	if err != nil {
		return nil, err
	}
	k.current = l
	return l, nil
}

// Spawn starts an instance and returns once it runs its program. Whoever
// spawns gets exactly one Exit for it. The error may be an *Unrunnable.
func (k *Keeper) Spawn(c Command) (*Process, error) {
	var p *Process
	l, err := k.living()
	if err == nil {
		p, err = l.spawn(c)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", c.Instance, err)
	}
	return p, nil
}

// Close ends the keeper and everything below it, and returns when all is gone,
// or with an error that names what would not go; the keeper stays with it.
func (k *Keeper) Close() error {
	k.mu.Lock()
	k.closing = true
	l := k.current
	k.mu.Unlock()
	return l.close()
}

func (k *lifeline) spawn(c Command) (*Process, error) {
	if len(c.Argv) == 0 || len(c.Files) > maxFiles {
		return nil, fmt.Errorf("a command needs a program and at most %d descriptors", maxFiles)
	}
	data, err := json.Marshal(&command{Argv: c.Argv, Env: c.Env, Dir: c.Dir})
	if err != nil {
		return nil, err
	}
	body, err := Memory(data)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	fds := []int{int(body.Fd())}
	for _, f := range c.Files {
		fds = append(fds, int(f.Fd()))
	}
	p := &Process{Instance: c.Instance, keeper: k, spawned: make(chan error, 1), exited: make(chan Exit, 1)}
	k.mu.Lock()
	switch {
	case k.gone || k.closing:
		k.mu.Unlock()
		return nil, errors.New("its keeper has ended")
	case k.procs[c.Instance] != nil:
		k.mu.Unlock()
		return nil, errors.New("it runs already")
	}
	k.procs[c.Instance] = p
	k.mu.Unlock()

	if err := k.send(&message{Op: opSpawn, Instance: c.Instance}, fds...); err != nil {
		k.forget(p)
		return nil, err
	}
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	select {
	case err := <-p.spawned:
		if err != nil {
			return nil, err
		}
		return p, nil
	case <-timeout.C:
		// Nobody knows whether it will start yet, so the keeper has to go,
		// and everything it keeps with it.
		_ = k.process.Kill()
		return nil, fmt.Errorf("its keeper (pid %d) did not answer for %s and was killed", k.pid, answerTimeout)
	}
}

func (k *lifeline) forget(p *Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.procs[p.Instance] == p {
		delete(k.procs, p.Instance)
	}
}

// Kill kills the instance with all of its process group.
func (p *Process) Kill() error {
	return p.keeper.send(&message{Op: opKill, Instance: p.Instance})
}

// Signal sends a signal to the instance's process alone. An instance that has
// ended takes no harm.
func (p *Process) Signal(s unix.Signal) error {
	return p.keeper.send(&message{Op: opSignal, Instance: p.Instance, Signal: s})
}

// Exited yields one Exit, when the process and all that it left behind are
// gone.
func (p *Process) Exited() <-chan Exit { return p.exited }

func (k *lifeline) send(m *message, fds ...int) error {
	k.sending.Lock()
	defer k.sending.Unlock()
	_ = k.socket.SetWriteDeadline(time.Now().Add(answerTimeout))
	if err := send(k.socket, m, fds...); err != nil {
		return fmt.Errorf("its keeper (pid %d) cannot be told to %s: %w", k.pid, m.Op, err)
	}
	k.wake()
	return nil
}

// wake makes a keeper go on that somebody stopped (SIGSTOP): what is asked of it
// must happen.
func (k *lifeline) wake() { _ = k.process.Signal(unix.SIGCONT) }

func (k *lifeline) close() error {
	k.mu.Lock()
	k.closing = true
	k.mu.Unlock()
	// Only the writing half: exits are still to be read.
	raw, err := k.socket.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_WR) })
	}
	k.wake()
	timeout := time.NewTimer(closeTimeout)
	defer timeout.Stop()
	select {
	case <-k.done:
		return nil
	case <-timeout.C:
	}
	var left []proc
	if procs, err := processes(); err == nil {
		left = children(procs).below(k.pid, nil)
	}
	if len(left) == 0 {
		// The keeper itself is stopped or stuck, and holds nothing.
		_ = k.process.Kill()
		timeout.Reset(goneTimeout)
		select {
		case <-k.done:
			return nil
		case <-timeout.C:
		}
		return fmt.Errorf("cannot end the keeper of %s (pid %d), which was killed; it may be stuck in the kernel", k.stream, k.pid)
	}
	return fmt.Errorf("cannot end every process of %s: left are %s; they may be stuck in the kernel", k.stream, list(names(left)))
}

// follow reads what the keeper reports until it is gone, then reports what it
// can no longer.
func (k *lifeline) follow() {
	defer close(k.done)
	buf := make([]byte, maxMessage)
	var bad error
	for {
		m, fds, err := receive(k.socket, buf)
		closeAll(fds)
		if err != nil {
			if !errors.Is(err, io.EOF) {
				bad = err
				_ = k.process.Kill()
			}
			break
		}
		k.dispatch(m)
	}
	state, err := k.process.Wait()
	why := fmt.Sprint("its keeper ended: ", state)
	if bad != nil || err != nil {
		why = fmt.Sprint("its keeper ended: ", errors.Join(bad, err))
	}
	k.mu.Lock()
	k.gone = true
	closing := k.closing
	procs := k.procs
	k.procs = nil
	k.mu.Unlock()
	if state == nil || !state.Success() {
		sweepOrphans(k.token)
	}
	for _, p := range procs {
		select {
		case p.spawned <- errors.New(why):
		default: // it was spawned long ago
		}
		p.exited <- Exit{Lost: why, Killed: closing}
	}
	k.sending.Lock()
	k.socket.Close()
	k.sending.Unlock()
}

func (k *lifeline) dispatch(m *message) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.procs[m.Instance]
	if p == nil {
		return
	}
	switch {
	case m.Op == opSpawned && m.Error == "":
		p.PID = m.PID
		p.spawned <- nil
	case m.Op == opSpawned && m.Unrunnable:
		delete(k.procs, m.Instance)
		p.spawned <- &Unrunnable{m.Error}
	case m.Op == opSpawned:
		delete(k.procs, m.Instance)
		p.spawned <- errors.New(m.Error)
	case m.Op == opExited && m.Exit != nil:
		delete(k.procs, m.Instance)
		p.exited <- *m.Exit
	}
}

// sweepOrphans kills what is left of a keeper that was itself killed: its node
// processes are dead, their children are orphans of somebody else by now.
func sweepOrphans(token string) {
	for start := time.Now(); time.Since(start) < sweepTimeout; time.Sleep(killInterval) {
		procs, err := processes()
		if err != nil {
			return
		}
		var left []proc
		unsettled := false
		for _, p := range procs {
			if p.zombie() {
				continue
			}
			value, settled := variable(p.pid, EnvKeeper)
			if value == token {
				left = append(left, p)
			}
			unsettled = unsettled || !settled
		}
		if len(left) == 0 && !unsettled {
			return
		}
		killGroups(left)
	}
}
