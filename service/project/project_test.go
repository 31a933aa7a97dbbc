package project

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/keeper"
)

// bootstrap is the real one: what is compiled here is what a runtime compiles.
const bootstrap = "../../python/src/tatolab/stream/_lend/bootstrap.py"

const motionStream = `"""A motion watcher."""
from tatolab.stream import StreamBuilder, TestPatternSource, stream
from nodes.detector import Detector

@stream
def motion_watcher(stream_builder: StreamBuilder) -> None:
    """Watches for motion."""
    camera = stream_builder.add(TestPatternSource, name="camera")
    detector = stream_builder.add(Detector, name="detector", config={"sensitivity": 0.02})
    stream_builder.connect(camera.output("video"), detector.input("video"))
    stream_builder.expose(detector.output("motion"))
`

const detectorNode = `from dataclasses import dataclass
from tatolab.stream import RuntimeContextLimitedAccess, node

@dataclass
class DetectorConfig:
    sensitivity: float = 0.1

@node
class Detector:
    @node.input(delivery_profile="newest")
    def video(self) -> dict: ...
    @node.output()
    def motion(self) -> dict: ...
    def __init__(self, config: DetectorConfig) -> None:
        self.config = config
    def process(self, ctx: RuntimeContextLimitedAccess) -> None:
        pass
`

// The test binary is the keeper of what compiles.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main())
	}
	goleak.VerifyTestMain(m)
}

// newProject makes a folder with an environment, and the files of pairs.
func newProject(t *testing.T, pairs ...string) string {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("python3", "-m", "venv", "--without-pip", filepath.Join(dir, ".venv")).CombinedOutput()
	if err != nil {
		t.Fatalf("python3 -m venv: %v\n%s", err, out)
	}
	for i := 0; i < len(pairs); i += 2 {
		put(t, filepath.Join(dir, pairs[i]), pairs[i+1])
	}
	return dir
}

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func compiler(t *testing.T) *Compiler {
	t.Helper()
	path, err := filepath.Abs(bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	return &Compiler{Bootstrap: path, Environ: os.Environ()}
}

func compile(t *testing.T, c *Compiler, load api.Load, to *Snapshots) (*Compiled, error) {
	t.Helper()
	src, err := Resolve(load)
	if err != nil {
		return nil, err
	}
	return c.Compile(t.Context(), src, to)
}

// refused checks that err is an *api.Error of that code which says all of want.
func refused(t *testing.T, err error, code api.Code, want ...string) *api.Error {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an error of code %s", err, code)
	}
	all := e.Message + "\n" + e.Hint + "\n" + e.Detail
	for _, w := range want {
		if e.Code != code || !strings.Contains(all, w) {
			t.Fatalf("got %s:\n%s\nwant %s and %q", e.Code, all, code, w)
		}
	}
	return e
}

func TestCompile(t *testing.T) {
	dir := newProject(t, "stream.py", motionStream, "nodes/__init__.py", "", "nodes/detector.py", detectorNode,
		"pyproject.toml", "[tool.tatolab.env]\nROOM = \"attic\"\n")
	to := NewSnapshots(t.TempDir(), true)
	got, err := compile(t, compiler(t), api.Load{Project: dir}, to)
	if err != nil {
		t.Fatalf("%+v", err)
	}
	if got.Target != "stream.py:motion_watcher" || got.Graph.Stream != "motion_watcher" || got.Description != "Watches for motion." || got.Env["ROOM"] != "attic" {
		t.Errorf("got %+v", got)
	}
	detector := got.Nodes["detector"]
	if len(detector.Inputs) != 1 || detector.Inputs[0].Port != "video" || detector.Inputs[0].Profile != "newest" ||
		len(detector.Outputs) != 1 || detector.Execution.Mode != "reactive" || detector.Hash == "" {
		t.Errorf("detector is %+v", detector)
	}
	if err := to.Check(got.Snapshot); err != nil {
		t.Error(err)
	}

	// The same again, under another name and through another way of naming
	// the target: the code is the same.
	for _, load := range []api.Load{
		{Project: dir, Name: "Motion Watcher Test"},
		{Project: dir, Target: "stream.py:motion_watcher", Name: "motion-watcher-test"},
		{Project: dir, File: filepath.Join(dir, "stream.py"), Name: "motion-watcher-test"},
	} {
		again, err := compile(t, compiler(t), load, to)
		if err != nil {
			t.Fatalf("%+v: %v", load, err)
		}
		if again.Graph.Stream != "motion-watcher-test" || again.Snapshot != got.Snapshot || again.CodeHash != got.CodeHash || again.Nodes["detector"].Hash != detector.Hash {
			t.Errorf("%+v: got %+v", load, again)
		}
		if !SameFunction(dir, got.Target, dir, again.Target) {
			t.Errorf("%+v is not taken for the same function", load)
		}
	}

	// What differs is told apart: the node's own file changes its hash.
	if files, err := to.Differs(got.Snapshot); err != nil || len(files) != 0 {
		t.Errorf("differs: %v, %v", files, err)
	}
	put(t, filepath.Join(dir, "nodes/detector.py"), detectorNode+"# changed\n")
	if files, err := to.Differs(got.Snapshot); err != nil || len(files) != 1 || files[0] != "nodes/detector.py" {
		t.Errorf("differs: %v, %v", files, err)
	}
	changed, err := compile(t, compiler(t), api.Load{Project: dir}, to)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Snapshot == got.Snapshot || changed.Nodes["detector"].Hash == detector.Hash {
		t.Error("a changed node has the hash of the old one")
	}
}

func TestSnapshotsStayAsLongAsTheyAreHeld(t *testing.T) {
	dir := newProject(t, "stream.py", motionStream, "nodes/__init__.py", "", "nodes/detector.py", detectorNode)
	root := t.TempDir()
	to := NewSnapshots(root, false)
	c := compiler(t)
	first, err := compile(t, c, api.Load{Project: dir}, to)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "nodes/detector.py"), detectorNode+"# changed\n")
	second, err := compile(t, c, api.Load{Project: dir}, to)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root, ".half-written", "files", "x.py"), "")
	to.Hold(second.Snapshot) // twice: two streams run it
	to.Release(first.Snapshot)
	to.Release(second.Snapshot)
	if err := to.Collect(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root)
	if err != nil || len(entries) != 1 || entries[0].Name() != second.Snapshot {
		t.Errorf("left are %v, want only %s", entries, second.Snapshot)
	}
	if err := to.Check(second.Snapshot); err != nil {
		t.Error(err)
	}
	refused(t, to.Check(first.Snapshot), api.Unloadable, "tatolab run -d")
}

func TestWhatIsNoTarget(t *testing.T) {
	dir := newProject(t, "stream.py", motionStream, "cameras.py", "")
	bare := t.TempDir()
	put(t, filepath.Join(bare, "stream.py"), motionStream)
	empty := t.TempDir()
	odd := newProject(t, "stream.py", motionStream)
	python := filepath.Join(odd, ".venv/bin/python")
	if err := os.Remove(python); err != nil {
		t.Fatal(err)
	}
	put(t, python, "not a program")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		load api.Load
		code api.Code
		want string
	}{
		{api.Load{Project: "here"}, api.BadRequest, "absolute"},
		{api.Load{Project: filepath.Join(dir, "nowhere")}, api.Unloadable, "no such file"},
		{api.Load{Project: filepath.Join(dir, "stream.py")}, api.Unloadable, "--dir"},
		{api.Load{Project: dir, Name: "///"}, api.InvalidName, "///"},
		{api.Load{Project: dir, Env: map[string]string{"A=B": ""}}, api.BadRequest, "A=B"},
		{api.Load{Project: dir, Target: "stream.py", File: "cameras.py"}, api.BadRequest, "cameras.py:FUNCTION"},
		{api.Load{Project: dir, Target: "recorder"}, api.BadRequest, "stream.py:recorder"},
		{api.Load{Project: dir, Target: "stream.py:"}, api.BadRequest, "no function is named after the colon"},
		{api.Load{Project: dir, Target: "stream.py:a b"}, api.BadRequest, `"a b"`},
		{api.Load{Project: dir, Target: "not a module:f"}, api.BadRequest, "no target"},
		{api.Load{Project: dir, File: "notes.txt"}, api.BadRequest, "no .py file"},
		{api.Load{Project: dir, File: "../else/stream.py"}, api.BadRequest, "outside the project"},
		{api.Load{Project: dir, File: "absent.py"}, api.CompileFailed, "absent.py"},
		{api.Load{Project: bare}, api.NoEnvironment, bare + " has no .venv/bin/python. Run uv sync in " + filepath.Base(bare) + "."},
		{api.Load{Project: empty}, api.NoEnvironment, "there is no stream.py either"},
		{api.Load{Project: odd}, api.NoEnvironment, "it is no program"},
	} {
		_, err := Resolve(test.load)
		refused(t, err, test.code, test.want)
	}
	for load, want := range map[*api.Load]string{
		{Project: dir}: "stream.py",
		{Project: dir, Target: "./sub/../stream.py:f"}:                    "stream.py:f",
		{Project: dir, Target: "acme_streams.rover:camera_rig"}:           "acme_streams.rover:camera_rig",
		{Project: dir, File: "cameras.py"}:                                "cameras.py",
		{Project: link, File: filepath.Join(dir, "cameras.py")}:           "cameras.py",
		{Project: link + "/", Target: filepath.Join(link, "stream.py:f")}: "stream.py:f",
	} {
		if src, err := Resolve(*load); err != nil || src.Target != want {
			t.Errorf("%+v: got %+v, %v, want target %s", load, src, err, want)
		}
	}
	if !SameFunction(dir, "stream.py:f", link, "stream.py:f") || SameFunction(dir, "stream.py:f", bare, "stream.py:f") || SameFunction(dir, "stream.py:f", dir, "stream.py:g") {
		t.Error("functions are told apart wrongly")
	}
}

func TestMistakesOfTheProject(t *testing.T) {
	dir := newProject(t, "syntax.py", "def f(:\n", "raises.py", "print('so far')\nraise ValueError('no such room')\n",
		"several.py", strings.ReplaceAll(motionStream, "motion_watcher", "one")+strings.ReplaceAll(motionStream, "motion_watcher", "two"),
		"exits.py", "import sys\nsys.exit(3)\n", "leaves.py", "import os\nos._exit(3)\n",
		"crashes.py", "import ctypes\ndef deep():\n    ctypes.string_at(0)\ndeep()\n",
		"nodes/__init__.py", "", "nodes/detector.py", detectorNode)
	to := NewSnapshots(t.TempDir(), false)
	c := compiler(t)
	for file, want := range map[string][]string{
		"syntax.py":  {"syntax.py", "line 1"},
		"raises.py":  {"no such room", "raises.py", "so far"},
		"several.py": {"2 streams: one, two", "tatolab run several.py:one"},
		"exits.py":   {"exits.py"},
		"leaves.py":  {"status 3"},
		"crashes.py": {"SIGSEGV", "crashes.py, line 3 (deep)", `File "crashes.py", line 4`},
	} {
		_, err := compile(t, c, api.Load{Project: dir, Target: file}, to)
		e := refused(t, err, api.CompileFailed, want...)
		if strings.Contains(e.Detail, "bootstrap.py") || strings.Contains(e.Detail, "/_compile/") {
			t.Errorf("%s: frames of ours are shown:\n%s", file, e.Detail)
		}
		if strings.Contains(e.Message, "\n") {
			t.Errorf("%s: the message has several lines: %q", file, e.Message)
		}
	}
}

// A module that hangs when it is imported is named, and everything it started
// is gone, that in a session of its own included.
func TestTimeLimit(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	dir := newProject(t, "nodes/__init__.py", "", "nodes/slow.py", fmt.Sprintf(`import os, subprocess, time
for detached in (False, True):
    child = subprocess.Popen(["sleep", "1000"], start_new_session=detached, close_fds=False)
    with open(%q, "a") as f:
        print(child.pid, file=f)
print("starting")
def wait():
    time.sleep(1000)
wait()
`, pids), "stream.py", "import nodes.slow\n")
	c := compiler(t)
	c.Limit = 5 * time.Second // in which a busy machine comes to where it hangs
	_, err := compile(t, c, api.Load{Project: dir}, NewSnapshots(t.TempDir(), false))
	e := refused(t, err, api.CompileFailed, "nodes/slow.py, line 8 (wait)", "5s", "starting", `File "stream.py", line 1`)
	if strings.Contains(e.Detail, "bootstrap.py") {
		t.Errorf("frames of ours are shown:\n%s", e.Detail)
	}
	gone(t, pids, 2)
}

func TestAbandonedCompilationLeavesNothing(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	dir := newProject(t, "stream.py", fmt.Sprintf(`import os, signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
with open(%q, "w") as f:
    print(child.pid, os.getpid(), sep="\n", file=f)
time.sleep(1000)
`, pids))
	src, err := Resolve(api.Load{Project: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if data, err := os.ReadFile(pids); err == nil && strings.Count(string(data), "\n") == 2 {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_, err = compiler(t).Compile(ctx, src, NewSnapshots(t.TempDir(), false))
	refused(t, err, api.CompileFailed, "given up")
	gone(t, pids, 2)
}

// gone checks that the processes of a file of pids are no more.
func gone(t *testing.T, file string, count int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pids := strings.Fields(string(data))
	if len(pids) != count {
		t.Fatalf("%d processes were started, want %d", len(pids), count)
	}
	for _, pid := range pids {
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			status, err := os.ReadFile("/proc/" + pid + "/stat")
			if err != nil || strings.Contains(string(status), ") Z ") {
				break // a zombie is its new parent's to collect
			}
			if time.Now().After(deadline) {
				t.Errorf("process %s is still there: %s", pid, status)
				break
			}
		}
	}
}

// The moment the runtime dies, nothing is left of a compilation: an interpreter
// that hangs, and a child that left its session and forgot its environment.
func TestCompilationEndsWithTheRuntime(t *testing.T) {
	pids := filepath.Join(t.TempDir(), "pids")
	dir := newProject(t, "stream.py", fmt.Sprintf(`import os, subprocess, time
child = subprocess.Popen(["sleep", "1000"], start_new_session=True, env={})
with open(%q, "w") as f:
    print(child.pid, os.getpid(), sep="\n", file=f)
time.sleep(1000)
`, pids))
	// Another test process is the runtime.
	runtime := exec.Command("/proc/self/exe", "-test.run=^TestCompileForever$")
	runtime.Env = append(os.Environ(), "TATOLAB_TEST_FOREVER="+dir)
	if err := runtime.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(pids); err == nil && strings.Count(string(data), "\n") == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it does not compile")
		}
	}
	if err := runtime.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = runtime.Wait()
	gone(t, pids, 2)
}

func TestCompileForever(t *testing.T) {
	dir := os.Getenv("TATOLAB_TEST_FOREVER")
	if dir == "" {
		t.Skip("the runtime of TestCompilationEndsWithTheRuntime")
	}
	_, err := compile(t, compiler(t), api.Load{Project: dir}, NewSnapshots(t.TempDir(), false))
	t.Fatal(err)
}

// A program that cannot be run is named, with the reason and no more.
func TestInterpreterThatCannotBeRun(t *testing.T) {
	dir := newProject(t, "stream.py", motionStream)
	python := filepath.Join(dir, ".venv/bin/python")
	if err := os.Remove(python); err != nil {
		t.Fatal(err)
	}
	put(t, python, "#!/nowhere/python\n")
	if err := os.Chmod(python, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := compile(t, compiler(t), api.Load{Project: dir}, NewSnapshots(t.TempDir(), false))
	refused(t, err, api.NoEnvironment, "cannot compile stream.py: "+python+" cannot be run: its interpreter is missing", "uv sync")
}

// What keeps the interpreter from being run and is no fault of its file is no
// reason to make another environment.
func TestInterpreterThatCannotBeRunNow(t *testing.T) {
	dir := newProject(t, "stream.py", motionStream)
	tooLong := map[string]string{"TOKEN": strings.Repeat("x", 256<<10)} // execve(2): 128 KiB
	_, err := compile(t, compiler(t), api.Load{Project: dir, Env: tooLong}, NewSnapshots(t.TempDir(), false))
	e := refused(t, err, api.Internal, "cannot compile stream.py: ", "argument list too long")
	if e.Hint != "" {
		t.Errorf("the hint is %q", e.Hint)
	}
}

// What a node that runs may be given is checked with the code it runs with.
func TestCheck(t *testing.T) {
	dir := newProject(t, "stream.py", motionStream, "nodes/__init__.py", "", "nodes/detector.py", detectorNode)
	to := NewSnapshots(t.TempDir(), false)
	c := compiler(t)
	compiled, err := compile(t, c, api.Load{Project: dir}, to)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "nodes/detector.py"), "edited meanwhile")
	src := &Source{Dir: dir, Interpreter: filepath.Join(dir, ".venv/bin/python")}
	check := func(config string) error {
		return c.Check(t.Context(), src, to.Path(compiled.Snapshot), []graph.Node{
			{Name: "detector", Type: "nodes.detector:Detector", Config: json.RawMessage(config)}})
	}
	if err := check(`{"sensitivity": 1}`); err != nil {
		t.Error(err)
	}
	refused(t, check(`{"sensitivty": 1}`), api.BadRequest, `config of node "detector"['sensitivty']`, "its keys", `"sensitivity"`)
	refused(t, check(`{"sensitivity": "high"}`), api.BadRequest, "'high', not a number")
}

func TestLongOutputIsCut(t *testing.T) {
	dir := newProject(t, "stream.py", "import sys\nfor i in range(200_000):\n    print('line', i)\nraise ValueError('at last')\n")
	_, err := compile(t, compiler(t), api.Load{Project: dir}, NewSnapshots(t.TempDir(), false))
	e := refused(t, err, api.CompileFailed, "at last", "(cut)\nline ", "line 199999")
	if len(e.Detail) > 3*maxOutput {
		t.Errorf("the detail has %d bytes", len(e.Detail))
	}
}

func TestEnvironment(t *testing.T) {
	base := []string{"HOME=/home/you", "PYTHONPATH=/elsewhere", "PYTHONHOME=/x", "ROOM=cellar"}
	got := strings.Join(Environ(base, map[string]string{"ROOM": "attic"}, map[string]string{"DOOR": "open"}), " ")
	if got != "HOME=/home/you DOOR=open ROOM=attic" {
		t.Errorf("got %s", got)
	}

	dir := newProject(t, "stream.py", motionStream, "nodes/__init__.py", "import os\nassert os.environ['ROOM'] == 'attic', os.environ['ROOM']\nassert 'PYTHONPATH' not in os.environ\n",
		"nodes/detector.py", detectorNode, "pyproject.toml", "[tool.tatolab.env]\nROOM = \"cellar\"\n")
	t.Setenv("PYTHONPATH", "/elsewhere")
	if _, err := compile(t, compiler(t), api.Load{Project: dir, Env: map[string]string{"ROOM": "attic"}}, NewSnapshots(t.TempDir(), false)); err != nil {
		t.Errorf("%+v", api.AsError(err))
	}
}

func TestCatalog(t *testing.T) {
	dir := newProject(t, "nodes/__init__.py", "", "nodes/detector.py", detectorNode, "nodes/bad.py", "from tatolab.stream import node\n@node\nclass B:\n  oops\n")
	got, err := compiler(t).Catalog(t.Context(), dir)
	if err != nil {
		t.Fatalf("%+v", api.AsError(err))
	}
	types := map[string]api.CatalogNode{}
	for _, n := range got.Nodes {
		types[n.Type] = n
	}
	detector, camera := types["nodes.detector:Detector"], types["tatolab.stream:CameraSource"]
	if len(detector.Inputs) != 1 || detector.ConfigSchema == nil || len(camera.Outputs) != 1 {
		t.Errorf("got %+v", got)
	}
	if len(got.Errors) != 1 || got.Errors[0].Module != "nodes.bad" {
		t.Errorf("errors are %+v, want nodes.bad", got.Errors)
	}
	for _, path := range []string{"", "here"} { // of which folder?
		_, err := compiler(t).Catalog(t.Context(), path)
		refused(t, err, api.BadRequest, "absolute")
	}
}
