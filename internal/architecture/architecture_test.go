// Package architecture tests that dependencies point one way: down the table
// of packages in docs/architecture.md, which is read here, so that the page is
// the rule.
package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "tatolab.com/tatolab/"

// outside are packages that no program is made of: helpers of tests, and figures.
var outside = regexp.MustCompile(`^(internal|contrib|bench)(/|$)|/[a-z]+test$|^gl/xvfb$`)

type pkg struct {
	ImportPath string
	Imports    []string
	Deps       []string // all, indirect ones too
}

func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	all := map[string]pkg{}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(p.ImportPath, module)] = p
	}
}

// rows returns the patterns of each row of the table, from the top.
func rows(t *testing.T) [][]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "## Packages\n")
	if !ok {
		t.Fatal("docs/architecture.md has no section named Packages")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	quoted := regexp.MustCompile("`([^`]+)`")
	var rows [][]string
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		var row []string
		for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
			row = append(row, strings.TrimSuffix(m[1], "/*"))
		}
		if row != nil {
			rows = append(rows, row)
		}
	}
	return rows
}

// place finds a package in the table: the row, and the pattern there, that
// names it or the nearest folder above it.
func place(rows [][]string, path string) (row int, pattern string) {
	row = -1
	for i, patterns := range rows {
		for _, p := range patterns {
			if (path == p || strings.HasPrefix(path, p+"/")) && len(p) > len(pattern) {
				row, pattern = i, p
			}
		}
	}
	return row, pattern
}

func TestDependenciesPointDownTheTable(t *testing.T) {
	table := rows(t)
	for path, p := range packages(t) {
		if outside.MatchString(path) {
			continue
		}
		row, pattern := place(table, path)
		if row < 0 {
			t.Errorf("%s stands in no row of the table of packages in docs/architecture.md", path)
			continue
		}
		for _, imported := range p.Imports {
			imported, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if outside.MatchString(imported) {
				t.Errorf("%s imports %s, which is for tests", path, imported)
				continue
			}
			to, toPattern := place(table, imported)
			if to < row || to == row && pattern != toPattern {
				t.Errorf("%s imports %s, which does not stand below it in docs/architecture.md", path, imported)
			}
		}
	}
}

func TestWhatMustNotBeReached(t *testing.T) {
	const gl = `^github\.com/go-gl/|^tatolab\.com/tatolab/gl/(offscreen|effect|window)`
	all := packages(t)
	for _, rule := range []struct{ from, to, why string }{
		{`^cmd/tatolabd$`, gl, "a GL driver can crash, and takes all streams with it: tatolab-gl and tatolab-window are programs of their own"},
		{`^cmd/tatolab$`, gl, "the command line has to run, and say what is wrong, on machines that lack everything"},
		{`^cmd/tatolab$`, `^tatolab\.com/tatolab/(dbus|datapath|nodes|v4l2|python|service/(runtime|daemon|localapi|stream|node|project|record|keeper|switchboard))(/|$)`,
			"the command line is a client: what it knows it asks the runtime"},
		{`^dbus(/|$)`, `^tatolab\.com/tatolab/service/localapi`, "a face translates; what two of them need belongs into service/runtime"},
		{`^service/localapi(/|$)`, `^tatolab\.com/tatolab/dbus`, "a face translates; what two of them need belongs into service/runtime"},
		{`^service/`, `^github\.com/vladimirvivien/go4vl`, "a driver can hang: devices are opened by node processes"},
	} {
		from, to := regexp.MustCompile(rule.from), regexp.MustCompile(rule.to)
		found := false
		for path, p := range all {
			if !from.MatchString(path) || outside.MatchString(path) {
				continue
			}
			found = true
			if i := slices.IndexFunc(p.Deps, to.MatchString); i >= 0 {
				t.Errorf("%s reaches %s: %s", path, p.Deps[i], rule.why)
			}
		}
		if !found {
			t.Errorf("no package matches %s: the rule holds nothing", rule.from)
		}
	}
}

// The planner is a function, so that a test can play every race: what time it
// is, it is told.
func TestThePlannerHasNoClockAndNoGoroutine(t *testing.T) {
	impure := regexp.MustCompile(`\btime\.(Now|Since|Until|After|AfterFunc|Sleep|Tick|NewTimer|NewTicker)\b|(?m)^\s*go (func|\w)|"(sync|context|os|net)[/"]`)
	files, err := filepath.Glob("../../service/reconcile/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files of the planner: %v", err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found := impure.Find(source); found != nil {
			t.Errorf("%s has %q", file, found)
		}
	}
}
