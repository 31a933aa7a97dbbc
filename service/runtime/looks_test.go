package runtime

import (
	"strings"
	"testing"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
)

// No face checks what it is given: the runtime does, for all of them.
func TestWhatIsAskedFor(t *testing.T) {
	r := &Runtime{entries: []*entry{{name: "watcher", att: &Attachment{}, version: watcher()}}}
	loud := api.LogFilter{Level: "loud"}
	for what, ask := range map[string]func() error{
		`level "loud"`: func() error { _, err := r.Log("", loud); return err },
		`"loud"`:       func() error { _, err := r.FollowLog(t.Context(), "", loud); return err },
		`level "secret"`: func() error {
			_, err := r.Expose(t.Context(), "watcher", graph.End{Node: "detector", Port: "motion"}, "secret")
			return err
		},
		"absolute": func() error { _, err := r.Attach(t.Context(), api.Load{Project: "here"}); return err },
		`"here"`:   func() error { _, err := r.Keep(t.Context(), api.Load{Project: "here"}); return err },
		"":         func() error { _, err := r.Nodes(t.Context(), ""); return err },
	} {
		if err := ask(); err == nil || api.AsError(err).Code != api.BadRequest || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want a BadRequest of %s", err, what)
		}
	}
}
