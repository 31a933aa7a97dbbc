package fakecamera

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launchVariable makes a process of any program that links this package the
// launcher: it takes the filter and becomes the program under test. Its value
// is the descriptor to hand the listener over, and the program's path.
const launchVariable = "TATOLAB_FAKECAMERA_LAUNCH"

func init() {
	value, ok := os.LookupEnv(launchVariable)
	if !ok {
		return
	}
	descriptor, path, _ := strings.Cut(value, ":")
	fd, err := strconv.Atoi(descriptor)
	if err == nil {
		err = launch(fd, path)
	}
	fmt.Fprintln(os.Stderr, "fakecamera:", err)
	os.Exit(127)
}

// launch does not return unless it fails.
func launch(socket int, path string) error {
	os.Unsetenv(launchVariable)
	runtime.LockOSThread() // the filter is this thread's, and exec makes it the process's
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot give up new privileges: %w", err)
	}
	listener, err := installFilter()
	if err != nil {
		return err
	}
	if err := unix.Sendmsg(socket, []byte{1}, unix.UnixRights(listener), nil, 0); err != nil {
		return fmt.Errorf("cannot hand over the listener: %w", err)
	}
	unix.Close(socket)
	// From here on opens are answered by the other process.
	return fmt.Errorf("cannot run %s: %w", path, unix.Exec(path, os.Args, os.Environ()))
}

const (
	dataNumber = 0  // struct seccomp_data: nr
	dataArch   = 4  // arch
	dataArg1   = 24 // the low half of args[1], on a little-endian machine
)

// installFilter makes the calls that concern cameras wait for an answer, and
// returns the descriptor to give it on.
func installFilter() (int, error) {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	jump := func(op uint16, k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: uint8(yes), Jf: uint8(no)}
	}
	give := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

	program := []unix.SockFilter{
		load(dataArch), jump(unix.BPF_JEQ, auditArch, 1, 0), give(unix.SECCOMP_RET_ALLOW),
		load(dataNumber),
	}
	// Behind the list: allow, the look at the ioctl's type (4 steps), notify.
	for i, number := range notified {
		program = append(program, jump(unix.BPF_JEQ, number, len(notified)-i+6, 0))
	}
	program = append(program,
		jump(unix.BPF_JEQ, unix.SYS_IOCTL, 1, 0),
		give(unix.SECCOMP_RET_ALLOW),
		load(dataArg1),
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 8},
		unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xff},
		jump(unix.BPF_JEQ, 'V', 1, 0),
		give(unix.SECCOMP_RET_ALLOW),
		give(unix.SECCOMP_RET_USER_NOTIF),
	)
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const waitKillable = 1 << 5 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19
	// With it a signal does not restart a call that is being answered, such
	// as a DQBUF whose frame would then be lost.
	for _, flags := range []uintptr{unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | waitKillable, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER} {
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&fprog)))
		switch errno {
		case 0:
			return int(fd), nil
		case unix.EINVAL:
			continue
		case unix.EBUSY:
			return -1, errors.New("seccomp user notification is not available: this process is under another such filter already")
		}
		return -1, fmt.Errorf("seccomp user notification is not available here: %w", errno)
	}
	return -1, errors.New("seccomp user notification is not available: the kernel does not know it (Linux 5.14 is needed)")
}

// Start starts cmd under the script. cmd is set up as for cmd.Start, and waited
// for as ever; then Close.
func Start(cmd *exec.Cmd, script Script) (*Bed, error) {
	path := cmd.Path
	bed, err := Wrap(cmd, script)
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err == nil {
		bed.handover.Close()
		<-bed.launched
		if err = bed.failed; err != nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}
	if err != nil {
		bed.Close()
		return nil, fmt.Errorf("cannot start %s under fake cameras: %w", path, err)
	}
	return bed, nil
}

// Wrap changes cmd so that whoever starts it starts it under the script.
func Wrap(cmd *exec.Cmd, script Script) (*Bed, error) {
	bed, err := newBed(script)
	if err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		close(bed.launched)
		bed.Close()
		return nil, err
	}
	bed.handover = os.NewFile(uintptr(pair[1]), "launcher")
	go func() {
		defer close(bed.launched)
		defer bed.handover.Close()
		defer unix.Close(pair[0])
		if bed.listener, bed.failed = receiveListener(pair[0]); bed.failed == nil {
			bed.run()
		}
	}()
	if len(cmd.Args) == 0 {
		cmd.Args = []string{cmd.Path}
	}
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(slices.Clip(cmd.Env), fmt.Sprintf("%s=%d:%s", launchVariable, 3+len(cmd.ExtraFiles), cmd.Path))
	cmd.ExtraFiles = append(slices.Clip(cmd.ExtraFiles), bed.handover)
	cmd.Path = "/proc/self/exe"
	return bed, nil
}

// receiveListener waits for the launcher's descriptor. If it could not install
// its filter it has said why on stderr.
func receiveListener(socket int) (int, error) {
	data, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(socket, data, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, errors.New("the launcher failed, see what it printed")
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(messages) != 1 {
		return -1, errors.New("the launcher sent no listener")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.New("the launcher sent no listener")
	}
	return fds[0], nil
}
