package cli

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/name"
)

// template is the project that `tatolab new` writes: files as they are, with
// the words PROJECT_… replaced.
//
//go:embed all:project
var template embed.FS

// The pythons that tatolab-stream supports, the one written for a machine that
// has none of them first.
var pythons = []string{"3.12", "3.13", "3.11", "3.10"}

// streamDependency is what a project depends on: the versions whose API the
// runtime lends.
const streamDependency = "tatolab-stream>=0.45,<0.49"

func newCommand() *command {
	return &command{
		name: "new", args: "DIR", short: "write a project to begin with",
		long: `Writes a project into DIR, which may exist: stream.py with a camera, an effect in a window and a motion detector, nodes/ with their code, pyproject.toml, .python-version and .gitignore. The stream is named after the folder. A file that is there already is never overwritten. It ends with the commands to type next.`,
		examples: [][2]string{
			{"tatolab new motion-watcher", ""},
			{"tatolab new motion-watcher --test-pattern", "on a machine without a camera"},
		},
		min: 1, max: 1, complete: []subject{subjectFolder},
		setup: func(f *pflag.FlagSet) action {
			pattern := f.Bool("test-pattern", false, "a moving test pattern instead of the camera")
			bare := f.Bool("bare", false, "no nodes")
			return func(_ context.Context, e *environment, args []string) error {
				if *bare && *pattern {
					return usagef("--bare and --test-pattern exclude each other: a bare project has no source")
				}
				if args[0] == "" {
					return usagef("DIR is empty; the folder you are in is \".\"")
				}
				return e.newProject(args[0], *pattern, *bare)
			}
		},
	}
}

func (e *environment) newProject(dir string, pattern, bare bool) error {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("cannot write a project to %s: %w", dir, err)
	}
	files, err := projectFiles(filepath.Base(abs), pattern, bare)
	if err != nil {
		return err
	}
	var there []string
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.path)); err == nil {
			there = append(there, f.path)
		}
	}
	if there != nil {
		return api.Errorf(api.BadRequest, "cannot write a project to %s: it has %s already, and nothing is overwritten", dir, strings.Join(there, ", ")).
			WithHint("choose another folder, or move them away")
	}
	for _, f := range files {
		if err := writeNew(filepath.Join(dir, f.path), f.text); err != nil {
			return fmt.Errorf("cannot write a project to %s: %w", dir, api.Reason(err))
		}
	}
	e.print.line("wrote %s:", dir)
	for _, f := range files {
		e.print.line("  %s", f.path)
	}
	e.print.line("\nnext:")
	for _, command := range nextCommands(dir, bare) {
		e.print.line("  %s", command)
	}
	return nil
}

type projectFile struct{ path, text string }

func projectFiles(folder string, pattern, bare bool) ([]projectFile, error) {
	cast, err := name.Cast(folder)
	if err != nil {
		return nil, usagef("cannot name a project after the folder: %v", err)
	}
	function := identifier(cast)
	title := strings.ReplaceAll(function, "_", " ")
	title = strings.ToUpper(title[:1]) + title[1:]
	dependencies := fmt.Sprintf("%q", streamDependency)
	if !bare {
		dependencies = `"numpy", ` + dependencies
	}
	words := strings.NewReplacer("PROJECT_TITLE", title, "PROJECT_FUNCTION", function,
		"PROJECT_NAME", strings.ReplaceAll(function, "_", "-"), `"PROJECT_DEPENDENCIES"`, dependencies)
	source := "stream.py"
	if bare {
		source = "bare.py"
	}
	list := [][2]string{{source, "stream.py"}, {"nodes/__init__.py", "nodes/__init__.py"}}
	if !bare {
		list = append(list, [2]string{"nodes/colour_shift.py", "nodes/colour_shift.py"}, [2]string{"nodes/motion_detector.py", "nodes/motion_detector.py"})
	}
	list = append(list, [2]string{"pyproject.toml", "pyproject.toml"}, [2]string{"gitignore", ".gitignore"})
	var files []projectFile
	for _, f := range list {
		text, err := template.ReadFile("project/" + f[0])
		if err != nil {
			return nil, err
		}
		files = append(files, projectFile{f[1], words.Replace(string(text))})
	}
	if pattern {
		files[0].text = strings.NewReplacer(
			"a camera with", "a test pattern with", "the camera", "the test pattern",
			"import CameraSource, DisplayWindow, StreamBuilder, stream", "import DisplayWindow, StreamBuilder, TestPatternSource, stream",
			`camera = stream_builder.add(CameraSource, name="camera")`, `camera = stream_builder.add(TestPatternSource, name="camera", config={"motion": 5})`,
		).Replace(files[0].text)
	}
	return append(files, projectFile{".python-version", pythonVersion() + "\n"}), nil
}

// keywords of Python that are lower case (keyword.kwlist).
var keywords = strings.Fields("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield")

// identifier makes a name usable for a Python function.
func identifier(s string) string {
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune("-.~", r) {
			return '_'
		}
		return r
	}, s)
	if s = strings.Trim(s, "_"); s == "" || s[0] >= '0' && s[0] <= '9' || slices.Contains(keywords, s) {
		s = strings.TrimSuffix("stream_"+s, "_")
	}
	return s
}

// pythonVersion is the version of the python3 here if the package supports it.
func pythonVersion() string {
	out, err := exec.Command("python3", "-I", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	version := strings.TrimSpace(string(out))
	for _, v := range pythons {
		if err == nil && v == version {
			return v
		}
	}
	return pythons[0]
}

// withoutUV makes the environment of a project that is there.
const withoutUV = "`python3 -m venv .venv`, then `.venv/bin/pip install` what pyproject.toml depends on"

func haveUV() bool {
	_, err := exec.LookPath("uv")
	return err == nil
}

// nextCommands work as typed on this machine.
func nextCommands(dir string, bare bool) []string {
	commands := []string{"cd " + shellQuote(dir)}
	if haveUV() {
		commands = append(commands, "uv sync")
	} else {
		install := ".venv/bin/pip install '" + streamDependency + "'"
		if !bare {
			install += " numpy"
		}
		commands = append(commands, "python3 -m venv .venv", install)
	}
	return append(commands, "tatolab dev")
}

func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-._/+,@", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// writeNew writes a file that must not be there.
func writeNew(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
