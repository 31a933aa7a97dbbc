package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func env(pairs ...string) func(string) string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return func(key string) string { return m[key] }
}

func TestPathsFollowTheSpecification(t *testing.T) {
	for _, test := range []struct {
		name                  string
		env                   func(string) string
		socket, records, conf string
	}{
		{"defaults", env("XDG_RUNTIME_DIR", "/run/user/1000", "HOME", "/home/you"),
			"/run/user/1000/streamlib/local-api.sock", "/home/you/.local/state/tatolab/streams",
			"/home/you/.config/tatolab/tatolabd.toml /etc/xdg/tatolab/tatolabd.toml"},
		{"given", env("XDG_RUNTIME_DIR", "/r", "HOME", "/home/you", "XDG_STATE_HOME", "/s", "XDG_CONFIG_HOME", "/c", "XDG_CONFIG_DIRS", "/x:/y"),
			"/r/streamlib/local-api.sock", "/s/tatolab/streams",
			"/c/tatolab/tatolabd.toml /x/tatolab/tatolabd.toml /y/tatolab/tatolabd.toml"},
		{"relative ones are ignored", env("XDG_RUNTIME_DIR", "/r", "HOME", "/home/you", "XDG_STATE_HOME", "state", "XDG_CONFIG_HOME", "./c", "XDG_CONFIG_DIRS", "x"),
			"/r/streamlib/local-api.sock", "/home/you/.local/state/tatolab/streams",
			"/home/you/.config/tatolab/tatolabd.toml /etc/xdg/tatolab/tatolabd.toml"},
		{"no home needed", env("XDG_RUNTIME_DIR", "/r", "XDG_STATE_HOME", "/s", "XDG_CONFIG_HOME", "/c"),
			"/r/streamlib/local-api.sock", "/s/tatolab/streams", "/c/tatolab/tatolabd.toml /etc/xdg/tatolab/tatolabd.toml"},
	} {
		p, err := Find(test.env)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if p.Socket != test.socket || p.Records != test.records || strings.Join(p.Config, " ") != test.conf {
			t.Errorf("%s: got %+v", test.name, p)
		}
	}
	for want, env := range map[string]func(string) string{
		"XDG_RUNTIME_DIR is not set":      env("HOME", "/home/you"),
		`XDG_RUNTIME_DIR is "run"`:        env("HOME", "/home/you", "XDG_RUNTIME_DIR", "run"),
		"neither XDG_STATE_HOME nor HOME": env("XDG_RUNTIME_DIR", "/r"),
	} {
		if _, err := Find(env); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestFoldersAreClosedToOthers(t *testing.T) {
	dir := t.TempDir()
	loose := filepath.Join(dir, "s", "tatolab", "streams")
	if err := os.MkdirAll(loose, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := Find(env("XDG_RUNTIME_DIR", dir, "XDG_STATE_HOME", filepath.Join(dir, "s"), "HOME", dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Create(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{p.Runtime, p.RunSnapshots, p.State, p.Records, p.Logs, p.Snapshots} {
		if info, err := os.Stat(path); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v %v, want drwx------", path, info, err)
		}
	}
}

func load(t *testing.T, texts ...string) (*Config, error) {
	t.Helper()
	var files []string
	for _, text := range texts {
		f := filepath.Join(t.TempDir(), "tatolabd.toml")
		if text != "" {
			if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		files = append(files, f)
	}
	return Load(files)
}

func TestEveryKeyIsRead(t *testing.T) {
	got, err := load(t, `
[machine]
name = "rig"
[dbus]
enabled = false
[log]
level = "debug"
[limits]
memory = "512M"
cpu = "150%"
processes = 64
[limits.streams.garage]
memory = 1048576
cpu = 0.5
[relay]
listen = "127.0.0.1:4443"
public_listen = "0.0.0.0:4444"
bitrate = "4M"
join = { address = "relay.example:443", token = "t" }
[machines.attic]
address = "attic.local:4444"
key = "k"
`)
	if err != nil {
		t.Fatal(err)
	}
	want := &Config{
		Machine: Machine{"rig"}, Log: Log{"debug"},
		Limits: Limits{Limit{512 << 20, 1.5, 64}, map[string]Limit{"garage": {1 << 20, 0.5, 0}}},
		Relay:  Relay{"127.0.0.1:4443", "0.0.0.0:4444", 4_000_000, Join{"relay.example:443", "t"}},
		Machines: map[string]Neighbour{
			"attic": {"attic.local:4444", "k"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if l := got.Limits.Of("garage"); l.Processes != 0 || l.Memory != 1<<20 {
		t.Errorf("limit of garage is %+v", l)
	}
	if l := got.Limits.Of("other"); l.Processes != 64 {
		t.Errorf("limit of another stream is %+v", l)
	}
}

func TestTheUsersFileWinsKeyByKey(t *testing.T) {
	user, system := "[log]\nlevel = \"warn\"\n", "[log]\nlevel = \"debug\"\n[limits]\nmemory = \"1G\"\n"
	got, err := load(t, user, system)
	if err != nil {
		t.Fatal(err)
	}
	if got.Log.Level != "warn" || got.Limits.Memory != 1<<30 || !got.DBus.Enabled {
		t.Errorf("got %+v", got)
	}
	if got, err = load(t, "", ""); err != nil || !cmp.Equal(got, Default()) {
		t.Errorf("without a file: %+v, %v", got, err)
	}
}

func TestMistakesAreNamedWithTheirLine(t *testing.T) {
	for text, want := range map[string]string{
		"[dbus]\n# a note\nenabeld = true\n":              `line 3: [dbus] has no key "enabeld". Did you mean "enabled"?`,
		"\n\n[limit]\nmemory = \"1G\"\n":                  `line 3: there is no key "limit". Did you mean "limits"?`,
		"nmae = 1\n[machine]\nname = \"a\"\n":             `line 1: there is no key "nmae"`,
		"[limits.streams.garage]\nmemroy = \"1G\"\n":      `line 2: [limits.streams.garage] has no key "memroy". Did you mean "memory"?`,
		"[limits]\nstreams.garage.cpus = 1\n":             `line 2: [limits.streams.garage] has no key "cpus". Did you mean "cpu"?`,
		"[relay]\njoin = { adress = \"x\" }\n":            `line 2: [relay.join] has no key "adress". Did you mean "address"?`,
		"[log]\ncolour = true\n":                          `line 2: [log] has no key "colour". It may have level`,
		"[log]\nlevel = \"loud\"\n":                       `line 2, log.level: "loud" is no level`,
		"[limits]\nmemory = \"much\"\n":                   `line 2, limits.memory: much is no amount`,
		"[limits]\nmemory = \"-1\"\n":                     `is no amount`,
		"[limits]\nmemory = \"\"\n":                       `is no amount`,
		"[limits]\ncpu = \"fast\"\n":                      `is no share of processors`,
		"[limits]\ncpu = nan\n":                           `is no share of processors`,
		"[limits]\nprocesses = -1\n":                      `is no number of processes`,
		"[dbus]\nenabled = \"yes\"\n":                     `line 2`,
		"[machine]\nname = \"My Rig\"\n":                  `line 2: [machine] name: "My Rig" is no name: write it "my-rig"`,
		"[limits]\n[limits.streams.Garage]\nmemory = 1\n": `line 2: [limits.streams]: "Garage" is no name`,
		"[log\nx = 1\n":                                   `to end table name`,
	} {
		_, err := load(t, text)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "tatolabd.toml") {
			t.Errorf("%q:\n got %v\nwant …%s", text, err, want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add("[limits]\nstreams.garage.cpus = 1\n")
	f.Add("[relay]\njoin = { adress = \"x\" }\n")
	f.Fuzz(func(t *testing.T, text string) {
		if err := Default().merge(text); err != nil && err.Error() == "" {
			t.Error("an error that says nothing")
		}
	})
}

// Every level that a file may name is one of the logger's, in this order.
func TestLevels(t *testing.T) {
	last := slog.Level(-100)
	for _, level := range []string{"trace", "debug", "info", "warn", "error"} {
		file := filepath.Join(t.TempDir(), "tatolabd.toml")
		if err := os.WriteFile(file, []byte("[log]\nlevel = \""+level+"\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load([]string{file})
		if err != nil {
			t.Fatal(err)
		}
		got := c.Log.Level.Slog()
		if got <= last || level != "trace" && !strings.EqualFold(got.String(), level) {
			t.Errorf("%s is %v, after %v", level, got, last)
		}
		last = got
	}
}
