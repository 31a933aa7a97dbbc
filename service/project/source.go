// Package project knows the folders that people write streams in: what a
// target names, which interpreter runs it, what it compiles to, and the
// snapshot of its code that a stream then runs. Errors are *api.Error.
package project

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/name"
)

// DefaultFile is the file of a stream where no target is given.
const DefaultFile = "stream.py"

// Source is what a load asks for, found on disk.
type Source struct {
	Dir         string // the project, absolute
	Interpreter string // its .venv/bin/python
	// Target is "file.py" or "file.py:function", the file relative to Dir,
	// or "module:function".
	Target string
	Name   string            // of the stream; "" is that of its function
	Env    map[string]string // given with --env
}

var (
	identifier = regexp.MustCompile(`^[\pL_][\pL\pN_]*$`)
	module     = regexp.MustCompile(`^[\pL_][\pL\pN_]*(\.[\pL_][\pL\pN_]*)*$`)
)

// Resolve finds the project, interpreter and target of a load. Parent folders
// are not searched: --dir says where the project is.
func Resolve(load api.Load) (*Source, error) {
	if err := absolute(load.Project); err != nil {
		return nil, err
	}
	s := &Source{Dir: filepath.Clean(load.Project), Env: load.Env}
	if info, err := os.Stat(s.Dir); err != nil {
		return nil, api.Errorf(api.Unloadable, "cannot load from %s: %v", s.Dir, api.Reason(err))
	} else if !info.IsDir() {
		return nil, api.Errorf(api.Unloadable, "cannot load from %s: it is no folder", s.Dir).
			WithHint("a stream in a file of its own is named with -f, the folder of its project with --dir")
	}
	if load.Name != "" {
		cast, err := name.Cast(load.Name)
		if err != nil {
			return nil, api.Errorf(api.InvalidName, "%v", err)
		}
		s.Name = cast
	}
	for key, value := range load.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") || strings.Contains(value, "\x00") {
			return nil, api.Errorf(api.BadRequest, "cannot set %q in the environment: it is no name of a variable", key)
		}
	}
	file, err := s.target(load.Target, load.File)
	if err != nil {
		return nil, err
	}
	var missing error
	if file != "" {
		var info fs.FileInfo
		if info, missing = os.Stat(filepath.Join(s.Dir, file)); missing == nil && info.IsDir() {
			missing = unix.EISDIR
		}
	}
	if s.Interpreter, err = Interpreter(s.Dir); err != nil {
		if e := api.AsError(err); errors.Is(missing, fs.ErrNotExist) && e.Code == api.NoEnvironment {
			return nil, e.WithHint("there is no %s either; if this is not the folder of your project, name it with --dir", file)
		}
		return nil, err
	}
	if missing != nil {
		return nil, api.Errorf(api.CompileFailed, "cannot load %s from %s: %v", file, s.Dir, api.Reason(missing)).
			WithHint("`tatolab new DIR` writes a project; --dir names the folder of one; -f names another file")
	}
	return s, nil
}

// absolute refuses the path of a project that means another one in another folder.
func absolute(dir string) error {
	if filepath.IsAbs(dir) {
		return nil
	}
	return api.Errorf(api.BadRequest, "cannot use the project %q: a project is named by its absolute path", dir)
}

// target sets s.Target, and returns the file it names, "" for a module.
func (s *Source) target(target, file string) (string, error) {
	if target != "" && file != "" {
		return "", api.Errorf(api.BadRequest, "both -f %s and the target %s are given", file, target).
			WithHint("a function of that file is %s:FUNCTION", file)
	}
	where, function, chosen := target, "", false
	if file != "" {
		where = file
	} else if i := strings.LastIndexByte(target, ':'); i >= 0 {
		where, function, chosen = target[:i], target[i+1:], true
	}
	if target == "" && file == "" {
		where = DefaultFile
	}
	if chosen && function == "" {
		return "", api.Errorf(api.BadRequest, "cannot load %q: no function is named after the colon", target)
	}
	if chosen && !identifier.MatchString(function) {
		return "", api.Errorf(api.BadRequest, "cannot load %s: %q is no name of a function", target, function)
	}
	if !strings.HasSuffix(where, ".py") {
		switch {
		case file != "":
			return "", api.Errorf(api.BadRequest, "cannot load -f %s: it is no .py file", file)
		case chosen && module.MatchString(where):
			s.Target = target
			return "", nil
		}
		e := api.Errorf(api.BadRequest, "%q is no target: one is file.py, file.py:function or module:function", target)
		if !chosen && identifier.MatchString(where) {
			e = e.WithHint("for the function %s of %s write %s:%s", where, DefaultFile, DefaultFile, where)
		}
		return "", e
	}
	relative, err := s.inside(where)
	if err != nil {
		return "", err
	}
	s.Target = relative
	if chosen {
		s.Target += ":" + function
	}
	return relative, nil
}

// inside returns a file's path relative to the project, in the one way that
// targets are written.
func (s *Source) inside(file string) (string, error) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(s.Dir, file)
	}
	relative, err := filepath.Rel(s.Dir, file)
	if err == nil && !filepath.IsLocal(relative) {
		// The same place may have been named through a link.
		dir, dirErr := filepath.EvalSymlinks(s.Dir)
		folder, fileErr := filepath.EvalSymlinks(filepath.Dir(file))
		if dirErr == nil && fileErr == nil {
			relative, err = filepath.Rel(dir, filepath.Join(folder, filepath.Base(file)))
		}
	}
	if err != nil || !filepath.IsLocal(relative) {
		return "", api.Errorf(api.BadRequest, "cannot load %s: it lies outside the project %s", file, s.Dir).
			WithHint("name its own project with --dir")
	}
	return relative, nil
}

// Interpreter returns the Python of a project, <dir>/.venv/bin/python.
func Interpreter(dir string) (string, error) {
	python := filepath.Join(dir, ".venv", "bin", "python")
	info, err := os.Stat(python)
	folder, gone := os.Stat(dir)
	switch {
	case gone != nil:
		return "", api.Errorf(api.Unloadable, "cannot use the project %s: %v", dir, api.Reason(gone))
	case !folder.IsDir():
		return "", api.Errorf(api.Unloadable, "cannot use the project %s: it is no folder", dir)
	case errors.Is(err, os.ErrNotExist): // a link to an interpreter that has gone, too
		return "", api.Errorf(api.NoEnvironment, "%s has no .venv/bin/python. Run uv sync in %s.", dir, filepath.Base(dir))
	case err != nil:
		return "", api.Errorf(api.NoEnvironment, "cannot use %s: %v", python, api.Reason(err)).
			WithHint("check the owners and permissions below %s", dir)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return "", api.Errorf(api.NoEnvironment, "cannot use %s: it is no program", python).
			WithHint("remove %s and run uv sync in %s", filepath.Join(dir, ".venv"), filepath.Base(dir))
	}
	return python, nil
}

// SameFunction tells whether two resolved targets are one function: the same
// target in the same folder, however the folder is named.
func SameFunction(dirA, targetA, dirB, targetB string) bool {
	if targetA != targetB {
		return false
	}
	if filepath.Clean(dirA) == filepath.Clean(dirB) {
		return true
	}
	a, errA := os.Stat(dirA)
	b, errB := os.Stat(dirB)
	return errA == nil && errB == nil && os.SameFile(a, b)
}

// Environ returns the environment for processes of a stream: base, the
// runtime's, without what Python reads (PYTHON*: the runtime may have been
// started from within another environment), and what the stream was given, the
// later maps winning.
func Environ(base []string, given ...map[string]string) []string {
	won := map[string]string{}
	for _, vars := range given {
		maps.Copy(won, vars)
	}
	var env []string
	for _, pair := range base {
		key, _, _ := strings.Cut(pair, "=")
		// Each name once: of two execve(2) passes on both, and getenv(3) takes
		// the first.
		if _, given := won[key]; !given && !strings.HasPrefix(key, "PYTHON") {
			env = append(env, pair)
		}
	}
	// In a fixed order: environments are compared.
	for _, key := range slices.Sorted(maps.Keys(won)) {
		env = append(env, key+"="+won[key])
	}
	return env
}
