// Package config is what a runtime is told from outside: the folders of the
// XDG base directory specification, and tatolabd.toml.
package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tatolab.com/tatolab/service/build"
)

// Paths is where everything lies. The one place that knows.
// https://specifications.freedesktop.org/basedir-spec/latest/
type Paths struct {
	Runtime      string // $XDG_RUNTIME_DIR/streamlib; gone at logout or reboot
	Socket       string // the local API
	Lock         string // held as long as a runtime runs, its pid inside
	Lent         string // the Python package that this build lends to projects
	RunSnapshots string // code of attached streams

	State     string // $XDG_STATE_HOME/tatolab
	Records   string
	Logs      string
	Snapshots string // code of kept streams

	// Config are the files that may be there, the one that wins first.
	Config []string
}

// Find resolves the paths from an environment (os.Getenv). A variable that is
// unset takes its default, a relative one is ignored. XDG_RUNTIME_DIR has no
// default: only a login session makes a folder that is right for it.
func Find(getenv func(string) string) (*Paths, error) {
	runtime := getenv("XDG_RUNTIME_DIR")
	switch {
	case runtime == "":
		return nil, errors.New("XDG_RUNTIME_DIR is not set: it names the folder of this login session (usually /run/user/UID), which a session opened by sudo or su does not have. Log in as the user itself, or, over ssh or at boot, run `loginctl enable-linger` and set XDG_RUNTIME_DIR=/run/user/$(id -u)")
	case !filepath.IsAbs(runtime):
		return nil, fmt.Errorf("XDG_RUNTIME_DIR is %q, no absolute path: it is ignored, and there is no default. Set XDG_RUNTIME_DIR=/run/user/$(id -u)", runtime)
	}
	state, err := home(getenv, "XDG_STATE_HOME", ".local/state")
	if err != nil {
		return nil, err
	}
	user, err := home(getenv, "XDG_CONFIG_HOME", ".config")
	if err != nil {
		return nil, err
	}
	p := &Paths{Runtime: filepath.Join(runtime, "streamlib"), State: filepath.Join(state, "tatolab")}
	p.Socket = filepath.Join(p.Runtime, "local-api.sock")
	p.Lock = filepath.Join(p.Runtime, "tatolabd.lock")
	p.Lent = filepath.Join(p.Runtime, "python-"+build.ID())
	p.RunSnapshots = filepath.Join(p.Runtime, "snapshots")
	p.Records = filepath.Join(p.State, "streams")
	p.Logs = filepath.Join(p.State, "logs")
	p.Snapshots = filepath.Join(p.State, "snapshots")
	for _, dir := range append([]string{user}, systemDirs(getenv)...) {
		p.Config = append(p.Config, filepath.Join(dir, "tatolab", "tatolabd.toml"))
	}
	return p, nil
}

func home(getenv func(string) string, variable, fallback string) (string, error) {
	if dir := getenv(variable); filepath.IsAbs(dir) {
		return filepath.Clean(dir), nil
	}
	if home := getenv("HOME"); filepath.IsAbs(home) {
		return filepath.Join(home, fallback), nil
	}
	return "", fmt.Errorf("neither %s nor HOME is set to an absolute path: there is no folder to keep things in. Set HOME", variable)
}

func systemDirs(getenv func(string) string) []string {
	var dirs []string
	for dir := range strings.SplitSeq(getenv("XDG_CONFIG_DIRS"), ":") {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	if dirs == nil {
		return []string{"/etc/xdg"}
	}
	return dirs
}

// Create makes the folders, open to this user only. The lent package is its
// writer's to make.
func (p *Paths) Create() error {
	for _, dir := range []string{p.Runtime, p.RunSnapshots, p.State, p.Records, p.Logs, p.Snapshots} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("cannot make the folder of tatolabd: %w", err)
		}
		// One that was there keeps its mode with MkdirAll.
		if err := os.Chmod(dir, 0o700); err != nil {
			return fmt.Errorf("cannot close a folder of tatolabd to others: %w", err)
		}
	}
	return nil
}
