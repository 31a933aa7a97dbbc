package client

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/build"
)

// Kind says in which way a runtime could not be reached.
type Kind int

// The kinds of Unreachable.
const (
	NoRuntime Kind = iota // no socket, or nobody behind it
	Denied                // no permission to connect
	Closed                // it went away before or in the middle of its answer
	Silent                // it says nothing
	Foreign               // it is another version, or no runtime at all
	NoPlace               // there is no telling where the socket is
)

// Unreachable says that the runtime could not be asked, and what to do.
type Unreachable struct {
	Kind    Kind
	Message string
	Hint    string // lines of what to do next
}

func (e *Unreachable) Error() string { return e.Message }

var errNoAnswer = errors.New("no answer")

// closedBeforeRequest is what net/http says of a connection that was closed
// before the request was written; it exports no value for it.
const closedBeforeRequest = "server closed idle connection"

const socketUnit = "tatolabd.socket"

// longestSocketPath is what sun_path of unix(7) holds, without the zero.
const longestSocketPath = 107

// SocketPath is where this user's runtime has its socket:
// $XDG_RUNTIME_DIR/streamlib/local-api.sock.
func SocketPath() (string, error) {
	if sudo := os.Getenv("SUDO_UID"); os.Geteuid() == 0 && sudo != "" && sudo != "0" {
		who := os.Getenv("SUDO_USER")
		if who == "" {
			who = "user " + sudo
		}
		return "", &Unreachable{Kind: NoPlace, Message: "under sudo there is no runtime to talk to: streams belong to a user, and this command runs as root",
			Hint: fmt.Sprintf("run it as %s, without sudo", who)}
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(dir) {
		why := "XDG_RUNTIME_DIR is not set"
		if dir != "" {
			why = fmt.Sprintf("XDG_RUNTIME_DIR is %q, which is not an absolute path", dir)
		}
		return "", &Unreachable{Kind: NoPlace, Message: "cannot tell where the runtime's socket is: " + why,
			Hint: fmt.Sprintf("a login by systemd sets it; in a shell of another kind (su, cron): export XDG_RUNTIME_DIR=/run/user/%d", os.Getuid())}
	}
	return filepath.Join(dir, "streamlib", "local-api.sock"), nil
}

// unreachable words what kept c from asking.
func (c *Client) unreachable(err error) *Unreachable {
	switch {
	case errors.Is(err, unix.EINVAL) && len(c.path) > longestSocketPath:
		return &Unreachable{Kind: NoPlace, Message: fmt.Sprintf("there can be no socket at %s: its path has %d bytes, the limit is %d", c.path, len(c.path), longestSocketPath), Hint: "check XDG_RUNTIME_DIR"}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ECONNREFUSED):
		u := &Unreachable{Kind: NoRuntime, Message: fmt.Sprintf("no runtime is running on this machine: nothing answers at %s. Start one by running `tatolabd` in a terminal.", c.path)}
		var hints []string
		if errors.Is(err, unix.ECONNREFUSED) {
			hint := "the socket there was left by a runtime that ended without warning; the next one replaces it"
			if info, err := os.Lstat(c.path); err == nil && info.Mode().Type() != os.ModeSocket {
				hint = "something that is no socket is there; move it away, a runtime does not touch it"
			}
			hints = append(hints, hint)
		}
		if hint := unitHint(); hint != "" {
			hints = append(hints, hint)
		}
		u.Hint = strings.Join(hints, "\n")
		return u
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &Unreachable{Kind: Denied, Message: fmt.Sprintf("cannot connect to the runtime at %s: permission denied", c.path), Hint: ownerHint(c.path)}
	case errors.Is(err, errNoAnswer):
		return &Unreachable{Kind: Silent, Message: fmt.Sprintf("the runtime at %s was reached but has not answered for %v", c.path, c.timeout),
			Hint: "`systemctl --user status tatolabd` tells what it is doing"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE),
		errors.Is(err, net.ErrClosed), // by net/http, which saw the end while it wrote
		strings.Contains(err.Error(), closedBeforeRequest):
		return &Unreachable{Kind: Closed, Message: fmt.Sprintf("the runtime at %s closed the connection in the middle: it is going down, or it crashed", c.path),
			Hint: "try again; if it is gone for good, `systemctl --user status tatolabd` or its terminal tells why"}
	}
	// Most likely an answer that is no HTTP or no JSON of ours.
	return &Unreachable{Kind: Foreign, Message: fmt.Sprintf("cannot understand what answers at %s: %v", c.path, err),
		Hint: "is that tatolabd, and of the version of this command (" + build.Version + ")?"}
}

func (c *Client) notTatolabd() *Unreachable {
	return &Unreachable{Kind: Foreign, Message: fmt.Sprintf("what answers at %s is not a tatolabd", c.path),
		Hint: "find out with `ss -xlp` which program listens there, and end it"}
}

func (c *Client) otherVersion(server, version string) *Unreachable {
	return &Unreachable{Kind: Foreign,
		Message: fmt.Sprintf("the runtime at %s is of another version: it is %s and speaks version %s of the local API, this is tatolab %s", c.path, server, version, build.Version),
		Hint:    "after an upgrade, restart it: `systemctl --user restart tatolabd`, or end and start `tatolabd` in its terminal"}
}

// ownerHint names whose the socket is.
func ownerHint(path string) string {
	for p := path; ; p = filepath.Dir(p) {
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil {
			if int(st.Uid) == os.Geteuid() {
				return fmt.Sprintf("%s is yours, but its mode is %#o: end the runtime, remove it, and start the runtime again", p, st.Mode&0o7777)
			}
			owner := strconv.Itoa(int(st.Uid))
			if u, err := user.LookupId(owner); err == nil {
				owner = u.Username
			}
			return fmt.Sprintf("%s belongs to %s: check XDG_RUNTIME_DIR, or run this command as %s", p, owner, owner)
		}
		if p == "/" {
			return "check XDG_RUNTIME_DIR"
		}
	}
}

// unitHint says what to do with a socket unit that could start the runtime but
// does not.
func unitHint() string {
	installed, enabled := false, false
	for _, dir := range unitFolders() {
		if _, err := os.Stat(filepath.Join(dir, socketUnit)); err == nil {
			installed = true
		}
		// The link may dangle, so Lstat.
		if _, err := os.Lstat(filepath.Join(dir, "sockets.target.wants", socketUnit)); err == nil {
			enabled = true
		}
	}
	switch {
	case enabled:
		return "`systemctl --user start " + socketUnit + "` starts it: the unit is enabled but does not listen, and `systemctl --user status " + socketUnit + "` tells why"
	case installed:
		return "`systemctl --user enable --now " + socketUnit + "` starts it whenever it is needed: the unit is installed but not enabled"
	}
	return ""
}

// unitFolders is the search path of a user manager, systemd.unit(5).
func unitFolders() []string {
	home, _ := os.UserHomeDir()
	base := func(variable, fallback string) string {
		if dir := os.Getenv(variable); filepath.IsAbs(dir) {
			return dir
		}
		return filepath.Join(home, fallback)
	}
	dirs := []string{base("XDG_CONFIG_HOME", ".config"), "/etc", base("XDG_DATA_HOME", ".local/share")}
	data := os.Getenv("XDG_DATA_DIRS")
	if data == "" {
		data = "/usr/local/share:/usr/share"
	}
	dirs = append(append(dirs, strings.Split(data, ":")...), "/usr/local/lib", "/usr/lib", "/lib")
	for i, dir := range dirs {
		dirs[i] = filepath.Join(dir, "systemd", "user")
	}
	return dirs
}
