package config

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/name"
	"tatolab.com/tatolab/service/spelling"
)

// Config is tatolabd.toml: what the files say over what holds without one.
type Config struct {
	Machine  Machine              `toml:"machine"`
	DBus     DBus                 `toml:"dbus"`
	Log      Log                  `toml:"log"`
	Limits   Limits               `toml:"limits"`
	Relay    Relay                `toml:"relay"`
	Machines map[string]Neighbour `toml:"machines"`
}

// Machine is this machine, as others know it.
type Machine struct {
	Name string `toml:"name"` // the host name where it is not given
}

// DBus says whether the runtime takes its name on the session bus.
type DBus struct {
	Enabled bool `toml:"enabled"`
}

// Log says which records of the runtime's own log are written.
type Log struct {
	Level Level `toml:"level"`
}

// Limits is what a stream may use. The plain keys hold for each stream that
// has no table of its own; a table of its own stands for itself.
type Limits struct {
	Limit
	Streams map[string]Limit `toml:"streams"`
}

// Limit is what the processes of one stream may use together; 0 is no limit.
type Limit struct {
	Memory    Bytes `toml:"memory"`
	CPU       CPUs  `toml:"cpu"`
	Processes Count `toml:"processes"`
}

// Of returns the limit of a stream.
func (l *Limits) Of(stream string) Limit {
	if limit, ok := l.Streams[stream]; ok {
		return limit
	}
	return l.Limit
}

// Relay is how exposed outputs are offered to browsers and other machines.
type Relay struct {
	Listen       string `toml:"listen"`
	PublicListen string `toml:"public_listen"`
	Bitrate      Rate   `toml:"bitrate"` // of one video track, in bits per second
	Join         Join   `toml:"join"`
}

// Join names a relay elsewhere that public outputs are offered through.
type Join struct {
	Address string `toml:"address"`
	Token   string `toml:"token"`
}

// Neighbour is another machine that this one knows.
type Neighbour struct {
	Address string `toml:"address"`
	Key     string `toml:"key"`
}

// Default is the configuration of a machine without a file.
func Default() *Config {
	return &Config{DBus: DBus{Enabled: true}, Log: Log{Level: "info"}}
}

// Load reads those of the files that are there; of a key that several give,
// the first file's holds. An error names file and line.
func Load(files []string) (*Config, error) {
	c := Default()
	for _, file := range slices.Backward(files) {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = c.merge(string(data))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot use configuration %s: %w", file, err)
		}
	}
	return c, nil
}

func (c *Config) merge(text string) error {
	meta, err := toml.Decode(text, c)
	var parse toml.ParseError
	if errors.As(err, &parse) {
		if parse.LastKey != "" {
			return fmt.Errorf("line %d, %s: %s", parse.Position.Line, parse.LastKey, parse.Message)
		}
		return fmt.Errorf("line %d: %s", parse.Position.Line, parse.Message)
	}
	if err != nil {
		return err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return unknownKey(text, unknown[0])
	}
	for stream := range c.Limits.Streams {
		if err := name.Check(stream); err != nil {
			return fmt.Errorf("line %d: [limits.streams]: %w", line(text, toml.Key{"limits", "streams", stream}), err)
		}
	}
	for machine := range c.Machines {
		if err := name.Check(machine); err != nil {
			return fmt.Errorf("line %d: [machines]: %w", line(text, toml.Key{"machines", machine}), err)
		}
	}
	if c.Machine.Name != "" {
		if err := name.Check(c.Machine.Name); err != nil {
			return fmt.Errorf("line %d: [machine] name: %w", line(text, toml.Key{"machine", "name"}), err)
		}
	}
	return nil
}

// unknownKey names a key that nothing reads, its line, and what was meant.
func unknownKey(text string, key toml.Key) error {
	// The first part that is not known is the misspelt one.
	t := reflect.TypeFor[Config]()
	for i, part := range key {
		known := keys(t)
		next, ok := known[part]
		if t.Kind() == reflect.Map {
			next, ok = t.Elem(), true
		}
		if ok {
			t = next
			continue
		}
		where := "there is no key"
		if i > 0 {
			where = fmt.Sprintf("[%s] has no key", key[:i])
		}
		message := fmt.Sprintf("line %d: %s %q", line(text, key[:i+1]), where, part)
		names := slices.Sorted(maps.Keys(known))
		if near := spelling.Nearest(part, names); near != "" {
			return fmt.Errorf("%s. Did you mean %q?", message, near)
		}
		return fmt.Errorf("%s. It may have %s", message, strings.Join(names, ", "))
	}
	return fmt.Errorf("line %d: %s is not read", line(text, key), key)
}

// keys are the keys of a table, by the tags of the struct it is read into.
func keys(t reflect.Type) map[string]reflect.Type {
	known := map[string]reflect.Type{}
	if t.Kind() == reflect.Struct {
		for _, field := range reflect.VisibleFields(t) {
			if tag := field.Tag.Get("toml"); tag != "" {
				known[tag] = field.Type
			}
		}
	}
	return known
}

// line finds where a key of a valid document stands. The decoder does not
// say; a key that is written in a way not foreseen here (in an inline table)
// is put where its table begins.
func line(text string, key toml.Key) int {
	best, depth := 1, 0
	var table toml.Key
	for i, l := range strings.Split(text, "\n") {
		l = strings.TrimSpace(l)
		here, isTable := strings.CutPrefix(l, "[")
		here, _, _ = strings.Cut(here, "]")
		if !isTable {
			var ok bool
			if here, _, ok = strings.Cut(l, "="); !ok || strings.HasPrefix(l, "#") {
				continue
			}
		}
		var parts toml.Key
		for part := range strings.SplitSeq(strings.Trim(here, "[] "), ".") {
			parts = append(parts, strings.Trim(part, ` "'`))
		}
		if isTable {
			table = parts
		} else {
			parts = slices.Concat(table, parts)
		}
		common := 0
		for common < min(len(parts), len(key)) && parts[common] == key[common] {
			common++
		}
		if common == min(len(parts), len(key)) && common > depth {
			best, depth = i+1, common
		}
	}
	return best
}

// Level is a log level: trace, debug, info, warn or error.
type Level string

// UnmarshalTOML reads a level.
func (l *Level) UnmarshalTOML(value any) error {
	s, ok := value.(string)
	if !ok || !slices.Contains(api.Levels, s) {
		return fmt.Errorf("%q is no level: write one of %s", value, strings.Join(api.Levels, ", "))
	}
	*l = Level(s)
	return nil
}

// Slog is the level as log/slog counts them, trace being a step below debug.
func (l Level) Slog() slog.Level {
	level := slog.LevelDebug - (slog.LevelInfo - slog.LevelDebug)
	if l != "trace" {
		_ = level.UnmarshalText([]byte(l)) // knows all the others
	}
	return level
}

// Bytes is an amount of memory, written as systemd does: "512M", "2G" (of
// 1024), or a plain number of bytes.
type Bytes int64

// UnmarshalTOML reads an amount of memory.
func (b *Bytes) UnmarshalTOML(value any) error {
	n, ok := scaled(value, 1024)
	if !ok {
		return fmt.Errorf(`%v is no amount of memory: write for example "512M" or "2G"`, value)
	}
	*b = Bytes(n)
	return nil
}

// Rate is a number of bits per second: "4M" (of 1000), or a plain number.
type Rate int64

// UnmarshalTOML reads a rate.
func (r *Rate) UnmarshalTOML(value any) error {
	n, ok := scaled(value, 1000)
	if !ok {
		return fmt.Errorf(`%v is no bit rate: write for example "4M"`, value)
	}
	*r = Rate(n)
	return nil
}

func scaled(value any, base float64) (int64, bool) {
	switch v := value.(type) {
	case int64:
		return v, v >= 0
	case string:
		scale := 1.0
		if v != "" {
			if i := strings.IndexByte("KMGT", v[len(v)-1]); i >= 0 {
				scale, v = math.Pow(base, float64(i+1)), v[:len(v)-1]
			}
		}
		f, err := strconv.ParseFloat(v, 64)
		f *= scale
		// The comparison is false for NaN too.
		return int64(f), err == nil && f >= 0 && f < math.MaxInt64
	}
	return 0, false
}

// CPUs is a share of processors, 1 being all of one. It is written as a
// number, or in per cent as systemd does: "150%".
type CPUs float64

// UnmarshalTOML reads a share of processors.
func (c *CPUs) UnmarshalTOML(value any) error {
	f := math.NaN()
	switch v := value.(type) {
	case int64:
		f = float64(v)
	case float64:
		f = v
	case string:
		if percent, ok := strings.CutSuffix(v, "%"); ok {
			if p, err := strconv.ParseFloat(percent, 64); err == nil {
				f = p / 100
			}
		}
	}
	if !(f >= 0 && f <= 1e6) {
		return fmt.Errorf(`%v is no share of processors: write for example 1.5 or "150%%"`, value)
	}
	*c = CPUs(f)
	return nil
}

// Count is a number of processes.
type Count int

// UnmarshalTOML reads a number of processes.
func (c *Count) UnmarshalTOML(value any) error {
	n, ok := value.(int64)
	if !ok || n < 0 || n > math.MaxInt32 {
		return fmt.Errorf("%v is no number of processes", value)
	}
	*c = Count(n)
	return nil
}
