package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/reconcile"
)

// hold makes a file one that cannot be opened, nor run, until free is called, or
// for 45 s (/proc/sys/fs/lease-break-time): what a disk that does not answer is
// like. wanted tells whether somebody waits for it.
func hold(t *testing.T, path string) (wanted func() bool, free func()) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	testbed.Eventually(t, 20*time.Second, func() string { // nobody else may have it open
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
			if err != unix.EAGAIN {
				t.Skip("needs a file system with leases: ", err)
			}
			return "cannot hold " + path + ": " + err.Error()
		}
		return ""
	})
	return func() bool {
		kind, err := unix.FcntlInt(f.Fd(), unix.F_GETLEASE, 0)
		return err == nil && kind != unix.F_WRLCK
	}, func() { f.Close() }
}

// A stream whose interpreter lies on a disk that does not answer keeps nobody from
// looking, neither at it nor at others; and nodes that end meanwhile, as they were
// told, have ended in time.
func TestALookWaitsForNoBusyStream(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	busy, idle := r.Project("busy", ticker("busy")), r.Project("idle", ticker("idle"))
	r.Must(busy, "run", "-d")
	r.Must(idle, "run", "-d")
	testbed.Eventually(t, 20*time.Second, func() string {
		for _, name := range []string{"busy", "idle"} {
			g, err := r.Client().Graph(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range g.Nodes {
				if n.State != api.NodeRunning {
					return name + "/" + n.Name + " is " + string(n.State)
				}
			}
		}
		return ""
	})
	wanted, free := hold(t, filepath.Join(busy, ".venv/bin/python"))
	restarted := make(chan error, 1)
	go func() {
		_, err := r.Client().Restart(context.Background(), "busy")
		restarted <- err
	}()
	testbed.Eventually(t, 20*time.Second, func() string {
		if !wanted() {
			return "no process of busy is being started"
		}
		return ""
	})

	c := r.Client()
	status, err := c.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(status.Usage) != 2 {
		t.Errorf("the status tells what %d streams use, want 2", len(status.Usage))
	}
	if list, err := c.Streams(t.Context()); err != nil || len(list.Streams) != 2 {
		t.Errorf("streams: %v, %v", list, err)
	}
	for _, name := range []string{"idle", "busy"} {
		g, err := c.Graph(t.Context(), name)
		if err != nil || len(g.Nodes) != 2 {
			t.Fatalf("graph of %s: %+v, %v", name, g, err)
		}
		if name == "busy" && !strings.Contains(strings.Join(g.Notes, "\n"), "too busy") {
			t.Errorf("graph of %s: notes %q", name, g.Notes)
		}
		for _, n := range g.Nodes {
			if n.State != api.NodeRunning {
				t.Errorf("%s/%s is %s", name, n.Name, n.State)
			}
		}
	}
	select {
	case err := <-restarted:
		t.Fatalf("busy was not busy any more when the answers came: %v", err)
	default:
	}
	time.Sleep(reconcile.CallbackLimit + time.Second)
	free()
	if err := <-restarted; err != nil {
		t.Error(err)
	}
	if logs := r.Must(busy, "logs", "busy"); strings.Contains(logs, "killed") {
		t.Errorf("the log of busy:\n%s", logs)
	}
}

// Whoever looks at streams while they are loaded finds them starting, and the
// runtime survives it at every moment.
func TestLooksWhileStreamsLoad(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("pattern", map[string]string{"pyproject.toml": "", "stream.py": `from tatolab.stream import StreamBuilder, TestPatternSource, stream


@stream
def pattern(stream_builder: StreamBuilder) -> None:
    stream_builder.add(TestPatternSource, name="source")
`})
	r.Must(project, "run", "-d")
	loads := 60
	if os.Getenv("TATOLAB_SOAK") != "" {
		loads = 1000
	}
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	for range 4 {
		looking.Go(func() {
			for c := r.Client(); ctx.Err() == nil; {
				g, err := c.Graph(ctx, "pattern")
				switch {
				case ctx.Err() != nil:
				case err != nil:
					t.Error(err)
					return
				case len(g.Nodes) != 1:
					t.Errorf("there are %d nodes, want 1", len(g.Nodes))
					return
				}
			}
		})
	}
	c := r.Client()
	for range loads {
		if _, err := c.Stop(ctx, "pattern"); err != nil {
			t.Error(err)
			break
		}
		if _, err := c.Start(ctx, "pattern"); err != nil {
			t.Error(err)
			break
		}
	}
	cancel()
	looking.Wait()
}
