package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// The test program is also the process that tests kill, and the one that has
// a disk of its own to fill.
func TestMain(m *testing.M) {
	switch dir := os.Getenv("RECORD_TEST_DIR"); os.Getenv("RECORD_TEST_ROLE") {
	case "writer":
		writeForever(dir)
	case "full disk":
		onFullDisk(dir)
	default:
		os.Exit(m.Run())
	}
}

func helper(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "RECORD_TEST_ROLE="+role, "RECORD_TEST_DIR="+dir)
	return cmd
}

func sample(stream string) *Record {
	return &Record{
		Name: stream, Snapshot: "9c2f", Project: "/home/you/" + stream, Interpreter: "/home/you/" + stream + "/.venv/bin/python",
		Created: time.Date(2026, 10, 11, 14, 3, 22, 0, time.UTC), Target: "stream.py:" + stream, CodeHash: "ab12",
		Env:     map[string]string{"ROOM": "attic"},
		Rulings: []graph.Exposure{{Node: "camera", Port: "video", Level: graph.Public}},
		Graph: &graph.Graph{
			Stream: stream,
			Nodes: []graph.Node{
				{Name: "camera", Type: "tatolab.stream:CameraSource", Config: json.RawMessage(`{"fps":30}`)},
				{Name: "detector", Type: "nodes.motion:Detector", Config: json.RawMessage(`{}`)},
			},
			Links:   []graph.Link{{Source: graph.Source{Node: "camera", Port: "video"}, Target: graph.End{Node: "detector", Port: "video"}}},
			Exposed: []graph.Exposure{{Node: "camera", Port: "video", Level: graph.Private}},
		},
		Nodes: map[string]graph.Class{
			"camera":   {Outputs: []string{"video"}, Execution: graph.Execution{Mode: "manual"}},
			"detector": {Inputs: []graph.Input{{Port: "video", Profile: "newest"}}, Outputs: []string{"motion"}, Execution: graph.Execution{Mode: "reactive"}, Hash: "77"},
		},
	}
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func load(t *testing.T, dir string) []Entry {
	t.Helper()
	entries, _, err := open(t, dir).Load()
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func write(t *testing.T, s *Store, r *Record) {
	t.Helper()
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
}

func names(entries []Entry) string {
	var list []string
	for _, e := range entries {
		list = append(list, e.Name)
	}
	return strings.Join(list, " ")
}

func TestWhatWasWrittenIsRead(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "tatolab", "streams")
	want := sample("motion_watcher")
	want.Failed, want.Crashes = "its .venv was deleted", 2
	write(t, open(t, dir), want)

	got := load(t, dir)
	if len(got) != 1 || got[0].Record == nil {
		t.Fatalf("got %+v, want one record", got)
	}
	want.Graph.Nodes[0].Config = json.RawMessage("{\n          \"fps\": 30\n        }") // indented with the rest
	if diff := cmp.Diff(want, got[0].Record); diff != "" {
		t.Errorf("written and read differ (-written +read):\n%s", diff)
	}
	for path, mode := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "motion_watcher.json"): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), mode)
		}
	}
}

func TestOrderOfCreationOutlivesReplacementAndRestart(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, stream := range []string{"zebra", "apple", "mango"} {
		write(t, s, sample(stream))
	}
	s = open(t, dir)
	if _, _, err := s.Load(); err != nil {
		t.Fatal(err)
	}
	back := sample("zebra")
	back.Created = back.Created.Add(time.Hour)
	write(t, s, back)
	early := sample("late")
	early.Created = time.Unix(0, 0) // kept while the clock had not been set
	write(t, s, early)
	if got, want := names(load(t, dir)), "zebra apple mango late"; got != want {
		t.Errorf("order is %q, want %q", got, want)
	}
}

func TestRemoveFreesTheNameForGood(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	write(t, s, sample("garage"))
	write(t, s, sample("attic"))
	if err := s.Remove("garage"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("garage"); err != nil {
		t.Errorf("removing what is gone: %v", err)
	}
	if got := names(load(t, dir)); got != "attic" {
		t.Errorf("left are %q, want attic", got)
	}
	write(t, s, sample("garage"))
	if got := names(load(t, dir)); got != "attic garage" {
		t.Errorf("order is %q, want the new one last", got)
	}
	if err := s.Remove("../escape"); err == nil {
		t.Error("a name with a slash was accepted")
	}
}

func TestBrokenRecordIsSetAsideAndListedUntilRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	for _, stream := range []string{"first", "garage", "last"} {
		write(t, s, sample(stream))
	}
	path := filepath.Join(dir, "garage.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cut := whole[:len(whole)/2]
	if err := os.WriteFile(path, cut, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 3 { // starts of the runtime
		entries := load(t, dir)
		if names(entries) != "first garage last" {
			t.Fatalf("listed are %q", names(entries))
		}
		e := entries[1]
		if e.Record != nil || e.File != path+".broken" || !strings.Contains(e.Reason, e.File) {
			t.Fatalf("got %+v, want it set aside and named", e)
		}
		if e.Gleaned.Project != "/home/you/garage" || e.Gleaned.Snapshot != "9c2f" {
			t.Errorf("gleaned %+v, want project and snapshot", e.Gleaned)
		}
		if kept, err := os.ReadFile(e.File); err != nil || !bytes.Equal(kept, cut) {
			t.Fatalf("%s is not what was found (%v)", e.File, err)
		}
	}
	s = open(t, dir)
	if _, _, err := s.Load(); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("garage"); err != nil {
		t.Fatal(err)
	}
	if got := names(load(t, dir)); got != "first last" {
		t.Errorf("after rm: %q", got)
	}
}

func TestNewerRecordIsLeftUntouched(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "garage.json")
	newer := []byte(`{"version": 2, "name": "garage", "order": 7, "snapshot": "ff", "unheard": [1]}`)
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	entries := load(t, dir)
	if len(entries) != 1 || entries[0].Record != nil || !strings.Contains(entries[0].Reason, "version 2") || !entries[0].Stays || entries[0].Gleaned.Snapshot != "ff" {
		t.Fatalf("got %+v", entries)
	}
	if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, newer) {
		t.Errorf("it was touched: %q (%v)", now, err)
	}
}

func TestUnknownFieldIsNamed(t *testing.T) {
	data, err := json.Marshal(sample("garage"))
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte(`{"version":0`), []byte(`{"version":1,"colour":"red"`), 1)
	if _, err := Parse(data); err == nil || !strings.Contains(err.Error(), "colour") {
		t.Errorf("got %v, want colour named", err)
	}
}

// Whatever becomes of one record, the others are read, its own name stays
// listed, and what was in it is still on disk.
func TestEveryByteOfARecordMayBeDamaged(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	write(t, s, sample("other"))
	write(t, s, sample("garage"))
	path := filepath.Join(dir, "garage.json")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, damaged []byte) {
		t.Helper()
		for _, old := range []string{path, path + aside} {
			_ = os.Remove(old)
		}
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		entries, _, err := s.Load()
		if err != nil || len(entries) != 2 {
			t.Fatalf("%s: %d entries, %v", what, len(entries), err)
		}
		for _, e := range entries {
			if e.Name == "other" && e.Record == nil {
				t.Fatalf("%s: the other record is lost: %s", what, e.Reason)
			}
			if e.Name == "garage" {
				if e.Record == nil && (e.Reason == "" || e.Gleaned == nil) {
					t.Fatalf("%s: no reason given: %+v", what, e)
				}
				if kept, err := os.ReadFile(e.File); err != nil || !bytes.Equal(kept, damaged) {
					t.Fatalf("%s: the file is not kept: %v", what, err)
				}
			}
		}
	}
	for i := range whole {
		try(fmt.Sprintf("cut to %d bytes", i), whole[:i])
		flipped := bytes.Clone(whole)
		flipped[i] ^= 1 << (i % 8)
		try(fmt.Sprintf("byte %d flipped", i), flipped)
	}
}

func TestOddFilesNeitherBlockNorBreakTheStart(t *testing.T) {
	dir := t.TempDir()
	write(t, open(t, dir), sample("good"))
	for _, err := range []error{
		syscall.Mkfifo(filepath.Join(dir, "fifo.json"), 0o600),
		os.Mkdir(filepath.Join(dir, "folder.json"), 0o700),
		os.Symlink("/dev/zero", filepath.Join(dir, "link.json")),
		os.Symlink("nowhere", filepath.Join(dir, "dangling.json")),
		os.WriteFile(filepath.Join(dir, "Not A Name.json"), nil, 0o600),
		os.WriteFile(filepath.Join(dir, "good.json~"), []byte("editor"), 0o600),
		os.WriteFile(filepath.Join(dir, ".good.json4711"), []byte("half a wri"), 0o600),
		os.WriteFile(filepath.Join(dir, "good.json.broken"), []byte("older"), 0o600),
		os.Truncate(filepath.Join(dir, "good.json~"), 1<<40),
		os.WriteFile(filepath.Join(dir, "huge.json"), nil, 0o600),
		os.Truncate(filepath.Join(dir, "huge.json"), 1<<40),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan []Entry, 1)
	go func() { done <- load(t, dir) }()
	var entries []Entry
	select {
	case entries = <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the start is blocked")
	}
	if entries[0].Name != "good" || entries[0].Record == nil {
		t.Errorf("the good record is lost: %+v", entries[0])
	}
	if len(entries) != 6 {
		t.Errorf("listed are %q, want six", names(entries))
	}
	if _, strays, err := open(t, dir).Load(); err != nil || !slices.Equal(strays, []string{filepath.Join(dir, "Not A Name.json")}) {
		t.Errorf("strays: %q, %v", strays, err)
	}
	for _, e := range entries[1:] {
		// An empty file is set aside, what is no plain file is not.
		if e.Stays != (filepath.Ext(e.File) == ".json") {
			t.Errorf("%s: stays is %v, its file %s", e.Name, e.Stays, e.File)
		}
		if e.Record != nil || !strings.Contains(e.Reason, e.File) {
			t.Errorf("%s: got %+v, want a reason naming the file", e.Name, e)
		}
		if err := open(t, dir).Remove(e.Name); err != nil {
			t.Errorf("rm %s: %v", e.Name, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, ".good.json4711")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the leftover of a write is still there (%v)", err)
	}
	if got := names(load(t, dir)); got != "good" {
		t.Errorf("after rm of the odd ones: %q", got)
	}
}

// SIGKILL at any moment of a write or removal: the store reads back as one of
// the two states around that moment, and nothing is left over.
func TestKilledInTheMiddle(t *testing.T) {
	rounds := 15
	if os.Getenv("TATOLAB_SOAK") != "" {
		rounds = 500
	}
	dir := t.TempDir()
	write(t, open(t, dir), sample("bystander"))
	for i := range rounds {
		cmd := helper(t, "writer", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatalf("the writer did not start: %v", err)
		}
		time.Sleep(time.Duration(i*i%37) * time.Millisecond)
		_ = cmd.Process.Kill()
		rest := new(bytes.Buffer)
		_, _ = rest.ReadFrom(out)
		_ = cmd.Wait()
		// What the writer acknowledged last, "+" for a write and "-" for a
		// removal; one more step may have taken effect unacknowledged.
		acknowledged := rest.String()
		entries := load(t, dir)
		held := false
		for _, e := range entries {
			if e.Record == nil {
				t.Fatalf("round %d: %s", i, e.Reason)
			}
			held = held || e.Name == "flicker"
		}
		if names(entries) != "bystander" && names(entries) != "bystander flicker" {
			t.Fatalf("round %d: %q", i, names(entries))
		}
		// Two writes, then a removal: after "+" "+" the record may go, after
		// one "+" it may not, nor come back after "-" but by the next write.
		if strings.HasSuffix(acknowledged, "-+") && !held {
			t.Fatalf("round %d: an acknowledged record is gone", i)
		}
		files, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(files) != len(entries) {
			t.Fatalf("round %d: %d files for %d records", i, len(files), len(entries))
		}
	}
}

func writeForever(dir string) {
	s, err := Open(dir)
	if err == nil {
		_, _, err = s.Load()
	}
	r := sample("flicker")
	fmt.Print("r") // ready
	for i := 0; err == nil; i++ {
		if i%3 == 2 {
			err = s.Remove("flicker")
			fmt.Print("-")
			continue
		}
		r.Env["PAD"] = strings.Repeat("x", i%5*40_000)
		err = s.Write(r)
		fmt.Print("+")
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// A full disk fails the command with the reason; the old record stays whole,
// nothing is left over, and rm works all the same.
func TestFullDisk(t *testing.T) {
	cmd := helper(t, "full disk", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A file system of the process's own, gone with it.
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, syscall.EPERM) || strings.Contains(string(out), "cannot mount"):
		t.Skipf("no user namespaces here: %v %s", err, out)
	case err != nil || string(out) != "ok\n":
		t.Fatalf("%v\n%s", err, out)
	}
}

func onFullDisk(dir string) {
	fail := func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
		os.Exit(1)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		fail("cannot mount: %v", err)
	}
	dir = filepath.Join(dir, "streams")
	s, err := Open(dir)
	if err != nil {
		fail("%v", err)
	}
	if err := s.Write(sample("garage")); err != nil {
		fail("%v", err)
	}
	for size := 32 << 10; size > 0; size /= 2 { // fill what is left
		if f, err := os.CreateTemp(filepath.Dir(dir), "fill"); err == nil {
			_, _ = f.Write(make([]byte, size))
			f.Close()
		}
	}
	stopped := sample("garage")
	stopped.Stopped = true
	err = s.Write(stopped)
	var e *api.Error
	if !errors.As(err, &e) || e.Code != api.RecordFailed || !strings.Contains(e.Message, "no space left") || !strings.Contains(e.Message, "garage") {
		fail("a write on a full disk: %v", err)
	}
	files, _ := os.ReadDir(dir)
	if len(files) != 1 {
		fail("left over: %v", files)
	}
	entries, _, err := s.Load()
	if err != nil || len(entries) != 1 || entries[0].Record == nil || entries[0].Record.Stopped {
		fail("the old record is not whole: %+v, %v", entries, err)
	}
	if err := s.Remove("garage"); err != nil {
		fail("rm on a full disk: %v", err)
	}
	fmt.Println("ok")
	os.Exit(0)
}

func FuzzParse(f *testing.F) {
	whole, err := json.Marshal(sample("garage"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Replace(whole, []byte(`"version":0`), []byte(`"version":1`), 1))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"order":"three","project":7`))
	f.Fuzz(func(t *testing.T, data []byte) {
		glean(data)
		r, err := Parse(data)
		if err != nil {
			return
		}
		// What is accepted can be written, and reads back the same.
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("cannot write what was read: %v", err)
		}
		if _, err := Parse(again); err != nil {
			t.Fatalf("cannot read what was written: %v\n%s", err, again)
		}
	})
}
