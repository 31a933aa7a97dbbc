package stream

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"

	"go.uber.org/goleak"

	"tatolab.com/tatolab/service/api"
	"tatolab.com/tatolab/service/graph"
	"tatolab.com/tatolab/service/keeper"
	"tatolab.com/tatolab/service/logstore"
	"tatolab.com/tatolab/service/switchboard"
)

// The test binary is the keeper too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keeper" {
		os.Exit(keeper.Main())
	}
	goleak.VerifyTestMain(m)
}

// A stream can be asked for its nodes at any moment: before it has a graph, and
// after its end, too.
func TestNodes(t *testing.T) {
	s, err := New("s", Env{
		Board:   switchboard.New(func(string, switchboard.Status) {}),
		Log:     func(api.Record) {},
		Say:     func(slog.Level, logstore.MessageID, string, string) {},
		Changed: func() {},
		Guard:   func(work func()) { work() },
	})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(want error) {
		t.Helper()
		if nodes, err := s.Nodes(t.Context()); !errors.Is(err, want) || nodes != nil {
			t.Errorf("%v, %v, want %v", nodes, err, want)
		}
	}
	ask(ErrEmpty)
	s.Apply(&Version{Graph: &graph.Graph{Stream: "s"}})
	ask(nil)
	s.Stop()
	ask(ErrEnded)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Nodes(late); err == nil {
		t.Error("no error of a stream that has ended")
	}
}
