package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func project(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"nodes", ".venv/lib", "__pycache__", ".git"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "stream.py", "a")
	write(t, dir, "nodes/__init__.py", "")
	write(t, dir, "nodes/effect.py", "a")
	write(t, dir, "pyproject.toml", "a")
	return dir
}

func write(t *testing.T, dir, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// signals counts the signals until none has come for longer than any settling.
func signals(w *Watcher) int {
	n := 0
	wait := 20 * time.Second // for the first, on a busy machine
	for {
		select {
		case <-w.Changes():
			n++
			wait = settleGone + 400*time.Millisecond
		case <-time.After(wait):
			return n
		}
		if n > 5 {
			return n
		}
	}
}

// pace tells whether the steps of a change came as soon after another as is
// meant: on a busy machine they may not, and one change may then be two.
type pace struct {
	last time.Time
	late bool
}

func (p *pace) step(limit time.Duration) {
	now := time.Now()
	p.late = p.late || !p.last.IsZero() && now.Sub(p.last) >= limit
	p.last = now
}

// TestOneSignal is scenario 9: each way of changing files makes exactly one.
func TestOneSignal(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string, p *pace){
		"save in place":  func(t *testing.T, dir string, p *pace) { write(t, dir, "stream.py", "b") },
		"pyproject.toml": func(t *testing.T, dir string, p *pace) { write(t, dir, "pyproject.toml", "b") },
		"touch": func(t *testing.T, dir string, p *pace) {
			must(t, exec.Command("touch", filepath.Join(dir, "stream.py")).Run())
		},
		"save by renaming": func(t *testing.T, dir string, p *pace) {
			write(t, dir, "stream.py.tmp", "b")
			p.step(settleGone)
			must(t, os.Rename(filepath.Join(dir, "stream.py"), filepath.Join(dir, "stream.py~")))
			must(t, os.Rename(filepath.Join(dir, "stream.py.tmp"), filepath.Join(dir, "stream.py")))
			p.step(settleGone)
		},
		"delete and create": func(t *testing.T, dir string, p *pace) {
			p.step(settleGone)
			must(t, os.Remove(filepath.Join(dir, "stream.py")))
			time.Sleep(100 * time.Millisecond)
			write(t, dir, "stream.py", "b")
			p.step(settleGone)
		},
		"empty, then full": func(t *testing.T, dir string, p *pace) {
			p.step(settleGone)
			write(t, dir, "stream.py", "")
			time.Sleep(100 * time.Millisecond)
			write(t, dir, "stream.py", "b")
			p.step(settleGone)
		},
		"a writer that pauses": func(t *testing.T, dir string, p *pace) {
			p.step(settleMost)
			f, err := os.Create(filepath.Join(dir, "stream.py"))
			must(t, err)
			for range 5 {
				_, err := f.WriteString("line\n")
				must(t, err)
				time.Sleep(100 * time.Millisecond)
			}
			must(t, f.Close())
			p.step(settleMost)
		},
		"two hundred files": func(t *testing.T, dir string, p *pace) {
			quiet := settle
			for i := range 200 {
				p.step(quiet / 2)
				write(t, dir, fmt.Sprintf("nodes/n%d.py", i), "x")
				p.step(quiet / 2)
				if i > manyFiles {
					quiet = settleMany
				}
				time.Sleep(time.Millisecond)
			}
		},
		"git at work": func(t *testing.T, dir string, p *pace) {
			p.step(settleMost)
			lock := filepath.Join(dir, ".git", "index.lock")
			must(t, os.WriteFile(lock, nil, 0o644))
			for i := range 5 {
				write(t, dir, fmt.Sprintf("n%d.py", i), "x")
				time.Sleep(settleMany + 50*time.Millisecond)
			}
			must(t, os.Remove(lock))
			p.step(settleMost)
		},
		"new package": func(t *testing.T, dir string, p *pace) {
			must(t, os.MkdirAll(filepath.Join(dir, "nodes/more/deep"), 0o755))
			write(t, dir, "nodes/more/deep/a.py", "x")
		},
		"folder moved in": func(t *testing.T, dir string, p *pace) {
			other := filepath.Join(t.TempDir(), "pack")
			must(t, os.Mkdir(other, 0o755))
			write(t, other, "a.py", "x")
			must(t, os.Rename(other, filepath.Join(dir, "pack")))
		},
		"delete": func(t *testing.T, dir string, p *pace) { must(t, os.Remove(filepath.Join(dir, "nodes/effect.py"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 20 {
				dir := project(t)
				w := New(dir)
				var p pace
				change(t, dir, &p)
				n := signals(w)
				w.Close()
				if n == 0 || n > 1 && !p.late {
					t.Errorf("%d signals, want 1", n)
				}
				if !p.late {
					return
				}
			}
			t.Skip("this machine is too busy to change the files in one go")
		})
	}
}

func TestNewFolderIsWatched(t *testing.T) {
	t.Parallel()
	dir := project(t)
	w := New(dir)
	defer w.Close()
	must(t, os.Mkdir(filepath.Join(dir, "pack"), 0o755))
	write(t, dir, "pack/a.py", "x")
	if n := signals(w); n != 1 {
		t.Fatalf("%d signals", n)
	}
	write(t, dir, "pack/a.py", "changed")
	if n := signals(w); n != 1 {
		t.Errorf("a save in the new folder: %d signals", n)
	}
}

// What is no source neither signals nor delays a signal.
func TestIgnored(t *testing.T) {
	t.Parallel()
	dir := project(t)
	w := New(dir)
	defer w.Close()
	var writer sync.WaitGroup
	defer writer.Wait()
	stop := make(chan struct{})
	defer close(stop)
	written := make(chan struct{})
	writer.Go(func() {
		for i := 0; ; i++ {
			for _, file := range []string{".venv/lib/a.py", "__pycache__/a.py", ".hidden.py", "events.jsonl", ".git/x.py", "nodes/pyproject.toml.bak"} {
				_ = os.WriteFile(filepath.Join(dir, file), fmt.Append(nil, i), 0o644)
			}
			if i == 20 {
				close(written)
			}
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	<-written
	select {
	case <-w.Changes():
		t.Error("a signal for what is no source")
	case <-time.After(settleGone + 200*time.Millisecond):
	}
	write(t, dir, "stream.py", "b")
	if n := signals(w); n != 1 {
		t.Errorf("%d signals beside other writing, want 1", n)
	}
}

func TestPolling(t *testing.T) {
	t.Parallel()
	dir := project(t)
	w := &Watcher{root: dir, polling: true, changes: make(chan struct{}, 1), done: make(chan struct{}), ended: make(chan struct{})}
	go w.run(w.scan())
	defer w.Close()
	write(t, dir, "stream.py", "longer")
	if n := signals(w); n != 1 {
		t.Errorf("%d signals, want 1", n)
	}
}
