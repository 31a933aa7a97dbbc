package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
)

// A kept stream that was involved in the last two crashes of the runtime is
// failed at the third start; every other one runs.
func TestCrashesFailTheGuilty(t *testing.T) {
	t.Parallel()
	bin := testbed.BinWithFaults(t)
	for _, kind := range []string{"panic", "fatal", "segv", "hang"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := testbed.Run(t)
			names := []string{"first", "guilty", "third"}
			for _, name := range names {
				r.Must(r.Project(name, ticker(name)), "run", "-d")
			}
			r.Stop()
			r.Bin = bin
			r.Env = append(r.Env, "TATOLAB_FAULT=guilty="+kind)
			for range 2 {
				r.Launch()
				if kind == "hang" {
					// What the watchdog of systemd does.
					testbed.Eventually(t, 60*time.Second, func() string {
						if g, err := r.Client().Graph(t.Context(), "third"); err != nil || len(g.Links) == 0 || g.Links[0].State != "wired" {
							return "third does not run"
						}
						return ""
					})
					if err := r.Kill(unix.SIGABRT); err == nil {
						t.Fatal("SIGABRT did not end the runtime")
					}
				} else if err := r.Wait(60 * time.Second); err == nil {
					t.Fatal("the fault did not end the runtime")
				}
				r.NothingLeft()
			}
			r.Start()
			testbed.Eventually(t, 60*time.Second, func() string {
				table := r.Must(r.Dir, "streams")
				for _, want := range []string{"first   kept    2", "guilty  failed  -", "third   kept    2", "guilty failed: it was involved in the runtime's last 2 crashes"} {
					if !strings.Contains(table, want) {
						return table
					}
				}
				return ""
			})
		})
	}
}

// A plain SIGKILL blames nobody, and a clean stop forgives.
func TestKillAndCleanStopBlameNobody(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	r.Must(r.Project("ticker", ticker("ticker")), "run", "-d")
	for range 4 {
		r.Kill(unix.SIGKILL)
		r.Start()
	}
	if table := r.Must(r.Dir, "streams"); !strings.Contains(table, "ticker  kept") {
		t.Errorf("after four times SIGKILL:\n%s", table)
	}
}

// A stream that cannot be loaded is failed, with the reason; start retries it.
func TestUnloadableIsFailed(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	project := r.Project("ticker", ticker("ticker"))
	r.Must(project, "run", "-d")
	other := r.Project("other", ticker("other"))
	r.Must(other, "run", "-d")
	r.Stop()
	if err := os.Rename(project+"/.venv", project+"/gone"); err != nil {
		t.Fatal(err)
	}
	r.Start()
	testbed.Eventually(t, 60*time.Second, func() string {
		table := r.Must(project, "streams")
		reason := "ticker failed: " + project + " has no .venv/bin/python. Run uv sync in ticker. `tatolab start ticker` retries it, `tatolab rm ticker` forgets it."
		if !strings.Contains(table, "ticker  failed  -") || !strings.Contains(table, reason) || !strings.Contains(table, "other   kept    2") {
			return table + "\nwant: " + reason
		}
		return ""
	})
	if res := r.CLI(project, "start", "ticker"); res.Code != 1 || !strings.Contains(res.Stderr, "has no .venv/bin/python") {
		t.Errorf("start without .venv: %+v", res)
	}
	if err := os.Rename(project+"/gone", project+"/.venv"); err != nil {
		t.Fatal(err)
	}
	r.Must(project, "start", "ticker")
	if table := r.Must(project, "streams"); !strings.Contains(table, "ticker  kept") {
		t.Errorf("started again:\n%s", table)
	}
}

// Where a crash leaves several suspects, they load one after another at the
// next start, after all others, and the next crash tells which it was.
func TestSuspectsLoadOneAfterAnother(t *testing.T) {
	t.Parallel()
	r := testbed.Run(t)
	for _, name := range []string{"guilty", "bystander", "other"} {
		r.Must(r.Project(name, ticker(name)), "run", "-d")
	}
	r.Stop()
	r.Bin = testbed.BinWithFaults(t)
	// ended is what the watchdog does once other runs, while faults hang.
	ended := func(faults string, table ...string) {
		t.Helper()
		r.Env = append(r.Env, "TATOLAB_FAULT="+faults)
		r.Start()
		testbed.Eventually(t, 30*time.Second, func() string {
			if g, err := r.Client().Graph(t.Context(), "other"); err != nil || len(g.Links) == 0 || g.Links[0].State != "wired" {
				return "other does not run"
			}
			shown := r.Must(r.Dir, "streams")
			for _, line := range table {
				if !strings.Contains(shown, line) {
					return shown
				}
			}
			return ""
		})
		if err := r.Kill(unix.SIGABRT); err == nil {
			t.Fatal("SIGABRT did not end the runtime")
		}
		r.NothingLeft()
	}
	ended("guilty=hang bystander=hang")
	// Now only guilty hangs; bystander, which comes after it, has to wait.
	ended("guilty=hang", "bystander  kept   -", "other      kept   2")
	r.Start()
	testbed.Eventually(t, 30*time.Second, func() string {
		shown := r.Must(r.Dir, "streams")
		for _, line := range []string{"guilty     failed  -", "bystander  kept    2", "other      kept    2", "guilty failed: it was involved in the runtime's last 2 crashes"} {
			if !strings.Contains(shown, line) {
				return shown
			}
		}
		return ""
	})
}
