package project

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/keeper"
)

const (
	// lingerLimit is how long a process may go on after its answer, or after
	// it was told to say where it hangs.
	lingerLimit = 2 * time.Second
	// stuckLimit is how long after being killed a process may still be there.
	stuckLimit = 5 * time.Second
	// maxOutput bounds what is kept of the output, in bytes: the last of it.
	maxOutput = 64 << 10
	// maxAnswer bounds the answer, in bytes.
	maxAnswer = 64 << 20
)

// child is a process that reads input on descriptor 0, prints on 1 and 2, and
// answers one JSON value on 3. It has a keeper of its own, so that nothing that
// it started outlives it, or the runtime.
type child struct {
	argv  []string
	dir   string
	env   []string
	input []byte
	limit time.Duration
	lock  *os.File // see keeper.Options
}

// ending is how a child ended.
type ending struct {
	answer   []byte // nil without one
	output   string // 1 and 2 together
	timedOut bool
	exit     keeper.Exit
}

// errStuck is of a process that SIGKILL does not end.
var errStuck = errors.New("it does not end, not even killed: it is stuck in the kernel")

// run runs the child. The error may be a *keeper.Unrunnable, or errStuck.
func (c *child) run(ctx context.Context) (*ending, error) {
	input, err := keeper.Memory(c.input)
	if err != nil {
		return nil, err
	}
	defer input.Close()
	printed, printing, err := keeper.Pipe()
	if err != nil {
		return nil, err
	}
	defer printed.Close()
	answers, answering, err := keeper.Pipe()
	if err != nil {
		printing.Close()
		return nil, err
	}
	defer answers.Close()

	k, err := keeper.Start(keeper.Options{Stream: "a compilation", Lock: c.lock})
	var process *keeper.Process
	if err == nil {
		process, err = k.Spawn(keeper.Command{
			Instance: "the interpreter", Argv: c.argv, Env: c.env, Dir: c.dir,
			Files: []*os.File{input, printing, printing, answering},
		})
		if err != nil {
			_ = k.Close() // it has no process
		}
	}
	printing.Close()
	answering.Close()
	if err != nil {
		return nil, err
	}

	output := &tail{}
	read, answered := make(chan struct{}), make(chan []byte, 1)
	go func() {
		defer close(read)
		_, _ = io.Copy(output, printed)
	}()
	go func() {
		var data json.RawMessage
		if json.NewDecoder(io.LimitReader(answers, maxAnswer)).Decode(&data) != nil {
			data = nil
		}
		answered <- data
		close(answered)
	}()
	end := &ending{}
	timedOut, err := c.wait(ctx, process, answered, end)
	if closeErr := k.Close(); err == nil && closeErr != nil {
		err = errStuck
	}
	if err != nil {
		return nil, err
	}
	// All that could hold the pipes' other ends is dead.
	<-read
	if end.answer == nil {
		end.answer = <-answered
	}
	end.output, end.timedOut = output.String(), timedOut && end.answer == nil
	return end, ctx.Err()
}

// wait waits for the process, and ends it where it has to; it sets end.exit, and
// end.answer if one came meanwhile.
func (c *child) wait(ctx context.Context, p *keeper.Process, answered <-chan []byte, end *ending) (timedOut bool, err error) {
	limit := time.NewTimer(c.limit)
	defer limit.Stop()
	stuck := time.NewTimer(c.limit + 2*lingerLimit + stuckLimit)
	defer stuck.Stop()
	var linger <-chan time.Time
	given := ctx.Done()
	for {
		select {
		case end.exit = <-p.Exited():
			return timedOut, nil
		case end.answer = <-answered:
			if answered = nil; end.answer != nil {
				// A thread of the user's may keep the interpreter from ending.
				linger = time.After(lingerLimit)
			}
		case <-limit.C:
			// Let it say where it hangs, but leave no core file: with a limit of
			// one byte nothing is written, to a pipe neither (core(5)).
			_ = unix.Prlimit(p.PID, unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
			_ = p.Signal(unix.SIGABRT)
			timedOut, linger = true, time.After(lingerLimit)
		case <-given:
			given = nil
			_ = p.Kill()
		case <-linger:
			_ = p.Kill()
		case <-stuck.C:
			return false, errStuck
		}
	}
}

// tail keeps the last of what is written to it.
type tail struct {
	data []byte
	cut  bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.data = append(t.data, p...)
	if len(t.data) > 2*maxOutput {
		t.data, t.cut = append([]byte(nil), t.data[len(t.data)-maxOutput:]...), true
	}
	return len(p), nil
}

// String is what was kept, as valid UTF-8 and from the beginning of a line.
func (t *tail) String() string {
	data := bytes.ToValidUTF8(t.data, []byte("\uFFFD"))
	if !t.cut {
		return string(data)
	}
	if _, rest, ok := bytes.Cut(data, []byte("\n")); ok {
		data = rest
	}
	return "… (cut)\n" + string(data)
}
