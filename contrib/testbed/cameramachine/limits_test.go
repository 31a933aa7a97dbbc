package cameramachine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"tatolab.com/tatolab/contrib/testbed/cameramachine"
	"tatolab.com/tatolab/contrib/testbed/usermanager"
	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/systemd"
)

// limitsLimit is for all of TestLimits, once the runtime is there.
const limitsLimit = 4 * time.Minute

// The machine's own kernel has the controllers that make limits real, which most
// machines of a test do not hand to a user: under a user manager, what wants more than
// [limits] gives is stopped, and the rest of the stream runs.
func TestLimits(t *testing.T) {
	cameramachine.Need(t)
	t.Parallel()
	usermanager.RunAs(t, []string{"fresh"}, fillLimits, func(t *testing.T, b *usermanager.Bed) {
		project := filepath.Join(b.Dir, "project")
		testbed.Write(t, os.Getenv("HOME"), map[string]string{".config/tatolab/tatolabd.toml": `
[limits.streams.eats]
memory = "140M"
[limits.streams.forks]
processes = 60
cpu = "150%"
`})
		b.Install("units", b.UnitDir())
		b.Systemctl("daemon-reload")
		b.Systemctl("start", systemd.ServiceUnit)
		// A process for each question takes half a second here, so this asks by itself.
		c := client.New(filepath.Join(b.RuntimeDir(), "streamlib/local-api.sock"))
		ctx, cancel := context.WithTimeout(t.Context(), limitsLimit)
		defer cancel()
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		load := func(name string) {
			t.Helper()
			_, err := c.Keep(ctx, api.Load{Project: project, Target: "stream.py:" + name, Keep: true})
			must(err)
		}
		group := func(stream, file string) string {
			t.Helper()
			data, err := os.ReadFile("/sys/fs/cgroup/user/app.slice/tatolabd.service/stream-" + stream + "/" + file)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(data))
		}

		// said waits until the log has what, and returns it until there.
		said := func(stream, what string) string {
			t.Helper()
			lines, err := c.Log(ctx, stream, api.LogFilter{}, true)
			must(err)
			defer lines.Close()
			var log strings.Builder
			for {
				record, err := lines.Next()
				if err != nil {
					t.Fatalf("%s has not said %q: %v\n%s", stream, what, err, log.String())
				}
				fmt.Fprintln(&log, record.Node, record.Message)
				if strings.Contains(record.Message, what) {
					return log.String()
				}
			}
		}
		// runs reads three pictures' bags of the stream's camera.
		runs := func(stream string) {
			t.Helper()
			lines, err := c.ReadBags(ctx, graph.Source{Stream: stream, Node: "camera", Port: "video"}, true)
			must(err)
			defer lines.Close()
			for bags := 0; bags < 3; {
				line, err := lines.Next()
				must(err)
				if line.Note == "" {
					bags++
				}
			}
		}

		load("eats")
		if log := said("eats", "eater died: killed (out of memory)"); strings.Contains(log, "camera died") {
			t.Errorf("the camera died too:\n%s", log)
		}
		if limit := group("eats", "memory.max"); limit != strconv.Itoa(140<<20) {
			t.Errorf("memory.max is %s", limit)
		}
		runs("eats")
		_, err := c.Remove(ctx, "eats")
		must(err)

		load("forks")
		if limit := group("forks", "cpu.max"); limit != "150000 100000" {
			t.Errorf("cpu.max is %s", limit)
		}
		// An output starts a thread for its first reader, so that one comes before.
		runs("forks")
		said("forks", "no more processes: Resource temporarily unavailable")
		if now, err := strconv.Atoi(group("forks", "pids.current")); err != nil || now > 60 {
			t.Errorf("there are %d processes and threads, 60 are allowed; %v", now, err)
		}
		runs("forks")

		b.Systemctl("stop", systemd.ServiceUnit)
		if left, _ := filepath.Glob("/sys/fs/cgroup/user/app.slice/tatolabd.service/*"); len(left) > 0 {
			t.Errorf("left control groups: %v", left)
		}
	})
}

// fillLimits puts what TestLimits needs where the user can read it.
func fillLimits(t *testing.T, dir string) {
	for to, from := range map[string]string{
		"units": "../../../packaging/systemd", "project": "testdata/limits",
	} {
		if err := os.CopyFS(filepath.Join(dir, to), os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{"tatolab", "tatolabd"} {
		data, err := os.ReadFile(filepath.Join(testbed.Bin(t), program))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, program), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	python := filepath.Join(dir, "project/.venv/bin/python")
	testbed.Write(t, dir, map[string]string{"project/.venv/bin/python": "#!/bin/sh\nexec /usr/bin/python3 \"$@\"\n"})
	if err := os.Chmod(python, 0o755); err != nil {
		t.Fatal(err)
	}
}
