package blame

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "runtime" {
		runtimeMain(os.Args[2], os.Args[3])
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// runtimeMain is a runtime that ends in the way its role says.
func runtimeMain(state, role string) {
	p, _, err := Open(state, filepath.Join(state, "result"))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	up := func() { fmt.Println("up"); time.Sleep(time.Hour) }
	// Marks of others stand when a stream's own goroutine crashes.
	bystander := func() {
		ready := make(chan struct{})
		go p.Do("bystander", func() { close(ready); time.Sleep(time.Hour) })
		<-ready
	}
	switch role {
	case "clean":
		p.Do("garage", func() {})
		p.MarkClean()
		p.Close()
	case "panic":
		bystander()
		p.Do("garage", func() { panic("boom\nin two lines") })
	case "index":
		bystander()
		p.Do("garage", func() { fmt.Println(os.Args[len(os.Args)]) })
	case "recovered":
		defer func() { recover(); p.MarkClean() }()
		p.Do("garage", func() { panic("not to be recovered") })
	case "inherited":
		p.Do("garage", func() { go func() { time.Sleep(10 * time.Millisecond); panic("of a goroutine it started") }() })
		bystander()
		time.Sleep(time.Hour)
	case "nested":
		p.Do("porch", func() { p.Do("garage", func() { panic("inner") }) })
	case "outer":
		p.Do("garage", func() { p.Do("porch", func() {}); panic("outer") })
	case "nobody":
		p.Do("garage", func() {})
		panic("of the runtime's own")
	case "only-marked":
		marked := make(chan struct{})
		go func() {
			<-marked
			panic("elsewhere, while one is marked")
		}()
		p.Do("garage", func() { close(marked); time.Sleep(time.Hour) })
	case "fatal":
		bystander()
		p.Do("garage", func() {
			var m sync.Mutex
			m.Unlock() // what recover does not recover from
		})
	case "stack":
		debug.SetMaxStack(1 << 20)
		bystander()
		p.Do("garage", func() { fmt.Println(overflow(0)) })
	case "segv":
		bystander()
		p.Do("garage", func() {
			// A page that is mapped from an empty file: the fault is raised by
			// the kernel, as one in C code would be.
			f, _ := os.CreateTemp("", "empty")
			os.Remove(f.Name())
			mem, _ := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
			fmt.Println(mem[0])
		})
	case "marked":
		p.Do("garage", up)
	case "two-marked":
		bystander()
		p.Do("garage", up)
	case "idle":
		up()
	}
}

func overflow(n int) int {
	if n < 0 {
		return 0
	}
	return overflow(n+1) + 1
}

// run lets a runtime end as its role says, by a signal once it is up if there
// is one, and returns what the next one makes of it.
func run(t *testing.T, role string, s unix.Signal, result string) Verdict {
	t.Helper()
	state := t.TempDir()
	return runIn(t, state, role, s, result)
}

func runIn(t *testing.T, state, role string, s unix.Signal, result string) Verdict {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "runtime", state, role)
	cmd.Env = append(os.Environ(), "GOTRACEBACK=single")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if s != 0 {
		line := make([]byte, 3)
		if _, err := out.Read(line); err != nil || string(line) != "up\n" {
			t.Fatalf("%s: %q, %v\n%s", role, line, err, stderr.String())
		}
		cmd.Process.Signal(s)
	}
	watchdog := time.AfterFunc(20*time.Second, func() { cmd.Process.Kill() })
	cmd.Wait()
	watchdog.Stop()
	file := filepath.Join(state, "result")
	if result != "" {
		if err := os.WriteFile(file, []byte(result+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p, v, err := Open(state, file)
	if err != nil {
		t.Fatal(err)
	}
	p.MarkClean()
	p.Close()
	if _, err := os.Stat(file); err == nil {
		t.Error("the service manager's result was left for the next start")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, signal %d, said:\n%.600s", role, s, stderr.String())
		}
	})
	return v
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		role     string
		signal   unix.Signal
		result   string
		cause    string
		crashed  bool
		guilty   string
		suspects string
	}{
		{role: "panic", cause: "panic: boom", crashed: true, guilty: "garage"},
		{role: "index", cause: "panic: runtime error: index out of range", crashed: true, guilty: "garage"},
		{role: "recovered", cause: "panic: not to be recovered", crashed: true, guilty: "garage"},
		{role: "inherited", cause: "panic: of a goroutine it started", crashed: true, guilty: "garage"},
		{role: "nested", cause: "panic: inner", crashed: true, guilty: "garage"},
		{role: "outer", cause: "panic: outer", crashed: true, guilty: "garage"},
		{role: "nobody", cause: "panic: of the runtime's own", crashed: true},
		{role: "only-marked", cause: "panic: elsewhere", crashed: true, guilty: "garage"},
		{role: "fatal", cause: "fatal error in tatolab.com/tatolab/service/blame.runtimeMain", crashed: true, guilty: "garage"},
		{role: "stack", cause: "fatal error: stack overflow in tatolab.com/tatolab/service/blame.overflow", crashed: true, guilty: "garage"},
		{role: "segv", cause: "fatal error: SIGBUS: bus error in tatolab.com/tatolab/service/blame.runtimeMain", crashed: true, guilty: "garage"},

		{role: "marked", signal: unix.SIGSEGV, cause: "SIGSEGV: ", crashed: true, guilty: "garage"},
		{role: "two-marked", signal: unix.SIGSEGV, cause: "SIGSEGV: ", crashed: true, suspects: "bystander garage"},
		{role: "idle", signal: unix.SIGSEGV, cause: "SIGSEGV: ", crashed: true},
		{role: "marked", signal: unix.SIGABRT, result: "watchdog killed ABRT", cause: "it did not answer", crashed: true, guilty: "garage"},
		{role: "marked", signal: unix.SIGABRT, cause: "SIGABRT: abort", crashed: true, guilty: "garage"},
		{role: "two-marked", signal: unix.SIGKILL, result: "watchdog killed KILL", cause: "it did not answer", crashed: true, suspects: "bystander garage"},
		{role: "marked", signal: unix.SIGKILL, result: "core-dump dumped SEGV", cause: "it was ended by signal SIGSEGV", crashed: true, guilty: "garage"},

		{role: "marked", signal: unix.SIGKILL, cause: "it was killed, or the machine went down"},
		{role: "marked", signal: unix.SIGKILL, result: "signal killed KILL", cause: "it was killed (SIGKILL)"},
		{role: "marked", signal: unix.SIGKILL, result: "oom-kill killed KILL", cause: "it was killed for want of memory"},
		{role: "marked", signal: unix.SIGQUIT, cause: "somebody asked it for a trace"},
	} {
		t.Run(fmt.Sprintf("%s/%d/%s", c.role, c.signal, c.result), func(t *testing.T) {
			v := run(t, c.role, c.signal, c.result)
			slices.Sort(v.Suspects)
			if v.Clean || v.Crashed != c.crashed || v.Unknown() == c.crashed || !strings.HasPrefix(v.Cause, c.cause) ||
				strings.Join(v.Guilty, " ") != c.guilty || strings.Join(v.Suspects, " ") != c.suspects {
				t.Errorf("%s, signal %d, result %q: %+v", c.role, c.signal, c.result, v)
			}
			if strings.Contains(v.Cause, ": ") || strings.HasPrefix(v.Cause, "fatal") {
				if trace, err := os.ReadFile(v.Trace); err != nil || !strings.Contains(string(trace), "goroutine ") {
					t.Errorf("%s: no trace in %q: %v", c.role, v.Trace, err)
				}
			}
		})
	}
}

func TestCleanEnds(t *testing.T) {
	state := t.TempDir()
	p, v, err := Open(state, filepath.Join(state, "result"))
	if err != nil || !v.Clean || v.Crashed || v.Unknown() {
		t.Errorf("a first start: %+v, %v", v, err)
	}
	p.MarkClean()
	p.Close()
	if v := runIn(t, state, "clean", 0, "success exited 0"); !v.Clean || v.Cause != "" {
		t.Errorf("after a clean end: %+v", v)
	}
	// What an earlier run left is not evidence against the next.
	runIn(t, state, "panic", 0, "")
	if v := runIn(t, state, "clean", 0, ""); !v.Clean {
		t.Errorf("clean after a crash: %+v", v)
	}
	if v := runIn(t, state, "marked", unix.SIGKILL, ""); v.Crashed || !v.Unknown() {
		t.Errorf("SIGKILL after a crash: %+v", v)
	}
}

func TestPageThatMakesNoSense(t *testing.T) {
	for _, page := range []string{"", "short", strings.Repeat("\xff", pageSize), magic + strings.Repeat("\xff", pageSize-len(magic))} {
		state := t.TempDir()
		if err := os.WriteFile(filepath.Join(state, pageFile), []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
		p, v, err := Open(state, filepath.Join(state, "result"))
		if err != nil {
			t.Fatal(err)
		}
		if v.Crashed || len(v.Guilty)+len(v.Suspects) > 0 {
			t.Errorf("%.12q: %+v", page, v)
		}
		p.Close()
	}
}

func marked(t *testing.T, state string) []string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(state, pageFile))
	if err != nil {
		t.Fatal(err)
	}
	var e evidence
	e.readPage(page)
	slices.Sort(e.marked)
	return e.marked
}

func TestMarksStandOnlyAroundWork(t *testing.T) {
	state := t.TempDir()
	p, _, err := Open(state, filepath.Join(state, "result"))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	long := strings.Repeat("n", 63)
	p.Do("garage", func() {
		p.Do(long, func() {
			p.Do("garage", func() {})
			if got := marked(t, state); !slices.Equal(got, []string{"garage", long}) {
				t.Errorf("marked: %q", got)
			}
		})
	})
	// Far more streams than slots, many at once.
	var wg sync.WaitGroup
	for i := range 2 * slotCount {
		wg.Go(func() {
			for range 20 {
				p.Do(fmt.Sprint("s", i), func() {})
			}
		})
	}
	wg.Wait()
	if got := marked(t, state); len(got) > 0 {
		t.Errorf("still marked: %q", got)
	}
	p.Do("garage", func() {
		if got := marked(t, state); !slices.Equal(got, []string{"garage"}) {
			t.Errorf("marked: %q", got)
		}
	})
	p.Close()
	ran := false
	p.Do("garage", func() { ran = true })
	var none *Page
	none.Do("garage", func() { ran = ran && true })
	if !ran {
		t.Error("work without a page was not done")
	}
}

// Whatever the last run left, the next one starts.
func FuzzJudge(f *testing.F) {
	f.Add("panic: x\n\ngoroutine 7 [running labels:{\"stream\": \"garage\"}]:\nmain.f(...)\n", "watchdog killed ABRT")
	f.Add("\ngoroutine 7 gp=0x1 m=0 mp=0x2 [running labels:{\"a\": \"b\", \"stream\": \"gar\\\"age\"}]:\nruntime.throw()\n", "")
	f.Add("SIGSEGV: segmentation violation\nPC=0x1 m=0 sigcode=0\n", "core-dump")
	f.Fuzz(func(t *testing.T, output, result string) {
		e := evidence{marked: []string{"garage"}, output: output, result: result}
		if v := e.judge(); v.Clean || !v.Crashed && len(v.Guilty)+len(v.Suspects) > 0 || v.Cause == "" {
			t.Errorf("%+v", v)
		}
	})
}
