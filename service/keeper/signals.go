package keeper

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastSignal is SIGRTMAX of the kernel.
const lastSignal = 64

// sigaction is the kernel's, as rt_sigaction(2) takes it.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

const (
	sigDefault = 0
	sigIgnore  = 1
)

// heedSignals sets signals that this process was started with ignored back to
// their default: what is ignored stays ignored in whoever is forked here, and
// node processes begin with all signals as they are for a login shell. (A shell
// ignores SIGINT and SIGQUIT for what it starts in the background.)
func heedSignals() {
	for s := uintptr(1); s <= lastSignal; s++ {
		var action sigaction
		_, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, 0, uintptr(unsafe.Pointer(&action)), unsafe.Sizeof(action.mask), 0, 0)
		if errno != 0 || action.handler != sigIgnore {
			continue
		}
		action = sigaction{handler: sigDefault}
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, s, uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	}
}
