package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/localapi"
	"tatolab.com/tatolab/service/localapi/localapitest"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("CLIENT_TEST_ASK"); path != "" {
		_, err := New(path).Streams(context.Background())
		var u *Unreachable
		if errors.As(err, &u) {
			fmt.Println(u.Message + "\n" + u.Hint)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// private takes the units of this machine out of the picture.
func private(t *testing.T) {
	for _, v := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_DATA_DIRS"} {
		t.Setenv(v, t.TempDir())
	}
	t.Setenv("SUDO_UID", "")
}

func listen(t *testing.T) (string, net.Listener) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "local-api.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path, l
}

// TestUnreachable is scenario 25: each way of not reaching the runtime has
// words of its own.
func TestUnreachable(t *testing.T) {
	private(t)
	messages := map[string]string{}
	check := func(what string, err error, kind Kind, words ...string) {
		t.Helper()
		var u *Unreachable
		if !errors.As(err, &u) || u.Kind != kind {
			t.Errorf("%s: %T %+v, want kind %d", what, err, err, kind)
			return
		}
		text := u.Message + "\n" + u.Hint
		for _, w := range words {
			if !strings.Contains(text, w) {
				t.Errorf("%s: %q does not say %q", what, text, w)
			}
		}
		for other, its := range messages {
			if its == text {
				t.Errorf("%s and %s say the same: %s", what, other, text)
			}
		}
		messages[what] = text
	}
	ctx := context.Background()
	askFor := func(path string, timeout time.Duration) error {
		c := New(path)
		c.timeout = timeout
		_, err := c.try(ctx, http.MethodGet, "/v1/streams", nil, nil)
		return err
	}
	ask := func(path string) error { return askFor(path, 20*time.Second) }

	path, l := listen(t)
	l.Close()
	const fixed = "no runtime is running on this machine: nothing answers at %s. Start one by running `tatolabd` in a terminal."
	err := ask(path)
	check("no socket", err, NoRuntime)
	if want := fmt.Sprintf(fixed, path); err.Error() != want {
		t.Errorf("no socket:\n%s\nwant\n%s", err, want)
	}

	path, l = listen(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	err = ask(path)
	check("nobody listens", err, NoRuntime, "left by a runtime")
	if want := fmt.Sprintf(fixed, path); err.Error() != want {
		t.Errorf("nobody listens:\n%s\nwant\n%s", err, want)
	}

	path, closing := listen(t)
	go func() {
		for {
			c, err := closing.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	// The close meets the request in different states; it is always the same
	// to the person.
	for range 200 {
		var u *Unreachable
		if err := ask(path); !errors.As(err, &u) || u.Kind != Closed {
			t.Fatalf("closed: %v", err)
		}
	}
	check("closed", ask(path), Closed, "in the middle")

	path, _ = listen(t)
	check("silent", askFor(path, 200*time.Millisecond), Silent, "systemctl --user status tatolabd", "200ms")

	for what, header := range map[string]string{"another version": "7", "no tatolabd": ""} {
		path, l = listen(t)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Server", "tatolabd/9.9")
			if header != "" {
				w.Header().Set(api.HTTPVersionHeader, header)
			}
			fmt.Fprint(w, "{}")
		})}
		go server.Serve(l)
		check(what, ask(path), Foreign)
		server.Close()
	}

	t.Setenv("XDG_RUNTIME_DIR", "")
	_, err = SocketPath()
	check("no XDG_RUNTIME_DIR", err, NoPlace, "XDG_RUNTIME_DIR is not set")
	t.Setenv("XDG_RUNTIME_DIR", "run")
	_, err = SocketPath()
	check("relative XDG_RUNTIME_DIR", err, NoPlace, `"run"`)

	if os.Geteuid() == 0 {
		t.Setenv("SUDO_UID", "1000")
		t.Setenv("SUDO_USER", "you")
		_, err = SocketPath()
		check("sudo", err, NoPlace, "sudo", "run it as you")
	}
}

func TestDeniedNamesTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("root starts a process of somebody else's")
	}
	path, _ := listen(t)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(filepath.Dir(path), "ask")
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(exe, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = []string{"CLIENT_TEST_ASK=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "permission denied") || !strings.Contains(string(out), "belongs to root") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestSocketUnitHint(t *testing.T) {
	private(t)
	path := filepath.Join(t.TempDir(), "s")
	hint := func() string {
		_, err := New(path).Streams(context.Background())
		var u *Unreachable
		if !errors.As(err, &u) {
			t.Fatal(err)
		}
		return u.Hint
	}
	if h := hint(); h != "" {
		t.Errorf("no unit: %q", h)
	}
	units := filepath.Join(os.Getenv("XDG_DATA_HOME"), "systemd", "user")
	wants := filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "systemd", "user", "sockets.target.wants")
	for _, dir := range []string{units, wants} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(units, socketUnit), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if h := hint(); !strings.Contains(h, "systemctl --user enable --now tatolabd.socket") {
		t.Errorf("installed: %q", h)
	}
	if err := os.Symlink(filepath.Join(units, socketUnit), filepath.Join(wants, socketUnit)); err != nil {
		t.Fatal(err)
	}
	if h := hint(); !strings.Contains(h, "systemctl --user start tatolabd.socket") {
		t.Errorf("enabled: %q", h)
	}
}

// A socket that systemd holds takes connections while nobody answers yet, and
// drops those that the old runtime had accepted.
func TestRuntimeThatIsRestarting(t *testing.T) {
	path, l := listen(t)
	var accepted atomic.Int32
	server := localapi.New(localapitest.New())
	served := make(chan struct{})
	go func() {
		defer close(served)
		old, err := l.Accept()
		if err != nil {
			return
		}
		accepted.Add(1)
		old.Close()
		time.Sleep(300 * time.Millisecond) // the next one is being started
		_ = server.Serve(l)
	}()
	if _, err := New(path).Streams(context.Background()); err != nil {
		t.Error(err)
	}
	if accepted.Load() != 1 {
		t.Error("the old runtime was never asked")
	}
	_ = server.Shutdown(context.Background())
	<-served
}

// slow is a runtime whose work takes longer than the client's patience.
type slow struct {
	*localapitest.Service
	takes time.Duration
}

func (s slow) Stop(ctx context.Context, name string) (*api.Done, error) {
	time.Sleep(s.takes)
	return &api.Done{Note: "done"}, nil
}

func TestLongWorkIsNotSilence(t *testing.T) {
	path, l := listen(t)
	const patience = 2 * time.Second
	server := localapi.New(slow{localapitest.New(), patience + 500*time.Millisecond})
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	c := New(path)
	c.timeout = patience
	if done, err := c.Stop(context.Background(), "x"); err != nil || done.Note != "done" {
		t.Errorf("%+v, %v", done, err)
	}
	_ = server.Shutdown(context.Background())
	<-served
}
