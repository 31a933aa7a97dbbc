package runtime

import (
	"testing"

	"tatolab.com/tatolab/service/api"
)

// A request that was on its way when the runtime was told to stop starts
// nothing that Close would not end.
func TestNothingIsLoadedAfterClose(t *testing.T) {
	e := &entry{name: "watcher", att: &Attachment{events: make(chan api.Event)}}
	r := &Runtime{entries: []*entry{e}, end: func() {}}
	r.Guard = func(string, func()) { t.Error("work was done for a stream after Close") }
	r.Close()
	if _, err := r.apply(e, watcher()); api.AsError(err).Code != api.ShuttingDown {
		t.Errorf("a load after Close: %v", err)
	}
}
