// Package cameramachine runs tests where there are true V4L2 cameras: in a machine
// of their own with the kernel's vivid driver (cameramachine.sh beside this file,
// which also works by itself). It boots in 6 to 10 s, and needs root and QEMU.
//
// A package's TestMain calls Main. Outside, that starts the test's own binary again
// inside the machine, with the same flags; inside, it runs the tests. Each of them
// calls Need first.
package cameramachine

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// endLimit is how long the machine may take to boot and to end, beyond what its
// tests may take themselves.
const endLimit = time.Minute

// parallel is how many of the tests that call t.Parallel run at a time, unless
// -parallel says otherwise. They wait most of the time, for cameras and for each other.
const parallel = 32

// noMachine is the status of cameramachine.sh without one.
const noMachine = 125

// insideVariable is set inside.
const insideVariable = "TATOLAB_CAMERA_MACHINE"

// why tells why there is no machine, for Need.
var why string

// Need skips a test where there is no camera machine.
func Need(t *testing.T) {
	t.Helper()
	if os.Getenv(insideVariable) == "" {
		t.Skip("no camera machine can be had: " + why)
	}
}

// Main runs the tests inside the machine and returns their exit status. prepare is
// called outside before that: inside, programs take twelve times as long to build.
func Main(m *testing.M, prepare func() error) int {
	return run(m, func() ([]string, error) { return nil, prepare() })
}

// MainInMemory is Main for a machine that can be suspended. It has no part in this
// machine's files: prepare returns the programs and folders that are copied into it,
// beside the test's own binary.
func MainInMemory(m *testing.M, prepare func() ([]string, error)) int {
	return run(m, func() ([]string, error) {
		paths, err := prepare()
		return slices.Concat([]string{"--memory"}, paths, []string{"--"}), err
	})
}

// run is Main; prepare returns options of cameramachine.sh.
func run(m *testing.M, prepare func() ([]string, error)) int {
	if os.Getenv(insideVariable) != "" {
		return m.Run()
	}
	flag.Parse()
	script, err := script()
	switch {
	case flag.Lookup("test.list").Value.String() != "":
		return m.Run()
	case testing.Short():
		why = "-short was given"
	case err != nil:
		why = err.Error()
	}
	if why != "" {
		return m.Run()
	}
	options, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cannot prepare the camera machine:", err)
		return 1
	}
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command(script, slices.Concat(options, []string{self, "-test.parallel=" + strconv.Itoa(parallel)}, flags())...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The signal comes when the thread ends that started the process.
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if limit := flag.Lookup("test.timeout").Value.(flag.Getter).Get().(time.Duration); limit > 0 {
		late := time.AfterFunc(limit+endLimit, func() { cmd.Process.Kill() })
		defer late.Stop()
	}
	if err := cmd.Wait(); err != nil {
		if code := cmd.ProcessState.ExitCode(); code > 0 && code != noMachine {
			return code // the tests', which have said why
		}
		fmt.Fprintln(os.Stderr, "the camera machine:", err)
		return 1
	}
	return 0
}

// flags are those of this test, without what names files outside.
func flags() (list []string) {
	for _, f := range os.Args[1:] {
		name, _, _ := strings.Cut(strings.TrimLeft(f, "-"), "=")
		switch name {
		case "test.testlogfile", "test.coverprofile", "test.gocoverdir", "test.outputdir":
		default:
			list = append(list, f)
		}
	}
	return list
}

// script finds cameramachine.sh and has the kernel made; an error says why there
// can be no machine.
func script() (string, error) {
	if os.Getuid() != 0 {
		return "", errors.New("only root can share this machine's files with it")
	}
	if runtime.GOARCH != "amd64" {
		return "", errors.New("it is an x86-64 machine")
	}
	for _, tool := range []string{"qemu-system-x86_64", "depmod", "busybox", "cpio", "strip", "v4l2-ctl", "apt-get"} {
		if _, err := exec.LookPath(tool); err != nil {
			return "", fmt.Errorf("%w; make deps installs it", err)
		}
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == "/" {
			return "", errors.New("no go.mod above the test")
		}
	}
	folder := filepath.Join(dir, "contrib/testbed/cameramachine")
	out, err := exec.Command(filepath.Join(folder, "prepare.sh"), filepath.Join(dir, "build/cameramachine")).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("prepare.sh: %w: %s", err, out)
	}
	return filepath.Join(folder, "cameramachine.sh"), nil
}

// A Module is a driver, loaded inside.
type Module struct {
	t    testing.TB
	name string
}

// modules is where modprobe finds drivers inside.
const modules = "/run/machine/modules"

// Has tells whether there is that driver.
func Has(name string) bool { return exec.Command("modprobe", "-d", modules, "-n", name).Run() == nil }

// A driver is had by one test after the other, or by several at a time.
type driver struct {
	users  int
	shared string // parameters, of those who have it together; "": one has it alone
	wanted int    // by how many that have to have it alone
}

var drivers = struct {
	sync.Mutex
	changed *sync.Cond
	byName  map[string]*driver
}{byName: map[string]*driver{}}

func init() { drivers.changed = sync.NewCond(&drivers) }

// Take makes a driver, of those prepare.sh lists, this test's alone; that waits for
// other tests that have it. When the test ends the driver is unloaded. What devices of
// other drivers would disturb names those drivers, which nobody has meanwhile.
func Take(t testing.TB, name string, nobodys ...string) *Module {
	t.Helper()
	return take(t, name, nobodys, nil)
}

// Share loads a driver for all tests that share it with these parameters: each is to
// have a device of its own. Those who need the driver alone come first, beside tests that
// need none. When the last of all ends it is unloaded.
func Share(t testing.TB, name string, parameters ...string) *Module {
	t.Helper()
	time.Sleep(courtesy)
	return take(t, name, nil, parameters)
}

// courtesy is how long tests that start together have to say what they need alone.
const courtesy = 100 * time.Millisecond

// take is Take without parameters, Share with them.
func take(t testing.TB, name string, nobodys, parameters []string) *Module {
	t.Helper()
	m, shared := &Module{t, name}, strings.Join(parameters, " ")
	drivers.Lock()
	defer drivers.Unlock()
	var all []*driver
	for _, name := range append(nobodys, name) {
		if drivers.byName[name] == nil {
			drivers.byName[name] = new(driver)
		}
		all = append(all, drivers.byName[name])
	}
	alone := 0
	if shared == "" {
		alone = 1
	}
	for _, d := range all {
		d.wanted += alone
	}
	// All or none, so that nobody waits for one of them with the others in hand.
	for slices.ContainsFunc(all, func(d *driver) bool {
		if d.users > 0 {
			return alone > 0 || shared != d.shared
		}
		return alone == 0 && d.wanted > 0
	}) {
		drivers.changed.Wait()
	}
	for _, d := range all {
		d.users++
		d.shared = shared
		d.wanted -= alone
	}
	last := all[len(all)-1]
	t.Cleanup(func() {
		drivers.Lock()
		defer drivers.Unlock()
		for _, d := range all {
			d.users--
		}
		drivers.changed.Broadcast()
		if _, err := os.Stat("/sys/module/" + name); err == nil && last.users == 0 {
			m.Remove()
		}
	})
	if shared != "" && last.users == 1 {
		m.Insert(parameters...)
	}
	return m
}

// Alone waits until no other test shares the driver, and none will.
func (m *Module) Alone() {
	drivers.Lock()
	defer drivers.Unlock()
	d := drivers.byName[m.name]
	for d.users > 1 {
		drivers.changed.Wait()
	}
	d.shared = ""
}

// Load takes a driver and loads it.
func Load(t testing.TB, name string, parameters ...string) *Module {
	t.Helper()
	m := Take(t, name)
	m.Insert(parameters...)
	return m
}

// Insert loads the driver, as when its device is plugged in.
func (m *Module) Insert(parameters ...string) {
	m.t.Helper()
	do(m.t, "modprobe", append([]string{"-d", modules, m.name}, parameters...)...)
	permit(m.t)
}

// permit gives devices to their group, which without udev somebody else has to.
func permit(t testing.TB) {
	t.Helper()
	group, err := user.LookupGroup("video")
	if err != nil {
		t.Fatal(err)
	}
	gid, _ := strconv.Atoi(group.Gid)
	devices, _ := filepath.Glob("/dev/video*")
	for _, device := range devices {
		if err := errors.Join(os.Chown(device, 0, gid), os.Chmod(device, 0o660)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// Remove unloads the driver. Who has a device of it open delays that.
func (m *Module) Remove() {
	m.t.Helper()
	const limit = 10 * time.Second
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		err := unix.DeleteModule(m.name, unix.O_NONBLOCK)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("cannot unload %s within %s: %v", m.name, limit, err)
		}
	}
}

// Unbind takes the device away from the driver while programs have it open,
// as when it is unplugged; Bind is its return.
func (m *Module) Unbind() { m.t.Helper(); m.bind("unbind") }

// Bind gives the device back to the driver.
func (m *Module) Bind() { m.t.Helper(); m.bind("bind"); permit(m.t) }

func (m *Module) bind(file string) {
	m.t.Helper()
	if err := os.WriteFile("/sys/bus/platform/drivers/"+m.name+"/"+file, []byte(m.name+".0"), 0); err != nil {
		m.t.Fatal(err)
	}
}

// Control runs `v4l2-ctl -d device args`.
func Control(t testing.TB, device string, args ...string) string {
	t.Helper()
	return do(t, "v4l2-ctl", append([]string{"-d", device}, args...)...)
}

func do(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}
