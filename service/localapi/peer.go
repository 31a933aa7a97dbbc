package localapi

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
)

type peerKey struct{}

// peer is who is at the other end of a connection, as the kernel says.
type peer struct {
	uid uint32
	err error
}

// withPeer asks the kernel once a connection (SO_PEERCRED, unix(7)).
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, credentials(c))
}

func credentials(c net.Conn) peer {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return peer{err: fmt.Errorf("a %s connection has no peer credentials", c.LocalAddr().Network())}
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return peer{err: err}
	}
	if credErr != nil {
		return peer{err: credErr}
	}
	return peer{uid: cred.Uid}
}

// access lets a request pass or says why not. Every route names its own.
type access func(*http.Request) error

// sameUser lets in the user whose runtime this is and nobody else: not root
// either, whose streams would then run as somebody else.
func sameUser(r *http.Request) error {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok || p.err != nil {
		return api.Errorf(api.AccessDenied, "cannot tell who is asking: %v", p.err)
	}
	if owner := uint32(os.Geteuid()); p.uid != owner {
		return api.Errorf(api.AccessDenied, "this runtime belongs to the user with id %d, and the user with id %d is asking", owner, p.uid).
			WithHint("every user has a runtime of their own; use the command line as its user, without sudo")
	}
	return nil
}
