package fakecamera

import "golang.org/x/sys/unix"

const (
	auditArch  = unix.AUDIT_ARCH_X86_64
	sysFstatat = unix.SYS_NEWFSTATAT
)

// notified are the calls that are answered, beside ioctl.
var notified = []uint32{
	unix.SYS_OPENAT, unix.SYS_OPEN, sysFstatat, unix.SYS_STAT, unix.SYS_LSTAT,
	unix.SYS_READLINKAT, unix.SYS_READLINK, unix.SYS_POLL, unix.SYS_PPOLL,
	unix.SYS_PSELECT6, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_ACCESS,
	unix.SYS_INOTIFY_ADD_WATCH,
}

// normalise turns the calls that only this architecture has into the others.
func (n *notification) normalise() {
	a := &n.args
	switch n.number {
	case unix.SYS_OPEN:
		n.number, a[1], a[2] = unix.SYS_OPENAT, a[0], a[1]
	case unix.SYS_STAT:
		n.number, a[1], a[2], a[3] = sysFstatat, a[0], a[1], 0
	case unix.SYS_LSTAT:
		n.number, a[1], a[2], a[3] = sysFstatat, a[0], a[1], unix.AT_SYMLINK_NOFOLLOW
	case unix.SYS_ACCESS:
		n.number, a[1], a[2] = unix.SYS_FACCESSAT, a[0], a[1]
	case unix.SYS_READLINK:
		n.number, a[1], a[2], a[3] = unix.SYS_READLINKAT, a[0], a[1], a[2]
	case unix.SYS_POLL:
		n.number, n.milliseconds = unix.SYS_PPOLL, true
	}
}
