package systemd

import (
	"encoding/binary"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// diagTimeout bounds the kernel's answer.
const diagTimeout = 2 * time.Second

// Of linux/unix_diag.h and net/tcp_states.h.
const (
	diagShowVFS   = 0x2 // UDIAG_SHOW_VFS
	diagAttrVFS   = 1   // UNIX_DIAG_VFS: inode and device, 32 bits each
	stateListen   = 10  // TCP_LISTEN, which Unix sockets use too
	diagAnswerLen = 16  // struct unix_diag_msg
)

// listening tells whether a socket is listened to by anybody, by asking the
// kernel for all listening sockets and the inodes they are bound to: sock_diag(7).
// No connection is made, so nothing is started. The text table /proc/net/unix would
// not do: it has names only, and another mount namespace may have another
// socket of that name.
func listening(file *unix.Stat_t) (bool, error) {
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("cannot ask the kernel who listens: %w", err)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(diagTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return fail(err)
	}
	// struct nlmsghdr, struct unix_diag_req
	request := make([]byte, 16+24)
	native := binary.NativeEndian
	native.PutUint32(request[0:], uint32(len(request)))
	native.PutUint16(request[4:], unix.SOCK_DIAG_BY_FAMILY)
	native.PutUint16(request[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request[16] = unix.AF_UNIX
	native.PutUint32(request[20:], 1<<stateListen)
	native.PutUint32(request[28:], diagShowVFS)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fail(err)
	}
	// The kernel tells of both in 32 bits, and of the device in its own form.
	inode, device := uint32(file.Ino), unix.Major(file.Dev)<<20|unix.Minor(file.Dev)
	buffer := make([]byte, 64<<10)
	for found := false; ; {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return fail(err)
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fail(err)
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.NLMSG_DONE:
				return found, nil
			case unix.NLMSG_ERROR:
				if len(m.Data) >= 4 {
					return fail(unix.Errno(-int32(native.Uint32(m.Data))))
				}
				return fail(unix.EBADMSG)
			}
			for attributes := m.Data[min(diagAnswerLen, len(m.Data)):]; len(attributes) >= 4; {
				size, kind := int(native.Uint16(attributes)), native.Uint16(attributes[2:])
				if size < 4 || size > len(attributes) {
					break
				}
				if kind == diagAttrVFS && size >= 12 && native.Uint32(attributes[4:]) == inode && native.Uint32(attributes[8:]) == device {
					found = true
				}
				attributes = attributes[min((size+3)&^3, len(attributes)):]
			}
		}
	}
}
