package sharing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tatolab.com/tatolab/internal/testbed"
	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/client"
	"tatolab.com/tatolab/service/graph"
)

// side is one stream of the play, and how it should be.
type side struct {
	name, node string
	project    string
	attached   bool // else kept
	runs       bool
	end        context.CancelFunc // of an attached one
	lease      string
}

// play is a source and two readers, to which things happen.
type play struct {
	t       *testing.T
	r       *testbed.Runtime
	c       *client.Client
	ctx     context.Context
	exposed bool
	sides   []*side // the first is the source
}

// Starting, stopping, reloading, crashing either side, exposing and cutting, in
// any order and side by side, and the runtime's own end, end in the right state.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("TATOLAB_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("TATOLAB_SEED=%d plays this again", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	steps, limit := 2000, 30*time.Second
	if soak {
		limit = 3 * time.Hour
	}

	r := testbed.Run(t)
	readers := talking(map[string]string{"listen": "talk/talker/count", "visit": "talk/talker/count"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := &play{t: t, r: r, c: r.Client(), ctx: ctx, exposed: true, sides: []*side{
		{name: "talk", node: "talker", project: r.Project("talk", talking(nil)), runs: true},
		{name: "listen", node: "listener", project: r.Project("listen", readers), runs: true},
		{name: "visit", node: "listener", project: r.Project("visit", readers), attached: true},
	}}
	for _, s := range p.sides {
		if s.runs {
			r.Must(s.project, "run", "-d", "stream.py:"+s.name)
		}
	}
	p.settles("at the beginning")
	begun, done := time.Now(), 0
	for done < steps && time.Since(begun) < limit {
		// Up to two things in a row to each side, the sides at once.
		var acts sync.WaitGroup
		var said []string
		for _, s := range p.sides {
			var list []action
			for range random.IntN(3) {
				a := p.choose(random, s)
				list = append(list, a)
				said = append(said, a.name)
				done++
			}
			acts.Go(func() {
				for _, a := range list {
					if err := a.do(); err != nil {
						t.Errorf("%s: %v", a.name, err)
					}
				}
			})
		}
		acts.Wait()
		if random.IntN(20) == 0 {
			said = append(said, "restart of the runtime")
			p.restart(random)
			done++
		}
		p.settles(strings.Join(said, ", "))
		if t.Failed() {
			break
		}
	}
	t.Logf("%d steps", done)
	if strings.Contains(r.Output(), "did not cut a reader off") {
		t.Error("a producer that was well was ended for not cutting a reader off")
	}
}

type action struct {
	name string
	do   func() error
}

// choose picks what happens next to a side, and notes what it should come to.
func (p *play) choose(random *rand.Rand, s *side) action {
	choices := []string{"toggle", "toggle", "replace", "crash"}
	if s == p.sides[0] {
		choices = append(choices, "expose", "expose")
	}
	choice := choices[random.IntN(len(choices))]
	act := func(name string, do func() error) action { return action{name + " " + s.name, do} }
	kept := func(do func(context.Context, string) (*api.Done, error)) func() error {
		return func() error { _, err := do(p.ctx, s.name); return err }
	}
	switch {
	case choice == "expose":
		p.exposed = !p.exposed
		level := graph.Internal
		if p.exposed {
			level = graph.Private
		}
		return act("expose "+string(level), func() error { _, err := p.c.Expose(p.ctx, s.name, end("talker/count"), level); return err })
	case choice == "toggle" && s.runs && s.attached:
		s.runs = false
		return act("leave", func() error { s.end(); return nil })
	case choice == "toggle" && s.runs:
		s.runs = false
		return act("stop", kept(p.c.Stop))
	case choice == "toggle" && s.attached:
		s.runs = true
		return act("attach", func() error { return p.attach(s) })
	case choice == "toggle":
		s.runs = true
		return act("start", kept(p.c.Start))
	case choice == "crash" || s.attached && !s.runs:
		return act("crash", func() error { p.crash(s); return nil })
	case s.attached:
		return act("reload", func() error { return p.reload(s) })
	default:
		s.runs = true
		return act("restart", kept(p.c.Restart))
	}
}

// attach loads an attached stream. Its last command may have left a moment ago.
func (p *play) attach(s *side) error {
	limit := time.Now().Add(settles)
	for {
		ctx, end := context.WithCancel(p.ctx)
		events, err := p.c.Attach(ctx, api.Load{Project: s.project, Target: "stream.py:" + s.name})
		for err == nil {
			var event api.Event
			if event, err = events.Next(); err == nil && event.Kind == api.EventLoaded {
				s.end, s.lease = end, event.Lease
				return nil
			}
			if err == nil && event.Error != nil {
				err = event.Error
			}
		}
		end()
		if api.AsError(err).Code != api.NameInUse || time.Now().After(limit) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// reload saves the node of an attached stream with a change.
func (p *play) reload(s *side) error {
	file := filepath.Join(s.project, "nodes/talk.py")
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, append(data, "VERSION = 1\n"...), 0o644); err != nil {
		return err
	}
	_, err = p.c.Reload(p.ctx, s.lease)
	return err
}

// crash kills the process of a side's node, if it has one.
func (p *play) crash(s *side) {
	g, err := p.c.Graph(p.ctx, s.name)
	if err != nil {
		return
	}
	for _, n := range g.Nodes {
		if n.PID != 0 {
			unix.Kill(n.PID, unix.SIGKILL)
		}
	}
}

// restart ends the runtime, one way or another, and starts it again: kept
// streams are back as they were, attached ones are not.
func (p *play) restart(random *rand.Rand) {
	if random.IntN(2) == 0 {
		p.r.Kill(unix.SIGKILL)
	} else {
		p.r.Stop()
	}
	p.r.Start()
	for _, s := range p.sides {
		s.runs = s.runs && !s.attached
	}
}

// settles waits until every reader's link is as it should be.
func (p *play) settles(after string) {
	p.t.Helper()
	source := p.sides[0]
	const address = "talk/talker/count"
	for _, s := range p.sides[1:] {
		var first uint64
		var seen bool
		testbed.Eventually(p.t, 2*settles, func() string {
			wrong := func(format string, args ...any) string {
				return fmt.Sprintf("after %s: %s %s", after, s.name, fmt.Sprintf(format, args...))
			}
			g, err := p.c.Graph(p.ctx, s.name)
			switch {
			case !s.runs && err != nil && api.AsError(err).Code == api.NoSuchStream && s.attached:
				return ""
			case err != nil:
				return wrong("has no graph: %v", err)
			case !s.runs && s.attached:
				return wrong("is still there")
			case !s.runs && g.State == api.Stopped:
				return ""
			case !s.runs:
				return wrong("is %s, not stopped", g.State)
			case len(g.Links) != 1:
				return wrong("has no link")
			}
			l, want := g.Links[0], ""
			switch {
			case !source.runs:
				want = "needs " + address + ": talk is stopped"
			case !p.exposed:
				want = "needs " + address + ": it is not exposed, its level is internal"
			}
			switch {
			case want != "" && (l.State != api.LinkAwaitingRemote || l.Reason != want):
				return wrong("is %s: %q, want %q", l.State, l.Reason, want)
			case want != "":
				return ""
			case l.State != api.LinkWired:
				return wrong("is %s: %s", l.State, l.Reason)
			}
			if !seen || l.Received < first {
				first, seen = l.Received, true
			}
			if l.Received == first {
				return wrong("is wired and receives nothing: %+v", l)
			}
			return ""
		})
	}
}
