package fakecamera

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_AARCH64
	sysFstatat = unix.SYS_FSTATAT
)

// notified are the calls that are answered, beside ioctl.
var notified = []uint32{unix.SYS_OPENAT, sysFstatat, unix.SYS_READLINKAT, unix.SYS_PPOLL, unix.SYS_PSELECT6, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_INOTIFY_ADD_WATCH}

func (n *notification) normalise() {}
