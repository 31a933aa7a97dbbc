package keeper

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// lifelineFD is where a keeper finds its socket.
const lifelineFD = 3

// maxFiles is how many descriptors a process can be given. One more travels
// with a request: the command itself, in a memfd, because an environment may be
// larger than a datagram.
const maxFiles = 8

// maxMessage is the largest datagram, in bytes: requests and answers are a few
// hundred; an exit may list processes.
const maxMessage = 64 << 10

// message is one datagram between runtime and keeper. Both are the same binary,
// so there is no version.
type message struct {
	// Op is, to the keeper: spawn, signal, kill; from it: spawned, exited.
	Op       string      `json:"op"`
	Instance string      `json:"instance,omitempty"`
	Signal   unix.Signal `json:"signal,omitempty"`
	PID      int         `json:"pid,omitempty"`
	Error    string      `json:"error,omitempty"`
	// Unrunnable tells that the error is that of the program, see Unrunnable.
	Unrunnable bool  `json:"unrunnable,omitempty"`
	Exit       *Exit `json:"exit,omitempty"`
}

const (
	opSpawn   = "spawn"
	opSignal  = "signal"
	opKill    = "kill"
	opSpawned = "spawned"
	opExited  = "exited"
)

// command is what the memfd beside a spawn holds.
type command struct {
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
}

// send writes one datagram; it waits while the peer's queue is full, at most
// until the file's write deadline.
func send(f *os.File, m *message, fds ...int) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(data) > maxMessage { // only an exit can be: drop what makes it long
		short := *m.Exit
		short.Ended = slices.Concat(short.Ended[:min(len(short.Ended), 20)])
		short.Stuck = slices.Concat(short.Stuck[:min(len(short.Stuck), 20)])
		m = &message{Op: m.Op, Instance: m.Instance, Exit: &short}
		if data, err = json.Marshal(m); err != nil {
			return err
		}
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var sendErr error
	err = raw.Write(func(fd uintptr) bool {
		for {
			sendErr = unix.Sendmsg(int(fd), data, rights, nil, unix.MSG_NOSIGNAL)
			if sendErr != unix.EINTR {
				return sendErr != unix.EAGAIN
			}
		}
	})
	if err != nil {
		return err
	}
	return sendErr
}

// receive reads one datagram and the descriptors beside it, close-on-exec: all of
// them, or none where not all fit below this process's limit (MSG_CTRUNC).
// io.EOF means that the peer is gone.
func receive(f *os.File, buf []byte) (*message, []int, error) {
	oob := make([]byte, unix.CmsgSpace(4*(maxFiles+1)))
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	var n, oobn, flags int
	var recvErr error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, oobn, flags, _, recvErr = unix.Recvmsg(int(fd), buf, oob, unix.MSG_CMSG_CLOEXEC)
			if recvErr != unix.EINTR {
				return recvErr != unix.EAGAIN
			}
		}
	})
	switch {
	case err != nil:
		return nil, nil, err
	case recvErr == unix.ECONNRESET || recvErr == nil && n == 0:
		return nil, nil, io.EOF
	case recvErr != nil:
		return nil, nil, recvErr
	}
	var fds []int
	if oobn > 0 {
		cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, nil, err
		}
		for i := range cmsgs {
			more, err := unix.ParseUnixRights(&cmsgs[i])
			if err == nil {
				fds = append(fds, more...)
			}
		}
	}
	if flags&unix.MSG_CTRUNC != 0 {
		closeAll(fds)
		fds = nil
	}
	m := &message{}
	if err := json.Unmarshal(buf[:n], m); err != nil {
		closeAll(fds)
		return nil, nil, fmt.Errorf("cannot read a message of the keeper's socket: %w", err)
	}
	return m, fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// socketpair makes the lifeline: the runtime's end, ready for deadlines, and
// the keeper's.
func socketpair() (*os.File, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		closeAll(fds[:])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "keeper"), os.NewFile(uintptr(fds[1]), "lifeline"), nil
}

// Pipe makes a pipe for a process to write to: reading does not block a thread,
// and the writing end, unlike one of os.Pipe, is an ordinary blocking
// descriptor.
func Pipe() (r, w *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		closeAll(fds[:])
		return nil, nil, fmt.Errorf("pipe: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "reading end"), os.NewFile(uintptr(fds[1]), "writing end"), nil
}

// Memory makes a file in memory that holds data, to be read from its beginning.
func Memory(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("tatolab", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if _, err := f.WriteAt(data, 0); err != nil { // the offset stays at 0
		f.Close()
		return nil, err
	}
	return f, nil
}

func readCommand(fd int) (*command, error) {
	f := os.NewFile(uintptr(fd), "command")
	defer f.Close()
	c := &command{}
	if err := json.NewDecoder(io.NewSectionReader(f, 0, 1<<30)).Decode(c); err != nil {
		return nil, fmt.Errorf("cannot read the command: %w", err)
	}
	return c, nil
}
