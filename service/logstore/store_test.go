package logstore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s := Open(Options{Dir: dir, Warn: func(m string) { t.Errorf("warned: %s", m) }})
	t.Cleanup(s.Close)
	return s
}

func rec(stream, node, level, message string) api.Record {
	return api.Record{Stream: stream, Node: node, Level: level, Message: message}
}

func messages(records []api.Record) (all []string) {
	for _, r := range records {
		all = append(all, r.Message)
	}
	return all
}

func mustRead(t *testing.T, s *Store, stream string, f api.LogFilter) []api.Record {
	t.Helper()
	records, err := s.Read(stream, f)
	if err != nil {
		t.Fatal(err)
	}
	return records
}

func TestAppendAndRead(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Append(rec("garage", "door", "info", "one"))
	s.Append(rec("garage", "cam", "error", "two"))
	s.Append(rec("garage", "door", "warn", "three"))
	s.Append(rec("porch", "door", "info", "elsewhere"))
	s.Append(rec("", "", "info", "the runtime's"))
	s.Append(rec("runtime", "", "info", "a stream that is called runtime"))
	s.Append(api.Record{Stream: "garage", Level: "info", Message: "odd", Fields: map[string]any{"no json": make(chan int)}})
	for _, c := range []struct {
		stream string
		f      api.LogFilter
		want   []string
	}{
		{"garage", api.LogFilter{}, []string{"one", "two", "three", "odd"}},
		{"garage", api.LogFilter{Last: 2}, []string{"three", "odd"}},
		{"garage", api.LogFilter{Node: "door"}, []string{"one", "three"}},
		{"garage", api.LogFilter{Level: "warn"}, []string{"two", "three"}},
		{"garage", api.LogFilter{Level: "warn", Last: 1}, []string{"three"}},
		{"", api.LogFilter{}, []string{"the runtime's"}},
		{"runtime", api.LogFilter{}, []string{"a stream that is called runtime"}},
		{"unheard-of", api.LogFilter{}, nil},
	} {
		if got := messages(mustRead(t, s, c.stream, c.f)); !slices.Equal(got, c.want) {
			t.Errorf("%q %+v: %q; want %q", c.stream, c.f, got, c.want)
		}
	}
	if _, err := s.Read("../../etc/passwd", api.LogFilter{}); err == nil {
		t.Error("a name that leaves the folder was read")
	}
	s.Close()
	again := open(t, dir)
	if got := messages(mustRead(t, again, "garage", api.LogFilter{Last: 1})); !slices.Equal(got, []string{"odd"}) {
		t.Errorf("after opening again: %q", got)
	}
	info, err := os.Stat(filepath.Join(dir, "garage.log"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestWrittenWithoutBeingAsked(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Append(rec("garage", "", "info", "here"))
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		data, _ := os.ReadFile(filepath.Join(dir, "garage.log"))
		if bytes.Contains(data, []byte(`"here"`)) {
			break
		}
		if time.Since(start) > patience {
			t.Fatal("not written")
		}
	}
}

func TestRotation(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	filler := strings.Repeat("x", 10_000)
	const n = 2500 // 25 MB
	for i := range n {
		s.Append(api.Record{Stream: "garage", Level: "info", Message: fmt.Sprint(i), Fields: map[string]any{"f": filler}})
		if i%50 == 0 {
			mustRead(t, s, "garage", api.LogFilter{Last: 1}) // writes, so that nothing is dropped
		}
	}
	s.Close()
	files, _ := filepath.Glob(filepath.Join(dir, "*"))
	var total int64
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > rotateSize {
			t.Errorf("%s has %d bytes", f, info.Size())
		}
		total += info.Size()
	}
	if len(files) != rotations+1 || total < rotateSize*rotations/2 {
		t.Errorf("%d files of %d bytes together", len(files), total)
	}
	s = open(t, dir)
	records := mustRead(t, s, "garage", api.LogFilter{Last: 1000})
	if len(records) != 1000 {
		t.Fatalf("%d records over rotations", len(records))
	}
	for i, r := range records {
		if want := fmt.Sprint(n - 1000 + i); r.Message != want {
			t.Fatalf("record %d is %s; want %s", i, r.Message, want)
		}
	}
	if err := s.Remove("garage"); err != nil {
		t.Fatal(err)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "*")); len(files) > 0 {
		t.Errorf("left after removal: %v", files)
	}
}

func TestTornAndForeignLines(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "garage.log")
	if err := os.WriteFile(path, []byte("{\"message\":\"whole\"}\nnonsense\n{\"message\":\"to"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	s.Append(rec("garage", "", "info", "after the power came back"))
	want := []string{"whole", "after the power came back"}
	if got := messages(mustRead(t, s, "garage", api.LogFilter{})); !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	os.Remove(path)
	s.Append(rec("garage", "", "info", "after somebody tidied up"))
	if got := messages(mustRead(t, s, "garage", api.LogFilter{})); !slices.Equal(got, want[:0:0]) && !slices.Equal(got, []string{"after somebody tidied up"}) {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error("the log of a removed file is written nowhere: ", err)
	}
}

func next(t *testing.T, ch <-chan api.Record) api.Record {
	t.Helper()
	select {
	case r, ok := <-ch:
		if !ok {
			t.Fatal("the followed log ended")
		}
		return r
	case <-time.After(patience):
		t.Fatal("no record came")
	}
	panic("unreachable")
}

// Between the past and what is new nothing is missing and nothing comes twice,
// whoever writes meanwhile.
func TestFollowIsSeamless(t *testing.T) {
	s := open(t, t.TempDir())
	var writer sync.WaitGroup
	var read atomic.Int64
	const n = 3000
	writer.Go(func() {
		for i := range n {
			s.Append(rec("garage", "", "info", fmt.Sprint(i)))
			if i%100 == 0 {
				time.Sleep(time.Millisecond)
			}
			// A follower that has no processor for a moment is to lose none.
			for int64(i)-read.Load() > followerQueue/2 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	time.Sleep(5 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := s.Follow(ctx, "garage", api.LogFilter{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if r := next(t, ch); r.Message != fmt.Sprint(i) {
			t.Fatalf("got %q; want %d", r.Message, i)
		}
		read.Store(int64(i))
	}
	writer.Wait()
}

func TestFollowers(t *testing.T) {
	s := open(t, t.TempDir())
	s.Append(rec("garage", "door", "info", "past 1"))
	s.Append(rec("garage", "door", "info", "past 2"))
	ctx, cancel := context.WithCancel(t.Context())
	last, _ := s.Follow(ctx, "garage", api.LogFilter{Last: 1})
	onlyNew, _ := s.Follow(ctx, "garage", api.LogFilter{Last: -1, Level: "error"})
	slow, _ := s.Follow(ctx, "garage", api.LogFilter{Last: -1})
	s.Append(rec("garage", "door", "error", "new"))
	if a, b := next(t, last), next(t, last); a.Message != "past 2" || b.Message != "new" {
		t.Errorf("%q, %q", a.Message, b.Message)
	}
	if r := next(t, onlyNew); r.Message != "new" {
		t.Error(r.Message)
	}
	// The slow one is not read while more come than it may have waiting.
	const n = 3 * followerQueue
	for i := range n {
		s.Append(rec("garage", "door", "info", fmt.Sprint(i)))
	}
	got, missing := 0, 0
	for got+missing < n+1 {
		r := next(t, slow)
		var lost int
		if _, err := fmt.Sscanf(r.Message, "%d records are missing here", &lost); err == nil && r.Level == "warn" {
			missing += lost
		} else {
			got++
		}
	}
	if missing == 0 || got < followerQueue || got+missing != n+1 {
		t.Errorf("%d came and %d were said to be missing, of %d", got, missing, n+1)
	}
	if err := s.Remove("garage"); err != nil {
		t.Fatal(err)
	}
	for range slow {
	} // ends with the log
	cancel()
	for range last {
	}
}

func TestUnreadFollowerDoesNotHoldUpClose(t *testing.T) {
	s := open(t, t.TempDir())
	ch, err := s.Follow(context.Background(), "garage", api.LogFilter{})
	if err != nil {
		t.Fatal(err)
	}
	s.Append(rec("garage", "", "info", "nobody reads this"))
	s.Close()
	for range ch {
	}
}

// A disk that is full, and then is not.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("needs to mount a tmpfs: ", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	var mu sync.Mutex
	var warnings []string
	s := Open(Options{Dir: dir, Warn: func(m string) {
		mu.Lock()
		defer mu.Unlock()
		warnings = append(warnings, m)
	}})
	defer s.Close()
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 40<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	ch, err := s.Follow(t.Context(), "garage", api.LogFilter{})
	if err != nil {
		t.Fatal(err)
	}
	filler := strings.Repeat("x", 500)
	const n = 100
	for i := range n {
		s.Append(rec("garage", "", "info", fmt.Sprint(i, filler)))
		mustRead(t, s, "garage", api.LogFilter{Last: 1})
		if r := next(t, ch); !strings.HasPrefix(r.Message, fmt.Sprint(i, "x")) {
			t.Fatalf("the follower got %.20q", r.Message)
		}
	}
	written := len(mustRead(t, s, "garage", api.LogFilter{}))
	if written == 0 || written == n {
		t.Fatalf("%d of %d records fit", written, n)
	}
	os.Remove(ballast)
	s.Append(rec("garage", "", "info", "room again"))
	records := mustRead(t, s, "garage", api.LogFilter{})
	want := fmt.Sprintf("%d records are missing here: they could not be written: no space left on device", n-written)
	if got := messages(records); got[written] != want || got[written+1] != "room again" {
		t.Errorf("%q; want %q", got[written:], want)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(warnings) != 2 || !strings.Contains(warnings[0], "no space left") || !strings.Contains(warnings[1], "written to again") {
		t.Errorf("warnings %q", warnings)
	}
}

// What kept records from being written is told where they are missing.
func TestFileThatCannotBeWritten(t *testing.T) {
	dir := t.TempDir()
	inTheWay := filepath.Join(dir, "garage.log")
	if err := os.Mkdir(inTheWay, 0o700); err != nil {
		t.Fatal(err)
	}
	warned := make(chan string, 10)
	s := Open(Options{Dir: dir, Warn: func(m string) { warned <- m }})
	defer s.Close()
	s.Append(rec("garage", "", "info", "lost"))
	if m := <-warned; !strings.Contains(m, "is a directory") {
		t.Error(m)
	}
	if err := os.Remove(inTheWay); err != nil {
		t.Fatal(err)
	}
	s.Append(rec("garage", "", "info", "written"))
	want := []string{"1 records are missing here: they could not be written: is a directory", "written"}
	if got := messages(mustRead(t, s, "garage", api.LogFilter{})); !slices.Equal(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
}

func TestFolderThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	warned := make(chan string, 10)
	s := Open(Options{Dir: filepath.Join(file, "logs"), Warn: func(m string) { warned <- m }})
	ch, err := s.Follow(t.Context(), "garage", api.LogFilter{Last: -1})
	if err != nil {
		t.Fatal(err)
	}
	s.Append(rec("garage", "", "info", "heard all the same"))
	if r := next(t, ch); r.Message != "heard all the same" {
		t.Error(r.Message)
	}
	s.Close()
	if m := <-warned; !strings.Contains(m, "not a directory") {
		t.Error(m)
	}
}

func TestHandler(t *testing.T) {
	stderr, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	s := open(t, t.TempDir())
	log := slog.New(s.Handler(stderr, slog.LevelInfo))
	log.Debug("too low")
	log.Info("started", "pid", 7)
	log.With(AttrStream, "garage").WithGroup("g").Error("node died", "err", errors.New("boom"), "after", time.Second)
	log.Warn("camera lost", AttrStream, "garage", AttrNode, "cam", ID(CameraLost))

	own := mustRead(t, s, "", api.LogFilter{})
	if got := messages(own); !slices.Equal(got, []string{"started", "node died", "camera lost"}) {
		t.Errorf("runtime.log: %q", got)
	}
	stream := mustRead(t, s, "garage", api.LogFilter{})
	if got := messages(stream); !slices.Equal(got, []string{"node died", "camera lost"}) {
		t.Errorf("garage.log: %q", got)
	}
	if r := stream[0]; r.Level != "error" || r.Fields["g.err"] != "boom" || r.Fields["g.after"] != "1s" || r.Stream != "garage" {
		t.Errorf("%+v", r)
	}
	if r := stream[1]; r.Node != "cam" || len(r.Fields) > 0 {
		t.Errorf("%+v", r)
	}
	s.Close()
	text, err := os.ReadFile(stderr.Name())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 || strings.Contains(string(text), "\x1b") || strings.Contains(string(text), string(CameraLost)) ||
		!strings.Contains(lines[1], "ERR node died stream=garage g.err=boom") {
		t.Errorf("stderr: %q", lines)
	}
}

// A terminal that is held must not hold the runtime.
func TestHeldTerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, t.TempDir())
	log := slog.New(s.Handler(w, slog.LevelInfo))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 * pumpQueue { // more than the pipe and the queue take
			log.Info(strings.Repeat("x", 100))
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Error("the logger waits for its terminal")
	}
	r.Close()
	s.Close()
	w.Close()
}

func TestMessageIDs(t *testing.T) {
	source, err := os.ReadFile("messageid.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for line := range strings.Lines(string(source)) {
		if _, value, ok := strings.Cut(line, `MessageID = "`); ok {
			value = strings.TrimSuffix(strings.TrimSpace(value), `"`)
			if len(value) != 32 || seen[value] || strings.Trim(value, "0123456789abcdef") != "" {
				t.Errorf("%s is no identity of its own", value)
			}
			seen[value] = true
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d found", len(seen))
	}
}

// What is sent to the journal, read by a stand-in for its socket: the native
// protocol is lines of KEY=value, and values with line breaks as
// KEY\n<64 bit length><value> (https://systemd.io/JOURNAL_NATIVE_PROTOCOL).
func TestJournal(t *testing.T) {
	const private = "LOGSTORE_TEST_PRIVATE_RUN"
	if os.Getenv(private) == "" {
		// In a process with a /run of its own, for the socket's path is fixed.
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestJournal$")
		cmd.Env = append(os.Environ(), private+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		switch {
		case errors.Is(err, unix.EPERM):
			t.Skip("only root can stand in for the journal")
		case err != nil:
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const socket = "/run/systemd/journal/socket"
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	journald, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer journald.Close()
	s := Open(Options{Dir: t.TempDir(), Journal: true})
	slog.New(s.Handler(os.Stderr, slog.LevelInfo)).Error("node died", AttrStream, "garage", AttrNode, "cam", ID(NodeDied))
	s.Append(api.Record{Stream: "garage", Node: "door", Level: "warn", Message: "from a node", Fields: map[string]any{"traceback": "line 1"}})
	s.Close()
	buf := make([]byte, 64<<10)
	for _, want := range [][]string{
		{"node died", "PRIORITY=3\n", "TATOLAB_STREAM=garage\n", "TATOLAB_NODE=cam\n", "MESSAGE_ID=" + string(NodeDied) + "\n", "SYSLOG_IDENTIFIER=tatolabd\n"},
		{"from a node\nline 1", "PRIORITY=4\n", "TATOLAB_NODE=door\n"},
	} {
		journald.SetReadDeadline(time.Now().Add(patience))
		n, err := journald.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range want {
			if !strings.Contains(string(buf[:n]), part) {
				t.Errorf("%q has no %q", buf[:n], part)
			}
		}
	}
}

func TestRecordsAreJSONLines(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	s.Append(api.Record{Stream: "garage", Level: "info", Message: "two\nlines \xff", Time: time.Date(2026, 10, 11, 14, 3, 22, 0, time.UTC)})
	s.Close()
	data, err := os.ReadFile(filepath.Join(dir, "garage.log"))
	if err != nil {
		t.Fatal(err)
	}
	var r map[string]any
	if err := json.Unmarshal(data, &r); err != nil || r["time"] != "2026-10-11T14:03:22Z" || bytes.Count(data, []byte{'\n'}) != 1 {
		t.Errorf("%q: %v", data, err)
	}
}
