package stream

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"time"

	"tatolab.com/tatolab/service/control"
	"tatolab.com/tatolab/service/graph"
)

// liveKeys are the configuration keys that built-in nodes take while they run,
// by class: a change of these alone restarts nothing.
var liveKeys = map[string][]string{"CameraSource": {"controls"}}

// configureLimit is how long a node that works may take to say whether it takes
// a configuration. A camera's driver has to be asked.
const configureLimit = 3 * time.Second

// configure sends every process of the wanted version, loading ones included,
// its new configuration, where that differs in such keys.
func (s *Stream) configure(v *Version) {
	for _, i := range s.instances {
		i.asked, i.refusal = 0, ""
	}
	for _, n := range v.Graph.Nodes {
		if liveKeys[n.BuiltinClass()] == nil {
			continue
		}
		wanted, config := identity(v, n), canonical(n.Config)
		for _, i := range s.instances {
			if i.node == n.Name && i.proc != nil && i.identity == wanted && i.config != config {
				i.config = config
				s.configures++
				i.asked = s.configures
				i.proc.Send(&control.Message{Kind: control.Configure, ID: i.asked, Config: n.Config})
			}
		}
	}
}

// configured notes what a node says to a configuration. What it refuses is logged
// where nobody waits to be told.
func (s *Stream) configured(i *instance, id uint64, refusal string) {
	if id == i.asked {
		i.asked, i.refusal = 0, refusal
	}
	if refusal != "" && s.asking == 0 && i.said.allow(time.Now()) {
		s.env.Say(slog.LevelWarn, "", i.node, refusal)
	}
	s.tell()
}

// tell has Configured look again.
func (s *Stream) tell() {
	for _, c := range s.curious {
		close(c)
	}
	s.curious = nil
}

// Ask has what nodes refuse told by Configured alone, and not logged as well, until
// done is called. It comes before the Apply: the answer may be quick.
func (s *Stream) Ask() (done func()) {
	s.do(func() { s.asking++ })
	return func() { s.do(func() { s.asking-- }) }
}

// Configured waits until nodes have said whether they take the configurations
// that the last Apply gave them while they run. It returns why those refuse that
// do, and why others take theirs later, by node.
func (s *Stream) Configured(ctx context.Context, nodes []string) (refused, later map[string]string) {
	ctx, cancel := context.WithTimeout(ctx, configureLimit)
	defer cancel()
	for {
		refused, later = map[string]string{}, map[string]string{}
		var news chan struct{}
		runs := s.do(func() {
			answer := false
			for _, n := range s.version.Graph.Nodes {
				if !slices.Contains(nodes, n.Name) || liveKeys[n.BuiltinClass()] == nil {
					continue
				}
				var process *instance // that works, or is about to
				for _, i := range s.instances {
					if i.node == n.Name && i.proc != nil && (process == nil || i.works) {
						process = i
					}
				}
				switch {
				case process == nil:
					later[n.Name] = "it is not running"
				case process.refusal != "":
					refused[n.Name] = process.refusal
				case process.asked == 0:
				case !process.works:
					later[n.Name] = "it is starting"
				case process.condition != "":
					later[n.Name] = process.remark
				default:
					later[n.Name], answer = "it has not answered", true
				}
			}
			if answer && ctx.Err() == nil {
				news = make(chan struct{})
				s.curious = append(s.curious, news)
			}
		})
		if !runs || news == nil {
			return refused, later
		}
		select {
		case <-news:
		case <-s.done:
			return refused, later
		case <-ctx.Done(): // once more, without waiting
			s.do(func() { s.curious = slices.DeleteFunc(s.curious, func(c chan struct{}) bool { return c == news }) })
		}
	}
}

// identity of a node: what makes it another one when it differs.
func identity(v *Version, n graph.Node) string {
	class := v.Classes[n.Name]
	var config any
	_ = json.Unmarshal(n.Config, &config)
	if values, ok := config.(map[string]any); ok {
		for _, key := range liveKeys[n.BuiltinClass()] {
			delete(values, key)
		}
	}
	data, _ := json.Marshal([]any{class.Hash, class.Inputs, class.Outputs, class.Execution, config, inboundNames(v.Graph, n.Name), v.Environ, v.Interpreter})
	return string(data)
}

// canonical is a configuration written in one way: keys sorted, no spaces.
func canonical(config json.RawMessage) string {
	var value any
	_ = json.Unmarshal(config, &value)
	data, _ := json.Marshal(value)
	return string(data)
}

// pause tells every process that works whether it is to do nothing for now, where
// that has changed.
func (s *Stream) pause() {
	for _, i := range s.instances {
		paused := s.version.Paused[i.node]
		if !i.works || i.proc == nil || i.paused == paused {
			continue
		}
		kind := control.Resume
		if paused {
			kind = control.Pause
		}
		i.paused = paused
		i.proc.Send(&control.Message{Kind: kind})
	}
}
