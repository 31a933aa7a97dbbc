package datapath

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// message is a datagram on a link socket.
type message struct {
	Kind    string   `json:"kind"`
	Version int      `json:"version,omitempty"`
	Profile string   `json:"profile,omitempty"`
	Formats []string `json:"formats,omitempty"`
	Start   *uint64  `json:"start,omitempty"`
	Why     string   `json:"why,omitempty"`

	fds []int
}

func (m *message) closeFDs() {
	for _, fd := range m.fds {
		unix.Close(fd)
	}
	m.fds = nil
}

// Kinds of message on a link socket.
const (
	kindHello      = "hello"
	kindGeneration = "generation"
	kindRefused    = "refused"
)

// send never blocks: a peer whose queue is full is none to wait for.
func send(socket int, m message, fds ...int) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	for {
		err := unix.Sendmsg(socket, data, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EINTR {
			return err
		}
	}
}

// receive takes one datagram without waiting. It returns unix.EAGAIN when
// there is none and io.EOF when the peer is gone.
func receive(socket int) (*message, error) {
	data := make([]byte, maxMessage)
	oob := make([]byte, unix.CmsgSpace(8*4))
	var n, oobn int
	var err error
	for {
		n, oobn, _, _, err = unix.Recvmsg(socket, data, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		// A peer that ends without having read all of ours resets the
		// connection, which is told once, before what it sent last.
		if err != unix.EINTR && err != unix.ECONNRESET {
			break
		}
	}
	if err == nil && n == 0 {
		return nil, io.EOF
	}
	if err != nil {
		return nil, err
	}
	m := &message{}
	if oobn > 0 {
		parsed, err := unix.ParseSocketControlMessage(oob[:oobn])
		if err != nil {
			return nil, fmt.Errorf("cannot read a link message: %w", err)
		}
		for i := range parsed {
			if fds, err := unix.ParseUnixRights(&parsed[i]); err == nil {
				m.fds = append(m.fds, fds...)
			}
		}
	}
	if err := json.Unmarshal(data[:n], m); err != nil {
		m.closeFDs()
		return nil, fmt.Errorf("cannot read a link message: %w", err)
	}
	return m, nil
}

// ownSocket takes the descriptor out of f, which is closed.
func ownSocket(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	f.Close()
	if err != nil {
		return -1, fmt.Errorf("cannot take a link's socket: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("cannot take a link's socket: %w", err)
	}
	return fd, nil
}
