package localapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/localapi"
	"tatolab.com/tatolab/service/localapi/localapitest"
)

// soon is how long a test waits for what should happen at once.
const soon = 20 * time.Second

func TestMain(m *testing.M) {
	if path := os.Getenv("LOCALAPI_TEST_ASK"); path != "" {
		ask(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// serve starts a server on a socket of its own.
func serve(t *testing.T, service *localapitest.Service) (path string, server *localapi.Server) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server = localapi.New(service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		_ = server.Shutdown(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return path, server
}

func httpClient(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

func request(t *testing.T, path, method, url, body string) (int, http.Header, string) {
	t.Helper()
	r, err := http.NewRequest(method, "http://localhost"+url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := httpClient(path).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(text)
}

func project(t *testing.T, source string) string {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stream.py"), []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func load(dir, more string) string { return fmt.Sprintf(`{"project": %q%s}`, dir, more) }

func eventually(t *testing.T, what string, happened func() bool) {
	t.Helper()
	for end := time.Now().Add(soon); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if happened() {
			return
		}
	}
	t.Fatalf("%s did not happen within %v", what, soon)
}

func TestRefusals(t *testing.T) {
	path, _ := serve(t, localapitest.New())
	dir := project(t, "@stream\ndef counter(b): pass\n")
	for _, c := range []struct {
		method, url, body string
		status            int
		code              api.Code
		words             string
	}{
		{"GET", "/v1/streams/nothing", "", 404, api.NoSuchStream, "nothing"},
		{"GET", "/v1/nothing", "", 404, api.BadRequest, "/v1/nothing"},
		{"PUT", "/v1/streams", "", 405, api.BadRequest, "GET or POST"},
		{"GET", "/v1/streams?colour=1", "", 400, api.BadRequest, `"colour"`},
		{"POST", "/v1/streams", load(dir, `, "keeep": true`), 400, api.BadRequest, `"keeep"`},
		{"POST", "/v1/streams", load(dir, "") + "{}", 400, api.BadRequest, "more"},
		{"POST", "/v1/streams", "", 400, api.BadRequest, "no body"},
		{"POST", "/v1/streams", load(dir, `, "keep": true, "wait": true`), 400, api.BadRequest, "wait"},
		{"POST", "/v1/streams", load(strings.Repeat("x", localapi.MaxBody), ""), 400, api.BadRequest, "larger"},
		{"POST", "/v1/streams", load(dir, `, "target": "other.py"`), 422, api.CompileFailed, "other.py"},
		{"POST", "/v1/leases/none/reload", "", 400, api.BadRequest, "none"},
		{"GET", "/v1/log?last=many", "", 400, api.BadRequest, "many"},
		{"GET", "/v1/log?follow=perhaps", "", 400, api.BadRequest, "perhaps"},
	} {
		status, header, text := request(t, path, c.method, c.url, c.body)
		var e api.Error
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			t.Errorf("%s %s: not JSON: %s", c.method, c.url, text)
			continue
		}
		if status != c.status || e.Code != c.code || !strings.Contains(e.Message, c.words) || header.Get(api.HTTPVersionHeader) == "" {
			t.Errorf("%s %s: %d %s", c.method, c.url, status, text)
		}
	}
}

func TestServesItsDocument(t *testing.T) {
	path, _ := serve(t, localapitest.New())
	status, _, text := request(t, path, "GET", "/v1/openapi.json", "")
	if status != 200 || text != string(localapi.OpenAPI) {
		t.Errorf("%d, %d bytes", status, len(text))
	}
}

// attach opens a raw connection and loads a stream on it.
func attach(t *testing.T, path, dir string) (*net.UnixConn, *bufio.Reader) {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	body := load(dir, "")
	fmt.Fprintf(conn, "POST /v1/streams HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(line, "{") {
			if !strings.Contains(line, `"kind":"loaded"`) || !strings.Contains(line, `"lease":"`) {
				t.Fatalf("first line is %s", line)
			}
			return conn, r
		}
	}
}

func TestAttachedEndsWithItsConnection(t *testing.T) {
	for _, busy := range []bool{false, true} {
		t.Run(fmt.Sprintf("busy=%v", busy), func(t *testing.T) {
			service := localapitest.New()
			if busy {
				service.LogEvery = time.Millisecond
			}
			path, _ := serve(t, service)
			conn, _ := attach(t, path, project(t, "@stream\ndef counter(b): pass\n"))
			if n := len(service.List()); n != 1 {
				t.Fatalf("%d streams", n)
			}
			conn.Close()
			eventually(t, "the end of the stream", func() bool { return len(service.List()) == 0 })
		})
	}
}

// A client that does not read (SIGSTOP) keeps its stream and holds up nobody;
// its end is seen even while the server is stuck in writing to it.
func TestClientThatDoesNotRead(t *testing.T) {
	service := localapitest.New()
	service.LogEvery = 100 * time.Microsecond
	path, _ := serve(t, service)
	conn, _ := attach(t, path, project(t, "@stream\ndef counter(b): pass\n"))
	var queued int
	// The socket's buffers are full when the server has written nothing more
	// for a while.
	eventually(t, "the socket's buffer filling up", func() bool {
		before := queued
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) { queued = inq(fd) })
		time.Sleep(100 * time.Millisecond)
		return queued > 0 && queued == before
	})
	if n := len(service.List()); n != 1 {
		t.Fatalf("%d streams", n)
	}
	if status, _, _ := request(t, path, "GET", "/v1/streams", ""); status != 200 {
		t.Fatalf("another client gets %d", status)
	}
	conn.Close()
	eventually(t, "the end of the stream", func() bool { return len(service.List()) == 0 })
}

func TestShutdownTellsAttachedClients(t *testing.T) {
	service := localapitest.New()
	path, server := serve(t, service)
	_, r := attach(t, path, project(t, "@stream\ndef counter(b): pass\n"))
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(rest, []byte(`"kind":"ended"`)) || !bytes.Contains(rest, []byte(`"code":"ShuttingDown"`)) {
		t.Errorf("the end says %s", rest)
	}
}

func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can ask as somebody else")
	}
	path, _ := serve(t, localapitest.New())
	// The socket's mode would keep them out already: open it wide, to see
	// the second lock.
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(filepath.Dir(path), "ask")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(exe, 0o755); err != nil { // whatever the umask
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Dir = "/"
	cmd.Env = []string{"LOCALAPI_TEST_ASK=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !bytes.HasPrefix(out, []byte("403 ")) || !bytes.Contains(out, []byte("AccessDenied")) || !bytes.Contains(out, []byte("65534")) {
		t.Errorf("answer: %s", out)
	}
}

// ask is the other user's process.
func ask(path string) {
	response, err := httpClient(path).Get("http://localhost/v1/streams")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Print(response.StatusCode, " ")
	_, _ = io.Copy(os.Stdout, response.Body)
}

func TestChanges(t *testing.T) {
	path, _ := serve(t, localapitest.New())
	if status, _, text := request(t, path, "POST", "/v1/streams", load(project(t, "@stream\ndef counter(b): pass\n"), `, "keep": true`)); status != 200 {
		t.Fatal(text)
	}
	for body, want := range map[string]string{`{"remove": ["camera"]}`: `"note":"removed: camera"`, "[]": `"code":"BadRequest"`, strings.Repeat(" ", localapi.MaxBody+1): "larger"} {
		if _, _, text := request(t, path, "POST", "/v1/streams/counter/changes", body); !strings.Contains(text, want) {
			t.Errorf("%.30q is answered by %s", body, text)
		}
	}
}

func TestBags(t *testing.T) {
	service := localapitest.New()
	path, _ := serve(t, service)
	dir := project(t, "@stream\ndef counter(b): pass\n")
	if status, _, text := request(t, path, "POST", "/v1/streams", load(dir, `, "keep": true`)); status != 200 {
		t.Fatal(text)
	}
	if _, _, text := request(t, path, "GET", "/v1/outputs/counter/source/count/bags?wait=false", ""); !strings.Contains(text, `"code":"NotExposed"`) {
		t.Errorf("not exposed: %s", text)
	}
	response, err := httpClient(path).Get("http://localhost/v1/outputs/counter/source/count/bags")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	lines := json.NewDecoder(response.Body)
	var line api.BagLine
	if err := lines.Decode(&line); err != nil || !strings.Contains(line.Note, "internal") {
		t.Fatalf("first line: %+v, %v", line, err)
	}
	if status, _, text := request(t, path, "PUT", "/v1/streams/counter/exposure", `{"node": "source", "port": "count", "level": "private"}`); status != 200 {
		t.Fatal(text)
	}
	line = api.BagLine{}
	if err := lines.Decode(&line); err != nil || line.Bag["count"] != 0.0 {
		t.Errorf("second line: %+v, %v", line, err)
	}
}
