package fakecamera

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is the program under test too: it asks the system what it
// would of a camera, and prints the answers.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "ask" {
		ask(os.Args[2])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func ask(question string) {
	switch question {
	case "folder":
		for _, folder := range []string{"/dev", "/dev/v4l/by-id"} {
			entries, err := os.ReadDir(folder)
			fmt.Println(folder, entryNames(entries), err)
		}
		fmt.Println(filepath.EvalSymlinks("/dev/v4l/by-id/usb-A-video-index0"))
		info, err := os.Stat("/dev/video3")
		fmt.Println(err == nil && info.Mode()&os.ModeCharDevice != 0)
		_, err = os.Stat("/dev/video9")
		fmt.Println(err)
		null, err := os.OpenFile("/dev/null", os.O_WRONLY, 0)
		fmt.Println(null != nil, err)
	case "child": // what it starts is under the filter as well
		out, err := exec.Command(os.Args[0], "ask", "folder").CombinedOutput()
		fmt.Print(string(out), err)
	case "select":
		fd, err := unix.Open("/dev/video3", unix.O_RDWR|unix.O_NONBLOCK, 0)
		var read unix.FdSet
		read.Set(fd)
		begin := time.Now() // ready at once: a camera that does not stream has an error
		n, serr := unix.Pselect(fd+1, &read, nil, nil, &unix.Timespec{Sec: 5}, nil)
		fmt.Println(err, n, serr, read.IsSet(fd), time.Since(begin) < 4*time.Second)
		fmt.Println(unix.Access("/dev/video3", unix.R_OK|unix.W_OK), unix.Access("/dev/video9", unix.F_OK))
	case "poll":
		// A pipe beside a camera that does not stream: the pipe ends the poll.
		fd, err := unix.Open("/dev/video3", unix.O_RDWR|unix.O_NONBLOCK, 0)
		var pipe [2]int
		unix.Pipe(pipe[:])
		time.AfterFunc(100*time.Millisecond, func() { unix.Write(pipe[1], []byte{1}) })
		polls := []unix.PollFd{{Fd: -1}, {Fd: int32(pipe[0]), Events: unix.POLLIN}, {Fd: int32(fd), Events: unix.POLLIN}}
		begin := time.Now()
		n, perr := unix.Poll(polls[:2], 5000)
		fmt.Println(err, n, perr, polls[1].Revents == unix.POLLIN, time.Since(begin) < 4*time.Second)
		begin = time.Now()
		n, perr = unix.Poll(polls[2:], 5000)
		fmt.Println(n, perr, polls[2].Revents == unix.POLLERR, time.Since(begin) < 4*time.Second)
	}
}

func entryNames(entries []os.DirEntry) (list []string) {
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// under runs the test binary with a question in a bed, and returns its answer.
func under(t *testing.T, question string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "ask", question)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	camera := Webcam("/dev/video3", "YUYV", 64, 8, 30)
	camera.ByID = "usb-A-video-index0"
	bed, err := Start(cmd, Script{Cameras: []Camera{camera}})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	return out.String()
}

const folderAnswer = `/dev [v4l video3] <nil>
/dev/v4l/by-id [usb-A-video-index0] <nil>
/dev/video3 <nil>
true
stat /dev/video9: no such file or directory
true <nil>
`

func TestFolder(t *testing.T) {
	if got := under(t, "folder"); got != folderAnswer {
		t.Errorf("got\n%s", got)
	}
}

func TestChildrenAreUnderIt(t *testing.T) {
	if got := under(t, "child"); got != folderAnswer+"<nil>" {
		t.Errorf("got\n%s", got)
	}
}

func TestPollBesideOthers(t *testing.T) {
	if got := under(t, "poll"); got != "<nil> 1 <nil> true true\n1 <nil> true true\n" {
		t.Errorf("got\n%s", got)
	}
}

func TestSelectAndAccess(t *testing.T) {
	if got := under(t, "select"); got != "<nil> 1 <nil> true true\n<nil> no such file or directory\n" {
		t.Errorf("got\n%s", got)
	}
}

// A foreign program takes the fake for a camera, and gets its pictures.
func TestForeignProgram(t *testing.T) {
	if _, err := exec.LookPath("ffmpeg"); err != nil {
		t.Skip("ffmpeg is not installed")
	}
	script := filepath.Join(t.TempDir(), "script.json")
	if err := os.WriteFile(script, []byte(`{"cameras": [{"path": "/dev/video0", "card": "A", "formats": [{"fourcc": "YUYV", "sizes": [{"width": 320, "height": 180, "rates": [30]}]}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ffmpeg", "-v", "error", "-f", "v4l2", "-i", "/dev/video0", "-frames:v", "5", "-f", "rawvideo", "-")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	bed, err := Start(cmd, parsed)
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	if err := cmd.Wait(); err != nil || out.Len() != 5*320*180*2 {
		t.Errorf("%v, %d bytes: %s", err, out.Len(), errs.String())
	}
}

// Nothing is left when a program and its bed have gone.
func TestLeavesNothing(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	t.Setenv("TMPDIR", t.TempDir())
	under(t, "folder") // opens what is opened once
	before := count()
	for range 3 {
		under(t, "poll")
	}
	for deadline := time.Now().Add(20 * time.Second); count() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors before, %d after", before, count())
		}
	}
	if entries, _ := os.ReadDir(os.Getenv("TMPDIR")); len(entries) != 0 {
		t.Errorf("left behind: %v", entryNames(entries))
	}
}

func TestRefusals(t *testing.T) {
	for _, test := range []struct{ script, says string }{
		{`{"cameras": [{"path": "/dev/null", "card": "A"}]}`, "not /dev/videoN"},
		{`{"cameras": [{"path": "/dev/video0", "card": "A", "formats": [{"fourcc": "H264"}]}]}`, `"H264"`},
		{`{"cameras": [{"path": "/dev/video0", "card": "A", "formats": [{"fourcc": "YUYV", "sizes": [{"width": 63, "height": 8}]}]}]}`, "63x8"},
		{`{"cameras": [{"path": "/dev/video0", "card": "A", "output": true}]}`, "/dev/video0 has no formats"},
		{`{"camera": []}`, "unknown field"},
	} {
		script, err := Parse([]byte(test.script))
		if err == nil {
			var bed *Bed
			if bed, err = Start(exec.Command("true"), script); err == nil {
				bed.Close()
			}
		}
		if err == nil || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.script, err)
		}
	}
}

// A program that is not there shows as a shell would show it.
func TestProgramThatIsNotThere(t *testing.T) {
	cmd := exec.Command("/nowhere/at/all")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	bed, err := Start(cmd, Script{})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	if cmd.Wait(); cmd.ProcessState.ExitCode() != 127 || !strings.Contains(errs.String(), "cannot run /nowhere/at/all: no such file") {
		t.Errorf("exit %d: %s", cmd.ProcessState.ExitCode(), errs.String())
	}
}

// A second filter in a process that has one is refused, and says why.
func TestNested(t *testing.T) {
	cmd := exec.Command(os.Args[0], "ask", "folder")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	inner, err := exec.LookPath("env")
	if err != nil {
		t.Skip("env is not there")
	}
	// The outer bed's program is a launcher of its own.
	cmd.Path, cmd.Args = inner, []string{"env", launchVariable + "=9:" + inner, os.Args[0]}
	bed, err := Start(cmd, Script{})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	if err := cmd.Wait(); err == nil || !strings.Contains(errs.String(), "under another such filter already") {
		t.Errorf("%v: %s", err, errs.String())
	}
}
