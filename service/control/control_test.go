package control

import (
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// A node that ends while something for it is still unread has said its last
// words all the same.
func TestLastWordsAreHeard(t *testing.T) {
	runtime, file, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.Close()
	node := newConn(file)
	if err := unix.SetNonblock(int(file.Fd()), true); err != nil {
		t.Fatal(err)
	}
	if err := runtime.Send(&Message{Kind: Unlink, ID: 1}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{Stopping, Stopped} {
		if err := node.Send(&Message{Kind: kind}); err != nil {
			t.Fatal(err)
		}
	}
	node.Close()
	for _, kind := range []string{Stopping, Stopped} {
		m, err := runtime.Receive()
		if err != nil || m.Kind != kind {
			t.Fatalf("%+v, %v instead of %s", m, err, kind)
		}
	}
	if m, err := runtime.Receive(); err != io.EOF {
		t.Errorf("%+v, %v instead of the end", m, err)
	}
}
