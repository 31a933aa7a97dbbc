package cli

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"tatolab.com/tatolab/service/api"
)

const manLive = "It holds until the stream is loaded anew (by a save under tatolab dev, tatolab run -d, tatolab restart, a start of the runtime): the record of a kept stream stays as it is."

func setCommand() *command {
	return &command{
		name: "set", args: "STREAM/NODE KEY=VALUE…", short: "change the configuration of a node, live",
		long: `Changes keys of a running node's configuration. VALUE is JSON, or else taken as text; null takes the key out; a dot in KEY goes into an object. What the node's class would refuse is refused, with the keys there are or the range, before the node is touched. Then the node is restarted with its new configuration, but for the controls of a camera, which it takes while it runs; nothing else of the stream is touched. A control that the camera refuses is an error, and nothing of the change is kept; a camera that is away takes the change when it is back.

` + manLive,
		examples: [][2]string{
			{"tatolab set motion_watcher/detector sensitivity=0.05", ""},
			{"tatolab set motion_watcher/camera controls.brightness=140", "no frame is lost"},
		},
		min: 2, max: math.MaxInt, complete: []subject{subjectStream},
		setup: func(*pflag.FlagSet) action {
			return func(ctx context.Context, e *environment, args []string) error {
				stream, node, err := nodeOf(args[0])
				if err == nil && node == "" {
					err = usagef("%q is no STREAM/NODE", args[0])
				}
				if err != nil {
					return err
				}
				patch := map[string]any{}
				for _, arg := range args[1:] {
					key, value, ok := strings.Cut(arg, "=")
					path := strings.Split(key, ".")
					if !ok || slices.Contains(path, "") {
						return usagef("%q is no KEY=VALUE", arg)
					}
					if !put(patch, path, value) {
						return usagef("%s is given twice", key)
					}
				}
				keys := map[string]json.RawMessage{}
				for key, value := range patch {
					if keys[key], err = json.Marshal(value); err != nil {
						return err
					}
				}
				return e.change(ctx, stream, api.Changes{Set: map[string]map[string]json.RawMessage{node: keys}})
			}
		},
	}
}

func pauseCommand() *command {
	return restCommand("pause", "have a node, or all of a stream, do nothing for now",
		`Pauses a node, or every node of a stream: its process callback is not called until tatolab resume; what it has open, a camera say, stays open. A node in Python is told by on_pause. What it would read meanwhile is dropped: newest input has the latest bag when it resumes, ordered input the last 16.

`+manLive, func(nodes []string) api.Changes { return api.Changes{Pause: nodes} })
}

func resumeCommand() *command {
	return restCommand("resume", "have what was paused go on",
		"Lets a node, or every node of a stream, go on after tatolab pause. A node in Python is told by on_resume.",
		func(nodes []string) api.Changes { return api.Changes{Resume: nodes} })
}

// restCommand makes pause and resume.
func restCommand(verb, short, long string, changes func([]string) api.Changes) *command {
	return &command{
		name: verb, args: "STREAM[/NODE]", short: short, long: long,
		min: 1, max: 1, complete: []subject{subjectStream},
		setup: func(*pflag.FlagSet) action {
			return func(ctx context.Context, e *environment, args []string) error {
				stream, node, err := nodeOf(args[0])
				if err != nil {
					return err
				}
				nodes := []string{node}
				if node == "" {
					g, err := e.runtime.Graph(ctx, stream)
					if err != nil {
						return err
					}
					nodes = nil
					for _, n := range g.Nodes {
						nodes = append(nodes, n.Name)
					}
				}
				return e.change(ctx, stream, changes(nodes))
			}
		},
	}
}

// nodeOf reads STREAM or STREAM/NODE.
func nodeOf(text string) (stream, node string, err error) {
	stream, node, within := strings.Cut(text, "/")
	if within && (node == "" || strings.Contains(node, "/")) {
		return "", "", usagef("%q is no STREAM/NODE", text)
	}
	stream, err = streamName(stream)
	return stream, node, err
}

// change applies changes to a live graph and says what came of it.
func (e *environment) change(ctx context.Context, stream string, changes api.Changes) error {
	done, err := e.runtime.Change(ctx, stream, changes)
	if err != nil {
		return err
	}
	e.print.line("%s", done.Note)
	return nil
}

// put puts a value into nested objects; false if there is one already.
func put(object map[string]any, path []string, text string) bool {
	there, taken := object[path[0]]
	if len(path) > 1 {
		inner, ok := there.(map[string]any)
		if !ok && taken {
			return false
		}
		if !taken {
			inner = map[string]any{}
			object[path[0]] = inner
		}
		return put(inner, path[1:], text)
	}
	if taken {
		return false
	}
	var value any = text
	if json.Valid([]byte(text)) {
		value = json.RawMessage(text)
	}
	object[path[0]] = value
	return true
}
