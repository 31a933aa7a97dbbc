package runtime

import (
	"log/slog"
	"os"
	"path/filepath"

	"tatolab.com/tatolab/service/cgroup"
	"tatolab.com/tatolab/service/config"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/stream"
)

// self is the program that runs, whatever an upgrade has put in its place.
const self = "/proc/self/exe"

// builtin are the node classes that this program hosts, by the verb of tatolabd
// that does.
var builtin = map[string]string{
	"CameraSource":      "camera",
	"TestPatternSource": "testpattern",
	"VirtualCameraSink": "virtualcamera",
}

// helpers are the node classes that programs of their own host, since they link
// what tatolabd must not.
var helpers = map[string]string{
	"DisplayWindow": "tatolab-window",
}

// command is the program that hosts a node; absent where it only stands in.
func (r *Runtime) command(v *stream.Version, n graph.Node) (argv []string, absent bool) {
	class := n.BuiltinClass()
	if class == "" {
		return []string{v.Interpreter, "-I", "-u", r.Bootstrap, "node"}, false
	}
	if verb := builtin[class]; verb != "" {
		return []string{self, verb}, false
	}
	if name := helpers[class]; name != "" {
		if path := helper(name); path != "" {
			return []string{path}, false
		}
		return []string{self, "unavailable", class + " needs " + name + ", which is not installed: it comes with the package tatolab-gui"}, true
	}
	return []string{self, "unavailable", class + " is not built yet"}, true
}

// helper finds a program of the same installation: beside this one, or in the
// folder for programs that nobody calls by hand.
func helper(name string) string {
	exe, err := os.Readlink(self)
	if err != nil {
		return ""
	}
	dir := filepath.Dir(exe)
	for _, path := range []string{filepath.Join(dir, name), filepath.Join(dir, "..", "libexec", "tatolab", name)} {
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path
		}
	}
	return ""
}

// graphics is where the program that draws effects is, or would be: it may be
// installed later.
func graphics() string {
	const name = "tatolab-gl"
	path := helper(name)
	if exe, err := os.Readlink(self); path == "" && err == nil {
		path = filepath.Join(filepath.Dir(exe), "..", "libexec", "tatolab", name)
	}
	return path
}

// makeCgroup makes the control group of a stream, where the runtime has been
// delegated one. Without it the keeper alone holds the stream together.
func (r *Runtime) makeCgroup(name string) string {
	if r.Cgroups == nil {
		return ""
	}
	r.mu.Lock()
	limit := limits(r.Config, name)
	r.mu.Unlock()
	group, err := r.Cgroups.Make(name, limit)
	if group == nil {
		r.log.Warn("no control group", "stream", name, "error", err)
		return ""
	}
	if err != nil {
		// Better less limited and said so than not at all.
		r.say(slog.LevelWarn, "", name, "", err.Error())
	}
	r.mu.Lock()
	r.groups[name] = group
	r.mu.Unlock()
	return group.Dir()
}

func (r *Runtime) removeCgroup(name string) {
	r.mu.Lock()
	group := r.groups[name]
	delete(r.groups, name)
	r.mu.Unlock()
	if group == nil {
		return
	}
	if err := group.Remove(); err != nil {
		r.log.Warn("cannot remove a control group", "stream", name, "error", err)
	}
}

// confined says how the processes of a stream are held together.
func (r *Runtime) confined() string {
	if r.Cgroups == nil {
		return "by a keeper process per stream (no control group was delegated)"
	}
	how := "by a control group per stream, below " + r.Cgroups.Root()
	if missing := r.Cgroups.Missing(); len(missing) > 0 {
		how += " (not delegated, and so no limits of: " + join(missing) + ")"
	}
	return how
}

// group is the control group of a stream.
type group = cgroup.Group

func limits(c *config.Config, stream string) cgroup.Limits {
	limit := c.Limits.Of(stream)
	return cgroup.Limits{Memory: int64(limit.Memory), CPU: float64(limit.CPU), Processes: int(limit.Processes)}
}
